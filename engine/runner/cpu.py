"""The CPU runner: torch with as many threads as it is given."""

from __future__ import annotations

import platform

import torch

from engine.memory import available_bytes
from engine.runner.torch_runner import TorchRunner

# Left to a step's own memory and to everyone else on the machine: bytes, and one part in so many of what is available.
RESERVE = 512 << 20
SHARE = 4


class CpuRunner(TorchRunner):
    name = "cpu"

    @property
    def device_text(self) -> str:
        threads = torch.get_num_threads()
        return f"CPU, {threads} thread{'s' if threads > 1 else ''}"

    def free_bytes(self) -> int | None:
        return free_cpu_bytes()

    def free_host_bytes(self) -> int | None:
        return free_cpu_bytes()


def free_cpu_bytes() -> int | None:
    """What a KV pool may take of the machine's memory now; None: not known."""
    available = available_bytes()
    return None if available is None else max(0, available - max(RESERVE, available // SHARE))


def cpu_dtype() -> torch.dtype:
    """bfloat16 where the CPU multiplies it in hardware (AVX512-BF16, AMX, ARM's BF16), else float32.

    Elsewhere bfloat16 is emulated and slower than float32.
    """
    if platform.machine().lower() in ("arm64", "aarch64"):
        return torch.bfloat16 if _onednn_bfloat16() else torch.float32
    features = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    found = any(getattr(torch.cpu, name, lambda: False)() for name in features)
    return torch.bfloat16 if found else torch.float32


def _onednn_bfloat16() -> bool:
    try:
        return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    except (AttributeError, RuntimeError):  # builds without it
        return False
