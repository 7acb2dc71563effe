"""The CUDA runners: passes on a card, with that card's memory."""

from __future__ import annotations

import msgspec
import torch

from engine.records import Memory
from engine.runner.cpu import free_cpu_bytes
from engine.runner.kernel_runner import KernelRunner
from engine.runner.profile import CudaCard, Profile, profile, room
from engine.runner.torch_runner import TorchRunner

RESERVE = 512 << 20  # bytes left to a step's own tensors and cuBLAS workspaces, until a step was measured


class OnCard(TorchRunner):
    """What a runner on a card has besides its passes."""

    name = "cuda"
    fraction = 1.0  # of the card that may be filled
    reserve = RESERVE
    graph_bytes = 0  # of `reserve`: what graphs take, all of them

    def fit(self, fraction: float, tokens: int, rows: int) -> Profile:
        """Know what a step and graphs take, so that a pool leaves room for them. Raises OutOfDeviceMemory."""
        self.fraction = fraction
        found = profile(self, CudaCard(self.device), tokens, rows, self.config.max_positions)
        self.reserve, self.graph_bytes = found.reserve, found.graphs
        return found

    @property
    def device_text(self) -> str:
        return torch.cuda.get_device_name(self.device)

    @property
    def gpu(self) -> str:  # type: ignore[override]
        return str(getattr(torch.cuda.get_device_properties(self.device), "uuid", ""))  # older torch has none

    def free_bytes(self) -> int | None:
        free, total = torch.cuda.mem_get_info(self.device)
        slack = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        captured = int(self.graph_bytes * (1 - self.graphs_missing))  # no longer free, so nothing to be kept free for
        return room(free, slack, total, self.fraction, self.reserve - captured)

    def free_host_bytes(self) -> int | None:
        return free_cpu_bytes()

    def resize(self, num_blocks: int) -> None:
        try:
            super().resize(num_blocks)
        finally:
            self._settle()

    def rebuild(self, num_blocks: int, block_size: int, host_blocks: int) -> None:
        try:
            super().rebuild(num_blocks, block_size, host_blocks)
        finally:
            self._settle()

    def memory(self) -> Memory:
        return msgspec.structs.replace(
            super().memory(),
            allocated=torch.cuda.memory_allocated(self.device),
            peak=torch.cuda.max_memory_allocated(self.device),
            reserved=torch.cuda.memory_reserved(self.device),
        )

    def _settle(self) -> None:
        """The pool has another size: what a shrunken one left goes back to the driver, for others to see and use, and
        the most that was allocated is counted anew, without the copies that resizing took."""
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)


class CudaRunner(OnCard, KernelRunner):
    """Triton kernels and CUDA graphs."""


class PlainCudaRunner(OnCard):
    """torch's operations alone, for where there is no Triton (Windows): each step ends before the next begins."""


def exact_float32() -> None:
    """float32 products in float32: TF32 keeps 10 bits of mantissa and changes tokens."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
