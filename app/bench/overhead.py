"""Engine throughput with the window open ÷ headless, pair by pair, each run in a fresh process.

Headless reads and decodes the same records, since they are encoded and sent either way; what differs is the
window's own work on the same cores. The load is `--streams` requests of a fixed length, end-of-sequence ignored.

On 2 cores the engine keeps both beside a window. Leaving one to the window makes the window cost nothing (1.02 in 10
pairs), but the core is worth more: in 6 interleaved pairs a median of 116 tokens/s with one thread, 133 with two.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

EXAMPLES = """example:
  servescope bench overhead --pairs 10 --json"""

PROMPT_TOKENS = 32
NEW_TOKENS = 128
LIMIT = 240.0  # s a run may take


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", type=int, default=10, metavar="N", help="interleaved pairs (default 10)")
    parser.add_argument("--streams", type=int, default=8, metavar="N", help="requests at once (default 8)")
    parser.add_argument("--size", default="1600x1000", metavar="WxH", help="of the window")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    from app.bench.runs import fresh_process, interval, summary
    from app.options import UsageError

    if args.pairs < 1 or args.streams < 1:
        raise UsageError("--pairs and --streams must be 1 or more")
    rates: dict[str, list[float]] = {"headless": [], "open": []}
    frames: list[dict] = []
    for _ in range(args.pairs):
        for arm in rates:
            result = fresh_process("app.bench.overhead", arm, str(args.streams), args.size, timeout=LIMIT)
            rates[arm].append(result["tokens_per_s"])
            frames += [result] if arm == "open" else []
    ratios = [o / h for o, h in zip(rates["open"], rates["headless"], strict=True)]
    figures: dict[str, object] = {
        "cpu_open_ratio": summary(ratios),
        "cpu_open_ratio_interval": [round(edge, 3) for edge in interval(ratios)],
    }
    figures |= {f"{arm}_tokens_per_s": summary(found) for arm, found in rates.items()}
    figures |= {
        "frame_ms_p50": summary([f["frame_ms_p50"] for f in frames]),
        "frame_ms_p99": summary([f["frame_ms_p99"] for f in frames]),
        "frames_per_s": summary([f["frames_per_s"] for f in frames]),
        "pairs": args.pairs,
        "streams": args.streams,
        "size": args.size,
    }
    if args.json:
        print(json.dumps(figures))
    else:
        for key, figure in figures.items():
            print(f"{key:<34}{figure}")
    return 0


def _requests(streams: int):
    from engine.records import Request

    # plain repeated counting ids would let prompt lookup draft; a stride through the vocabulary does not repeat
    return [
        Request(
            number=i + 1,
            token_ids=[100 + (i * 7919 + j * 104_729) % 40_000 for j in range(PROMPT_TOKENS)],
            max_tokens=NEW_TOKENS,
            ignore_eos=True,
            label="bench",
        )
        for i in range(streams)
    ]


def _config(streams: int):
    from engine.config import EngineConfig, LiveSettings

    return EngineConfig(settings=LiveSettings(max_batch=streams, draft_length=0))


def _headless(streams: int) -> dict[str, float]:
    from app.sources.live import LiveEngine
    from engine.records import Ready, StepRecord, Submit

    source = LiveEngine(_config(streams))
    steps: list[StepRecord] = []
    finished = 0
    deadline = time.monotonic() + LIMIT
    while finished < streams and time.monotonic() < deadline and source.state != "dead":
        for message in source.poll():
            if isinstance(message, Ready):
                for request in _requests(streams):
                    source.send(Submit(id=source.next_id(), request=request))
            elif isinstance(message, StepRecord):
                steps.append(message)
                finished += sum(type(e).__name__ == "Finished" for e in message.events)
        time.sleep(1 / 60)
    source.close()
    full = [s for s in steps if s.running >= streams]
    return {"tokens_per_s": _rate([(s.clock, s.end_clock, len(s.text)) for s in full])}


def _open(streams: int, size: tuple[int, int]) -> dict[str, float]:
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    from app.session import Appearance, Session
    from app.settings import Unsaved
    from engine.records import Submit
    from ui.contracts import WorkloadSettings

    session = Session(
        _config(streams), Appearance("dark", 1.0, size), WorkloadSettings(running=False), settings=Unsaved()
    )
    sent = False
    deadline = time.monotonic() + LIMIT

    def until(session) -> bool:
        nonlocal sent
        mirror = session.window.mirror
        if mirror.ready is not None and not sent:
            for request in _requests(streams):
                session.source.send(Submit(id=session.source.next_id(), request=request))
            session.window.frames.clear()
            sent = True
        done = len(mirror.history.requests) >= streams
        return done or time.monotonic() > deadline or session.source.state == "dead"

    session.run(until)
    history = session.window.mirror.history
    c = history.slice(history.first, history.last)
    full = [(int(c.clock[i]), int(c.end[i]), int(c.emitted[i])) for i in range(len(c.step)) if c.running[i] >= streams]
    frames = session.window.frames
    return {
        "tokens_per_s": _rate(full),
        "frame_ms_p50": frames.percentile_ms(50),
        "frame_ms_p99": frames.percentile_ms(99),
        "frames_per_s": frames.rate(),
    }


def _rate(steps: list[tuple[int, int, int]]) -> float:
    """Tokens/s from the first to the last step in which all streams ran, the warm-up tenth left out."""
    steps = steps[len(steps) // 10 :]
    seconds = (steps[-1][1] - steps[0][0]) / 1e9
    return sum(s[2] for s in steps) / seconds


if __name__ == "__main__":
    count = int(sys.argv[2])
    width, _, height = sys.argv[3].partition("x")
    if sys.argv[1] == "open":
        print(json.dumps(_open(count, (int(width), int(height)))))
    else:
        print(json.dumps(_headless(count)))
