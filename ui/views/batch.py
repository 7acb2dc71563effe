"""What each step computed: tokens by kind as stacked bars, what bound the step, what preemption cost it, and where its
time went.

A bar that holds several steps shows the one with the most tokens, so that no peak is lost; the strips under it
show the same step.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from PySide6.QtCore import QPoint, QRect, Qt
from PySide6.QtGui import QPainter, QWheelEvent

from engine.config import AUTO
from engine.records import PREFILL
from ui import explain, pass_words, pressure
from ui.changes import Kinds
from ui.context import ViewContext
from ui.history import BOUNDS, Columns
from ui.paint.bars import BarStack, argb, tallest
from ui.paint.histogram import SteadyTop
from ui.paint.labels import CENTER, RIGHT, Key, legend, legend_width, write
from ui.views.painted import PaintedView
from ui.views.pinning import Pinning
from ui.views.step_axis import StepAxis
from ui.views.step_marks import StepMarks
from ui.views.step_strips import BOUND_COLORS, StepStrips, describe, total

# lowest first; symbols are the shapes beside the colours
TOKENS = (
    ("decode", "decode", ""),
    ("accepted", "drafted, accepted", "✓"),
    ("rejected", "drafted, not kept", "✕"),
    ("prefill", "prefill", ""),
)
USUAL = 0.9  # quantile of budgets that the engine found
SHORT = {"accepted": "kept", "rejected": "not kept"}  # of the words above, in narrow panels


class BatchView(PaintedView):
    """Wheel zooms, Shift+wheel or dragging pans, a click pins the moment, hovering tells a step's figures."""

    key = "batch"
    title, short = "Batch per step", "Batch"
    rate = 30.0  # at 200 steps/s no eye follows a bar
    what_if = True
    kinds = Kinds.STEPS | Kinds.SETTINGS | Kinds.CURSOR | Kinds.SELECTION | Kinds.THEME | Kinds.SOURCE

    def __init__(self, context: ViewContext, parent=None):
        super().__init__(context, parent)
        self.axis = StepAxis()
        self._strips = StepStrips(self, self.axis)
        self._tokens, self._top = BarStack(), SteadyTop()
        self._pinned: int | None = None  # at the last refresh
        self._mouse: QPoint | None = None
        self._at = 0  # the bar that the words at the right speak of
        self._drag: tuple[int, bool] | None = None
        self._pinning = Pinning(context.cursor)
        self._plot = QRect()
        self._marks = StepMarks(self, self.axis)

    def refresh(self, kinds: Kinds) -> None:
        history, cursor = self.context.mirror.history, self.context.cursor
        if cursor.pinned is None and self._pinned is not None:
            self.axis.follow()
        elif cursor.pinned is not None and self._pinned is None:
            self.axis.freeze()
        self._pinned = cursor.pinned
        step = cursor.step
        at = history.slice(step, step)
        if len(at):
            bound = explain.BOUNDS[BOUNDS[int(at.bound[0])]]
            words = f"step {step:,} · {explain.count(int(at.budget[0]), 'token')} budget · bound by: {bound}"
            now = pressure.lately(history, step)
            parts = [now.words if now.thrashes else "", words, pass_words.how(at, 0).brief]
            self.summarise(" · ".join(part for part in parts if part))
        else:
            self.summarise("")
        self.update()

    # --- painting ---

    def draw(self, painter: QPainter, area: QRect) -> None:
        theme, history = self.theme, self.context.mirror.history
        inner = area.adjusted(theme.px(12), theme.px(4), -theme.px(12), -theme.px(8))
        if not history.last:
            self.draw_empty(painter, inner, "No step yet", "A bar appears here for every step that the engine runs.")
            return
        line, room = self.line(), inner.height()
        gutter = self.advance("↑ budget 99,999") + theme.px(6) if inner.width() >= theme.px(420) else 0
        y = inner.top()
        if room >= theme.px(110):
            self._draw_legend(painter, QRect(inner.left(), y, inner.width(), line))
            y += line + theme.px(4)
        # above the bars: labels of marks, and without a gutter the budget's value
        marks_row = line if room >= (theme.px(150) if gutter else theme.px(60)) else 0
        ticks_row = line if room >= theme.px(180) else 0
        with_time = room >= theme.px(140)
        time_head = line if with_time and room >= theme.px(230) else 0
        bottom = inner.bottom() - ticks_row
        strip = theme.px(6)
        time_height = max(theme.px(20), (bottom - y) // 5) if with_time else 0
        plot = QRect(inner.left(), y + marks_row, inner.width() - gutter, 0)
        if plot.width() < theme.px(40):
            return
        self._plot = plot
        columns, pick = self._prepare(plot.width())
        pressed = line if with_time and (columns.recomputed.any() or columns.swap.any()) else 0
        plot.setBottom(bottom - time_height - time_head - strip - pressed - theme.px(8 if with_time else 2))
        if plot.height() < theme.px(16):
            return
        self._at = self._shown_bar(len(pick))
        strip_at = QRect(plot.left(), plot.bottom() + theme.px(3), plot.width(), strip)
        self._draw_tokens(painter, plot, columns, pick, gutter)
        self._strips.draw_bound(painter, strip_at, columns, pick, gutter, self._at)
        if pressed:
            under = QRect(plot.left(), strip_at.bottom() + theme.px(3), plot.width(), pressed - theme.px(3))
            self._strips.draw_pressure(painter, under, columns, pick, gutter)
            strip_at.setBottom(under.bottom())
        low = strip_at.bottom()
        words = QRect(plot.left(), low + 1, plot.width(), 0)
        if with_time:
            head = QRect(plot.left(), strip_at.bottom() + theme.px(4), plot.width(), time_head)
            times = QRect(plot.left(), head.top() + time_head, plot.width(), time_height)
            words = head if time_head else words
            self._strips.draw_times(painter, times, head, columns, pick, gutter, self._at)
            low = times.bottom()
        if ticks_row:
            self._draw_ticks(painter, QRect(plot.left(), inner.bottom() - line, plot.width(), line))
        self._marks.draw(painter, plot, words, low, marks_row)
        self._draw_cursor(painter, plot, low)

    def _prepare(self, width: int) -> tuple[Columns, np.ndarray]:
        """The columns in view, and which of them each bar shows."""
        history = self.context.mirror.history
        bars = self.axis.fit(width, history.first, history.last, self.context.cursor.pinned)
        self.axis.left = self._plot.left() + max(0, width - width % self.axis.bar - bars * self.axis.bar)
        columns = history.slice(self.axis.low, self.axis.high)
        if not len(columns):  # the past that is looked at is kept no more
            columns = history.slice(None, history.first)
        _, pick = tallest(total(columns), int(columns.step[0]), self.axis.fold)
        return columns, pick

    def _shown_bar(self, bars: int) -> int:
        """Index of the bar that the words at the right speak of: the shown moment's, else the newest."""
        index = self.context.cursor.step // self.axis.fold - self.axis.low // self.axis.fold
        return index if 0 <= index < bars else bars - 1

    def _draw_tokens(self, painter: QPainter, plot: QRect, columns: Columns, pick: np.ndarray, gutter: int) -> None:
        theme = self.theme
        values = np.stack([getattr(columns, name)[pick] for name, _, _ in TOKENS]).astype(np.float64)
        peak = float(values.sum(axis=0).max(initial=1))
        settings, budget = self.context.cursor.state.settings, columns.budget[pick]
        if settings is not None and settings.token_budget == AUTO:
            # what it mostly is: in a step without streams it is some times as much, and moves all the while
            limit = float(np.quantile(budget, USUAL))
            top = self._top.update(max(limit * 1.03, peak) if peak > 0.2 * limit else peak * 1.15)
        else:
            # the budget line belongs to the picture unless it would flatten everything under it
            limit = float(columns.budget.max())
            top = limit * 1.03 if peak > 0.2 * limit else min(self._top.update(peak * 1.15), limit * 1.03)
        gap = 1 if self.axis.bar >= 3 else 0
        colors = [argb(theme.color(token)) for token, _, _ in TOKENS]
        picture = self._tokens.render(values, top, plot.height(), self.axis.bar, gap, colors)
        painter.setPen(theme.pen("border"))
        painter.drawLine(plot.left(), plot.bottom() + 1, plot.right(), plot.bottom() + 1)
        painter.drawImage(self.axis.left, plot.top(), picture)
        self._draw_budget(painter, plot, columns, pick, top, gutter)
        if not gutter:
            return
        side = QRect(plot.right() + theme.px(6), plot.top(), gutter, self.line())
        scale = f"{top:,.0f}" if limit > top or budget[-1] > top else ""
        write(painter, side, scale, theme.font("small"), theme.color("text_faint"))
        side.moveBottom(plot.bottom() - theme.px(5))
        now = explain.count(int(values[:, self._at].sum()), "token")
        write(painter, side, now, theme.font("small"), theme.color("text_dim"))

    def _draw_budget(
        self, painter: QPainter, plot: QRect, columns: Columns, pick: np.ndarray, top: float, gutter: int
    ) -> None:
        """The budget in force at each step: a line that moves where it was changed, with its value at the end."""
        theme = self.theme
        budget = columns.budget[pick].astype(np.int64)
        edges = np.r_[0, np.flatnonzero(np.diff(budget)) + 1, len(budget)]
        painter.setPen(theme.pen("limit"))
        y_before = None
        for a, b in pairwise(edges):
            y = plot.bottom() + 1 - round(float(budget[a]) / top * plot.height())
            x, end = self.axis.left + int(a) * self.axis.bar, self.axis.left + int(b) * self.axis.bar
            end = plot.right() if b == len(budget) else end
            x = plot.left() if a == 0 else x
            if y >= plot.top():
                painter.drawLine(x, y, end, y)
                if y_before is not None and y_before >= plot.top():
                    painter.drawLine(x, y_before, x, y)
            y_before = y
        text, line = f"budget {int(budget[-1]):,}", self.line()
        y = plot.bottom() + 1 - round(float(budget[-1]) / top * plot.height())
        if y < plot.top():
            text = f"↑ {text}"
            if not gutter:
                write(painter, QRect(plot.left(), plot.top(), plot.width(), line), text, theme.font("small"),
                      theme.color("limit"), RIGHT)  # fmt: skip
            else:
                spot = QRect(plot.right() + theme.px(4), plot.top() + line, gutter, line)
                write(painter, spot, text, theme.font("small"), theme.color("limit"))
            return
        if gutter:
            spot = QRect(plot.right() + theme.px(6), min(y - line // 2, plot.bottom() - 2 * line), gutter, line)
            write(painter, spot, text, theme.font("small"), theme.color("limit"))
        else:
            width = self.advance(text) + theme.px(4)
            spot = QRect(plot.right() - width, y - line, width, line)
            write(painter, spot, text, theme.font("small"), theme.color("limit"), RIGHT)

    def _draw_legend(self, painter: QPainter, row: QRect) -> None:
        right = self._draw_selected(painter, row)
        self.kept(painter, row.adjusted(0, 0, -right, 0), "legend", None, self._draw_keys)

    def _draw_keys(self, painter: QPainter, row: QRect) -> None:
        theme = self.theme
        small, dim, faint = theme.font("small"), theme.color("text_dim"), theme.color("text_faint")
        keys = [Key(theme.color(token), words, symbol) for token, words, symbol in TOKENS]
        gap = theme.px(14)
        if legend_width(keys, small, gap) > row.width():
            keys = [Key(theme.color(token), SHORT.get(token, words), symbol) for token, words, symbol in TOKENS]
            gap = theme.px(8)
        used = legend(painter, row, keys, small, dim, gap)
        bounds = [Key(theme.color(BOUND_COLORS[name]), explain.BOUNDS[name]) for name in BOUNDS]
        words = self.advance("bound by") + theme.px(8)
        rest = row.adjusted(used + theme.px(6), 0, 0, 0)
        if rest.width() > words + legend_width(bounds, small, theme.px(10)):  # all of them or none
            write(painter, rest, "bound by", small, faint)
            legend(painter, rest.adjusted(words, 0, 0, 0), bounds, small, faint, theme.px(10))

    def _draw_selected(self, painter: QPainter, row: QRect) -> int:
        """What the chosen sequence had of the shown step; returns the width taken at the right."""
        seq, state = self.context.selection.seq, self.context.cursor.state
        info = None if seq is None else state.sequences.get(seq)
        if info is None or info.last_row is None or info.last_row.step != state.step:
            return 0
        done, theme = info.last_row, self.theme
        kind = "prefill" if done.kind == PREFILL else f"verify γ{done.drafted}" if done.drafted else "decode"
        text = f"seq {seq} · {kind} · {explain.count(done.scheduled, 'token')}"
        width = self.advance(text) + theme.px(18)
        if width > row.width() // 2:
            return 0
        box = QRect(row.right() - width, row.top(), width, row.height())
        painter.fillRect(QRect(box.left(), box.top() + theme.px(3), theme.px(6), box.height() - theme.px(6)),
                         theme.sequence_color(seq))  # fmt: skip
        write(painter, box, text, theme.font("small"), theme.color("text"), RIGHT)
        return width + theme.px(10)

    def _draw_ticks(self, painter: QPainter, row: QRect) -> None:
        """Step numbers at both ends and, with folding, what a bar stands for."""
        theme, axis = self.theme, self.axis
        font, faint = theme.font("small"), theme.color("text_faint")
        row = row.adjusted(
            max(0, min(axis.left - row.left(), row.width() - self.advance("step 9,999  9,999"))), 0, 0, 0
        )
        left = write(painter, row, f"step {axis.low:,}", font, faint)
        right = write(painter, row, f"{axis.high:,}", font, faint, RIGHT)
        middle = row.adjusted(left + theme.px(8), 0, -right - theme.px(8), 0)
        if axis.fold > 1:
            write(painter, middle, f"1 bar = {axis.fold} steps, the fullest", font, faint, CENTER)
        elif not axis.follows and self.context.cursor.pinned is None:
            write(painter, middle, "panned · scroll right to follow again", font, faint, CENTER)

    def _draw_cursor(self, painter: QPainter, plot: QRect, bottom: int) -> None:
        pinned = self.context.cursor.pinned
        axis, theme = self.axis, self.theme
        if pinned is not None and axis.low <= pinned <= axis.high:
            x = axis.x(pinned)
            painter.setPen(theme.pen("selection"))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRect(x - 1, plot.top(), axis.bar + 1, bottom - plot.top())
        if self._mouse is not None and plot.left() <= self._mouse.x() <= plot.right():
            steps = axis.steps_at(self._mouse.x())
            if steps:
                painter.fillRect(axis.x(steps[0]), plot.top(), axis.bar, bottom - plot.top(), theme.color("text", 0.14))

    # --- Qt ---

    def wheelEvent(self, event: QWheelEvent) -> None:
        delta = event.angleDelta()
        clicks = (delta.y() or delta.x()) // 60 or (1 if delta.y() > 0 else -1)
        if delta.x() or event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
            self.axis.pan(clicks * 4)
        else:
            steps = self.axis.steps_at(int(event.position().x()))
            self.axis.zoom(1 if clicks > 0 else -1, steps[0] if steps else None, self._plot.width())
        event.accept()
        self.update()

    def mousePressEvent(self, event) -> None:
        self._pinning.pressed()
        if event.button() == Qt.MouseButton.LeftButton:
            self._drag = (event.position().toPoint().x(), False)

    def mouseMoveEvent(self, event) -> None:
        at = event.position().toPoint()
        if self._drag is not None:
            bars = (at.x() - self._drag[0]) // self.axis.bar
            if bars:
                self.axis.pan(bars)
                self._drag = (self._drag[0] + bars * self.axis.bar, True)
        self._mouse = at
        steps = self.axis.steps_at(at.x()) if self._plot.left() <= at.x() <= self._plot.right() else None
        self.tip(at, describe(self.context.mirror.history, *steps) if steps and self._drag is None else "")
        self.update()

    def mouseReleaseEvent(self, event) -> None:
        drag, self._drag = self._drag, None
        if drag is None or drag[1] or not self.context.mirror.history.last:
            return
        steps = self.axis.steps_at(event.position().toPoint().x())
        if steps is None:
            return
        columns = self.context.mirror.history.slice(*steps)
        self.context.cursor.pin(int(columns.step[int(np.argmax(total(columns)))]))

    def mouseDoubleClickEvent(self, event) -> None:
        self._pinning.double_clicked(event)

    def leaveEvent(self, event) -> None:
        super().leaveEvent(event)
        self._mouse = None
        self.update()
