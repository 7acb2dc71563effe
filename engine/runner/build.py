"""From a configuration and model files to a runner: picks the device and the form of weights, loads, makes the pool."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from engine.config import Dtype, EngineConfig
from engine.heap import give_back
from engine.memory import Resident, plainly, ran_out, resident
from engine.model.cache import Progress, no_progress
from engine.model.packed_weights import packed_bytes, read_packed
from engine.model.problem import ModelProblem
from engine.model.store import ModelFiles
from engine.model.tensor_plan import Planned, open_planned
from engine.model.weights import Weights, read
from engine.runner.base import OutOfDeviceMemory, Runner
from engine.runner.cpu import CpuRunner
from engine.runner.cuda import CudaRunner, OnCard, PlainCudaRunner, exact_float32
from engine.runner.cuda_ops import Ops, kernel_ops
from engine.runner.forms import PACKED, absent, choose, is_compiled
from engine.runner.graphs import CudaGraphs, GraphMaker
from engine.runner.kernel_runner import KernelRunner
from engine.runner.pooled import PooledRunner

if TYPE_CHECKING:
    from engine.runner.quantised_weights import QuantisedWeights

MIN_BLOCKS = 4  # the low end of the setting
PROFILED_TOKENS = 2048  # of the step that is measured where the engine finds its budget itself


def build_runner(config: EngineConfig, files: ModelFiles, progress: Progress = no_progress) -> Runner:
    """Raises ModelProblem. A pool that doesn't fit is made smaller, and a notice says so."""
    baseline = resident()
    if config.threads:
        torch.set_num_threads(config.threads)
    device = pick_device(config.device, config.gpu)
    planned = open_planned(files)
    choice = choose(config.dtype, device.type, planned)
    exact_float32()
    try:
        runner = _make(config, choice.form, planned, files.name, device, baseline, progress)
        give_back()
        if isinstance(runner, OnCard):
            progress("measuring a step", 0, 0)
            _measure(runner, config)
        progress("making the KV pool", 0, 0)
        asked = config.settings.kv_blocks
        fits = max(MIN_BLOCKS, min(asked, runner.max_blocks()))
        runner.resize(fits)
    except (OutOfDeviceMemory, MemoryError, RuntimeError) as error:
        if not isinstance(error, OutOfDeviceMemory) and not ran_out(error):
            raise
        raise ModelProblem(
            f"{files.name} in {choice.form} doesn't fit into the memory of {device}: {plainly(error)}; "
            "take a smaller model, bfloat16, or the other device"
        ) from None
    runner.absent = absent(device.type, planned)
    if choice.notice:
        runner.notices.append(choice.notice)
    if fits < asked:
        runner.notices.append(f"kv_blocks lowered from {asked:,} to {fits:,}: no more fit beside the weights")
    return runner


def build_beside(
    config: EngineConfig, files: ModelFiles, form: Dtype, room: int, progress: Progress = no_progress
) -> PooledRunner:
    """A second model's runner on the device of the first, over an empty pool. `room`: bytes that its weights may take:
    on Linux a process that asks for too much isn't refused, it is killed. Raises ModelProblem, OutOfDeviceMemory, and
    what the system raises where it gives no more."""
    device = pick_device(config.device, config.gpu)
    planned = open_planned(files)
    choice = choose(form, device.type, planned)
    needed = _weight_bytes(planned, choice.form, device)
    if needed > room:
        raise OutOfDeviceMemory(needed, room, what=f"{files.name} in {choice.form}")
    runner = _make(config, choice.form, planned, files.name, device, resident(), progress)
    if isinstance(runner, KernelRunner):
        runner.sampler = None  # a drafter chooses by its own rules
    give_back()
    return runner


def _measure(runner: OnCard, config: EngineConfig) -> None:
    """The largest step that the settings allow, or that fits."""
    settings, graphs = config.settings, runner.graph_tokens
    tokens = settings.token_budget or PROFILED_TOKENS
    found = runner.fit(config.memory_fraction, max(tokens, settings.max_batch), settings.max_batch)
    if found.cut:
        runner.notices.append(
            f"a step of {tokens:,} tokens doesn't fit into the card's memory, one of {found.tokens:,} does; "
            "a larger one will make the KV pool smaller"
        )
    _tell_fewer_graphs(runner, graphs)


def warm(runner: Runner) -> None:
    """`warm_up`; where memory runs out in it, with fewer graphs, and then with a smaller pool, and a notice says so.
    Raises ModelProblem."""
    if not isinstance(runner, PooledRunner):
        return runner.warm_up()
    graphs, blocks = runner.graph_tokens, runner.num_blocks
    while True:
        try:
            runner.warm_up()
            break
        except (OutOfDeviceMemory, MemoryError, RuntimeError) as error:
            if not isinstance(error, OutOfDeviceMemory) and not ran_out(error):
                raise
            failed = plainly(error)
        if runner.fewer_graphs():
            continue
        fewer = runner.num_blocks // 2
        if fewer < MIN_BLOCKS:
            raise ModelProblem(
                f"memory ran out when {runner.model.name} ran for the first time, with a KV pool of "
                f"{runner.num_blocks:,} blocks: {failed}; take a smaller model, a weight form of fewer bits, or the "
                "other device"
            )
        runner.resize(fewer)
    _tell_fewer_graphs(runner, graphs)
    if runner.num_blocks < blocks:
        runner.notices.append(
            f"kv_blocks lowered from {blocks:,} to {runner.num_blocks:,}: memory ran out in the first steps"
        )


