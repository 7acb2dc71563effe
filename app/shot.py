"""Take a picture of the live window: the real engine under the built-in workload, drawn without a screen."""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.bench.window_load import Steady

EXAMPLES = """examples:
  servescope shot window.png --seconds 20 --size 1600x1000 --theme dark --scale 1
  servescope shot full.png --simulate h200:smollm2-135m --set kv_blocks=400000 --full --select --size 1920x1080"""

DRAWN = 0.5  # s until what was chosen is seen in every view
FILL_LIMIT = 300.0  # s until pool and batch are full
START_LIMIT = 300.0  # s that fetching and loading the model may take before a shot gives up


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from app.options import add_engine_options, add_simulate
    from app.window import scale

    add_engine_options(parser)
    add_simulate(parser)
    parser.add_argument("out", metavar="OUT.png", help="where to write the picture")
    parser.add_argument("--seconds", type=_seconds, default=10.0, metavar="S", help="of workload before it is taken")
    parser.add_argument("--full", action="store_true",
                        help="with --simulate: fill the pool first and keep the batch full")  # fmt: skip
    parser.add_argument("--select", action="store_true", help="choose a sequence before it is taken")
    parser.add_argument("--size", type=_size, default=(1600, 1000), metavar="WxH", help="in pixels (default 1600x1000)")
    parser.add_argument("--theme", choices=("dark", "light"), default="dark")
    parser.add_argument("--scale", type=scale, default=1.0, metavar="F", help="size of text, 1 to 2")


def run(args: argparse.Namespace) -> int:
    from app import display
    from app.fitting import fit, given
    from app.options import STARTING, UsageError, engine_config

    out = Path(args.out)
    if out.suffix.lower() != ".png":
        raise UsageError(f"{out}: the picture is a PNG; name it {out.with_suffix('.png')}")
    if not out.resolve().parent.is_dir():
        raise UsageError(f"{out}: there is no folder {out.resolve().parent}")
    config = fit(engine_config(args, STARTING), given(args.set))
    if args.full and config.simulation is None:
        raise UsageError("--full fills the pool of a simulated engine; give --simulate DEVICE:MODEL with it")
    os.environ["QT_QPA_PLATFORM"] = "offscreen"
    from app.session import Appearance, Session
    from app.settings import Unsaved
    from app.workload.arrivals import SIMULATED_LOAD
    from ui.contracts import WorkloadSettings

    load = SIMULATED_LOAD if config.simulation is not None else None
    try:
        session = Session(
            config,
            Appearance(args.theme, args.scale, args.size),
            WorkloadSettings(running=False) if args.full else load,
            settings=Unsaved(),
        )
        shot = _Shot(out, args.seconds, args.full, args.select)
        code = session.run(until=shot.taken)
    except ImportError as error:
        print(f"servescope shot: {display.library_problem(error)}", file=sys.stderr)
        return 1
    if code:
        print("servescope shot: interrupted", file=sys.stderr)
        return code
    if shot.failure:
        print(f"servescope shot: {shot.failure}", file=sys.stderr)
        return 1
    print(out)
    return 0


class _Shot:
    """Waits for the engine, and with `full` until its pool and batch are full, lets the workload run for `seconds`,
    then grabs the window once, with a sequence chosen where `select` says so."""

    def __init__(self, out: Path, seconds: float, full: bool = False, select: bool = False):
        self._out = out
        self._seconds = seconds
        self._full, self._select = full, select
        self._steady: Steady | None = None
        self._begun = time.monotonic()
        self._ready = 0.0
        self.failure = ""

    def taken(self, session) -> bool:
        """True when there is nothing left to wait for."""
        now = time.monotonic()
        if session.source.state == "dead":
            self.failure = session.window.mirror.died.reason if session.window.mirror.died else "the engine died"
            return True
        if not self._ready:
            if session.window.mirror.ready is not None:
                self._ready = now
            elif now - self._begun > START_LIMIT:
                self.failure = f"the engine was not ready after {START_LIMIT:.0f} s"
                return True
            return False
        if self._full and not self._filled(session, now):
            return bool(self.failure)
        if now - self._ready < self._seconds:
            return False
        if self._select:
            self._select = False
            self._choose(session)
            self._ready = now - self._seconds + DRAWN
            return False
        session.window.frame.whole()
        if not session.window.grab().save(str(self._out), "PNG"):
            with suppress(OSError):  # half a picture is none
                self._out.unlink()
            self.failure = f"{self._out} could not be written; is the disk full, or the folder protected?"
        return True

    def _filled(self, session, now: float) -> bool:
        """Pool and batch are full; the seconds count from then on."""
        from app.bench.window_load import Load, Steady

        if self._steady is None:
            settings = session.window.mirror.ready.settings
            self._steady = Steady(Load(settings.kv_blocks, settings.max_batch, 0.0), session.workload.submit)
            session.source.listeners.append(self._steady.hear)
            self._steady.begin()
        if self._steady.busy:
            self._full, self._ready = False, now
        elif now - self._ready > FILL_LIMIT:
            self.failure = f"pool and batch were not full after {FILL_LIMIT:.0f} s"
        return self._steady.busy

    @staticmethod
    def _choose(session) -> None:
        """A sequence from the middle of the batch."""
        if running := session.window.mirror.live.running:
            session.window.selection.choose(seq=running[len(running) // 2])


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 to 3600")
    return value


def _size(text: str) -> tuple[int, int]:
    from app.options import UsageError, pixels

    try:
        return pixels("", text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
