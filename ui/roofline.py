"""Steps on the roofline of their device (Williams et al. 2009): how much arithmetic each did for a byte that it moved,
and how fast, beside what the device allows.

A step's bytes and FLOPs are counted from its rows (`engine.cost_model`), its time is that of the target's forward pass:
so points are derived. The history keeps three sums over a step's rows; what they come to is computed when it is drawn.
No Qt.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, log10
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.cost_model import Counts, attended
from engine.formulas import decode_ceiling
from engine.records import DECODE
from engine.roof import Roof
from ui.explain import count, duration

if TYPE_CHECKING:
    from ui.history import Columns, History

DECODES, VERIFIES, PREFILLS = 0, 1, 2  # Points.kind: what most of a step's tokens were; verifies: decodes with drafts
KINDS = ("decode", "verification", "prefill")
KEPT = 2_048  # steps that are drawn, the latest: ten seconds at 200 a second
LATELY = 16  # steps that stand for the present: a single one jumps about
NEAR = 0.05  # of the ridge, to either side: at it
STALL = 300  # times slower than the roof allows: something else happened in such a step
OVER = 1.02  # of the roof, from which on a step is above it
_KEPT_ROOFS = 64


def sums(rows: NDArray | None, prefill: int, drafted: int) -> tuple[int, int, int]:
    """Of a step's rows (records.ROW): tokens of context read, query-key pairs, rows of logits. `prefill`, `drafted`:
    the step's tokens of these kinds."""
    if rows is None or not len(rows):
        return 0, 0, 0
    lengths = rows["scheduled"]
    if not prefill and not drafted and lengths.all():  # a token a row, each sees its whole context
        held = int(rows["context"].sum())
        return held, held, len(rows)
    lengths, drafts = lengths.astype(np.int64), rows["drafted"].astype(np.int64)
    held = rows["context"] + drafts - rows["accepted"]  # while the pass ran: rejected drafts go only afterwards
    wanted = ((rows["kind"] == DECODE) | (rows["emitted"] > 0)) & (lengths > 0)  # a prompt's last chunk emits
    reads, pairs = attended(lengths, held)
    return int(reads), int(pairs), int(((drafts + 1) * wanted).sum())


class Roofs:
    """Over which steps which roof was: an engine that is started again may be another."""

    def __init__(self) -> None:
        self._from: list[tuple[int, Roof | None]] = []

    def start(self, step: int, roof: Roof | None) -> None:
        """From `step` on."""
        self._from.append((step, roof))
        del self._from[:-_KEPT_ROOFS]

    def at(self, step: int) -> tuple[int, Roof | None]:
        """The first step of the engine that ran `step` or will, and its roof."""
        return next(((first, roof) for first, roof in reversed(self._from) if first <= step), (0, None))


class Points(NamedTuple):
    """Of steps that computed anything, (S) each. intensity: FLOP a byte. rate: FLOP/s. seconds: of the forward pass;
    whole: of the step."""

    step: NDArray[np.int64]
    kind: NDArray[np.uint8]
    intensity: NDArray[np.float64]
    rate: NDArray[np.float64]
    bytes: NDArray[np.float64]
    flops: NDArray[np.float64]
    seconds: NDArray[np.float64]
    whole: NDArray[np.float64]
    rows: NDArray[np.int32]
    tokens: NDArray[np.int32]
    emitted: NDArray[np.int32]
    context: NDArray[np.float64]  # tokens a row

    def __len__(self) -> int:
        return len(self.step)

    def of(self, which: NDArray) -> Points:
        return Points(*(column[which] for column in self))


def points(columns: Columns, counts: Counts) -> Points:
    drafted = columns.accepted + columns.rejected
    tokens = columns.prefill + columns.decode + drafted
    work = counts.of(tokens.astype(np.float64), columns.reads, columns.pairs, columns.logits)
    whole = columns.schedule + columns.draft + columns.swap + columns.forward + columns.sample + columns.commit
    some = (tokens > 0) & (columns.forward > 0)
    seconds = np.where(some, columns.forward, 1) / 1e9
    kind = np.where(2 * columns.prefill > tokens, PREFILLS, np.where(drafted > 0, VERIFIES, DECODES)).astype(np.uint8)
    every = Points(
        columns.step, kind, work.flops / work.bytes, work.flops / seconds, work.bytes, work.flops, seconds,
        whole / 1e9, columns.rows, tokens, columns.emitted, columns.reads / np.maximum(1, columns.rows),
    )  # fmt: skip
    return every if some.all() else every.of(some)


class Here(NamedTuple):
    """Where the present batch stands: medians of `steps` steps of one kind, or one chosen step."""

    kind: int
    intensity: float
    rate: float
    rows: int
    tokens: int
    steps: int


