"""What stands below each slider: how the setting works out right now, and where its range ends and why. Pure text
from plain values; the arithmetic is `engine.formulas`'. No Qt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine import formulas
from engine.config import BY_HAND, Limit, LiveSettings, Model
from engine.records import StepBudget
from ui import explain
from ui.contracts import WORKLOAD_LIMITS, WorkloadSettings
from ui.explain import size

# why a range ends, short enough for one line; the engine's own sentence is in the tooltip
_WHY = {
    "max_batch": "engine's cap",
    "max_context": "trained length",
    "draft_length": "more is rejected",
    "draft_layers": "the model has no more",
    "ngram_min": "longer hardly match",
    "ngram_max": "longer find no more",
    "kv_blocks": "what memory holds",
    "token_budget": "engine's cap",
    "watermark": "half is kept free",
    "swap_blocks": "host's memory",
    "max_gap": "more is a pause",
    "rate": "one sender's pace",
    "prompt_tokens": "prompts at hand",
    "output_tokens": "enough to compare",
    "top_k": "vocabulary",
}
RECENT_STEPS = 10  # steps that 'bound n of 10' looks back on


@dataclass(frozen=True)
class Situation:
    """What the hints are computed from, gathered by the panel from the mirror."""

    settings: LiveSettings
    workload: WorkloadSettings
    block_size: int
    model: Model | None = None
    running: int = 0
    waiting: int = 0
    used: int = 0  # blocks
    cached: int = 0
    on_host: int = 0  # blocks
    acceptance: float = float("nan")
    drafted: float = float("nan")  # tokens drafted for a decode row, mean of the recent steps
    bound: Mapping[str, int] = field(default_factory=dict)  # how many of the recent steps each thing bound
    recent: int = 0  # steps that `bound` counts
    budget: StepBudget | None = None


def hint(key: str, now: Situation) -> str:
    """The live line below a slider."""
    return _HINTS[key](now)


def limit_line(key: str, limit: Limit) -> str:
    """The range and, in few words, why it ends there: '16 – 8,192 tokens · trained length'."""
    unit = limit.unit.replace(" per step", " a step").removesuffix(", 0 = off").removesuffix(", 0 = none")
    unit = unit.removesuffix(", 0 = a quarter").removesuffix("1 = off")
    span = f"{_number(limit.low)} – {_number(limit.high)} {unit}".rstrip()
    why = BY_HAND if limit.reason.startswith(BY_HAND) else _WHY.get(key, "")
    return _joined(span, why) if limit.reason else span


def limit_story(limit: Limit) -> str:
    """The same in a whole sentence."""
    span = f"From {_number(limit.low)} to {_number(limit.high)} {limit.unit}".rstrip()
    return f"{span}: {limit.reason}" if limit.reason else span


def workload_limits() -> dict[str, Limit]:
    """The workload's own ranges, as limits."""
    rate, prompt, output = (WORKLOAD_LIMITS[k] for k in ("rate", "prompt_tokens", "output_tokens"))
    return {
        "rate": Limit(*rate, "requests/s", "Poisson arrivals of one sender"),
        "prompt_tokens": Limit(*prompt, "tokens", "mean over requests; the built-in prompts can be brought to this"),
        "output_tokens": Limit(*output, "tokens", "mean over requests; longer answers show nothing new"),
    }


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:g}"


def _bound(now: Situation, key: str) -> str:
    count = now.bound.get(key, 0)
    return f"bound {count} of {explain.count(now.recent, 'step')}" if now.recent and count else ""


def _joined(*parts: str) -> str:
    return " · ".join(part for part in parts if part)


def _max_batch(now: Situation) -> str:
    return _joined(f"{now.running} running", _bound(now, "batch_cap"))


def _max_context(now: Situation) -> str:
    settings = now.settings
    pool_tokens = settings.kv_blocks * now.block_size
    if now.model is None:
        return f"{explain.count(formulas.blocks_for(settings.max_context, now.block_size), 'block')} each"
    one = now.model.kv_bytes_per_token * settings.max_context
    pool = now.model.kv_bytes_per_token * pool_tokens
    every = one * settings.max_batch
    verb = "has" if every <= pool else "has only"
    return f"KV {size(one)} each · {settings.max_batch} would need {size(every)}, the pool {verb} {size(pool)}"


def _draft_length(now: Situation) -> str:
    settings = now.settings
    if settings.draft_length == 0 or settings.draft_method == "off":
        return "off: one token a pass"
    if now.acceptance != now.acceptance:  # NaN: nothing was drafted yet
        return f"up to {settings.draft_length + 1} tokens a pass"
    if settings.draft_policy == "adaptive":
        many = "" if now.drafted != now.drafted else f" · {now.drafted:.1f} drafted a pass"
        return f"as many as pay: α {now.acceptance:.2f}{many}"
    expected = formulas.expected_tokens_per_pass(now.acceptance, settings.draft_length)
    return f"α {now.acceptance:.2f} → {expected:.2f} tokens a pass"


