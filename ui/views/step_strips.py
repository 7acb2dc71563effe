"""Under the bars of the steps: what bound each step, and where its time went. And a step in words."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import QRect
from PySide6.QtGui import QPainter

from ui import explain, pass_words, pressure
from ui.history import BOUNDS, Columns, History
from ui.paint.bars import BarStack, Strip, argb
from ui.paint.histogram import SteadyTop
from ui.paint.labels import Key, legend, write
from ui.views.painted import PaintedView
from ui.views.step_axis import StepAxis

# column of the history, words, colour; lowest first
TIMES = (
    ("forward", "forward", "weights"),
    ("draft", "draft", "accent"),
    ("swap", "swap", "host_pool"),
    ("sample", "sample", "kv_cached"),
    ("schedule", "schedule", "rest"),
    ("commit", "commit", "graphs"),
)
BOUND_COLORS = {
    "no_work": "baseline",
    "batch_cap": "derived",
    "token_budget": "warning",
    "kv_blocks": "danger",
    "static": "derived",
}
TYPICAL = 0.98  # a rare stall must not flatten all other steps: the scale follows this quantile


total = pressure.tokens_of
# the price of preemption: tokens computed again, time of copies to the host and back; lowest first
PRESSURE = ("danger", "host_pool")


class StepStrips:
    """Draws both strips over an axis; `pick` is the step that each bar shows."""

    def __init__(self, view: PaintedView, axis: StepAxis):
        self._view, self._axis = view, axis
        self._bounds, self._times, self._top = Strip(), BarStack(), SteadyTop()
        self._pressure = BarStack()

    def draw_bound(
        self, painter: QPainter, strip: QRect, columns: Columns, pick: NDArray, gutter: int, at: int
    ) -> None:
        """`at` is the bar that is told in words."""
        view, theme = self._view, self._view.theme
        colors = [argb(theme.color(BOUND_COLORS[name])) for name in BOUNDS]
        picture = self._bounds.render(columns.bound[pick], strip.height(), self._axis.bar, colors)
        painter.drawImage(self._axis.left, strip.top(), picture)
        if gutter:
            bound = BOUNDS[int(columns.bound[pick[at]])]
            words = "not bound" if bound == "no_work" else explain.BOUNDS[bound]
            line = view.line()
            side = QRect(strip.right() + theme.px(6), strip.center().y() - line // 2, gutter, line)
            write(painter, side, words, theme.font("small"), theme.color("text_dim"))

    def draw_pressure(self, painter: QPainter, strip: QRect, columns: Columns, pick: NDArray, gutter: int) -> None:
        """How much of each step was the price of preemption, the strip's height being all of it; beside it what it
        comes to lately."""
        view, theme = self._view, self._view.theme
        painter.fillRect(strip, theme.color("free"))
        colors = [argb(theme.color(token)) for token in PRESSURE]
        values = pressure.shares(columns)[:, pick]
        painter.drawImage(
            self._axis.left, strip.top(), self._pressure.render(values, 1.0, strip.height(), self._axis.bar, 0, colors)
        )
        now = pressure.lately(view.context.mirror.history, view.context.cursor.step)
        if gutter and now.words:
            side = QRect(strip.right() + theme.px(6), strip.top(), gutter, strip.height())
            what = "thrash" if now.thrashes else "redone" if now.recomputed >= now.swapping else "swap"
            words = f"{what} {100 * max(now):.0f} %"
            write(painter, side, words, theme.font("small"), theme.color("danger" if now.thrashes else "text_dim"))

    def draw_times(
        self, painter: QPainter, plot: QRect, head: QRect, columns: Columns, pick: NDArray, gutter: int, at: int
    ) -> None:
        """`head` is the row above for words and keys; it may have no height."""
        view, theme, line = self._view, self._view.theme, self._view.line()
        small = theme.font("small")
        values = np.stack([getattr(columns, name)[pick] for name, _, _ in TIMES]) / 1e6  # ms
        sums = values.sum(axis=0)
        top = self._top.update(float(np.quantile(sums, TYPICAL)) * 1.15 or 1.0)
        colors = [argb(theme.color(token)) for _, _, token in TIMES]
        gap = 1 if self._axis.bar >= 3 else 0
        painter.drawImage(
            self._axis.left, plot.top(), self._times.render(values, top, plot.height(), self._axis.bar, gap, colors)
        )
        painter.setPen(theme.pen("border"))
        painter.drawLine(plot.left(), plot.bottom() + 1, plot.right(), plot.bottom() + 1)
        if head.height():
            view.kept(painter, head, "times", None, self._draw_keys)
        if gutter:
            side = QRect(plot.right() + theme.px(6), plot.bottom() + 1 - line, gutter, line)
            words = explain.duration(float(sums[at]) / 1e3)
            words = words if head.height() else f"step {words}"
            write(painter, side, words, small, theme.color("text_dim"))
            side.moveTop(plot.top() - line // 2)
            if head.height() and side.bottom() < plot.bottom() - line:
                write(painter, side, f"{top:g} ms", small, theme.color("text_faint"))

    def _draw_keys(self, painter: QPainter, row: QRect) -> None:
        theme = self._view.theme
        small = theme.font("small")
        used = write(painter, row, "step time", small, theme.color("text_dim"))
        keys = [Key(theme.color(token), name) for _, name, token in TIMES]
        rest = row.adjusted(used + theme.px(12), 0, 0, 0)
        legend(painter, rest, keys, small, theme.color("text_faint"), theme.px(12))


def describe(history: History, low: int, high: int) -> str:
    """Steps low..high of one bar as rich text: of the one with most tokens."""
    columns = history.slice(low, high)
    if not len(columns):
        return ""
    at = int(np.argmax(total(columns)))
    value = {name: int(getattr(columns, name)[at]) for name in Columns.__slots__}
    spent = sum(value[name] for name, _, _ in TIMES)
    parts = [f"{words} {explain.duration(value[name] / 1e9)}" for name, words, _ in TIMES if value[name]]
    lines = [
        f"<b>step {value['step']:,}</b>" + (f" (most tokens of {high - low + 1} steps)" if high > low else ""),
        f"{int(total(columns)[at]):,} of {explain.count(value['budget'], 'token')} in "
        f"{explain.count(value['rows'], 'row')}",
        f"prefill {value['prefill']:,} · decode {value['decode']:,} · drafted ✓ {value['accepted']:,} "
        f"✕ {value['rejected']:,} (γ {value['gamma']})",
        f"{explain.count(value['emitted'], 'token')} came out",
        *([f"{explain.count(value['recomputed'], 'token')} computed again, after a preemption"] if value["recomputed"]
          else []),
        f"bound by: {explain.BOUNDS[BOUNDS[value['bound']]]}",
        *pass_words.how(columns, at).lines,
        f"{value['running']:,} running of at most {value['batch_cap']:,}, {value['waiting']:,} waiting",
        f"blocks: {value['used']:,} used, {value['cached']:,} cached, {value['free']:,} free",
        f"{explain.duration(spent / 1e9)}: {', '.join(parts)}",
        "<i>click: show this moment</i>",
    ]
    return "<p style='white-space:pre'>" + "<br>".join(lines) + "</p>"
