"""Whether anything grows while the window serves for an hour: memory of window and engine, open files, threads, timers,
Qt's objects and Python's.

The real window without a screen over the real engine in its child, under a steady load of mixed requests, while a hand
hovers, scrolls, drags settings and tells stories. Histories are bounded, but what is still filling grows: so they are
made smaller (--history), and nothing counts before they are full or a quarter of the time is over, whichever is later.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import sys
import time
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections import Counter

    from app.session import Session

EXAMPLES = """example:
  servescope bench soak --minutes 60 --json
  servescope bench soak --minutes 30 --simulate h200:llama-3-8b --json"""

WARM_UP = 0.25  # of the time, at least; at most twice that, should a history never be full
START_LIMIT = 180.0  # s that loading may take
SAMPLES = 400  # about, over the whole time; not more often than EVERY
EVERY = 1.0  # s
LOOKS = 8  # samples for each that counts objects
STEADY = 0.25  # of the most steps that a quarter made, the fewest: less is no load of which anything could be said
TELL_EVERY = 60.0  # s, on standard error
SETTINGS = {"max_batch": "24", "kv_blocks": "768", "max_context": "2048"}  # a pool that makes do with preemption


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from app.options import add_engine_options, add_simulate

    add_engine_options(parser)
    add_simulate(parser)
    parser.add_argument("--minutes", type=float, default=60.0, metavar="M", help="of load (default 60)")
    parser.add_argument("--streams", type=int, default=16, metavar="N",
                        help="sequences kept running or waiting, beside the hand's own (default 16)")  # fmt: skip
    parser.add_argument("--history", type=float, default=0.1, metavar="F",
                        help="share of the window's histories, so that they are soon full (default 0.1)")  # fmt: skip
    parser.add_argument("--unpaced", action="store_true", help="simulated: as many steps as the machine can make")
    parser.add_argument("--size", default="1600x1000", metavar="WxH", help="of the window")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    from app.fitting import fit, given, unpaced
    from app.options import STARTING, UsageError, engine_config, within
    from app.shot import _size

    if not sys.platform.startswith("linux"):
        raise UsageError("bench soak reads /proc, which only Linux has; run it there")
    within("--minutes", args.minutes, 0.5, 24 * 60)
    within("--history", args.history, 0.001, 1.0)
    within("--streams", args.streams, 1, 1024)
    try:
        size = _size(args.size)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"--size {error}") from None
    mine = [f"{key}={value}" for key, value in SETTINGS.items() if key not in given(args.set)]
    args.set = mine + args.set
    config = fit(engine_config(args, STARTING), given(args.set))
    if args.unpaced:
        if config.simulation is None:
            raise UsageError("--unpaced is for --simulate: a real engine takes the time it takes")
        config = unpaced(config)
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    result = _measure(config, size, args)
    if args.json:
        print(json.dumps(result))
    else:
        _print(result)
    return 0 if result["flat"] else 1


def _measure(config, size: tuple[int, int], args: argparse.Namespace) -> dict:
    from app.bench.runs import BenchFailed
    from app.session import Appearance, Session
    from app.settings import Unsaved
    from ui.contracts import WorkloadSettings

    # as many as have ended are sent, whatever the machine can do: arrivals at a rate would queue up on a slower one
    load = WorkloadSettings(running=False, prompt_tokens=180, output_tokens=64)
    session = Session(config, Appearance("dark", 1.0, size), load, settings=Unsaved())
    soak = _Soak(60 * args.minutes, args.history, args.streams, config.simulation is not None)
    code = session.run(soak.turn)
    if code:
        raise KeyboardInterrupt
    if soak.failure:
        raise BenchFailed(soak.failure)
    return soak.result() | {"streams": args.streams, "size": list(size), "history": args.history}


class _Told(logging.Handler):
    """What the window logs as an error, such as a view that can't be drawn."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.errors: list[str] = []
        self.is_attached = False

    def attach(self) -> None:
        logging.getLogger("ui").addHandler(self)
        self.is_attached = True

    def emit(self, record: logging.LogRecord) -> None:
        why = record.exc_info[1] if record.exc_info else None
        self.errors.append(f"{record.getMessage()}: {type(why).__name__}: {why}" if why else record.getMessage())


