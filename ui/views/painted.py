"""A view that paints itself: one opaque widget, its background, and what it says when it has nothing to show."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QPoint, QRect, QSize, Qt
from PySide6.QtGui import QPainter, QPaintEvent, QPixmap
from PySide6.QtWidgets import QToolTip, QWidget

from ui.context import ViewContext
from ui.paint.labels import CENTER, advance, layer, metrics, paragraph, write
from ui.views.base import View


class PaintedView(View):
    """Opaque, so that what lies behind it is never repainted for it.

    Attributes:
        theme: colours, fonts and sizes in force.
    """

    def __init__(self, context: ViewContext, parent: QWidget | None = None):
        super().__init__(context, parent)
        self.theme = context.theme
        self.setMouseTracking(True)
        self.setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)
        self._tip = ""
        self._kept: dict[str, tuple[object, QPixmap]] = {}

    def draw(self, painter: QPainter, area: QRect) -> None:
        """Paint the view into `area`."""
        raise NotImplementedError(type(self).__name__)

    def line(self, role: str = "small") -> int:
        """Height of a line of text, pixels."""
        return metrics(self.theme.font(role)).height()

    def advance(self, text: str, role: str = "small") -> int:
        return advance(self.theme.font(role), text)

    def kept(
        self, painter: QPainter, box: QRect, name: str, key: object, draw: Callable[[QPainter, QRect], None]
    ) -> None:
        """What `draw` paints into a box, painted once and copied until `key`, the size or the theme is another."""
        whole = (key, box.size().toTuple(), self.theme.name, self.theme.scale, self.devicePixelRatioF())
        found = self._kept.get(name)
        if found is None or found[0] != whole:
            picture = layer(self, box.size())
            inside = QPainter(picture)
            draw(inside, QRect(QPoint(0, 0), box.size()))
            inside.end()
            found = self._kept[name] = (whole, picture)
        painter.drawPixmap(box.topLeft(), found[1])

    def draw_empty(self, painter: QPainter, area: QRect, headline: str, hint: str) -> None:
        """The middle of an empty panel: what is missing, and what would bring it."""
        theme, step = self.theme, self.line("body")
        lines = QRect(area.left(), area.center().y() - step * 3 // 2, area.width(), step + theme.px(4))
        write(painter, lines, headline, theme.font("strong"), theme.color("text_dim"), CENTER)
        rest = QRect(area.left(), lines.bottom() + theme.px(2), area.width(), max(0, area.bottom() - lines.bottom()))
        paragraph(painter, rest, hint, theme.font("small"), theme.color("text_faint"), CENTER)

    def tip(self, where: QPoint, text: str) -> None:
        """Show, move or hide the tooltip at a point of this widget."""
        if text:
            QToolTip.showText(self.mapToGlobal(where + QPoint(self.theme.px(12), self.theme.px(12))), text, self)
        elif self._tip:
            QToolTip.hideText()
        self._tip = text

    def minimumSizeHint(self) -> QSize:
        return QSize(self.theme.px(120), self.theme.px(60))

    def leaveEvent(self, event) -> None:
        self.tip(QPoint(), "")

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.fillRect(event.rect(), self.theme.color("panel"))
        self.draw(painter, self.rect())
        painter.end()
