"""First settings that fit together: what the user didn't ask for follows what they did.

On the command line `--set kv_blocks=64` alone must not fail because the default context needs 128; a live
change, made with a slider, is never bent like this. What was asked for is never altered here: two wishes that
exclude each other go to the engine, which says so.
"""

from __future__ import annotations

import msgspec

from engine.config import AUTO, MAX_BUDGET, EngineConfig, LiveSettings
from engine.formulas import blocks_for

DEFAULT_TOKENS = LiveSettings().kv_blocks * EngineConfig().block_size  # what the default pool holds
# Context that a pool nobody sized is made for, tokens. Beyond it, or beyond what the model was trained for, the engine
# lowers the context and says so, instead of filling the memory for a slip of the finger.
LONGEST = 131_072


def given(items: list[str]) -> set[str]:
    """The names in --set KEY=VALUE options."""
    return {item.partition("=")[0] for item in items}


def fit(config: EngineConfig, asked: set[str], tokens: int = DEFAULT_TOKENS) -> EngineConfig:
    """`config` with the settings not in `asked` moved to fit. `tokens`: what a pool nobody sized should hold."""
    settings, size = config.settings, config.block_size

    def follow(key: str, value: int) -> None:
        nonlocal settings
        settings = msgspec.structs.replace(settings, **{key: value})

    if "kv_blocks" not in asked:
        follow("kv_blocks", blocks_for(max(tokens, min(settings.max_context, LONGEST)), size))
    elif "max_context" not in asked:
        follow("max_context", min(settings.max_context, settings.kv_blocks * size))
    if settings.preemption == "swap" and "swap_blocks" not in asked:
        follow("swap_blocks", settings.kv_blocks)
    if settings.token_budget == AUTO:
        return msgspec.structs.replace(config, settings=settings)
    if settings.token_budget < settings.max_batch:
        if "token_budget" not in asked:
            follow("token_budget", settings.max_batch)
        elif "max_batch" not in asked:
            follow("max_batch", settings.token_budget)
    if not settings.chunked_prefill and settings.token_budget < settings.max_context:
        if "token_budget" not in asked:
            follow("token_budget", min(settings.max_context, MAX_BUDGET))
        elif "max_context" not in asked:
            follow("max_context", settings.token_budget)
    return msgspec.structs.replace(config, settings=settings)
