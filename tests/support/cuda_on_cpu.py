"""The CUDA runner without a card: on CPU tensors, with the graphs' twin, its kernels interpreted or as formulas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from engine.model.architecture import ModelConfig
from engine.model.store import ModelFiles
from engine.model.weights import Weights, load
from engine.runner.cpu import CpuRunner
from engine.runner.cuda_ops import Ops, torch_ops
from engine.runner.graphs import GraphMaker, ReplayedGraph
from engine.runner.kernel_runner import KernelRunner
from engine.runner.quantised_weights import QuantisedWeights
from tests.support import tiny_models

CPU = torch.device("cpu")


class CudaOnCpu(KernelRunner):
    name = "cuda"
    device_text = "a card that isn't there"

    def free_bytes(self) -> int | None:
        return None

    def free_host_bytes(self) -> int | None:
        return None


def tiny(directory: Path, kind: str = "llama", dtype: torch.dtype = torch.float32, **sizes: int) -> Any:
    """(config, weights) of a tiny model."""
    tiny_models.save(directory, kind, tied=False, **sizes)
    return load(ModelFiles("hf", directory, directory, "tiny"), dtype, CPU)


def on_cpu(
    config: ModelConfig,
    weights: Weights | QuantisedWeights,
    block_size: int = 16,
    num_blocks: int = 4,
    ops: Ops | None = None,
    graphs: GraphMaker | None = ReplayedGraph,
    **options: Any,
) -> CudaOnCpu:
    dtype = weights.dtype if isinstance(weights, QuantisedWeights) else weights.embedding.dtype
    return CudaOnCpu(
        config, weights, "tiny", dtype, CPU, block_size, num_blocks, ops=ops or torch_ops(), graphs=graphs, **options
    )


def plain(config: ModelConfig, weights: Weights, block_size: int = 16, num_blocks: int = 4) -> CpuRunner:
    return CpuRunner(config, weights, "tiny", weights.embedding.dtype, CPU, block_size, num_blocks)


class HostReads:
    """What the host reads of tensors while it is entered, by name: each would wait for a card."""

    METHODS = ("item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__", "nonzero")
    OPERATIONS = ("aten._local_scalar_dense", "aten.nonzero", "aten.equal", "aten.is_nonzero")

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.made: list[str] = []  # operations that gave a tensor with memory of its own
        self._modes = (_Functions(self), _Operations(self))

    def __enter__(self) -> HostReads:
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)


class _Functions(TorchFunctionMode):
    def __init__(self, reads: HostReads):
        super().__init__()
        self._reads = reads

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if name in HostReads.METHODS:
            self._reads.seen.append(name)
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    def __init__(self, reads: HostReads):
        super().__init__()
        self._reads = reads

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = str(func).rpartition(".")[0]
        if name in HostReads.OPERATIONS:
            self._reads.seen.append(name)
        given = {t.untyped_storage().data_ptr() for t in _tensors((args, kwargs))}
        result = func(*args, **kwargs)
        if any(t.untyped_storage().data_ptr() not in given for t in _tensors(result) if t.numel()):
            self._reads.made.append(name)
        return result


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
