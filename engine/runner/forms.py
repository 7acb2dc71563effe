"""In which form an engine holds its weights: the one asked for, or the first that this processor and model allow.

Decides and says why; makes nothing. numba takes 0.4 s to import, so it is asked last, and only for forms that need it.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import torch

from engine.model.packed_weights import why_not_packed
from engine.model.problem import ModelProblem
from engine.model.tensor_plan import Planned
from engine.runner.cpu import cpu_dtype

PACKED = ("file", "int8")  # products of bytes, compiled by numba on the CPU and by Triton on CUDA
COMPILED = (*PACKED, "bfloat16")  # what the CPU's compiled program takes; bfloat16 can also do without, by torch
NUMBA = "numba>=0.68,<0.69"  # as pyproject.toml has it

# What "auto" takes on CUDA. `PACKED` can be had too, and isn't taken unasked: no card has timed its kernels yet.
CUDA_AUTO = "bfloat16"
# What "auto" tries on the CPU, in this order: a decode step is bound by the bytes that it reads.
PREFERENCE = {
    "file": "4 or 8 bits a weight, and the file's own numbers: nothing is rounded",
    "int8": "8 bits a weight, each off by at most half a 127th of the largest of its 32",
    "bfloat16": "16 bits a weight, multiplied as float32; by torch only where the CPU multiplies bfloat16 in hardware",
    "float32": "32 bits a weight, on every CPU",
}
AUTO = tuple(PREFERENCE)

_AS = {"file": "packed as in the file", "int8": "rounded to int8"}


@dataclass(frozen=True)
class Choice:
    form: str  # one of PREFERENCE
    notice: str = ""  # why it isn't the first choice, or what is to be known of it


def choose(asked: str, device: str, planned: Planned) -> Choice:
    """`device`: cpu or cuda. Raises ModelProblem naming the reason and the remedy."""
    if device != "cpu":
        if asked in PACKED and (why := why_not_packed(planned, asked) or _why_no_triton()):
            remedy = "take bfloat16 or float32" if why == _why_no_triton() else _other(asked, planned)
            raise ModelProblem(f"the weights can't be held {_AS[asked]}: {why}; {remedy}")
        return Choice(CUDA_AUTO if asked == "auto" else asked)
    if asked == "auto":
        return _first_that_can_be_had(planned)
    if asked in PACKED:
        if why := _why_impossible(asked, planned):
            raise ModelProblem(f"the weights can't be held {_AS[asked]}: {why}; {_remedy(asked, planned)}")
        if why := _why_slow():
            return Choice(asked, f"The weight form '{asked}' is slow here: {why}.")
    return Choice(asked)


def is_compiled(form: str, device: str, planned: Planned) -> bool:
    """Whether the compiled program runs this form here."""
    return device == "cpu" and form in COMPILED and _why_impossible(form, planned) is None


def absent(device: str, planned: Planned) -> dict[str, str]:
    """Forms that can't be had, and why, as far as it is seen without importing numba or Triton."""
    missing = _why_no_triton() if device != "cpu" else None if find_spec("numba") else "numba is not installed"
    reasons = {form: why_not_packed(planned, form) or missing for form in PACKED}
    return {form: why for form, why in reasons.items() if why}


def _first_that_can_be_had(planned: Planned) -> Choice:
    against: dict[str, str] = {}  # reason: the form that it first ruled out
    for form in AUTO:
        why = _why_not(form, planned)
        if why is None:
            break
        if form in PACKED:
            against.setdefault(why, _AS[form])
    reasons = "; ".join(f"{form} they can't be: {why}" for why, form in against.items())
    return Choice(form, f"Weights are held in {form}; {reasons}." if reasons else "")


def _why_not(form: str, planned: Planned) -> str | None:
    if form in PACKED:
        return _why_impossible(form, planned) or _why_slow()
    if form == "bfloat16" and _why_impossible(form, planned) and cpu_dtype() != torch.bfloat16:
        return "this CPU doesn't multiply bfloat16 in hardware"
    return None


def _why_impossible(form: str, planned: Planned) -> str | None:
    return why_not_packed(planned, form) or _why_no_kernels()


def _why_no_kernels() -> str | None:
    try:
        import engine.runner.packed  # noqa: F401
    except ModuleNotFoundError as error:
        return f"{error.name} is not installed"
    except Exception as error:  # numba refuses some versions of numpy, llvmlite some systems, each in its own way
        return f"numba can't be loaded ({type(error).__name__}: {error})"
    return None


def _why_slow() -> str | None:
    from engine.cpu.vector import DOT_256, DOT_512

    return None if DOT_512 or DOT_256 else "this CPU has no instruction for products of bytes"


def _why_no_triton() -> str | None:
    return None if find_spec("triton") else "Triton is not installed"


def _remedy(form: str, planned: Planned) -> str:
    if _why_no_kernels():
        return f"pip install '{NUMBA}', or take bfloat16 or float32"
    return _other(form, planned)


def _other(form: str, planned: Planned) -> str:
    if form == "file" and why_not_packed(planned, "int8") is None:
        return "take int8, bfloat16 or float32"
    return "take bfloat16 or float32"
