"""What the memory calculator knows beside its formulas: models and cards to choose from, the running engine's own
figures beside the formula's, and the curves of its charts. Plain values, no Qt.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import floor, log10

from engine import held
from engine.capacity import Factors
from engine.config import Model
from engine.formulas import MIB
from engine.records import Memory
from engine.shape import Described, from_config
from ui.contracts import DeviceMemory

PRECISIONS = (("fp16, bf16", 2.0), ("fp8", 1.0), ("int4", 0.5))  # bytes of a number of K or V
FIRST_MODEL, FIRST_CARD = "Llama-3 8B", "RTX 4090"
SHORTEST, LONGEST, FARTHEST = 512, 1 << 18, 1 << 25  # tokens: what charts span at least, and to show a full card


@dataclass(frozen=True)
class Card:
    """`bytes`: what the driver has. `sold_as`: GB on the box, 0 for a card that is really there."""

    name: str
    bytes: int
    sold_as: int = 0


@dataclass(frozen=True)
class Entry:
    """A model that can be chosen; `weight_bytes` of a parameter and `kv_bytes` of a number, where they are known."""

    name: str
    factors: Factors
    trained: int  # tokens
    notes: tuple[str, ...] = ()


@cache
def presets() -> tuple[Entry, ...]:
    listed = json.loads((files("assets") / "calculator" / "models.json").read_text("utf-8"))
    return tuple(entry(Described(m["name"], from_config(m["config"]).shape)) for m in listed)


@cache
def cards() -> tuple[Card, ...]:
    listed = json.loads((files("assets") / "calculator" / "cards.json").read_text("utf-8"))
    return tuple(Card(c["name"], c["mib"] * MIB, c["sold_as_gb"]) for c in listed)


def entry(described: Described) -> Entry:
    shape = described.shape
    factors = Factors(
        layers=shape.layers, heads=shape.heads, kv_heads=shape.kv_heads, head_dim=shape.head_dim,
        parameters=shape.parameters,
    )  # fmt: skip
    return Entry(described.name, factors, shape.max_positions, described.notes)


def of_engine(model: Model, weights: int, block_size: int) -> Entry:
    """The running model, with the bytes that its engine really holds."""
    factors = Factors(
        layers=model.layers, heads=model.heads, kv_heads=model.kv_heads, head_dim=model.head_dim,
        parameters=model.parameters, kv_bytes=number_bytes(model), block_size=block_size,
        weight_bytes=round(weights / max(1, model.parameters), 4),
    )  # fmt: skip
    return Entry(model.name, factors, model.max_positions)


def here(sample: DeviceMemory | None) -> Card | None:
    """The card of this machine, by its driver's count."""
    return Card(sample.name, sample.total) if sample is not None and sample.total else None


def number_bytes(model: Model) -> float:
    """Of one number of a key or value."""
    numbers = 2 * model.layers * model.kv_heads * model.head_dim
    each = model.kv_bytes_per_token / numbers
    return int(each) if each == int(each) else each


@dataclass(frozen=True)
class Shown:
    """All that the calculator shows at one moment.

    Attributes:
        name, trained, notes: of the model chosen. problem: why a file could not be taken, one line.
        card: of `cards`, by number. engine: the running engine's figures beside the formula's; empty without one.
        source: what the engine's figures are: measured, simulated.
    """

    factors: Factors
    name: str
    trained: int
    notes: tuple[str, ...]
    problem: str
    cards: tuple[Card, ...]
    card: int
    engine: tuple[Line, ...]
    engine_name: str
    source: str

    @property
    def chosen(self) -> Card:
        return self.cards[self.card]


# --- the engine's figures beside the formula's ---


@dataclass(frozen=True)
class Line:
    """`formula` and `engine` are bytes; `engine` None in a line that is a part of the next sum."""

    name: str
    how: str
    formula: int
    engine: int | None = None

    @property
    def difference(self) -> int:
        return 0 if self.engine is None else self.engine - self.formula


def agreement(model: Model, memory: Memory, num_blocks: int, block_size: int) -> tuple[Line, ...]:
    """What the formulas give for the running engine, and what it says that it holds."""
    each = number_bytes(model)
    token = 2 * model.layers * model.kv_heads * model.head_dim * each
    terms = f"2·{model.layers}·{model.kv_heads}·{model.head_dim}·{each:g}"
    lines = [
        Line("KV a token", terms, round(token), model.kv_bytes_per_token),
        Line("KV pool", f"{num_blocks:,} blocks × {block_size} tokens", round(num_blocks * block_size * token),
             memory.kv_pool),
    ]  # fmt: skip
    found = held.explain(model, memory.weights) or held.nearest(model, memory.weights)
    if found is None:
        return (*lines, Line("weights", f"held as {model.dtype}", model.weight_bytes, memory.weights))
    if len(found.parts) > 1:
        lines += [Line(part.name, part.why, part.bytes) for part in found.parts]
    return (*lines, Line("weights", f"{model.dtype}, all parts", found.bytes, memory.weights))


# --- side by side ---


@dataclass(frozen=True)
class Variant:
    """One curve. `own`: what the factors say now."""

    name: str
    note: str
    factors: Factors
    own: bool


def by_attention(factors: Factors) -> tuple[Variant, ...]:
    """The same model and weights with its query heads sharing keys and values in other groups."""
    return tuple(
        Variant(name, f"{heads} KV head{'' if heads == 1 else 's'}", factors.with_(kv_heads=heads),
                heads == factors.kv_heads)
        for name, heads in factors.attention()
    )  # fmt: skip


def by_precision(factors: Factors) -> tuple[Variant, ...]:
    known = dict(PRECISIONS)
    if factors.kv_bytes not in known.values():
        known = {"own": factors.kv_bytes, **known}
    return tuple(
        Variant(name, f"{each:g} B a number", factors.with_(kv_bytes=each), each == factors.kv_bytes)
        for name, each in known.items()
    )


def contexts(factors: Factors, card: float) -> tuple[int, int]:
    """The span of the charts, tokens: powers of two with the context in it, and where the card is full."""
    low = min(SHORTEST, 1 << max(4, factors.context.bit_length() - 1))
    full = min(FARTHEST, factors.longest_context(card) * 5 // 4)
    return low, max(LONGEST, 1 << full.bit_length(), 2 << factors.context.bit_length())


def ticks(low: int, high: int, room: int) -> list[int]:
    """Powers of two, at most `room` of them, evenly apart."""
    powers = list(range((low - 1).bit_length(), high.bit_length()))
    step = next(s for s in (1, 2, 3, 4, 6, 99) if len(powers[::s]) <= max(2, room))
    return [1 << p for p in powers[::step]]


def levels(top: float) -> list[float]:
    """Round figures from 0 up to `top`, three to seven of them."""
    if not top > 0:
        return [0.0]
    step = 10.0 ** (floor(log10(top)) + 1)
    while top / step < 3:
        step = next(step * part for part in (0.5, 0.25, 0.2, 0.1, 0.05, 0.025, 0.02, 0.01) if top / (step * part) >= 3)
    return [step * i for i in range(int(top / step + 1e-9) + 1)]


def short(tokens: int) -> str:
    """'16k', '2M': powers of two as people say them."""
    if tokens >= 1 << 20 and tokens % (1 << 20) == 0:
        return f"{tokens >> 20}M"
    return f"{tokens >> 10}k" if tokens >= 1 << 10 and tokens % (1 << 10) == 0 else f"{tokens:,}"
