"""What an engine is built with (`EngineConfig`) and what can change while it runs (`LiveSettings`).

Both are frozen: a change makes a new value, validated as a whole, or none at all. Knows nothing of how a
setting is carried out; needs no torch, so that the window and the command line can use it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args, get_origin

import msgspec

# ngram: prompt lookup. suffix: the longest match in this and past outputs. head: a small trained head on the target's
# hidden states. mixed: suffix where it matches long, else head. model: another checkpoint. layers: the target's own
# first layers. bits: the target's own weights in fewer bits
DraftMethod = Literal["off", "ngram", "suffix", "head", "mixed", "model", "layers", "bits"]
DraftPolicy = Literal["fixed", "adaptive"]  # γ tokens whenever possible, or as many of γ as pay, by what was measured
# how a model drafts for sampled requests: its likeliest tokens, or a draw from its distribution
DraftSampling = Literal["greedy", "probabilistic"]
# The form of the weights: "file" is a GGUF file's own 4 or 8 bits, "int8" any checkpoint rounded to 8. Keys and values
# are of the same floats, float16 in the CPU's compiled program (file, int8, bfloat16), bfloat16 beside 4 and 8 bits on
# CUDA.
# "auto": see engine/runner/forms.py.
Dtype = Literal["auto", "float32", "bfloat16", "int8", "file"]
Device = Literal["auto", "cpu", "cuda"]
Overlap = Literal["auto", "on", "off"]
Preemption = Literal["recompute", "swap"]  # what becomes of a preempted sequence's K/V: forgotten, or moved to the host
Admission = Literal["prompt", "chunk"]  # room for the whole prompt, or only for what its next chunk needs
Allocation = Literal["paged", "reserved"]  # blocks as they are needed, or the request's maximum in a row from admission
Batching = Literal["continuous", "static"]  # join whenever there is room, or not before all have left

AUTO = 0  # of `token_budget`: the engine finds it itself, step by step; written "auto" by people
BLOCK_SIZES = (8, 16, 32, 64, 128)  # tokens; a power of two keeps slot arithmetic to shifts and masks


class SettingRefused(ValueError):
    """A change that was not made. `key` names the setting; the message names the limit and the remedy."""

    def __init__(self, key: str, message: str):
        super().__init__(message)
        self.key = key


class LiveSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that change between two steps, without a restart."""

    max_batch: int = 16  # sequences running at once
    max_context: int = 2048  # tokens, prompt and output; binds requests admitted later
    kv_blocks: int = 512  # size of the KV pool
    block_size: int = 16  # tokens; another one rebuilds the pool, and what ran is computed again
    token_budget: int = AUTO  # tokens scheduled in one step, drafts included; AUTO = see engine/budget.py
    max_gap: int = 100  # ms between two tokens of a decoding stream that AUTO keeps to while prompts are computed
    draft_length: int = 4  # γ, drafted tokens per sequence and pass; 0 = off
    draft_method: DraftMethod = "ngram"
    draft_policy: DraftPolicy = "fixed"
    draft_sampling: DraftSampling = "probabilistic"
    draft_model: str = ""  # of "model": a checkpoint as `EngineConfig.model` has it
    draft_layers: int = 0  # of "layers"; 0 = a quarter of them
    ngram_min: int = 2  # tokens that must match, of "ngram"
    ngram_max: int = 4
    # Share of drafted tokens to accept, by position, the last one for all that follow: a what-if. The text is then
    # meaningless, and every surface says "simulated". Empty: the exact rule.
    simulated_acceptance: tuple[float, ...] = ()
    chunked_prefill: bool = True  # off: a prompt is computed whole, before any decode
    prefix_cache: bool = True
    watermark: float = 0.01  # share of the pool that admission leaves free, so that running rows can grow
    admission: Admission = "prompt"
    allocation: Allocation = "paged"  # of what is admitted from now on: who runs keeps what it has
    batching: Batching = "continuous"
    preemption: Preemption = "recompute"
    swap_blocks: int = 0  # size of the host pool that preemption by swap moves to
    # Sampling of requests that don't set their own.
    temperature: float = 0.0  # 0 = greedy
    top_k: int = 0  # 0 = off
    top_p: float = 1.0
    min_p: float = 0.0
    # Of tokens that prompt or output hold already, as in vLLM: logits are divided by `repetition_penalty` where
    # positive and multiplied where negative; of output tokens alone, `presence_penalty` is subtracted once and
    # `frequency_penalty` for each time.
    repetition_penalty: float = 1.0  # 1 = off
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0


