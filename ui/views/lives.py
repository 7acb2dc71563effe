"""Block lives: how long blocks hold what they hold, lie idle before they are evicted, and wait to be used again.

Three histograms on one logarithmic time axis: bars for the last minute of the engine's clock, an outline, to its own
height, for everything since the window watched. What each counts is written in `ui.block_lives`, and said where the
mouse is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import QRect
from PySide6.QtGui import QPainter
from PySide6.QtWidgets import QWidget

from engine.records import FREE
from ui import explain, log_bins
from ui.block_lives import UNKNOWN, BlockLives, Measure
from ui.changes import Kinds
from ui.context import ViewContext
from ui.latency import SECOND
from ui.paint.labels import Key, legend, legend_width
from ui.views.lives_plot import Axis, Shown, draw_axis, draw_plot, head, skyline
from ui.views.painted import PaintedView

WINDOW = 60  # s of the engine's clock
PALE = 0.45  # of the colour, for lives that ended without an eviction


@dataclass(frozen=True)
class Figure:
    """`name` is the issue's and vLLM's; `told` what it counts, `apart` how vLLM's differs."""

    key: str
    name: str
    title: str
    token: str
    told: str
    apart: str


FIGURES = (
    Figure(
        "lifetime", "kv_block_lifetime", "Lifetime", "kv_used",
        "from a block's allocation until its contents were gone: evicted for another sequence, or (paler) let go of "
        "without being kept",
        "vLLM's kv_block_lifetime_seconds ends the paler ones only when the block is given away again",
    ),
    Figure(
        "idle", "idle_before_evict", "Idle before eviction", "kv_cached",
        "from the last time a block was handed out, by allocation or prefix hit, until it was evicted; what its last "
        "owner did in it counts too",
        "as vLLM's kv_block_idle_before_evict_seconds",
    ),
    Figure(
        "gap", "reuse_gap", "Reuse gap", "accent",
        "from one time that a block was handed out to the next: its allocation, then every prefix hit and every "
        "sequence that shares it",
        "vLLM's kv_block_reuse_gap_seconds leaves out the allocation and all but the last four, and counts at eviction",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One figure at one moment; seconds and steps of the window, (samples,)."""

    figure: Figure
    seconds: NDArray
    steps: NDArray
    shown: Shown
    counted: str  # in few words
    again: int  # of the evicted, asked for again
    unused: float  # median of what the evicted lay without a holder, seconds; NaN without any, and of other figures
    total: int  # of the session

    @property
    def tip(self) -> str:
        f, few = self.figure, f"{explain.count(len(self.seconds), 'block')} in the last {WINDOW} s"
        words = [f"<b>{f.title}</b> ({f.name}): {f.told}.", f"{f.apart}; of all blocks, where vLLM follows a sample."]
        if len(self.seconds):
            half, most = explain.duration(_at(self.seconds)), explain.duration(_at(self.seconds, 99))
            few += f": median {half}, {explain.count(int(_at(self.steps)), 'step')}; p99 {most}"
        words.append(f"{few}. {self.total:,} since this window watches.")
        if np.isfinite(self.unused):
            words.append(f"Nobody held them for the last {explain.duration(self.unused)} of that (median).")
        if self.again:
            times = "Once" if self.again == 1 else f"{self.again:,} times"
            words.append(f"{times} what had been evicted was asked for again, and computed once more.")
        return "<br>".join(words)


class LivesView(PaintedView):
    """
    Attributes:
        rows: what is drawn, a figure each.
    """

    key = "lives"
    title, short = "Block lives", "Lives"
    kinds = (
        Kinds.STEPS | Kinds.BLOCKS | Kinds.SETTINGS | Kinds.CURSOR | Kinds.SELECTION | Kinds.THEME | Kinds.SOURCE
    )  # fmt: skip
    rate = 4.0

    def __init__(self, context: ViewContext, parent: QWidget | None = None):
        super().__init__(context, parent)
        self.rows: list[Row] = []
        self._hits: list[tuple[QRect, Row]] = []
        self._axis: Axis | None = None

    def refresh(self, kinds: Kinds) -> None:
        self._look()
        self.update()

    def _look(self) -> None:
        lives, clock = self.context.mirror.history.lives, self.context.cursor.clock
        self.rows = [self._row(figure, lives, clock) for figure in FIGURES]
        ended, reused = len(self.rows[1].seconds), len(self.rows[2].seconds)
        self.summarise(f"last {WINDOW} s · {ended:,} evicted · {reused:,} reused" if not self._is_empty() else "")

    def _row(self, figure: Figure, lives: BlockLives, clock: int) -> Row:
        measures = [lives.lifetime, lives.freed] if figure.key == "lifetime" else [getattr(lives, figure.key)]
        found = [measure.since(clock - WINDOW * SECOND, clock) for measure in measures]
        seconds, steps = (np.concatenate(parts) for parts in zip(*found, strict=True))
        half = _at(seconds)
        session = np.sum([self._session(measure, clock) for measure in measures], axis=0)
        shown = Shown(
            counts=np.stack([log_bins.count(values) for values, _ in found]),
            session=session,
            tokens=((figure.token, 1.0), (figure.token, PALE))[: len(found)],
            value=half,
            words=f"median {explain.duration(half)}",
            empty="" if len(seconds) else self._why_empty(figure, lives, int(session.sum())),
            own=self._own(figure, lives, clock),
        )
        again, unused = 0, float("nan")
        if figure.key == "idle":
            again = len(lives.again.since(clock - WINDOW * SECOND, clock)[0])
            unused = _at(lives.unused.since(clock - WINDOW * SECOND, clock)[0])
        counted = self._counted(figure, found, again)
        return Row(figure, seconds, steps, shown, counted, again, unused, int(session.sum()))

    def _session(self, measure: Measure, clock: int) -> NDArray:
        """Everything up to the shown moment; of the past as far as samples are kept."""
        if self.context.cursor.is_live:
            return measure.counts
        return log_bins.count(measure.seconds.since(-1, clock)[1])

    @staticmethod
    def _counted(figure: Figure, found: list[tuple[NDArray, NDArray]], again: int) -> str:
        counts = [len(values) for values, _ in found]
        if not sum(counts):
            return ""
        if figure.key == "lifetime":
            words = (f"{counts[0]:,} evicted" if counts[0] else "", f"{counts[1]:,} freed" if counts[1] else "")
            return " · ".join(word for word in words if word)
        if figure.key == "idle":
            return f"{counts[0]:,} evicted" + (f" · {again:,} wanted again" if again else "")
        return explain.count(counts[0], "reuse")

    def _why_empty(self, figure: Figure, lives: BlockLives, before: int) -> str:
        if before:
            return f"none in the last {WINDOW} s; the outline is the session's"
        settings = self.context.cursor.state.settings
        cache = settings is None or settings.prefix_cache
        if figure.key == "lifetime":
            live = self.context.mirror.live
            alive = live.used + live.cached
            return f"no block's contents have gone yet: {explain.count(alive, 'block')} live on"
        if figure.key == "idle":
            if not cache:
                return "nothing is kept to be evicted: the prefix cache is off"
            return "no block was evicted: the pool never ran out"
        return "no block was asked for again" + ("" if cache else ": the prefix cache is off")

    def _own(self, figure: Figure, lives: BlockLives, clock: int) -> tuple[float, str] | None:
        """The selected block's age."""
        block = self.context.selection.block
        if figure.key != "lifetime" or block is None or block >= len(lives.state):
            return None
        if lives.state[block] == FREE or lives.born[block] == UNKNOWN or lives.born_clock[block] > clock:
            return None
        age = (clock - int(lives.born_clock[block])) / SECOND
        return age, f"block {block:,} so far {explain.duration(age)}"

    def _is_empty(self) -> bool:
        lives = self.context.mirror.history.lives
        return not (lives.events.count or any(row.total for row in self.rows))

    # --- painting ---

    def draw(self, painter: QPainter, area: QRect) -> None:
        theme, line = self.theme, self.line()
        inner = area.adjusted(theme.px(12), theme.px(4), -theme.px(12), -theme.px(8))
        self._hits, self._axis = [], None
        if not self.rows or self._is_empty():
            hint = "How long blocks live, lie idle and wait to be used again comes with the first requests."
            self.draw_empty(painter, inner, "No block has lived yet", hint)
            return
        title = self.line("body")
        foot = line + theme.px(2)
        pitch = (inner.height() - foot) // len(self.rows)
        high = pitch - title - theme.px(10)
        if high < theme.px(14):
            self._draw_words(painter, inner)
            return
        everything = np.sum([row.shown.session for row in self.rows], axis=0)
        self._axis = Axis.of(everything, inner.left(), inner.width())
        row = QRect(inner.left(), inner.top() + len(self.rows) * pitch, inner.width(), foot)
        boxes = [
            QRect(inner.left(), inner.top() + i * pitch + title + theme.px(3), inner.width(), high)
            for i in range(len(self.rows))
        ]
        draw_axis(painter, self, self._axis, row, boxes[0].top())
        for one, box in zip(self.rows, boxes, strict=True):
            heading = QRect(box.left(), box.top() - title - theme.px(3), box.width(), title)
            painter.fillRect(heading.adjusted(0, -theme.px(6), 0, theme.px(2)), theme.color("panel"))
            head(painter, self, heading, one.figure.title, one.figure.name, one.counted)
            draw_plot(painter, self, self._axis, box, one.shown)
            self._hits.append((heading.united(box), one))
        self._draw_key(painter, boxes)

    def _draw_key(self, painter: QPainter, boxes: list[QRect]) -> None:
        """What pale bars and the outline mean, in the first corner that everything drawn leaves empty."""
        assert self._axis is not None
        theme, small, line = self.theme, self.theme.font("small"), self.line()
        keys = [Key(theme.mix("kv_used", PALE), "freed"), Key(theme.color("text_faint"), "session, to its own height")]
        wide = legend_width(keys, small, theme.px(10))
        for box, one in zip(boxes, self.rows, strict=True):
            heights = skyline(self._axis, box, one.shown)
            median = self._axis.x_of(one.shown.value) if len(one.seconds) else None
            for left in (box.left() + theme.px(4), box.right() - wide):
                near = theme.px(12) + self.advance(one.shown.words, "strong")  # where the median and its words stand
                clear = median is None or not left - near < median < left + wide + near
                part = heights[max(0, left - box.left()) : left - box.left() + wide]
                if clear and wide < box.width() and not one.shown.empty and part.max() < box.height() - line:
                    legend(painter, QRect(left, box.top(), wide, line), keys, small, theme.color("text_faint"),
                           theme.px(10))  # fmt: skip
                    return

    def _draw_words(self, painter: QPainter, inner: QRect) -> None:
        """Too low for pictures: a line a figure."""
        pitch = max(self.line("body"), min(inner.height() // len(self.rows), self.line("body") + self.theme.px(6)))
        for index, one in enumerate(self.rows):
            row = QRect(inner.left(), inner.top() + index * pitch, inner.width(), pitch)
            told = f"{one.shown.words} · {one.counted}" if one.counted else one.shown.empty
            head(painter, self, row, one.figure.title, "", told)
            self._hits.append((row, one))

    # --- Qt ---

    def mouseMoveEvent(self, event) -> None:
        at = event.position().toPoint()
        row = next((row for box, row in self._hits if box.contains(at)), None)
        text = "" if row is None else f"<p>{row.tip}</p>"
        if row is not None and self._axis is not None:
            index = self._axis.bin_at(at.x())
            here = int(self._axis.folded(row.shown.counts)[:, index - self._axis.low].sum())
            if here:
                text += f"<p>{explain.count(here, 'block')} of {self._axis.range_words(index)}</p>"
        self.tip(at, text)


def _at(values: NDArray, point: float = 50) -> float:
    """A value that was measured, by nearest rank; NaN without any."""
    return float(np.percentile(values, point, method="inverted_cdf")) if len(values) else float("nan")