def _tell_fewer_graphs(runner: PooledRunner, before: int) -> None:
    """`before`: tokens of the largest step that was to get a graph."""
    if runner.graph_tokens < before:
        most = f"more than {runner.graph_tokens:,} tokens" if runner.graph_tokens else "any size"
        runner.notices.append(f"Memory has no room for CUDA graphs of all steps: those of {most} run without one.")



def _weight_bytes(planned: Planned, form: str, device: torch.device) -> int:
    """Of a model that isn't loaded; a layer more may stand in memory for a moment while it is."""
    if is_compiled(form, device.type, planned) or form in PACKED:
        return packed_bytes(planned, form)
    config, size = planned.config, getattr(torch, form).itemsize
    # on the CPU a tied head is laid out anew for products
    again = config.vocabulary * config.hidden if config.tied and device.type == "cpu" else 0
    return (planned.parameters + again) * size


def _make(
    config: EngineConfig,
    form: str,
    planned: Planned,
    name: str,
    device: torch.device,
    baseline: Resident,
    progress: Progress,
) -> PooledRunner:
    """Over an empty pool. Each form's modules are imported only when it is the one."""
    if is_compiled(form, device.type, planned):
        from engine.runner.packed import PackedRunner

        packed = read_packed(planned, form, progress)
        return PackedRunner(planned.config, packed, name, config.threads, config.block_size, 0, baseline)
    if device.type == "cuda":
        return _on_card(config, form, planned, name, device, baseline, progress)
    dtype = getattr(torch, form)
    given = planned.config, read(planned, dtype, device, progress), name, dtype, device, config.block_size, 0, baseline
    return CpuRunner(*given, consume=True)


def _on_card(
    config: EngineConfig,
    form: str,
    planned: Planned,
    name: str,
    device: torch.device,
    baseline: Resident,
    progress: Progress,
    made: type[KernelRunner] = CudaRunner,
    ops: Callable[[], Ops] = kernel_ops,
    graphs: Callable[[], GraphMaker] = CudaGraphs,
) -> PooledRunner:
    """`made`, `ops`, `graphs`: what tests without a card put in their place."""
    if form in PACKED:
        from engine.runner.quantised_weights import quantised_weights

        dtype = torch.bfloat16  # of activations, keys and values
        packed = read_packed(planned, form, progress)
        weights: Weights | QuantisedWeights = quantised_weights(packed, dtype, device, consume=True)
    else:
        dtype = getattr(torch, form)
        weights = read(planned, dtype, device, progress)
    given = planned.config, weights, name, dtype, device, config.block_size, 0, baseline
    if find_spec("triton") is None:
        runner = PlainCudaRunner(*given, consume=True)
        runner.notices.append("Triton is not installed, so steps run without its kernels, CUDA graphs and overlap.")
        return runner
    from engine.runner.device_sampler import DeviceSampler

    live = config.settings
    return made(
        *given,
        consume=True,
        ops=ops(),
        graphs=graphs(),
        sampler=DeviceSampler(planned.config.vocabulary, device),
        most_rows=live.max_batch,
        draft_length=live.draft_length if live.draft_method != "off" else 0,
    )


def pick_device(asked: str, gpu: str = "") -> torch.device:
    """"auto": CUDA where there is a card, else the CPU. Raises ModelProblem when what was asked for is absent."""
    if gpu and asked == "cpu":
        raise ModelProblem(f"gpu '{gpu}' was asked for and device 'cpu'; take one of the two")
    if gpu:
        show_only(gpu)
        asked = "cuda"
    if asked == "auto":
        asked = "cuda" if torch.cuda.is_available() else "cpu"
    if asked == "cuda" and not torch.cuda.is_available():
        if gpu:
            raise ModelProblem(
                f"gpu '{gpu}' was asked for, but torch sees no such card; nvidia-smi -L lists them, and servescope "
                "doctor tells whether this torch can use one"
            )
        raise ModelProblem("device 'cuda' was asked for, but torch sees no CUDA card; take device 'cpu' or 'auto'")
    return torch.device(asked, torch.cuda.current_device()) if asked == "cuda" else torch.device(asked)


def show_only(gpu: str) -> None:
    """Let CUDA see that one card, by the driver's own numbering: CUDA's begins with the fastest. CUDA reads this when
    it is first used, so another one needs another process."""
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu
