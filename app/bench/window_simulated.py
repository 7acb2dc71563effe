"""The whole window over a simulated engine in a child process, one scale a process. A part of `bench window`.

The engine is the real one but for its forward pass (`engine/simulation`), paced to so many steps a second; the window
is the real one, and the mouse is in its pool all the time. After the measured seconds each view is refreshed and
painted by itself; then the window is judged, step by hundredth step, by keyframes that the child makes of its own
structures, and so is a picture of its pool.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING

from app.bench.runs import BenchFailed
from app.bench.window_load import BUDGET, Load, Steady
from engine.records import Change, Gap, Keyframe, Message, Pause, SendKeyframe, StepRecord, decode, encode

if TYPE_CHECKING:
    from PySide6.QtWidgets import QWidget

    from app.session import Session
    from ui.changes import Kinds

MAIN = ("pool", "tables", "batch", "speculation", "memory", "latency", "requests")
SETTLE = 2.0  # s of the steady load before anything is counted
START_LIMIT, FILL_LIMIT, RECOUNT_LIMIT = 60.0, 120.0, 180.0  # s
ROUNDS = 60  # refreshes and paints of each view by itself
RECOUNT_EVERY = 100  # steps
KEPT = 2_000  # records whose encoding is timed


@dataclass(frozen=True)
class Asked:
    load: Load
    size: tuple[int, int]
    seconds: float  # measured
    recounts: int  # keyframes that the window is compared with afterwards


class Measured:
    """Drives one session through filling, measuring and judging; `turn` is called often.

    Attributes:
        figures: what was found, once it is over.
    """

    def __init__(self, asked: Asked):
        self.asked = asked
        self.figures: dict[str, object] = {}
        self._script = self._play()
        self._session: Session | None = None
        self._records: list[StepRecord] = []  # the last ones
        self._times: dict[str, list[int]] = {"apply": [], "decode": []}
        self._judged: list[tuple[int, list[str]]] = []  # step, differences
        self._measuring = self._judging = False
        self._lost = self._seen_lost = 0  # gaps; those that a keyframe has followed

    def turn(self, session: Session) -> bool:
        """True when all is done. Raises BenchFailed."""
        if self._session is None:
            self._session = session
        if session.source.state in ("dead", "ended"):
            died = session.window.mirror.died
            raise BenchFailed(died.reason if died else "the engine ended")
        return next(self._script, "done") == "done"

    # --- what happens, in order; a yield is a turn of the event loop ---

    def _play(self) -> Iterator[str]:
        yield "begin"
        session, load = self._session, self.asked.load
        assert session is not None
        window, source = session.window, session.source
        steady = Steady(load, session.workload.submit)
        source.listeners.append(steady.hear)
        yield from self._until(lambda: window.mirror.ready is not None, START_LIMIT, "the engine was not ready")
        self._follow(window.mirror)
        begun = time.monotonic()
        steady.begin()
        yield from self._until(lambda: steady.busy, FILL_LIMIT, f"{load.sequences} sequences didn't come to run")
        filled = time.monotonic() - begun
        source.send(Change(id=source.next_id(), changes={"token_budget": BUDGET + load.sequences}))
        from app.bench.window_hand import Hand

        hand = Hand(window.deck.docks["pool"].view.canvas)
        hand.start()
        yield from self._for(SETTLE)
        yield from self._measure(hand, steady, filled)
        hand.stop()
        yield from self._for(0.2)
        self.figures["views"] = yield from self._views()
        if self.asked.recounts:
            yield from self._recount()
        self.figures["rss_mb_end"] = _rss_mb()

    def _measure(self, hand, steady: Steady, filled: float) -> Iterator[str]:
        window = self._session.window
        for times in self._times.values():
            times.clear()
        self._records.clear()
        window.frames.clear()
        start, began, moves = _rss_mb(), time.monotonic(), hand.moves
        step, gaps = window.mirror.last_step, len(window.mirror.gaps)
        self._measuring = True
        yield from self._for(self.asked.seconds)
        self._measuring = False
        spent, frames, mirror = time.monotonic() - began, window.frames, window.mirror
        found: dict[str, object] = {"seconds": _r(spent), "steps_per_s_reached": _r((mirror.last_step - step) / spent)}
        found |= {f"frame_ms_p{q}": _r(frames.percentile_ms(q)) for q in (50, 99)}
        for part in ("apply", "refresh", "paint"):
            found |= {f"frame_{part}_ms_p{q}": _r(frames.percentile_ms(q, part)) for q in (50, 99)}
        found["frames_per_s"] = _r(frames.count / spent)
        found["frames_skipped"] = frames.skipped
        found |= _percentiles("apply_us", self._times["apply"], 1e3)
        found |= self._encoding()
        live = mirror.live
        found["views_visible"] = [key for key in MAIN if window.deck.docks[key].shown]
        found["mouse"] = {"moves": hand.moves - moves, "notches": hand.notches}
        found["pool"] = {"used": live.used, "cached": live.cached, "free": live.free, "shared": live.shared}
        found["running"] = steady.running
        found["fill_seconds"] = round(filled, 1)
        found["lost_records"] = len(mirror.gaps) - gaps
        found["rss_mb_start"], found["rss_mb_end"] = start, _rss_mb()
        self.figures |= found

    def _encoding(self) -> dict[str, float]:
        """Of the last records, encoded again here: the child's own thread does so beside its steps."""
        encoded, decoded, sizes = [], [], []
        for record in self._records:
            start = perf_counter_ns()
            data = encode(record)
            encoded.append(perf_counter_ns() - start)
            start = perf_counter_ns()
            decode(data)
            decoded.append(perf_counter_ns() - start)
            sizes.append(len(data))
        found = _percentiles("encode_us", encoded, 1e3) | _percentiles("decode_us", decoded, 1e3)
        return found | {"record_bytes": round(sum(sizes) / max(1, len(sizes)))}

    def _views(self) -> Generator[str, None, dict[str, dict[str, float]]]:
        """Refresh and paint of each view in sight, by itself, ms, while records go on to come."""
        window = self._session.window
        shown = {key: dock.view for key, dock in window.deck.docks.items() if dock.shown}
        spent: dict[str, list[int]] = {key: [] for key in shown}
        window.clock.stop()
        for _ in range(ROUNDS):
            time.sleep(1 / 60)
            kinds = window.mirror.apply_all(window.context.source.poll())
            for key, view in shown.items():
                spent[key].append(_painted(view, kinds))
            yield "wait"  # the event loop has its turn, never within this one: qasync doesn't stand that
        window.clock.start()
        return {key: _percentiles("ms", times, 1e6) for key, times in spent.items()}

    def _recount(self) -> Iterator[str]:
        session = self._session
        window, source = session.window, session.source
        self._judging, lost = True, self._lost
        source.send(SendKeyframe(id=source.next_id(), every=RECOUNT_EVERY))
        wanted = self.asked.recounts
        told = f"the window had {len(self._judged)} of {wanted} keyframes"
        yield from self._until(lambda: len(self._judged) >= wanted, RECOUNT_LIMIT, told)
        self._judging = False
        source.send(SendKeyframe(id=source.next_id(), every=0))
        source.send(Pause(id=source.next_id()))
        yield from self._until(lambda: window.mirror.status.paused, RECOUNT_LIMIT, "the engine didn't pause")
        yield from self._for(1.0)  # no record is on its way any more, and every view has drawn the last
        from app.bench.pool_decoder import misread

        canvas = window.deck.docks["pool"].view.canvas
        wrong = misread(canvas, window.mirror.live, window.theme)
        self.figures |= {
            "recounted": len(self._judged),
            "gaps_while_recounted": self._lost - lost,
            "equal": sum(not found for _, found in self._judged),
            "differences": [f"step {step}: {what}" for step, found in self._judged for what in found][:20],
            "picture_pixels": canvas.grid.size[0] * canvas.grid.size[1],
            "picture_pixels_wrong": wrong,
        }

    # --- listening ---

    def _follow(self, mirror) -> None:
        """Time every record that is applied, and judge by every keyframe before it is taken."""
        from app.bench.recount import differences

        inner, times = mirror.apply, self._times["apply"]

        def apply(message: Message) -> Kinds:
            if isinstance(message, Gap):
                self._lost += 1
            if isinstance(message, Keyframe) and self._judging:
                if self._lost == self._seen_lost:
                    self._judged.append((message.step, differences(mirror.live, message)))
                self._seen_lost = self._lost  # a window that lost records says so, and begins anew from the keyframe
            start = perf_counter_ns()
            kinds = inner(message)
            if self._measuring and isinstance(message, StepRecord):
                times.append(perf_counter_ns() - start)
                self._records.append(message)
                del self._records[:-KEPT]
            return kinds

        mirror.apply = apply

    # --- waiting ---

    @staticmethod
    def _for(seconds: float) -> Iterator[str]:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            yield "wait"

    @staticmethod
    def _until(condition, limit: float, trouble: str) -> Iterator[str]:
        end = time.monotonic() + limit
        while not condition():
            if time.monotonic() > end:
                raise BenchFailed(f"{trouble} within {limit:g} s")
            yield "wait"