def _draft_layers(now: Situation) -> str:
    layers = now.settings.draft_layers
    if now.model is None:
        return "0: a quarter of them" if not layers else ""
    taken = layers or max(1, now.model.layers // 4)
    return f"the first {taken} of {now.model.layers} draft" + ("" if layers else ": a quarter")


def _ngram_min(now: Situation) -> str:
    least = now.settings.ngram_min
    return "no draft where no token matches" if least == 1 else f"no draft where fewer than {least} tokens match"


def _ngram_max(now: Situation) -> str:
    most = now.settings.ngram_max
    return "the last token is looked up" if most == 1 else f"the last {most} tokens are looked up first"


def _kv_blocks(now: Situation) -> str:
    blocks = now.settings.kv_blocks
    share = f"{now.used / blocks:.0%} used" if blocks else ""
    held = f"{blocks * now.block_size:,} tokens"
    if now.model is not None:
        held = f"{size(now.model.kv_bytes_per_token * blocks * now.block_size)} · {held}"
    return _joined(held, share, _bound(now, "kv_blocks"))


def _token_budget(now: Situation) -> str:
    if now.budget is not None and now.budget.goal:
        bound = f"bound {now.bound.get('token_budget') or 'none'} of {now.recent}" if now.recent else ""
        return _joined(f"for {now.budget.goal:,.0f} ms a step", bound)
    none = f"bound none of {explain.count(now.recent, 'step')}" if now.recent else "tokens in one step"
    return _bound(now, "token_budget") or none


def _swap_blocks(now: Situation) -> str:
    blocks = now.settings.swap_blocks
    if not blocks:
        return "none: preemption computes again"
    held = f"{blocks * now.block_size:,} tokens"
    if now.model is not None:
        held = f"{size(now.model.kv_bytes_per_token * blocks * now.block_size)} · {held}"
    return _joined(held, f"{now.on_host / blocks:.0%} used")


def _watermark(now: Situation) -> str:
    kept = int(now.settings.watermark * now.settings.kv_blocks)
    if not kept:
        return "0: prompts may fill the pool"
    return f"{explain.count(kept, 'block')} that no new prompt takes"


def _max_gap(now: Situation) -> str:
    if now.budget is not None and now.budget.goal:
        return f"the budget is {explain.count(now.budget.tokens, 'token')} for it"
    return "binds a budget on auto, while others decode"


def _rate(now: Situation) -> str:
    if not now.workload.running:
        return "paused: nothing arrives"
    tokens = now.workload.rate * now.workload.output_tokens
    return f"Poisson, seed {now.workload.seed} · asks for {tokens:,.0f} tok/s"


def _prompt_tokens(now: Situation) -> str:
    blocks = formulas.blocks_for(now.workload.prompt_tokens, now.block_size)
    return f"{explain.count(blocks, 'block')} of {now.block_size}"


def _output_tokens(now: Situation) -> str:
    both = now.workload.prompt_tokens + now.workload.output_tokens
    blocks = formulas.blocks_for(both, now.block_size)
    fits = now.settings.kv_blocks // max(1, blocks)
    return f"{explain.count(blocks, 'block')} with its prompt · {fits:,} fit{'s' if fits == 1 else ''} at once"


def _temperature(now: Situation) -> str:
    return "greedy: always the likeliest" if now.settings.temperature == 0 else "below 1 sharper, above 1 flatter"


def _top_k(now: Situation) -> str:
    k = now.settings.top_k
    return f"among the {k:,} likeliest" if k else "0: off"


def _top_p(now: Situation) -> str:
    p = now.settings.top_p
    return f"among the likeliest that sum to {p:g}" if p < 1 else "1: off"


def _min_p(now: Situation) -> str:
    p = now.settings.min_p
    return f"at least {p:g} × the likeliest" if p else "0: off"


def _repetition_penalty(now: Situation) -> str:
    penalty = now.settings.repetition_penalty
    return "1: off" if penalty == 1 else "divides what speaks for tokens that stand there"


def _presence_penalty(now: Situation) -> str:
    return "taken from every token that was written" if now.settings.presence_penalty else "0: off"


def _frequency_penalty(now: Situation) -> str:
    return "taken for each time that one was written" if now.settings.frequency_penalty else "0: off"


_HINTS = {
    "max_batch": _max_batch,
    "max_context": _max_context,
    "draft_length": _draft_length,
    "kv_blocks": _kv_blocks,
    "token_budget": _token_budget,
    "watermark": _watermark,
    "swap_blocks": _swap_blocks,
    "max_gap": _max_gap,
    "rate": _rate,
    "prompt_tokens": _prompt_tokens,
    "output_tokens": _output_tokens,
    "temperature": _temperature,
    "top_k": _top_k,
    "top_p": _top_p,
    "min_p": _min_p,
    "draft_layers": _draft_layers,
    "ngram_min": _ngram_min,
    "ngram_max": _ngram_max,
    "repetition_penalty": _repetition_penalty,
    "presence_penalty": _presence_penalty,
    "frequency_penalty": _frequency_penalty,
}