class Simulation(msgspec.Struct, frozen=True, kw_only=True):
    """A cost model in the place of the model: what it stands for, and what it draws. See engine/simulation."""

    profile: str  # DEVICE:MODEL of engine/profiles.py
    paced: bool = True  # steps take the time that they are said to; else as little as the machine needs
    output_tokens: int = 200  # mean of the length at which a request ends by itself
    # a step takes 1 s ÷ this, whatever the cost model says: for a window under a load of a given rate. 0 = as it says
    steps_per_s: float = 0.0


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What needs a restart to change: the model, where and in what precision it runs. `block_size` is what the engine
    starts with; the live setting follows it."""

    model: str = "default"  # "default", a Hugging Face directory, a .gguf file, or a hub id
    dtype: Dtype = "auto"
    device: Device = "auto"
    gpu: str = ""  # of several NVIDIA GPUs: its number as nvidia-smi has it, or GPU-…, MIG-…; "" = CUDA's first
    memory_fraction: float = 0.9  # of a card, up to which it is filled, others' included (engine/runner/profile.py)
    block_size: int = 16  # tokens
    threads: int = 0  # CPU threads of the engine; 0 = torch's choice
    overlap: Overlap = "auto"  # begin a step while the one before it runs; auto: where a device runs beside the host
    seed: int = 0  # seed of requests that bring none (combined with the request's number)
    start_paused: bool = False
    simulation: Simulation | None = None  # model, dtype and device say nothing then
    settings: LiveSettings = LiveSettings()


class Limit(msgspec.Struct, frozen=True):
    """What a slider shows: the range that a setting may take now, and why it ends there."""

    low: float
    high: float
    unit: str
    reason: str = ""


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """What limits and formulas need to know of the loaded model."""

    name: str
    architecture: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocabulary: int
    max_positions: int  # longest context the checkpoint was trained for, tokens
    parameters: int
    weight_bytes: int
    dtype: str
    kv_bytes_per_token: int


_UNITS = {
    "max_batch": "sequences",
    "max_context": "tokens",
    "kv_blocks": "blocks",
    "block_size": "tokens",
    "token_budget": "tokens per step",
    "max_gap": "ms",
    "draft_length": "tokens",
    "draft_layers": "layers, 0 = a quarter",
    "ngram_min": "tokens",
    "ngram_max": "tokens",
    "watermark": "of the pool",
    "swap_blocks": "blocks, 0 = none",
    "temperature": "",
    "top_k": "tokens, 0 = off",
    "top_p": "",
    "min_p": "",
    "repetition_penalty": "1 = off",
    "presence_penalty": "",
    "frequency_penalty": "",
}
MAX_NGRAM = 8  # longer matches find nothing that shorter ones do not
MAX_BATCH = 512
MAX_DRAFT = 16  # beyond this a pass verifies mostly rejected work
MAX_BUDGET = 16_384
# of one request
MAX_SAMPLES = 64
MAX_BEAMS = 8
PENALTIES = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}  # and what has no effect
MAX_LENGTH_PENALTY = 10.0  # either sign; beyond it the power would leave a float's range sooner than mean anything


BY_HAND = "asked for by hand"  # how the reason begins where a range ends beyond what any memory holds


def _memory_ends(blocks: int, where: str) -> str:
    return f"memory: {blocks:,} blocks fit {where}"


_WHERE = {"kv_blocks": "beside the weights", "swap_blocks": "on the host"}


def limits(model: Model, block_size: int, kv_blocks_max: int, swap_blocks_max: int | None = None) -> dict[str, Limit]:
    """The absolute range of each numeric setting for this model; `validate` adds what binds them together.

    `swap_blocks_max`: of the host pool, where its memory isn't the KV pool's own."""
    context = model.max_positions
    host = kv_blocks_max if swap_blocks_max is None else swap_blocks_max
    ranges: dict[str, tuple[float, float, str]] = {
        "max_batch": (1, MAX_BATCH, "upper end of what this engine schedules"),
        "max_context": (16, context, f"the model was trained for {context:,} tokens"),
        "kv_blocks": (4, kv_blocks_max, _memory_ends(kv_blocks_max, _WHERE["kv_blocks"])),
        "block_size": (BLOCK_SIZES[0], BLOCK_SIZES[-1], "larger blocks stay half empty"),
        "token_budget": (8, MAX_BUDGET, "upper end of what this engine schedules"),
        "max_gap": (10, 10_000, "a longer gap is a pause"),
        "draft_length": (0, MAX_DRAFT, "longer drafts are mostly rejected"),
        "draft_layers": (0, model.layers - 1, f"the model has {model.layers:,} layers"),
        "ngram_min": (1, MAX_NGRAM, "longer ones hardly ever match"),
        "ngram_max": (1, MAX_NGRAM, "longer ones find nothing more"),
        "watermark": (0.0, 0.5, "half the pool"),
        "swap_blocks": (0, host, _memory_ends(host, _WHERE["swap_blocks"])),
        "temperature": (0.0, 5.0, ""),
        "top_k": (0, model.vocabulary, "size of the vocabulary"),
        "top_p": (0.01, 1.0, ""),
        "min_p": (0.0, 1.0, ""),
        "repetition_penalty": (0.1, 10.0, ""),
        "presence_penalty": (-2.0, 2.0, ""),
        "frequency_penalty": (-2.0, 2.0, ""),
    }
    return {key: Limit(low, high, _UNITS[key], why) for key, (low, high, why) in ranges.items()}


def limits_of_size(bounds: dict[str, Limit], old: int, new: int) -> dict[str, Limit]:
    """`bounds` of an engine whose blocks had `old` tokens, for blocks of `new`: the same memory holds others."""
    changed = dict(bounds)
    for key, where in _WHERE.items():
        bound = bounds[key]
        high = max(bound.low, bound.high * old // new)
        why = bound.reason if bound.reason.startswith(BY_HAND) else _memory_ends(int(high), where)
        changed[key] = Limit(bound.low, high, bound.unit, why)
    return changed


_ANY = 2**31 - 1  # what no model and no memory reaches, and what every counter here still holds
_ANY_MODEL = Model(
    name="", architecture="", layers=_ANY + 1, heads=1, kv_heads=1, head_dim=1, hidden=1, vocabulary=_ANY,
    max_positions=_ANY, parameters=0, weight_bytes=0, dtype="", kv_bytes_per_token=1,
)  # fmt: skip
# the ranges that hold before a model is known; the reasons of those that are only open would be made up
WIDEST = {
    key: msgspec.structs.replace(limit, reason="") if limit.high == _ANY else limit
    for key, limit in limits(_ANY_MODEL, 1, _ANY).items()
}


def change(settings: LiveSettings, changes: dict[str, object]) -> LiveSettings:
    """`settings` with `changes` made, types checked. Raises SettingRefused for a name or type that is none."""
    known = {f.name: f for f in msgspec.structs.fields(LiveSettings)}
    clean: dict[str, object] = {}
    for key, value in changes.items():
        if key not in known:
            raise SettingRefused(key, f"there is no setting '{key}'; settings are {', '.join(known)}")
        try:
            if key == "token_budget" and value == "auto":
                value = AUTO
            if key == "simulated_acceptance":
                value = _rates(value)
            clean[key] = msgspec.convert(value, known[key].type, strict=False)
        except msgspec.ValidationError as error:
            raise SettingRefused(key, f"{key} cannot be {value!r}: {_wanted(known[key].type) or error}") from None
    return msgspec.structs.replace(settings, **clean)


def _wanted(kind: object) -> str:
    """In words, what a setting of that type takes; "" where they would say less than the error."""
    if get_origin(kind) is Literal:
        return f"it is one of {', '.join(map(str, get_args(kind)))}"
    words: dict[object, str] = {bool: "it is true or false", int: "it is a whole number", float: "it is a number"}
    return words.get(kind, "")


def _rates(value: object) -> object:
    """Rates as people write them: one number, or several with commas between; nothing for none."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (float(value),)
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def follow_block_size(old: LiveSettings, new: LiveSettings, changes: Mapping[str, object]) -> LiveSettings:
    """`new` with pools that hold about what they held in the old blocks, where `changes` doesn't size them."""
    sizes = {
        key: max(least, getattr(old, key) * old.block_size // new.block_size)
        for key, least in (("kv_blocks", 4), ("swap_blocks", min(1, old.swap_blocks)))
        if key not in changes
    }
    return msgspec.structs.replace(new, **sizes)


def validate(
    settings: LiveSettings,
    bounds: dict[str, Limit],
    block_size: int,
    largest_need: int = 0,
    needed_by: str = "",
) -> None:
    """Check a whole set of settings. Raises SettingRefused naming the first limit that is broken.

    `largest_need`: tokens that the longest live sequence may come to hold (its prompt and output cap);
    `needed_by`: that sequence, in words.
    """
    check_ranges(settings, bounds)
    if settings.block_size not in BLOCK_SIZES:
        raise SettingRefused(
            "block_size",
            f"block_size {settings.block_size} is not a power of two: take one of {', '.join(map(str, BLOCK_SIZES))}",
        )
    check_drafts(settings)
    if settings.preemption == "swap" and not settings.swap_blocks:
        raise SettingRefused(
            "swap_blocks",
            "preemption by swap needs a host pool and swap_blocks is 0; raise swap_blocks, or take recompute",
        )
    auto = settings.token_budget == AUTO
    if not auto and settings.token_budget < settings.max_batch:
        raise SettingRefused(
            "token_budget",
            f"token_budget {settings.token_budget} is under max_batch {settings.max_batch}: every running "
            "sequence needs one token a step; lower max_batch or raise token_budget",
        )
    held = settings.kv_blocks * block_size
    if largest_need > held:
        raise SettingRefused(
            "kv_blocks",
            f"{settings.kv_blocks} blocks hold {held:,} tokens, but {needed_by or 'a running sequence'} may need "
            f"{largest_need:,}; {-(-largest_need // block_size)} blocks are the least now",
        )
    if settings.max_context > held:
        raise SettingRefused(
            "kv_blocks",
            f"max_context {settings.max_context:,} needs {-(-settings.max_context // block_size)} blocks, the pool "
            f"has {settings.kv_blocks}; lower max_context or raise kv_blocks",
        )
    longest = max(settings.max_context, largest_need)
    if not settings.chunked_prefill and auto and bounds["token_budget"].high < longest:
        raise SettingRefused(
            "chunked_prefill",
            f"without chunked prefill a prompt is computed in one step, which takes at most "
            f"{number(bounds['token_budget'].high)} tokens; it may have {longest:,}",
        )
    if not settings.chunked_prefill and not auto and settings.token_budget < longest:
        raise SettingRefused(
            "chunked_prefill",
            f"without chunked prefill a prompt is computed in one step: token_budget must be at least "
            f"{longest:,}, it is {settings.token_budget:,}",
        )


def check_drafts(settings: LiveSettings) -> None:
    """What no model and no memory has a say in. Raises SettingRefused."""
    if settings.ngram_min > settings.ngram_max:
        raise SettingRefused(
            "ngram_min",
            f"ngram_min {settings.ngram_min} is over ngram_max {settings.ngram_max}; lower the one or raise the other",
        )
    if not all(0 <= rate <= 1 for rate in settings.simulated_acceptance):
        raise SettingRefused("simulated_acceptance", "simulated acceptance is a share of tokens: 0 to 1 by position")


def check_ranges(settings: LiveSettings, bounds: dict[str, Limit]) -> None:
    """Raises SettingRefused naming the first limit that is broken."""
    for key, limit in bounds.items():
        value = getattr(settings, key)
        if key == "token_budget" and value == AUTO:
            continue
        if not limit.low <= value <= limit.high:
            why = f": {limit.reason}" if limit.reason and value > limit.high else ""
            unit = f" {limit.unit}" if limit.unit else ""
            raise SettingRefused(
                key, f"{key} {number(value)} is outside {number(limit.low)} to {number(limit.high)}{unit}{why}"
            )


def number(value: float) -> str:
    """As people write it, in a few characters: 131,072 and 0.01."""
    if isinstance(value, int) and abs(value) >= 10**20:  # more digits than a float has, or than fit on a line
        return "under -10^20" if value < 0 else "over 10^20"
    whole = isinstance(value, int) or (abs(value) < 1e15 and value == int(value))
    return f"{value:,.0f}" if whole and not isinstance(value, int) else f"{value:,}" if whole else f"{value:g}"
