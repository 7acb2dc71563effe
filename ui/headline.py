"""The big numbers at the top, readable from the last row of a hall. Draws as many as fit, the least important
left out; figures stand still because every digit is equally wide."""

from __future__ import annotations

import math
from typing import NamedTuple

from PySide6.QtCore import QRect, QSize, Qt
from PySide6.QtGui import QFontMetrics, QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from ui.figures import Headline
from ui.theme import Theme

_MOST_SPARE = 72  # pixels between figures at text scale 1; farther apart they no longer read as one row


class Figure(NamedTuple):
    key: str
    label: str
    widest: str  # what it must have room for
    rank: int  # the highest is left out first
    meaning: str


FIGURES = (
    Figure("rate", "tok/s", "9,999", 0, "Output tokens a second, over the last 5 s of the engine's clock"),
    Figure("ttft", "TTFT p50", "9.99 s", 3, "Time to first token: arrival → first output token, median of 60 s"),
    Figure("tpot", "TPOT p50", "999 ms", 4,
           "Time per output token after the first, median of what finished in 60 s; until then of what runs"),
    Figure("kv", "KV used", "100 %", 1, "Blocks in use ÷ blocks of the pool; cached blocks don't count as used"),
    Figure("alpha", "accepted α", "0.00", 5, "Accepted ÷ examined drafted tokens, over the last 200 steps"),
    Figure("queue", "run + wait", "99 + 99", 2, "Sequences running, and waiting for room"),
)  # fmt: skip


_WHAT_IF = ("rate", "tpot", "alpha")  # those that follow from which drafts are accepted


def texts(figures: Headline | None) -> dict[str, str]:
    """The figures as they are shown; a dash where nothing was measured."""
    if figures is None:
        return {figure.key: "–" for figure in FIGURES}
    return {
        "rate": _number(figures.tokens_per_s, "{:,.0f}"),
        "ttft": _time(figures.ttft_p50),
        "tpot": _time(figures.tpot_p50),
        "kv": _number(figures.kv_used * 100, "{:.0f} %"),
        "alpha": _number(figures.acceptance, "{:.2f}"),
        "queue": f"{figures.running} + {figures.waiting}",
    }


class HeadlineNumbers(QWidget):
    """A row of figures.

    Attributes:
        values: the texts shown, by key. simulated: drafts are accepted at given rates, and what follows says so.
        all_simulated: no figure is measured.
    """

    def __init__(self, theme: Theme, parent: QWidget | None = None):
        super().__init__(parent)
        self._theme = theme
        self.values = texts(None)
        self.simulated = False
        self.all_simulated = False
        self.setToolTip("\n".join(f"{f.label}: {f.meaning}" for f in FIGURES))

    def show_figures(self, figures: Headline | None, simulated: bool = False, all_of_it: bool = False) -> None:
        values = texts(figures)
        if (values, simulated, all_of_it) != (self.values, self.simulated, self.all_simulated):
            self.values, self.simulated, self.all_simulated = values, simulated, all_of_it
            self.update()

    def label(self, figure: Figure) -> str:
        what_if = self.all_simulated or (self.simulated and figure.key in _WHAT_IF)
        return f"{figure.label} simulated" if what_if else figure.label

    def shown(self, width: int | None = None) -> list[Figure]:
        """The figures that fit into `width` pixels, in their order."""
        room = self.width() if width is None else width
        kept = list(FIGURES)
        while len(kept) > 1 and sum(self._slot(figure) for figure in kept) > room:
            kept.remove(max(kept, key=lambda figure: figure.rank))
        return kept

    def needed(self, count: int = len(FIGURES)) -> int:
        """Pixels that the `count` most important figures take."""
        return sum(self._slot(figure) for figure in sorted(FIGURES, key=lambda f: f.rank)[:count])

    def sizeHint(self) -> QSize:
        value, label = self._metrics()
        return QSize(self.needed(), value.height() + label.height())

    def paintEvent(self, event: QPaintEvent) -> None:
        theme, painter = self._theme, QPainter(self)
        value_metrics, label_metrics = self._metrics()
        kept = self.shown()
        room = self.width() - sum(self._slot(figure) for figure in kept)
        spare = min(room // max(1, len(kept)), theme.px(_MOST_SPARE))
        height = value_metrics.capHeight() + theme.px(6) + label_metrics.height()
        top = (self.height() - height) // 2
        left = room - spare * len(kept) if room > spare * (len(kept) + 1) else 0  # a very wide bar: at its right end
        for figure in kept:
            width = self._slot(figure) + spare
            painter.setFont(theme.font("headline"))
            painter.setPen(theme.color("text"))
            painter.drawText(left, top + value_metrics.capHeight(), self.values[figure.key])
            painter.setFont(theme.font("small"))
            label = self.label(figure)
            painter.setPen(theme.color("text_dim" if label == figure.label else "simulated"))
            box = QRect(left, top + value_metrics.capHeight() + theme.px(6), width, label_metrics.height())
            painter.drawText(box, Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter, label)
            left += width
        painter.end()

    def _slot(self, figure: Figure) -> int:
        value, label = self._metrics()
        widest = max(value.horizontalAdvance(figure.widest), value.horizontalAdvance(self.values[figure.key]))
        return max(widest, label.horizontalAdvance(self.label(figure))) + self._theme.px(20)

    def _metrics(self) -> tuple[QFontMetrics, QFontMetrics]:
        return QFontMetrics(self._theme.font("headline")), QFontMetrics(self._theme.font("small"))


def _number(value: float, form: str) -> str:
    return form.format(value) if math.isfinite(value) else "–"


def _time(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "–"
    if seconds < 0.00995:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
