"""Compile the GPU's kernels for the cards they are meant for, without having one: registers, shared memory, spills.

The cards by compute capability: 80 A100, 89 RTX 40, 90 H100 and H200, 100 B200, 120 RTX 50. A spill is local memory of
a thread, stack and all. It ends with 1 if a kernel that runs in every step spills, needs more shared memory than the
card has, or multiplies in tf32, which would round float32. What was compiled before is in Triton's cache.
"""

from __future__ import annotations

import argparse

from app.bench.answer import answered
from app.options import UsageError

EXAMPLES = """examples:
  servescope bench kernels --compile
  servescope bench kernels --compile --kernels paged_decode --targets 90 100 --json"""

NAME = "bench kernels"
TARGETS = (80, 89, 90, 100, 120)
FINISH_WITHIN = 3600.0  # s


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is compiled")
    group.add_argument("--compile", action="store_true", help="ahead of time, which is all that this bench does")
    group.add_argument("--kernels", nargs="+", default=[], metavar="NAME", help="only these (default: all)")
    group.add_argument(
        "--targets", nargs="+", type=int, default=list(TARGETS), metavar="N",
        help=f"compute capabilities (default {' '.join(map(str, TARGETS))})",
    )  # fmt: skip
    group.add_argument(
        "--sample", action="store_true", help="every kernel on every target and every case on some, not all pairs"
    )
    group.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    if not args.compile:
        raise UsageError("--compile is missing: without a GPU kernels can be compiled, not timed")
    for target in args.targets:
        if target not in TARGETS:
            raise UsageError(f"--targets {target}: choose from {', '.join(map(str, TARGETS))}")
    result = answered(NAME, args, measure, _in_words)
    return 1 if result is None or result["faults"] else 0


def measure(args: argparse.Namespace) -> dict:
    """In a process of its own: one that interprets kernels can't compile them. Raises EngineFailed, UsageError."""
    from app.bench.runs import fresh_process
    from app.headless import EngineFailed, tell

    targets = dict.fromkeys(args.targets)
    tell(NAME, f"compiling for {', '.join(f'sm_{target}' for target in targets)}")
    words = ["--targets", *map(str, targets), *(["--sample"] if args.sample else [])]
    words += ["--kernels", *args.kernels] if args.kernels else []
    try:
        answer = fresh_process("engine.kernels.ahead", *words, timeout=FINISH_WITHIN, without=("TRITON_INTERPRET",))
    except RuntimeError as error:
        raise EngineFailed(f"kernels could not be compiled: {error}") from None
    if "problem" in answer:
        raise UsageError(f"--kernels: {answer['problem']}")
    return answer


def _in_words(result: dict) -> str:
    width = max((len(f"{one['kernel']}, {one['variant']}") for one in result["compiled"]), default=0)
    lines = [
        f"Triton {result['triton']}, {len(result['compiled'])} compilations",
        f"{'':<{width}} {'target':>7} {'warps':>6} {'registers':>10} {'shared, B':>10} {'spilled, B':>11}",
    ]
    for one in result["compiled"]:
        name = f"{one['kernel']}, {one['variant']}"
        lines.append(
            f"{name:<{width}} {'sm_' + str(one['target']):>7} {one['warps']:>6} {one['registers']:>10} "
            f"{one['shared_bytes']:>10,} {one['spilled_bytes']:>11}"
        )
    return "\n".join([*lines, *(f"FAULT: {fault}" for fault in result["faults"])])
