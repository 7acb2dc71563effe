"""The prefix view: what prompts share, as a tree, under a sentence that says whether prefix caching works."""

from __future__ import annotations

from PySide6.QtCore import QRect, QSize, Qt, Signal
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QVBoxLayout, QWidget

from ui import explain
from ui.changes import Kinds
from ui.context import ViewContext
from ui.paint.guard import painting
from ui.paint.labels import advance, metrics, paragraph, put, wrap, write
from ui.prefix_words import answer, hit_rate, requests
from ui.theme import Theme
from ui.views.base import View
from ui.views.pool import PoolLegend
from ui.views.prefix_area import PrefixArea


class PrefixView(View):
    """
    Attributes:
        answer: the sentence. area: the tree. legend: what its looks mean, and what is left out.
    """

    key = "prefix"
    title, short = "Prefix cache", "Prefix"
    kinds = (
        Kinds.STEPS | Kinds.BLOCKS | Kinds.TABLES | Kinds.QUEUE | Kinds.SETTINGS | Kinds.SOURCE | Kinds.CURSOR
        | Kinds.SELECTION | Kinds.THEME
    )  # fmt: skip

    def __init__(self, context: ViewContext, parent: QWidget | None = None):
        super().__init__(context, parent)
        self.answer = Answer(context.theme, self)
        self.area = PrefixArea(context, self)
        self.legend = PoolLegend(context.theme, self)
        self.answer.failed.connect(self.failed)
        self.area.failed.connect(self.failed)
        layout = QVBoxLayout(self)
        pad = context.theme.px(8)
        layout.setContentsMargins(pad, 0, pad, context.theme.px(4))
        layout.setSpacing(context.theme.px(2))
        layout.addWidget(self.answer)
        layout.addWidget(self.area, 1)
        layout.addWidget(self.legend)
        self.setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)

    def refresh(self, kinds: Kinds) -> None:
        if kinds & Kinds.THEME:
            self.area.restyle()
            self.legend.restyle()
            self.answer.updateGeometry()
        state = self.context.cursor.state
        self.area.refresh(reveal=bool(kinds & Kinds.SELECTION))
        there, count = bool(self.area.rows), state.prefixes.count
        self.rate = next(rate for least, rate in _RATES if count >= least)
        share = hit_rate(state)
        self.answer.setVisible(there)
        self.answer.show_words("–" if share is None else f"{share:.0%}", *answer(state))
        hidden = self.area.hidden
        note = f"the largest and the last used · {hidden:,} more branches folded" if hidden else ""
        self.legend.setVisible(there)
        self.legend.show_entries([(kind, words) for kind, words in _LOOKS] if there else [], note)
        parts = [f"{explain.count(count, 'block')} can be found" if count else "", requests(state)]
        self.summarise(" · ".join(filter(None, parts)))

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.fillRect(event.rect(), self.context.theme.color("panel"))
        painter.end()


# redraws a second by blocks in the tree: 10 are as many as can be read, and building a large one takes time
_RATES = ((100_000, 0.2), (10_000, 4.0), (0, 10.0))
_LOOKS = (("used", "used"), ("cached", "cached, idle"), ("shared", "shared"), ("hit", "hit"))
_LABEL = "hit rate"


class Answer(QWidget):
    """The hit rate, large, and beside it what it is made of.

    Signals:
        failed: painting raised this exception.
    """

    failed = Signal(object)

    def __init__(self, theme: Theme, parent: QWidget | None = None):
        super().__init__(parent)
        self._theme = theme
        self._words = ("", "", "")
        self.setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)
        policy = QSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)

    def show_words(self, figure: str, verdict: str, held: str) -> None:
        if (figure, verdict, held) != self._words:
            self._words = (figure, verdict, held)
            self.setAccessibleName(f"{verdict}. {held}")
            self.updateGeometry()
            self.update()

    def _lines(self, width: int) -> tuple[int, int, int]:
        """Left edge of the sentences, and how many lines each takes."""
        theme, (figure, verdict, held) = self._theme, self._words
        large, small = theme.font("headline"), theme.font("small")
        left = max(advance(large, figure), advance(large, "88%"), advance(small, _LABEL)) + theme.px(20)
        room = max(1, width - left)
        return left, len(wrap(verdict, theme.font("strong"), room)), len(wrap(held, theme.font("small"), room))

    def heightForWidth(self, width: int) -> int:
        _, above, below = self._lines(width)
        tall = above * metrics(self._theme.font("strong")).lineSpacing()
        tall += below * metrics(self._theme.font("small")).lineSpacing()
        return max(tall, self._figure_height()) + self._theme.px(6)

    def _figure_height(self) -> int:
        return metrics(self._theme.font("headline")).ascent() + metrics(self._theme.font("small")).height()

    def sizeHint(self) -> QSize:
        return QSize(self._theme.px(400), self.heightForWidth(max(self.width(), self._theme.px(400))))

    def minimumSizeHint(self) -> QSize:
        return QSize(self._theme.px(80), self._theme.px(20))

    def paintEvent(self, event: QPaintEvent) -> None:
        painting(self, self._paint, self.failed.emit)

    def _paint(self, painter: QPainter) -> None:
        theme, (figure, verdict, held) = self._theme, self._words
        painter.fillRect(self.rect(), theme.color("panel"))
        if self.height() < self._figure_height():
            self._paint_line(painter)
            return
        left, above, below = self._lines(self.width())
        strong, small = theme.font("strong"), theme.font("small")
        tall = above * metrics(strong).lineSpacing() + below * metrics(small).lineSpacing()
        large = metrics(theme.font("headline"))
        top = (self.height() - self._figure_height()) // 2 - (large.height() - large.ascent()) // 2
        put(painter, theme.px(4), top, large.height(), figure, theme.font("headline"), theme.color("text"))
        put(painter, theme.px(4), top + large.ascent() + theme.px(2), metrics(small).height(), _LABEL, small,
            theme.color("text_faint"))  # fmt: skip
        y, room = max(0, (self.height() - tall) // 2), self.width() - left
        y += paragraph(painter, QRect(left, y, room, self.height() - y), verdict, strong, theme.color("text"))
        paragraph(painter, QRect(left, y, room, self.height() - y), held, small, theme.color("text_dim"))

    def _paint_line(self, painter: QPainter) -> None:
        """Where there is no height for more: figure and verdict in one line."""
        theme, (figure, verdict, _) = self._theme, self._words
        box, strong, ink = self.rect().adjusted(theme.px(4), 0, 0, 0), theme.font("strong"), theme.color("text")
        box.setLeft(box.left() + write(painter, box, figure, strong, ink) + theme.px(12))
        write(painter, box, verdict, strong, ink)
