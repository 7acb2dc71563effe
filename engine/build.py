"""From a configuration to an engine that is ready to run: files, tokenizer, weights and runner, pool, core.

A first setting that the model or the memory doesn't allow is lowered, and the user is told; live changes are
never bent like that, they are refused. Runs in the child only.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import torch

from engine.budget import AutoBudget, Work, work_of
from engine.config import EngineConfig, Limit, LiveSettings, SettingRefused, limits, validate
from engine.core import Engine, RequestRefused
from engine.device_roof import roof_of
from engine.drafters import ModelDrafters
from engine.memory import ran_out
from engine.model.cache import no_progress
from engine.model.store import resolve
from engine.ready import first_times, ready_of
from engine.runner.base import OutOfDeviceMemory, Runner
from engine.runner.build import build_runner, warm
from engine.runner.launch import Immediate, Launcher
from engine.runner.pooled import dummy_batch
from engine.sampler import Sampler
from engine.speculation.ngram import NgramProposer
from engine.speculation.suffix import SuffixProposer
from engine.text_streams import TextStreams
from engine.tokenizer import BadPrompt, Tokenizer
from engine.worker import Built, Progress

HEADS = ("head", "mixed")  # methods that few models have a trained head for; suffix serves every model
PROPOSERS = {"ngram": NgramProposer.of, "suffix": SuffixProposer.of}


def build(config: EngineConfig, progress: Progress) -> Built:
    """Raises ModelProblem or SettingRefused."""
    files = resolve(config.model, progress)
    with ThreadPoolExecutor(1, "tokenizer") as beside:  # reading the vocabulary takes one core about 0.2 s
        tokenizer = beside.submit(Tokenizer.load, files.tokenizer_path)
        runner = build_runner(config, files, progress)
        words = tokenizer.result()
    progress("warming up", 0, 0)
    warm(runner)
    bounds = limits(runner.model, config.block_size, runner.max_blocks(), runner.max_host_blocks())
    sized = msgspec.structs.replace(config.settings, kv_blocks=runner.num_blocks)  # it says so where that is less
    settings, notices = fit(sized, bounds, config.block_size)
    validate(settings, bounds, config.block_size)
    runner.resize_host(settings.swap_blocks)
    budget = measured(runner)
    drafters = ModelDrafters(config, files, runner, words)
    proposers = {**PROPOSERS, **drafters.factories()}

    sampler = sampler_of(runner)

    def begin(settings: LiveSettings) -> Engine:
        return Engine(
            runner,
            settings,
            sampler,
            bounds=bounds,
            proposers=proposers,
            texts=TextStreams(words),
            eos_ids=words.eos_ids,
            seed=config.seed,
            budget=budget,
            launcher=launcher_of(config, runner, sampler),
        )

    drafters.progress = progress
    try:
        engine = begin(settings)
    except SettingRefused as refusal:  # of the draft: everything else is validated
        method = "suffix" if settings.draft_method in HEADS else "off"
        notices.append(f"draft_method is {method}, not {settings.draft_method}: {refusal}.")
        engine = begin(msgspec.structs.replace(settings, draft_method=method))
    drafters.progress = no_progress
    ready = ready_of(
        engine,
        config,
        notices=[*words.notices, *runner.notices, *notices],
        absent=runner.absent,
        absent_drafts=drafters.absent(),
        roof=roof_of(runner, config.threads),
    )
    return Built(
        engine=engine,
        encode_request=words.encode_request,
        ready=ready,
        refusals=(RequestRefused, BadPrompt),
        out_of_memory=(OutOfDeviceMemory, MemoryError, torch.OutOfMemoryError),
    )


def launcher_of(config: EngineConfig, runner: Runner, sampler: Sampler) -> Launcher | None:
    """What steps overlap by. A runner that launches passes runs them beside the host; on any other nothing is won."""
    if config.overlap == "off":
        return None
    if isinstance(runner, Launcher):
        return runner
    return Immediate(runner, sampler) if config.overlap == "on" else None


def sampler_of(runner: Runner) -> Sampler:
    """The device's, where the runner has one: tokens and verdicts are the same."""
    return getattr(runner, "sampler", None) or Sampler(runner.model.vocabulary)


def measured(runner: Runner) -> AutoBudget:
    """A budget that knows what steps take, before any block is in use. One that knows nothing where memory has no room
    for those steps: it learns from those that come."""
    budget = AutoBudget()
    try:
        measure(runner, budget)
    except (OutOfDeviceMemory, MemoryError, RuntimeError) as error:
        if not isinstance(error, OutOfDeviceMemory) and not ran_out(error):
            raise
        return AutoBudget()
    return budget


def measure(runner: Runner, budget: AutoBudget) -> None:
    """Let `budget` know what steps take, before any block is in use. Each is run twice: the first may still compile."""

    def run(lengths: list[int]) -> tuple[Work, float]:
        batch = dummy_batch(lengths, runner.block_size)
        for _ in range(2):
            started = time.perf_counter()
            runner.execute(batch).flatten()[:1].tolist()  # waits for the device
            seconds = time.perf_counter() - started
        return work_of(batch), 1e3 * seconds

    first_times(budget, runner, run)


def fit(settings: LiveSettings, bounds: dict[str, Limit], block_size: int) -> tuple[LiveSettings, list[str]]:
    """First settings with the block size that was built, lowered to what the model and the memory allow; and what was
    lowered and why."""
    settings = msgspec.structs.replace(settings, block_size=block_size)
    notices: list[str] = []

    def lower(key: str, most: int, why: str) -> None:
        nonlocal settings
        value = getattr(settings, key)
        if value > most:
            notices.append(f"{key} was lowered from {value:,} to {most:,}: {why}.")
            settings = msgspec.structs.replace(settings, **{key: most})

    lower("kv_blocks", int(bounds["kv_blocks"].high), bounds["kv_blocks"].reason)
    lower("swap_blocks", int(bounds["swap_blocks"].high), bounds["swap_blocks"].reason)
    lower("max_context", int(bounds["max_context"].high), bounds["max_context"].reason)
    lower("draft_layers", int(bounds["draft_layers"].high), bounds["draft_layers"].reason)
    held = settings.kv_blocks * block_size
    lower("max_context", held, f"the KV pool holds {held:,} tokens")
    return settings, notices
