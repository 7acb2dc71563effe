"""From a configuration and model files to a runner: picks the device and the form of weights, loads, makes the pool."""

from __future__ import annotations

import torch

from engine.config import EngineConfig
from engine.memory import Resident, give_back, plainly, ran_out, resident
from engine.model.cache import Progress, no_progress
from engine.model.packed_weights import read_packed
from engine.model.problem import ModelProblem
from engine.model.store import ModelFiles
from engine.model.tensor_plan import Planned, open_planned
from engine.model.weights import read
from engine.runner.base import OutOfDeviceMemory, Runner
from engine.runner.cpu import CpuRunner
from engine.runner.cuda import CudaRunner, exact_float32
from engine.runner.forms import absent, choose, is_compiled

MIN_BLOCKS = 4  # the low end of the setting


def build_runner(config: EngineConfig, files: ModelFiles, progress: Progress = no_progress) -> Runner:
    """Raises ModelProblem. A pool that doesn't fit is made smaller, and a notice says so."""
    baseline = resident()
    if config.threads:
        torch.set_num_threads(config.threads)
    device = pick_device(config.device)
    planned = open_planned(files)
    choice = choose(config.dtype, device.type, planned)
    exact_float32()
    try:
        runner = _make(config, choice.form, planned, files.name, device, baseline, progress)
        give_back()
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


def _make(
    config: EngineConfig,
    form: str,
    planned: Planned,
    name: str,
    device: torch.device,
    baseline: Resident,
    progress: Progress,
) -> Runner:
    """Over an empty pool. Each form's modules are imported only when it is the one."""
    if is_compiled(form, device.type, planned):
        from engine.runner.packed import PackedRunner

        packed = read_packed(planned, form, progress)
        return PackedRunner(planned.config, packed, name, config.threads, config.block_size, 0, baseline)
    dtype = getattr(torch, form)
    kind = CudaRunner if device.type == "cuda" else CpuRunner
    weights = read(planned, dtype, device, progress)
    return kind(planned.config, weights, name, dtype, device, config.block_size, 0, baseline, consume=True)


def pick_device(asked: str) -> torch.device:
    """"auto": CUDA where there is a card, else the CPU. Raises ModelProblem when the device asked for is absent."""
    if asked == "auto":
        asked = "cuda" if torch.cuda.is_available() else "cpu"
    if asked == "cuda" and not torch.cuda.is_available():
        raise ModelProblem("device 'cuda' was asked for, but torch sees no CUDA card; take device 'cpu' or 'auto'")
    return torch.device(asked, torch.cuda.current_device()) if asked == "cuda" else torch.device(asked)
