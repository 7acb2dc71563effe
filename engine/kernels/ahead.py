"""Kernels compiled without a GPU, for the cards that they are meant for: registers, shared memory, spills, PTX.

A kernel's file says in `ahead()` which cases are worth compiling: the types, constants, warps and stages that its
launcher would choose. What comes out is what a card would run, except that no card has timed it. Spills are the bytes
of local memory a thread has, stack and all: registers that didn't suffice, or an array indexed at run time, and either
is traffic that no byte count in a docstring knows.

Kernels are made for Triton's interpreter or for the compiler when they are imported, so this needs a process without
TRITON_INTERPRET: `python -m engine.kernels.ahead` prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import pkgutil
import re
import subprocess
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from importlib import import_module

import engine.kernels

# Compute capabilities, and the shared memory that a program may have there: A100, RTX 40, H100 and H200, B200, RTX 50.
SHARED_BYTES = {80: 163 * 1024, 89: 99 * 1024, 90: 227 * 1024, 100: 227 * 1024, 120: 99 * 1024}
TARGETS = tuple(SHARED_BYTES)
TYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}  # as `types` names torch's
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


@dataclass(frozen=True)
class Case:
    """One way to compile a kernel. What isn't named in `constants` is an argument, and its type is in `types`."""

    kernel: object  # what @triton.jit made
    variant: str  # in words: "bfloat16, heads of 128"
    types: dict[str, str]  # by argument: "*bf16", "i32", "i64", "fp32"
    constants: dict[str, object] = field(default_factory=dict)
    divisible: tuple[str, ...] = ()  # whole numbers that are multiples of 16 when the engine calls; pointers always are
    warps: int = 4
    stages: int = 2
    registers: int | None = None  # of a thread at most, where the launcher says so
    hot: bool = True  # runs in every step, so it must not spill
    targets: tuple[int, ...] = TARGETS

    @property
    def name(self) -> str:
        return self.kernel.fn.__name__.strip("_")


@dataclass(frozen=True)
class Compiled:
    kernel: str
    variant: str
    target: int
    hot: bool
    warps: int
    registers: int  # of a thread
    shared_bytes: int
    spilled_bytes: int  # of a thread
    tensor_cores: bool
    tf32: bool  # asks for products of 10 bits somewhere
    seconds: float


def cases() -> list[Case]:
    """Of every kernel in this folder."""
    names = sorted(module.name for module in pkgutil.iter_modules(engine.kernels.__path__))
    modules = [import_module(f"engine.kernels.{name}") for name in names]
    return [case for module in modules if hasattr(module, "ahead") for case in module.ahead()]


def compile_case(case: Case, target: int) -> Compiled:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    if triton.knobs.runtime.interpret:
        raise RuntimeError("kernels can't be compiled where they are interpreted: start without TRITON_INTERPRET")
    names = case.kernel.arg_names
    signature = {name: "constexpr" if name in case.constants else case.types[name] for name in names}
    aligned = [name for name in names if signature[name].startswith("*") or name in case.divisible]
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    options = {"num_warps": case.warps, "num_stages": case.stages}
    if case.registers is not None:
        options["maxnreg"] = case.registers
    started = time.perf_counter()
    made = triton.compile(
        ASTSource(case.kernel, signature, dict(case.constants), attributes),
        target=GPUTarget("cuda", target, 32),
        options=options,
    )
    registers, local = _usage(made.asm["cubin"])
    ptx = made.asm["ptx"]
    return Compiled(
        case.name, case.variant, target, case.hot, case.warps, registers, made.metadata.shared, local,
        "mma" in ptx, "tf32" in ptx, round(time.perf_counter() - started, 3),
    )  # fmt: skip


def _usage(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of local memory of a thread."""
    import triton

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack, _, local = map(int, _USAGE.search(said).groups())
    return registers, stack + local


def sample(wanted: Iterable[Case], targets: tuple[int, ...]) -> list[tuple[Case, int]]:
    """Every case on one of its targets, every kernel on all of them, and little more."""
    by_kernel: dict[str, list[Case]] = {}
    for case in wanted:
        by_kernel.setdefault(case.name, []).append(case)
    work = []
    for group in by_kernel.values():
        times = dict.fromkeys(targets, 0)
        for case in group:
            if own := [target for target in targets if target in case.targets]:
                target = min(own, key=times.__getitem__)  # the first of those that had fewest
                times[target] += 1
                work.append((case, target))
        for target in [target for target, count in times.items() if not count]:
            work += [(case, target) for case in group if target in case.targets][:1]
    return work


def faults(found: Iterable[Compiled]) -> list[str]:
    """In words: what no kernel may do on the card it was compiled for."""
    said = []
    for one in found:
        where = f"{one.kernel} ({one.variant}) on sm_{one.target}"
        if one.hot and one.spilled_bytes:
            said.append(f"{where} spills {one.spilled_bytes} bytes a thread")
        if one.shared_bytes > SHARED_BYTES[one.target]:
            said.append(f"{where} needs {one.shared_bytes} bytes of shared memory of {SHARED_BYTES[one.target]}")
        if one.tf32:
            said.append(f"{where} multiplies in tf32")
    return said


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kernels", nargs="*", default=[])
    parser.add_argument("--targets", nargs="+", type=int, default=list(TARGETS))
    parser.add_argument("--sample", action="store_true")
    args = parser.parse_args()
    import triton

    every = cases()
    known = sorted({case.name for case in every})
    if unknown := sorted(set(args.kernels) - set(known)):
        print(json.dumps({"problem": f"there is no kernel {unknown[0]} (there are: {', '.join(known)})"}))
        return
    chosen = [case for case in every if not args.kernels or case.name in args.kernels]
    if args.sample:
        work = sample(chosen, tuple(args.targets))
    else:
        work = [(case, target) for case in chosen for target in args.targets if target in case.targets]
    found = [compile_case(case, target) for case, target in work]
    answer = {
        "triton": triton.__version__,
        "shared_limits": {str(target): SHARED_BYTES[target] for target in args.targets},
        "compiled": [asdict(one) for one in found],
        "faults": faults(found),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
