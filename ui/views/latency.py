"""How long requests take and how many come out: percentiles, histograms with their targets, tokens/s over time.

Everything is over the last minute of the engine's clock, which leaves out paused and delayed time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import QRect, Signal
from PySide6.QtGui import QPainter
from PySide6.QtWidgets import QWidget

from engine.formulas import percentile, time_per_output_token
from ui import explain, figures
from ui.changes import Kinds
from ui.context import ViewContext
from ui.figures import Targets
from ui.latency import SECOND
from ui.paint.labels import LEFT, RIGHT, write
from ui.views.latency_histogram import FEW, Chosen, LatencyHistogram
from ui.views.number_box import NumberBox
from ui.views.outcomes import Outcomes
from ui.views.painted import PaintedView
from ui.views.rate_plot import RatePlot

WINDOW = 60  # s of the engine's clock

# key in the history, words, colour, explanation
KINDS = (
    ("ttft", "TTFT", "prefill", "time to first token: arrival to the first output token, queue and prefill"),
    ("tpot", "TPOT", "decode", "time per output token after the first, mean of a finished request"),
    ("itl", "ITL", "decode", "inter-token latency: each single gap between two emissions of a sequence"),
    ("queue", "queue", "text_dim", "arrival to first admission"),
    ("e2e", "e2e", "text_dim", "arrival to the last token of a finished request"),
)
POINTS = (50, 90, 99)


@dataclass(frozen=True)
class Shown:
    """The figures of one moment; values are seconds, NaN where nothing was measured."""

    values: dict[str, NDArray]
    points: dict[str, tuple[float, ...]]
    goodput: float
    rate: float
    finished: int
    chosen: dict[str, Chosen]  # the selected sequence's own figures, as far as it has them


class LatencyView(PaintedView):
    """The two targets are spin boxes at the top; goodput counts the requests that met both.

    Signals:
        targets_changed: the user chose other targets.

    Attributes:
        targets: what counts as good, seconds.
        shown: what is drawn.
    """

    targets_changed = Signal()

    key = "latency"
    title = "Latency"
    what_if = True
    kinds = (
        Kinds.STEPS | Kinds.TOKENS | Kinds.QUEUE | Kinds.SETTINGS | Kinds.CURSOR | Kinds.SELECTION | Kinds.THEME
        | Kinds.SOURCE
    )  # fmt: skip
    rate = 4.0

    def __init__(self, context: ViewContext, parent: QWidget | None = None):
        super().__init__(context, parent)
        theme = context.theme
        self.shown: Shown | None = None
        self._histograms = [LatencyHistogram(self, words, token, WINDOW) for _, words, token, _ in KINDS[:2]]
        self._rate = RatePlot(self, WINDOW)
        self._outcomes = Outcomes()
        self._hits: list[tuple[QRect, str]] = []
        tip = "target: goodput counts requests that met both"
        self._ttft = NumberBox(theme, self.targets.ttft, 0.05, 60, 0.1, 2, unit=" s", tip=f"TTFT {tip}", parent=self)
        self._tpot = NumberBox(
            theme, self.targets.tpot * 1e3, 1, 2000, 5, 0, unit=" ms", tip=f"TPOT {tip}", parent=self
        )
        for box in (self._ttft, self._tpot):
            box.valueChanged.connect(self._retarget)

    @property
    def targets(self) -> Targets:
        return self.context.goals.targets

    def _retarget(self) -> None:
        self.context.goals.targets = Targets(ttft=self._ttft.value(), tpot=self._tpot.value() / 1e3)
        self._look()
        self.update()
        self.targets_changed.emit()

    def refresh(self, kinds: Kinds) -> None:
        if kinds & Kinds.THEME:
            self._rate.restyle()
            self._place()
        self._look()
        self.update()

    def _look(self) -> None:
        history, clock = self.context.mirror.history, self.context.cursor.clock
        since = clock - WINDOW * SECOND
        values = {key: getattr(history, key).since(since, clock)[1] for key, *_ in KINDS}
        points = {key: tuple(_percentiles(found)) for key, found in values.items()}
        columns = history.since(since, clock)
        start = max(since, int(columns.clock[0])) if len(columns) else clock
        self._outcomes.follow(history.requests)
        good = self._outcomes.good(since, clock, self.targets) / ((clock - start) / SECOND) if clock > start else 0.0
        mean = figures.tokens_per_s(columns, since, clock)
        self.shown = Shown(values, points, good, mean, len(values["e2e"]), self._chosen())
        ended = len(values["e2e"])
        if self._rate.shown == (self._is_empty() or self._areas()[2] is None):
            self._place()
        self._rate.look()
        self.summarise(f"last {WINDOW} s · goodput {explain.rate(good)} req/s" if ended else f"last {WINDOW} s")

    def _chosen(self) -> dict[str, Chosen]:
        seq = self.context.selection.seq
        info = None if seq is None else self.context.cursor.state.info(seq)
        if info is None or not info.first_token:
            return {}
        found = {"ttft": Chosen(info.seq, (info.first_token - info.arrival) / SECOND)}
        pace = time_per_output_token(info.first_token, info.last_token, info.output_tokens)
        if pace is not None:
            found["tpot"] = Chosen(info.seq, pace / SECOND)
        return found

    # --- painting ---

    def draw(self, painter: QPainter, area: QRect) -> None:
        theme, shown, line = self.theme, self.shown, self.line()
        inner, body, rate = self._areas()
        self._hits = []
        head = QRect(inner.left(), inner.top(), inner.width(), self._head_height())
        self._draw_targets(painter, head)
        if self._is_empty():
            hint = "How long requests wait for their tokens is told here from the first token on."
            self.draw_empty(painter, inner, "No latency yet", hint)
            return
        assert shown is not None
        if self._ttft.isVisibleTo(self):
            self._draw_head(painter, head)
        upper = QRect(body)
        if rate is not None:
            upper.setBottom(rate.top() - theme.px(10))
            self._rate.draw_words(painter, QRect(rate.left(), rate.top(), rate.width(), line), shown.rate)
        table_height = (len(KINDS) + 1) * (line + theme.px(2))
        if body.width() >= theme.px(520):
            table = QRect(upper.left(), upper.top(), min(theme.px(260), upper.width() * 2 // 5), upper.height())
            self._draw_table(painter, table)
            plots = upper.adjusted(table.width() + theme.px(24), 0, 0, 0)
            self._draw_histograms(
                painter, plots, side_by_side=plots.height() < theme.px(170) or plots.width() > theme.px(700)
            )
        elif upper.height() >= table_height + theme.px(150):
            self._draw_table(painter, QRect(upper.left(), upper.top(), upper.width(), table_height))
            self._draw_histograms(painter, upper.adjusted(0, table_height + theme.px(10), 0, 0), side_by_side=False)
        elif upper.height() >= theme.px(130):
            self._draw_histograms(painter, upper, side_by_side=False)
        else:
            self._draw_table(painter, upper)

    def _areas(self) -> tuple[QRect, QRect, QRect | None]:
        """All inside the margins, the part below the head, and of that the part of the rate plot, where there is
        room for one."""
        theme = self.theme
        inner = self.rect().adjusted(theme.px(12), theme.px(4), -theme.px(12), -theme.px(10))
        head = self._head_height() if self._ttft.isVisibleTo(self) else -theme.px(4)
        body = inner.adjusted(0, head + theme.px(6), 0, 0)
        if body.height() < theme.px(230):
            return inner, body, None
        height = max(theme.px(84), body.height() // 3)
        return inner, body, QRect(body.left(), body.bottom() - height, body.width(), height)

    def _is_empty(self) -> bool:
        return self.shown is None or not (len(self.shown.values["ttft"]) or len(self.context.mirror.history))

    def _head_height(self) -> int:
        return self.line("body") + self.theme.px(8)

    def _draw_targets(self, painter: QPainter, row: QRect) -> None:
        """The words before the two boxes."""
        if not self._ttft.isVisibleTo(self):
            return
        theme = self.theme
        small = theme.font("small")
        for box, words in ((self._ttft, "TTFT ≤"), (self._tpot, "TPOT ≤")):
            width = self.advance(words) + theme.px(6)
            spot = QRect(box.x() - width, row.top(), width, row.height())
            write(painter, spot, words, small, theme.color("text_dim"), LEFT)

    def _draw_head(self, painter: QPainter, row: QRect) -> None:
        """Goodput, at the left of the two targets."""
        theme, shown = self.theme, self.shown
        assert shown is not None
        small = theme.font("small")
        room = QRect(
            row.left(), row.top(), self._ttft.x() - row.left() - self.advance("TTFT ≤") - theme.px(16), row.height()
        )
        value = f"{explain.rate(shown.goodput)}" if shown.finished else "–"
        used = write(painter, room, value, theme.font("title"), theme.color("text"))
        room.adjust(used + theme.px(6), 0, 0, 0)
        words = "requests/s met both" if self.advance("requests/s met both") <= room.width() else "req/s good"
        if self.advance(words) <= room.width():
            write(painter, room, words, small, theme.color("text_dim"))

    def _draw_table(self, painter: QPainter, area: QRect) -> None:
        theme, shown, line = self.theme, self.shown, self.line()
        assert shown is not None
        small = theme.font("small")
        pitch = line + theme.px(2)
        cell = max(self.advance("99.9 ms", "strong") + theme.px(6), (area.width() - self.advance("queue  ")) // 4)
        columns = max(1, min(3, (area.width() - self.advance("queue ")) // cell))
        fit = max(0, area.height() // pitch)
        head = fit > 2
        for column in range(columns) if head else ():
            spot = QRect(area.right() - (columns - column) * cell, area.top(), cell, line)
            write(painter, spot, f"p{POINTS[column]}", small, theme.color("text_faint"), RIGHT)
        for row, (key, words, token, told) in enumerate(KINDS[: fit - head]):
            y = area.top() + (row + head) * pitch
            write(painter, QRect(area.left(), y, area.width() - columns * cell, line), words, small, theme.color(token))
            count = len(shown.values[key])
            for column in range(columns):
                spot = QRect(area.right() - (columns - column) * cell, y, cell, line)
                value = shown.points[key][column]
                faint = count < FEW or (column == 2 and count < 100)  # p99 of fewer is the slowest one
                write(painter, spot, explain.duration(value), theme.font("strong" if not faint else "small"),
                      theme.color("text_dim" if faint else "text"), RIGHT)  # fmt: skip
            tip = f"<p><b>{words}</b>: {told}.<br>{explain.count(count, 'sample')} in the last {WINDOW} s</p>"
            self._hits.append((QRect(area.left(), y, area.width(), pitch), tip))

    def _draw_histograms(self, painter: QPainter, area: QRect, side_by_side: bool) -> None:
        shown, gap = self.shown, self.theme.px(16)
        assert shown is not None
        if side_by_side:
            half = (area.width() - gap) // 2
            boxes = [QRect(area.left() + i * (half + gap), area.top(), half, area.height()) for i in (0, 1)]
        else:
            half = (area.height() - self.theme.px(8)) // 2
            boxes = [QRect(area.left(), area.top() + i * (half + self.theme.px(8)), area.width(), half) for i in (0, 1)]
        targets = self.targets.ttft, self.targets.tpot
        for box, one, (key, *_), target in zip(boxes, self._histograms, KINDS, targets, strict=False):
            points = shown.points[key]
            told = one.draw(painter, box, shown.values[key], points[0], points[2], target, shown.chosen.get(key))
            self._hits.append((box, told))

    # --- Qt ---

    def _place(self) -> None:
        """The boxes at the top right, the rate plot at the bottom."""
        theme = self.theme
        shown = self.height() >= theme.px(120) and self.width() >= theme.px(280)
        x, y = self.width() - theme.px(12), theme.px(4)
        for box in (self._tpot, self._ttft):
            box.restyle()
            box.move(x - box.width(), y)
            box.setVisible(shown)
            x -= box.width() + self.advance("TPOT ≤") + theme.px(14)
        self._rate.place(None if self._is_empty() else self._areas()[2])

    def resizeEvent(self, event) -> None:
        self._place()
        self._rate.look()

    def mouseMoveEvent(self, event) -> None:
        at = event.position().toPoint()
        self.tip(at, next((text for box, text in self._hits if box.contains(at)), ""))


def _percentiles(values: NDArray) -> list[float]:
    """Nearest rank, as `formulas.percentile`, over an array."""
    if not len(values):
        return [percentile((), point) for point in POINTS]
    ranks = [max(0, -(-point * len(values) // 100) - 1) for point in POINTS]
    ordered = np.partition(values, ranks)
    return [float(ordered[rank]) for rank in ranks]
