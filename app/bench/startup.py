"""Time from the command to a painted window, and to the first token on it, each run in a fresh process.

The model must be in the cache already; the first run reads everything into the page cache and isn't counted. `--cold`
starts once without the compiled program of the CPU, as the very first start does. Beside the times: how often the
window painted while the engine loaded, what stages it was told of, what was compiled once the engine was ready, and
which heavy libraries the window's process holds; both of these shall be nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

EXAMPLES = """example:
  servescope bench startup --runs 5 --cold --json"""

TIMES = ("window_s", "ready_s", "first_token_s")
# What takes longer to import than the window to open, and belongs into the engine's process.
HEAVY = ("torch", "triton", "numba", "llvmlite", "transformers", "tokenizers", "safetensors", "gguf", "scipy", "pandas")
LINGER = 2.0  # s after the first token, in which nothing may be compiled
TOKEN_LIMIT = 120.0  # s; a run that takes longer is a failure, not a figure


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="counted runs (default 5)")
    parser.add_argument("--cold", action="store_true", help="also one start that has to compile the CPU's program")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    from app.bench.runs import summary
    from app.options import UsageError

    if args.runs < 1:
        raise UsageError("--runs must be 1 or more")
    samples = [_start() for _ in range(args.runs + 1)][1:]
    result: dict[str, object] = {"runs": args.runs}
    result |= {key: summary([s[key] for s in samples]) for key in TIMES}
    result |= {"frames_while_loading": summary([s["frames_while_loading"] for s in samples])}
    result |= {key: sorted({what for s in samples for what in s[key]}) for key in ("compiled_when_ready", "heavy")}
    if args.cold:
        with tempfile.TemporaryDirectory() as folder:
            result["cold"] = _start(_cache_without_programs(Path(folder)))
    if args.json:
        print(json.dumps(result))
    else:
        _print(result)
    return 0


def _start(cache: Path | None = None) -> dict:
    from app.bench.runs import fresh_process

    words = [repr(time.time()), *([str(cache)] if cache is not None else [])]
    return fresh_process("app.bench.startup", *words, timeout=TOKEN_LIMIT + 30)


def _cache_without_programs(folder: Path) -> Path:
    """The user's cache, but for what was compiled."""
    from engine.model.cache import cache_dir

    for path in cache_dir().iterdir():
        if path.is_file():
            (folder / path.name).symlink_to(path)
    return folder


def _print(result: dict) -> None:
    for key in TIMES:
        figure = result[key]
        print(f"{key:<15}{figure['median']:.2f} s  ({figure['min']:.2f} to {figure['max']:.2f})")
    print(f"frames while the engine loaded: {result['frames_while_loading']['median']:.0f}")
    print(f"compiled once ready: {', '.join(result['compiled_when_ready']) or 'nothing'}")
    print(f"heavy libraries in the window's process: {', '.join(result['heavy']) or 'none'}")
    if (cold := result.get("cold")) is not None:
        print(f"very first start: window {cold['window_s']:.2f} s, ready {cold['ready_s']:.2f} s, "
              f"first token {cold['first_token_s']:.2f} s; stages: {', '.join(cold['stages'])}")  # fmt: skip


def _measure(started: float, cache: str = "") -> dict:
    """One start in this process. `started`: time.time() just before it was spawned."""
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    if cache:
        os.environ["SERVESCOPE_CACHE"] = cache
    from app.session import Appearance, Session
    from app.settings import Unsaved
    from engine.config import EngineConfig
    from engine.records import Compiled, Loading
    from ui.contracts import WorkloadSettings

    times: dict[str, float] = {}
    stages: dict[str, None] = {}
    compiled: list[str] = []
    frames = 0
    session = Session(
        EngineConfig(), Appearance("dark", 1.0, (1600, 1000)), WorkloadSettings(rate=2.0), settings=Unsaved()
    )

    def hear(messages) -> None:
        stages.update({m.stage: None for m in messages if isinstance(m, Loading)})
        compiled.extend(what for m in messages if isinstance(m, Compiled) for what in m.what)

    session.source.listeners.append(hear)

    def until(session) -> bool:
        nonlocal frames
        now = time.time() - started
        mirror = session.window.mirror
        if session.window.frames.count and "window_s" not in times:
            times["window_s"] = now
        if mirror.ready is not None and "ready_s" not in times:
            times["ready_s"] = now
            frames = session.window.frames.count
        if mirror.history.last and mirror.history.ttft.count and "first_token_s" not in times:
            times["first_token_s"] = now
        seen = len(times) == len(TIMES) and now > times["first_token_s"] + LINGER
        return seen or now > TOKEN_LIMIT or session.source.state == "dead"

    session.run(until)
    heavy = sorted(name for name in HEAVY if name in sys.modules)
    return times | {
        "frames_while_loading": frames, "stages": list(stages), "compiled_when_ready": compiled, "heavy": heavy,
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(_measure(float(sys.argv[1]), *sys.argv[2:])))
