"""First settings that fit together: what the user didn't ask for follows what they did.

On the command line `--set kv_blocks=64` alone must not fail because the default context needs 128; a live
change, made with a slider, is never bent like this. What was asked for is never altered here: two wishes that
exclude each other go to the engine, which says so.
"""

from __future__ import annotations

import msgspec

from app.options import UsageError
from engine.config import AUTO, MAX_BUDGET, EngineConfig, LiveSettings
from engine.formulas import GIB, blocks_for
from engine.profiles import FRACTION, MOST_BLOCKS, fills, parse

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
    if config.simulation is not None:
        settings, asked = _simulated(config, asked)

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


# Of a simulated device, where nobody asks for another: what servers on such cards are set to.
SIMULATED_BATCH = 256
SIMULATED_CONTEXT = 8192


def _simulated(config: EngineConfig, asked: set[str]) -> tuple[LiveSettings, set[str]]:
    """A pool that fills the device, and a batch of its size. Raises UsageError where the device holds no block beside
    the weights, or more blocks are asked for than anybody can look after."""
    profile = parse(config.simulation.profile)
    settings, size = config.settings, config.block_size
    if "kv_blocks" in asked and settings.kv_blocks > MOST_BLOCKS:
        raise UsageError(f"--set kv_blocks: a simulated pool has {MOST_BLOCKS:,} blocks at most")
    if "kv_blocks" not in asked and not profile.blocks(size, SIMULATED_CONTEXT):
        raise UsageError(
            f"--simulate: {profile.model.name} doesn't fit: its weights take "
            f"{profile.model.weight_bytes / GIB:,.0f} GiB "
            f"in bfloat16, and an engine has {profile.device.bytes * FRACTION / GIB:,.0f} GiB of one "
            f"{profile.device.name}; take another pair, or a pool beyond its memory: --set kv_blocks=1024"
        )
    first = {
        "max_batch": SIMULATED_BATCH,
        "max_context": min(SIMULATED_CONTEXT, profile.model.shape.max_positions),
        "kv_blocks": fills(profile, size, SIMULATED_CONTEXT, settings.max_context),
    }
    mine = {key: value for key, value in first.items() if key not in asked}
    settings = msgspec.structs.replace(settings, **mine)
    if "max_context" not in asked:
        settings = msgspec.structs.replace(settings, max_context=min(settings.max_context, settings.kv_blocks * size))
    return settings, asked | {"kv_blocks"} | ({"max_context"} if "max_context" in mine else set())


def unpaced(config: EngineConfig) -> EngineConfig:
    """A simulation that nobody watches: it doesn't wait for its steps' time to pass."""
    assert config.simulation is not None
    return msgspec.structs.replace(config, simulation=msgspec.structs.replace(config.simulation, paced=False))
