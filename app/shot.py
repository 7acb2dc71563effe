"""Take a picture of the live window: the real engine under the built-in workload, drawn without a screen."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

EXAMPLES = """example:
  servescope shot window.png --seconds 20 --size 1600x1000 --theme dark --scale 1"""

START_LIMIT = 300.0  # s that fetching and loading the model may take before a shot gives up


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from app.options import add_engine_options, add_simulate
    from app.window import scale

    add_engine_options(parser)
    add_simulate(parser)
    parser.add_argument("out", metavar="OUT.png", help="where to write the picture")
    parser.add_argument("--seconds", type=_seconds, default=10.0, metavar="S", help="of workload before it is taken")
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
    os.environ["QT_QPA_PLATFORM"] = "offscreen"
    from app.session import Appearance, Session
    from app.settings import Unsaved
    from app.workload.arrivals import SIMULATED_LOAD

    try:
        session = Session(
            config,
            Appearance(args.theme, args.scale, args.size),
            SIMULATED_LOAD if config.simulation is not None else None,
            settings=Unsaved(),
        )
        shot = _Shot(out, args.seconds)
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
    """Waits for the engine, lets the workload run for `seconds`, then grabs the window once."""

    def __init__(self, out: Path, seconds: float):
        self._out = out
        self._seconds = seconds
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
        if now - self._ready < self._seconds:
            return False
        if not session.window.grab().save(str(self._out), "PNG"):
            self.failure = f"{self._out} could not be written; is the disk full, or the folder protected?"
        return True


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 to 3600")
    return value


def _size(text: str) -> tuple[int, int]:
    width, _, height = text.lower().partition("x")
    if width.isdecimal() and height.isdecimal() and len(text) < 20:
        wide, high = int(width), int(height)
        if 200 <= wide <= 16384 and 150 <= high <= 16384:
            return wide, high
    raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 1600x1000 (200x150 to 16384x16384)")
