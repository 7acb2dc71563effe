"""The CUDA runner: the CPU's forward pass on a card, with that card's memory."""

from __future__ import annotations

import torch

from engine.memory import resident_bytes
from engine.records import Memory
from engine.runner.cpu import free_cpu_bytes
from engine.runner.torch_runner import TorchRunner

RESERVE = 512 << 20  # bytes left to a step's own tensors and cuBLAS workspaces


class CudaRunner(TorchRunner):
    name = "cuda"

    @property
    def device_text(self) -> str:
        return torch.cuda.get_device_name(self.device)

    def free_bytes(self) -> int | None:
        free, _ = torch.cuda.mem_get_info(self.device)
        slack = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return max(0, free + slack - RESERVE)

    def free_host_bytes(self) -> int | None:
        return free_cpu_bytes()

    def resize(self, num_blocks: int) -> None:
        try:
            super().resize(num_blocks)
        finally:
            torch.cuda.empty_cache()  # a shrunken pool goes back to the driver, for others to see and use

    def rebuild(self, num_blocks: int, block_size: int, host_blocks: int) -> None:
        try:
            super().rebuild(num_blocks, block_size, host_blocks)
        finally:
            torch.cuda.empty_cache()

    def memory(self) -> Memory:
        return Memory(
            weights=self._transformer.bytes,
            kv_pool=self._pool.bytes,
            host_pool=self._host.bytes,
            allocated=torch.cuda.memory_allocated(self.device),
            reserved=torch.cuda.memory_reserved(self.device),
            resident=resident_bytes(),
            baseline=self._baseline,
        )


def exact_float32() -> None:
    """float32 products in float32: TF32 keeps 10 bits of mantissa and changes tokens."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
