"""From a configuration that names a device and a model to an engine that serves as they would. In the child only."""

from __future__ import annotations

import msgspec

from engine.budget import AutoBudget, Work, work_of
from engine.build import fit
from engine.config import BY_HAND, EngineConfig, SettingRefused, limits, validate
from engine.core import RequestRefused
from engine.cost_model import counts, reached
from engine.formulas import GIB
from engine.model.problem import ModelProblem
from engine.profiles import UnknownProfile, parse
from engine.ready import first_times, ready_of
from engine.roof import simulated
from engine.runner.base import OutOfDeviceMemory
from engine.runner.build import MIN_BLOCKS
from engine.runner.pooled import dummy_batch
from engine.runner.simulated import SimulatedRunner
from engine.simulation.clock import SimulatedClock
from engine.simulation.drafter import factories
from engine.simulation.engine import SimulatedEngine
from engine.simulation.sampler import SimulatedSampler
from engine.simulation.words import SimulatedWords
from engine.text_streams import TextStreams
from engine.tokenizer import BadPrompt
from engine.worker import Built, Progress

_ABSENT = "a simulated engine drafts by ngram, suffix or layers: this one needs weights of its own"


def build(config: EngineConfig, progress: Progress) -> Built:
    """Raises ModelProblem or SettingRefused."""
    simulation = config.simulation
    assert simulation is not None
    try:
        profile = parse(simulation.profile)
    except UnknownProfile as error:
        raise ModelProblem(str(error)) from None
    asked, size = config.settings.kv_blocks, config.block_size
    fits = profile.blocks(size, 8192)
    if profile.model.weight_bytes > profile.device.bytes and asked <= fits:
        raise ModelProblem(f"{profile.model.name} doesn't fit into the memory of one {profile.device.name}")
    period = 1 / simulation.steps_per_s if simulation.steps_per_s > 0 else 0.0
    clock = SimulatedClock(simulation.paced, period=period)
    most = max(fits, asked, MIN_BLOCKS)
    counted, rates = counts(profile.model), reached(profile.device, profile.model.shape.layers)
    runner = SimulatedRunner(profile, counted, rates, clock, asked, size, fits, most, period)
    bounds = limits(runner.model, size, most, runner.max_host_blocks())
    if most > fits:
        why = f"{BY_HAND}: more than one {profile.device.name} holds beside the weights"
        bounds["kv_blocks"] = msgspec.structs.replace(bounds["kv_blocks"], reason=why)
    settings, notices = fit(config.settings, bounds, size)
    if settings.draft_method not in ("off", "ngram", "suffix", "layers"):
        notices.append(f"draft_method is suffix, not {settings.draft_method}: {_ABSENT}.")
        settings = msgspec.structs.replace(settings, draft_method="suffix")
    validate(settings, bounds, size)
    runner.resize_host(settings.swap_blocks)
    budget = AutoBudget()
    _seed(runner, budget)
    sampler = SimulatedSampler(runner.model.vocabulary)
    words = SimulatedWords(runner.model.vocabulary)
    engine = SimulatedEngine(
        runner,
        settings,
        sampler,
        bounds=bounds,
        proposers=factories(sampler, runner.model.layers, runner.draft),
        texts=TextStreams(words),
        eos_ids=words.eos_ids,
        seed=config.seed,
        budget=budget,
        simulation=simulation,
        clock=clock,
    )
    ready = ready_of(
        engine,
        config,
        notices=[*_told(runner, fits), *notices],
        absent=dict.fromkeys(("float32", "bfloat16", "int8", "file"), "a simulated model runs in bfloat16 only"),
        absent_drafts=dict.fromkeys(("head", "mixed", "model", "bits"), _ABSENT),
        roof=simulated(profile.device, counted),
    )
    return Built(
        engine=engine,
        encode_request=words.encode_request,
        ready=ready,
        refusals=(RequestRefused, BadPrompt, SettingRefused),
        out_of_memory=(OutOfDeviceMemory, MemoryError),
    )


def _told(runner: SimulatedRunner, fits: int) -> list[str]:
    """What has to be said of it before anything is shown."""
    told = [
        f"Simulated: a cost model of one {runner.profile.device.name} stands in for {runner.model.name}. Scheduler, KV "
        "pool and drafting's bookkeeping are real; times are computed and text means nothing."
    ]
    if runner.num_blocks > fits:
        held = runner.num_blocks * runner.block_size * runner.model.kv_bytes_per_token
        told.append(
            f"kv_blocks {runner.num_blocks:,} take {held / GIB:,.0f} GiB, more than one {runner.profile.device.name} "
            f"has beside the weights ({fits:,} blocks): no such device could run this."
        )
    return told


def _seed(runner: SimulatedRunner, budget: AutoBudget) -> None:
    def run(lengths: list[int]) -> tuple[Work, float]:
        batch = dummy_batch(lengths, runner.block_size)
        return work_of(batch), 1e3 * runner.seconds(lengths, lengths, len(lengths))

    first_times(budget, runner, run)