class _Soak:
    """Called twenty times a second while the window runs; True when it is over."""

    def __init__(self, seconds: float, share: float, streams: int, simulated: bool):
        self._seconds, self._share, self._streams, self._simulated = seconds, share, streams, simulated
        self._every = max(EVERY, seconds / SAMPLES)
        self._created = time.monotonic()
        self._began = self._next = 0.0
        self._tell = TELL_EVERY
        self._warm = 0.0  # when the warm-up was over
        self._hand = None
        self._before: Counter[str] | None = None
        self._after: Counter[str] | None = None
        self._counted: dict[str, object] = {}
        self._told = _Told()
        self._objects: dict[str, float] = {}
        self._steps: list[int] = []  # made by each sample
        self.times: list[float] = []
        self.values: dict[str, list[float]] = {}
        self.failure = ""

    def turn(self, session: Session) -> bool:
        now, mirror = time.monotonic(), session.window.mirror
        if session.source.state == "dead":
            self.failure = mirror.died.reason if mirror.died else "the engine died"
            return True
        if self._hand is None:
            self._begin(session, now)
            if now - self._created > START_LIMIT:
                self.failure = f"the engine was not ready after {START_LIMIT:.0f} s"
            return bool(self.failure)
        self._hand.act(now)
        if session.window.serving and len(mirror.live.sequences) < self._streams:
            session.workload.send()
        if now >= self._next:
            self._next = now + self._every
            self._sample(session, now - self._began)
        if now - self._began < self._seconds:
            return False
        self._hand.rest()
        self._after = self._types()
        self._counted = self._count(session)
        return True

    def _begin(self, session: Session, now: float) -> None:
        from app.bench.soak_hand import Hand

        mirror = session.window.mirror
        if not self._told.is_attached:
            self._told.attach()
            mirror.keep(self._share)
        if mirror.ready is not None:
            self._hand = Hand(session, self._simulated)
            self._began = self._next = now

    def _sample(self, session: Session, at: float) -> None:
        from app.bench.soak_samples import objects, process

        window, engine = process(os.getpid()), process(session.source.pid or 0)
        if window is None or engine is None:
            return
        self._steps.append(session.window.mirror.last_step)
        found = {f"window_{key}": value for key, value in window.items()}
        # seldom: a look at Qt's objects leaves a Python object of each in this process, for as long as it lives
        if len(self.times) % LOOKS == 0:
            self._objects = objects(session.window)
        found |= {f"engine_{key}": value for key, value in engine.items()} | self._objects
        self.times.append(at)
        for key, value in found.items():
            self.values.setdefault(key, []).append(value)
        if at >= self._tell:
            self._tell += TELL_EVERY
            steps, sizes = session.window.mirror.last_step, f"{found['window_rss']:.1f} + {found['engine_rss']:.1f} MiB"
            print(f"{at / 60:5.1f} min, {steps:,} steps: window + engine {sizes}", file=sys.stderr)
        if self._before is None and self._is_warm(session, at):
            self._warm = at
            self._before = self._types()

    def _is_warm(self, session: Session, at: float) -> bool:
        full = all(session.window.mirror.full.values())
        toured = self._hand is not None and self._hand.toured
        return at >= 2 * WARM_UP * self._seconds or (full and toured and at >= WARM_UP * self._seconds)

    @staticmethod
    def _types() -> Counter[str]:
        from app.bench.soak_samples import types

        return types()

    def _steps_by_quarter(self, first: int) -> list[int]:
        """Steps made in each quarter of what counts."""
        steps = self._steps[first:]
        edges = [steps[(len(steps) - 1) * i // 4] for i in range(5)]
        return [b - a for a, b in pairwise(edges)]

    def _count(self, session: Session) -> dict[str, object]:
        mirror, history = session.window.mirror, session.window.mirror.history
        columns = history.slice()
        return {
            "simulated": self._simulated,
            "steps": mirror.last_step,
            "steps_per_s": round(mirror.last_step / self._seconds, 1),
            "requests": history.latency.ended,
            "frames": session.window.frames.count,
            "full": mirror.full,
            "drafts_accepted_kept": int(columns.accepted.sum()),
            "gaps": len(mirror.gaps),
            "drift": mirror.drift,
            "errors": self._told.errors,
            "gc_uncollectable": len(gc.garbage),
            "did": dict(self._hand.done) if self._hand else {},
        }

    def result(self) -> dict:
        from app.bench.soak_samples import QUANTITIES, grown
        from app.bench.soak_trend import trend

        first = next(i for i, at in enumerate(self.times) if at >= self._warm)
        times, told, grew = self.times[first:], {}, []
        for name, (unit, allowance) in QUANTITIES.items():
            found = trend(times, self.values[name][first:], allowance)
            told[name] = {
                "unit": unit,
                "per_hour": round(found.slope, 2),
                "interval": [round(found.low, 2), round(found.high, 2)],
                "first_quarter": round(found.first, 1),
                "last_quarter": round(found.last, 1),
                "allowed": round(found.allowed, 1),
                "flat": found.flat,
            }
            if not found.flat:
                grew.append(name)
        made = self._steps_by_quarter(first)
        steady = min(made) >= STEADY * max(made)
        healthy = steady and not self._counted["errors"] and not self._counted["drift"]
        return {
            "flat": not grew and healthy,
            "grew": grew,
            "steady": steady,
            "steps_by_quarter": made,
            "seconds": round(self._seconds),
            "warm_up_s": round(self._warm),
            "samples": len(times),
            **self._counted,
            "trends": told,
            "types": grown(self._before, self._after) if self._before and self._after else {},
        }


def _print(result: dict) -> None:
    word = "simulated, " if result["simulated"] else ""
    print(f"{word}{result['seconds']:,} s, {result['steps']:,} steps, {result['requests']:,} requests, "
          f"{result['samples']} samples after {result['warm_up_s']:,} s of warm-up")  # fmt: skip
    for name, found in result["trends"].items():
        (low, high), grows = found["interval"], "" if found["flat"] else "   GROWS"
        print(f"{name:<16}{found['first_quarter']:>12,.1f} → {found['last_quarter']:>12,.1f} {found['unit']:<8}"
              f"{found['per_hour']:>+10,.1f} an hour ({low:+,.1f} to {high:+,.1f}){grows}")
    why = ", ".join(result["grew"]) or "the load wasn't steady, a view failed, or the mirror drifted"
    print("flat" if result["flat"] else f"not flat: {why}")
