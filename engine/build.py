"""From a configuration to an engine that is ready to run: files, tokenizer, weights and runner, pool, core.

A first setting that the model or the memory doesn't allow is lowered, and the user is told; live changes are
never bent like that, they are refused. Runs in the child only.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import msgspec
import torch

from engine.config import EngineConfig, Limit, LiveSettings, limits, validate
from engine.core import Engine, RequestRefused
from engine.model.store import resolve
from engine.records import SCHEMA, Ready
from engine.runner.base import OutOfDeviceMemory
from engine.runner.build import build_runner
from engine.sampler import Sampler
from engine.speculation.ngram import NgramProposer
from engine.text_streams import TextStreams
from engine.tokenizer import BadPrompt, Tokenizer
from engine.worker import Built, Progress

PROPOSERS = {"ngram": NgramProposer}


def build(config: EngineConfig, progress: Progress) -> Built:
    """Raises ModelProblem or SettingRefused."""
    files = resolve(config.model, progress)
    with ThreadPoolExecutor(1, "tokenizer") as beside:  # reading the vocabulary takes one core about 0.2 s
        tokenizer = beside.submit(Tokenizer.load, files.tokenizer_path)
        runner = build_runner(config, files, progress)
        words = tokenizer.result()
    bounds = limits(runner.model, config.block_size, runner.max_blocks(), runner.max_host_blocks())
    sized = msgspec.structs.replace(config.settings, kv_blocks=runner.num_blocks)  # it says so where that is less
    settings, notices = fit(sized, bounds, config.block_size)
    validate(settings, bounds, config.block_size)
    runner.resize_host(settings.swap_blocks)
    progress("warming up", 0, 0)
    runner.warm_up()
    engine = Engine(
        runner,
        settings,
        Sampler(runner.model.vocabulary),
        bounds=bounds,
        proposers=PROPOSERS,
        texts=TextStreams(words),
        eos_ids=words.eos_ids,
        seed=config.seed,
    )
    ready = Ready(
        v=SCHEMA,
        pid=os.getpid(),
        device=runner.device_text,
        runner=runner.name,
        config=config,
        settings=settings,
        model=runner.model,
        block_size=runner.block_size,
        limits=bounds,
        notices=[*words.notices, *runner.notices, *notices],
        absent=runner.absent,
    )
    return Built(
        engine=engine,
        encode_request=words.encode_request,
        ready=ready,
        refusals=(RequestRefused, BadPrompt),
        out_of_memory=(OutOfDeviceMemory, MemoryError, torch.OutOfMemoryError),
    )


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
    held = settings.kv_blocks * block_size
    lower("max_context", held, f"the KV pool holds {held:,} tokens")
    return settings, notices
