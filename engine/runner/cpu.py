"""The CPU runner: torch with as many threads as it is given."""

from __future__ import annotations

import torch

from engine.memory import available_bytes
from engine.runner.torch_runner import TorchRunner

RESERVE = 512 << 20  # bytes left to a step's own memory and to everyone else on the machine


class CpuRunner(TorchRunner):
    name = "cpu"

    @property
    def device_text(self) -> str:
        threads = torch.get_num_threads()
        return f"CPU, {threads} thread{'s' if threads > 1 else ''}"

    def free_bytes(self) -> int | None:
        available = available_bytes()
        return None if available is None else max(0, available - RESERVE)


def cpu_dtype() -> torch.dtype:
    """bfloat16 where the CPU multiplies it in hardware (AVX512-BF16, AMX, ARM's BF16), else float32.

    Elsewhere bfloat16 is emulated and slower than float32.
    """
    x86 = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    if any(getattr(torch.cpu, name, lambda: False)() for name in x86):
        return torch.bfloat16
    return torch.bfloat16 if torch.ops.mkldnn._is_mkldnn_bf16_supported() and _is_arm() else torch.float32


def _is_arm() -> bool:
    import platform

    return platform.machine().lower() in ("arm64", "aarch64")