def measure(asked: Asked) -> dict[str, object]:
    """Raises BenchFailed."""
    from PySide6.QtWidgets import QApplication

    from app.session import Appearance, Session
    from app.settings import Unsaved
    from ui.contracts import WorkloadSettings

    load, measured, failure = asked.load, Measured(asked), []
    session = Session(
        load.config(), Appearance("dark", 1.0, asked.size), WorkloadSettings(running=False), settings=Unsaved()
    )

    def until(session: Session) -> bool:
        try:
            return measured.turn(session)
        except BenchFailed as error:
            failure.append(error)
            return True

    session.run(until)
    if failure:
        raise failure[0]
    first = {
        "blocks": load.blocks,
        "sequences": load.sequences,
        "steps_per_s": load.steps_per_s,
        "size": list(asked.size),
        "platform": QApplication.platformName(),
        "simulated": True,
    }
    return first | measured.figures | {"load": load.told()}


def _painted(view: QWidget, kinds: Kinds) -> int:
    start = perf_counter_ns()
    view.refresh(kinds)
    view.repaint()
    return perf_counter_ns() - start


def _percentiles(name: str, spent: list[int], unit: float) -> dict[str, float]:
    ordered = sorted(spent)
    if not ordered:
        return {}
    return {
        f"{name}_p50": _r(ordered[len(ordered) // 2] / unit),
        f"{name}_p99": _r(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] / unit),
    }


def _r(value: float) -> float:
    return round(value, 2)


def _rss_mb() -> float:
    from app.host import host_memory

    return _r((host_memory(os.getpid()).own or 0) / 1e6)


def main() -> int:
    asked = json.loads(sys.argv[1])
    try:
        found = measure(Asked(Load(**asked["load"]), tuple(asked["size"]), asked["seconds"], asked["recounts"]))
    except BenchFailed as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(found))
    return 0


def words(asked: Asked) -> str:
    """The argument of a process that runs it."""
    return json.dumps(asdict(asked))


if __name__ == "__main__":
    raise SystemExit(main())
