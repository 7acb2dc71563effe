"""A view that paints itself: one opaque widget, its background, and what it says when it has nothing to show."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QPoint, QRect, QSize, Qt
from PySide6.QtGui import QPainter, QPaintEvent, QPixmap
from PySide6.QtWidgets import QToolTip, QWidget

from ui.context import ViewContext
from ui.paint.guard import painting
from ui.paint.labels import advance, empty, layer, metrics
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
            try:
                draw(inside, QRect(QPoint(0, 0), box.size()))
            finally:
                inside.end()
            found = self._kept[name] = (whole, picture)
        painter.drawPixmap(box.topLeft(), found[1])

    def draw_empty(self, painter: QPainter, area: QRect, headline: str, hint: str) -> None:
        """The middle of an empty panel: what is missing, and what would bring it."""
        empty(painter, area, self.theme, headline, hint)

    def source_of(self, tag: str) -> str:
        """What a small badge says: what would be measured on a real engine is as real as the source."""
        return self.provenance if tag == "measured" else tag

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
        def draw(painter: QPainter) -> None:
            painter.fillRect(event.rect(), self.theme.color("panel"))
            self.draw(painter, self.rect())

        painting(self, draw, self.failed.emit)