@dataclass(frozen=True)
class Stream:
    """Tokens/s of one stream. `most`: what the bandwidth allows at a context of `context` tokens. `alone`: measured
    over `steps` steps that had one row and no draft, NaN without any. `each`: of each of `of` streams now."""

    most: float
    context: int
    bytes: float  # read a token
    alone: float
    steps: int
    each: float
    of: int


@dataclass(frozen=True)
class Shown:
    """The view at one moment. `pinned`: the step that is looked back at, 0 while live."""

    roof: Roof | None
    points: Points | None
    here: Here | None
    stream: Stream | None
    pinned: int


def look(history: History, roofs: Roofs, step: int, live: bool) -> Shown:
    first, roof = roofs.at(step + 1 if live else step)  # of an engine that has run no step, its roof stands already
    pinned = 0 if live else step
    if roof is None:
        return Shown(None, None, None, None, pinned)
    found = points(history.slice(max(first, history.first, step - KEPT + 1), step), roof.counts)
    return Shown(roof, found, _here(found, pinned), _stream(found, roof, pinned), pinned)


def _here(found: Points, pinned: int) -> Here | None:
    if not len(found):
        return None
    if pinned:
        if found.step[-1] != pinned:
            return None
        last = found.of(slice(-1, None))
    else:
        last = found.of(slice(-LATELY, None))
        last = last.of(last.kind == np.bincount(last.kind).argmax())
    return Here(
        int(last.kind[0]), float(np.median(last.intensity)), float(np.median(last.rate)), round(np.median(last.rows)),
        round(np.median(last.tokens)), len(last),
    )  # fmt: skip


def _stream(found: Points, roof: Roof, pinned: int) -> Stream:
    decodes = found.kind != PREFILLS
    now = found.of(decodes).of(slice(-1 if pinned else -LATELY, None))
    context = round(float(np.median(now.context))) if len(now) else 0
    read = roof.counts.weights + roof.counts.kv * (context + 1)
    alone = found.of((found.kind == DECODES) & (found.rows == 1) & (found.tokens == 1))
    each, of = float("nan"), 0
    if len(now):
        each, of = float(np.median(now.emitted / np.maximum(1, now.rows) / now.whole)), round(np.median(now.rows))
    return Stream(
        decode_ceiling(roof.bandwidth, read), context, read,
        1 / float(np.median(alone.whole)) if len(alone) else float("nan"), len(alone), each, of,
    )  # fmt: skip


# --- axes ---


@dataclass(frozen=True)
class Axes:
    """Powers of ten at the ends of both axes, in halves, so that they seldom move."""

    left: float
    right: float
    bottom: float
    top: float

    @classmethod
    def around(cls, roof: Roof, found: Points) -> Axes:
        """The ridge, both parts of the roof, and all points but stalls, which are at the floor."""
        xs, ys = [1.0], []
        if roof.known:
            xs.append(6 * roof.ridge)
            ys.append(2 * roof.flops)
        if len(found):
            xs += [float(found.intensity.min()) / 1.3, float(found.intensity.max()) * 1.5]
            least = np.quantile(found.rate, 0.5) / STALL
            if roof.known:
                least = np.minimum(roof.flops, found.intensity * roof.bandwidth) / STALL
            ys += [float(found.rate[found.rate >= least].min(initial=np.inf)) / 1.5, float(found.rate.max()) * 1.3]
        left, right = _half(min(xs), floor), _half(max(xs), ceil)
        if roof.known:
            ys.append(roof.allows(10**left))
        ys = [y for y in ys if np.isfinite(y)] or [1e9, 1e12]
        bottom, top = _half(min(ys), floor), _half(max(ys), ceil)
        return cls(left, max(right, left + 1), bottom, max(top, bottom + 1))

    def x(self, intensity: NDArray | float) -> NDArray | float:
        """Share of the width."""
        return (np.log10(intensity) - self.left) / (self.right - self.left)

    def y(self, rate: NDArray | float) -> NDArray | float:
        """Share of the height, from the floor; what is below is at the floor."""
        return np.maximum(0.0, (np.log10(rate) - self.bottom) / (self.top - self.bottom))


def _half(value: float, to: type[floor] | type[ceil]) -> float:
    return to(2 * log10(value)) / 2


# --- words ---


def bound(roof: Roof, intensity: float) -> str:
    if abs(intensity / roof.ridge - 1) < NEAR:
        return "bandwidth and arithmetic alike"
    return "bandwidth" if intensity < roof.ridge else "arithmetic"


