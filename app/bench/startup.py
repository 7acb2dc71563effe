"""Time from the command to a painted window, and to the first token on it, each run in a fresh process.

The model must be in the cache already; the first run reads everything into the page cache and isn't counted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

EXAMPLES = """example:
  servescope bench startup --runs 5 --json"""

TOKEN_LIMIT = 120.0  # s; a run that takes longer is a failure, not a figure


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="counted runs (default 5)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    from app.bench.runs import fresh_process, summary
    from app.options import UsageError

    if args.runs < 1:
        raise UsageError("--runs must be 1 or more")
    samples = []
    for _ in range(args.runs + 1):
        samples.append(fresh_process("app.bench.startup", repr(time.time()), timeout=TOKEN_LIMIT + 30))
    figures = {key: summary([s[key] for s in samples[1:]]) for key in ("window_s", "ready_s", "first_token_s")}
    if args.json:
        print(json.dumps({"runs": args.runs, **figures}))
    else:
        for key, figure in figures.items():
            print(f"{key:<15}{figure['median']:.2f} s  ({figure['min']:.2f} to {figure['max']:.2f})")
    return 0


def _measure(started: float) -> dict[str, float]:
    """One start in this process. `started`: time.time() just before it was spawned."""
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    from app.session import Appearance, Session
    from app.settings import Unsaved
    from engine.config import EngineConfig
    from ui.contracts import WorkloadSettings

    times: dict[str, float] = {}
    session = Session(
        EngineConfig(), Appearance("dark", 1.0, (1600, 1000)), WorkloadSettings(rate=2.0), settings=Unsaved()
    )

    def until(session) -> bool:
        now = time.time() - started
        mirror = session.window.mirror
        if session.window.frames.count and "window_s" not in times:
            times["window_s"] = now
        if mirror.ready is not None and "ready_s" not in times:
            times["ready_s"] = now
        if mirror.history.last and mirror.history.ttft.count and "first_token_s" not in times:
            times["first_token_s"] = now
        return len(times) == 3 or now > TOKEN_LIMIT or session.source.state == "dead"

    session.run(until)
    return times


if __name__ == "__main__":
    print(json.dumps(_measure(float(sys.argv[1]))))