def where(roof: Roof, intensity: float, rate: float) -> str:
    """'9.1 FLOP a byte, 14 under the ridge: bound by bandwidth; reaches 62 % of what the roof allows'."""
    told = f"{few(intensity)} FLOP a byte"
    if not roof.known:
        return f"{told} at {si(rate, 'FLOP/s')}; how much the device allows is not known"
    told += f", {side(roof, intensity)}: bound by {bound(roof, intensity)}; "
    share = rate / roof.allows(intensity)
    if share > OVER:
        why = _why_above(roof, intensity)
        return f"{told}faster than what was measured at start, by {share - 1:.0%}: {why}".replace("%", " %")
    return f"{told}reaches {100 * share:.0f} % of what the roof allows"


def side(roof: Roof, intensity: float) -> str:
    """'14 under the ridge'."""
    off = intensity - roof.ridge
    if abs(off) < NEAR * roof.ridge:
        return "at the ridge"
    return f"{few(abs(off))} {'under' if off < 0 else 'over'} the ridge"


def _why_above(roof: Roof, intensity: float) -> str:
    return "caches held part of what it read" if intensity < roof.ridge else "the device was busy then"


def sentence(shown: Shown, idle: bool = False) -> str:
    """Where the present batch stands, in words. `idle`: nobody runs, and the last one is spoken of."""
    here = shown.here
    if here is None or shown.roof is None:
        return f"Step {shown.pinned:,} computed nothing" if shown.pinned else "No step has computed anything yet"
    lead = f"step {shown.pinned:,}, " if shown.pinned else "idle; before, " if idle else ""
    told = f"{lead}{subject(here.kind, here.rows, here.tokens)}: {where(shown.roof, here.intensity, here.rate)}"
    return told[0].upper() + told[1:]


def verdict(shown: Shown, idle: bool = False) -> tuple[str, str]:
    """The same in two: what is to be read first, and what it is of.

    'Bound by bandwidth, at 62 % of what the roof allows', 'batch of 8 · 9.1 FLOP a byte, 14 under the ridge'.
    """
    here, roof = shown.here, shown.roof
    if here is None or roof is None:
        return sentence(shown), ""
    lead = f"step {shown.pinned:,}: " if shown.pinned else "idle; before: " if idle else ""
    rest = f"{subject(here.kind, here.rows, here.tokens)} · {few(here.intensity)} FLOP a byte"
    if roof.known:
        share = here.rate / roof.allows(here.intensity)
        above = share > OVER
        of = "what was measured at start" if above else "what the roof allows"
        told = f"{lead}bound by {bound(roof, here.intensity)}, at {100 * share:.0f} % of {of}"
        rest += f", {side(roof, here.intensity)}"
        rest += f" · {_why_above(roof, here.intensity)}" if above else ""
    else:
        told = f"{lead}{si(here.rate, 'FLOP/s')}; how much the device allows is not known"
    return told[0].upper() + told[1:], rest


def subject(kind: int, rows: int, tokens: int) -> str:
    if kind == PREFILLS:
        return f"a step of {count(tokens, 'token')}, mostly prefill"
    if kind == VERIFIES:
        return f"batch of {rows:,} with drafts, {count(tokens, 'token')}"
    return f"batch of {rows:,}"


def tell(found: Points, at: int, roof: Roof) -> str:
    """One step as rich text."""
    kind, intensity, rate = int(found.kind[at]), float(found.intensity[at]), float(found.rate[at])
    flops, moved, seconds = float(found.flops[at]), float(found.bytes[at]), float(found.seconds[at])
    lines = [
        f"<b>step {int(found.step[at]):,}</b>: {subject(kind, int(found.rows[at]), int(found.tokens[at]))}",
        where(roof, intensity, rate),
        f"{si(flops, 'FLOP')} and {si(moved, 'B')} in {duration(seconds)}: {si(rate, 'FLOP/s')}, "
        f"{si(moved / seconds, 'B/s')}",
        "<i>click: show this moment</i>",
    ]
    return f"<p>{'<br>'.join(lines)}</p>"


def si(value: float, unit: str) -> str:
    """'36.1 GB/s', '4.80 TB/s', '989 TFLOP/s': decimal, as data sheets are."""
    power = min(5, max(0, floor(log10(value) / 3))) if value >= 1 else 0
    scaled = value / 1000**power
    digits = f"{scaled:.0f}" if scaled >= 99.95 else f"{scaled:.1f}" if scaled >= 9.995 else f"{scaled:.2f}"
    return f"{digits} {' kMGTP'[power].strip()}{unit}"


def few(value: float) -> str:
    """A number for the ear: '208', '14', '9.1', '0.42'."""
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.1f}" if value >= 0.995 else f"{value:.2f}"
