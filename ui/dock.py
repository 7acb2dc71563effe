"""One view in a dock: title, its one-line summary, where its figures come from, and buttons to fill or close."""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QContextMenuEvent, QMouseEvent, QPainter, QPaintEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import (
    QDockWidget,
    QHBoxLayout,
    QMainWindow,
    QMenu,
    QSizePolicy,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from ui.changes import Kinds
from ui.glyphs import Glyph, icon
from ui.labels import MEANING, Elided, Pill
from ui.theme import Theme
from ui.views.base import View


class TitleBar(QWidget):
    """Drag it to move the dock; double-click to fill the window.

    Signals:
        fill_wanted: a double-click, or the fill button.
        close_wanted, float_wanted: the close button, or the menu of a right click.
    """

    fill_wanted = Signal()
    close_wanted = Signal()
    float_wanted = Signal()

    def __init__(self, theme: Theme, title: str, parent: QWidget | None = None):
        super().__init__(parent)
        self.setObjectName("dock_title")
        self._theme = theme
        self._filled = False
        self._row = QHBoxLayout(self)
        self.title = Elided(theme, "title", "text")
        self.title.set_text(title)
        self.title.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Preferred)
        self.summary = Elided(theme, "small", "text_dim", right=True)
        self.mark = Pill(theme, "measured")
        self.fill = self._button(f"Fill the window with {title} (F)")
        self.close_button = self._button(f"Close {title}; the View menu brings it back")
        self.fill.clicked.connect(self.fill_wanted)
        self.close_button.clicked.connect(self.close_wanted)
        self._row.addWidget(self.title)
        self._row.addWidget(self.summary, 1)
        self._row.addWidget(self.mark)
        self._row.addWidget(self.fill)
        self._row.addWidget(self.close_button)
        self.restyle()

    def restyle(self) -> None:
        px = self._theme.px
        self._row.setContentsMargins(px(12), px(4), px(4), px(4))
        self._row.setSpacing(px(8))
        fill = Glyph.UNFILL if self._filled else Glyph.FILL
        for button, glyph in ((self.fill, fill), (self.close_button, Glyph.CLOSE)):
            button.setIcon(icon(self._theme, glyph, "text_faint"))
            button.setIconSize(QSize(px(12), px(12)))
            button.setFixedSize(px(20), px(20))
        self.setFixedHeight(px(32))
        self.fit()

    def set_titled(self, titled: bool) -> None:
        self.title.setVisible(titled)
        self.summary.set_right(titled)
        self.fit()

    def set_filled(self, filled: bool) -> None:
        self._filled = filled
        self.restyle()
        self.close_button.setVisible(not filled)

    def resizeEvent(self, event: QResizeEvent) -> None:
        self.fit()

    def fit(self) -> None:
        """The title stays whole as long as it can; the source gives way to a dot, then the summary goes."""
        px = self._theme.px
        title = self.title.sizeHint().width() if not self.title.isHidden() else px(48)
        room = self.width() - title - self.fill.width() - self.close_button.width() - px(48)
        self.mark.set_compact(room < self.mark.full_width())
        self.title.setMinimumWidth(min(title, max(0, room + title - px(16))) if not self.title.isHidden() else 0)

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        self.fill_wanted.emit()
        event.accept()

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.addAction("Fill the window, or back").triggered.connect(self.fill_wanted)
        menu.addAction("Float, or back").triggered.connect(self.float_wanted)
        menu.addAction("Close").triggered.connect(self.close_wanted)
        menu.popup(event.globalPos())

    def _button(self, tip: str) -> QToolButton:
        button = QToolButton()
        button.setProperty("kind", "quiet")
        button.setStyleSheet("QToolButton { padding: 0; }")
        button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        button.setToolTip(tip)
        button.setAccessibleName(tip)
        return button


# what the user did: the answer must not wait for a view's turn
_AT_ONCE = Kinds.CURSOR | Kinds.SELECTION | Kinds.THEME | Kinds.SOURCE
_EVERY_FRAME = 60.0


class ViewDock(QDockWidget):
    """The dock of one view.

    Signals:
        fill_wanted: this view shall fill the window, or stop doing so.
        shown_changed: the view came in sight or went out of it (closed, or behind another tab).
        resized: the dock has another size.

    Attributes:
        due: the kinds that changed since the view was refreshed.
    """

    fill_wanted = Signal(str)
    shown_changed = Signal(str, bool)
    resized = Signal()

    def __init__(self, view: View, theme: Theme, parent: QWidget | None = None):
        super().__init__(view.title, parent)
        self.setObjectName(view.key)
        self.setFocusPolicy(Qt.FocusPolicy.ClickFocus)  # a click beside an input takes the focus from it
        self.view = view
        self.shown = False
        self.due = Kinds.NONE
        self._next = 0.0  # monotonic time at which the view's turn comes
        self._theme = theme
        self.bar = TitleBar(theme, view.title, self)
        self.setTitleBarWidget(self.bar)
        body = QWidget(self)
        body.setMinimumSize(1, 1)  # a view may be squeezed, so that a small window never cuts the docks off
        self._column = QVBoxLayout(body)
        self._column.setSizeConstraint(QVBoxLayout.SizeConstraint.SetNoConstraint)
        self._column.addWidget(view)
        self.setWidget(body)
        self._summary = ""
        view.summary_changed.connect(self._keep_summary)
        self.bar.fill_wanted.connect(lambda: self.fill_wanted.emit(view.key))
        self.bar.close_wanted.connect(self.close)
        self.bar.float_wanted.connect(lambda: self.setFloating(not self.isFloating()))
        self.visibilityChanged.connect(self._set_shown)
        self.dockLocationChanged.connect(self.follow_tabs)
        self.topLevelChanged.connect(self.follow_tabs)
        self.topLevelChanged.connect(self._see_floating)
        self.restyle()
        self.refresh_mark()

    @property
    def leisurely(self) -> bool:
        """Redrawn less than every frame; two of these never share a frame."""
        return self.view.rate < _EVERY_FRAME

    def wants(self, now: float) -> bool:
        """Whether the view is to be redrawn in this frame."""
        return bool(self.due) and (not self.leisurely or now >= self._next or self.urgent)

    def waited(self, now: float) -> float:
        """Seconds since its turn came."""
        return now - self._next

    @property
    def urgent(self) -> bool:
        return bool(self.due & _AT_ONCE)

    def take(self, now: float) -> Kinds:
        """What is due; it counts as done, and the next turn is set."""
        due, self.due = self.due, Kinds.NONE
        self._next = now + 1 / self.view.rate
        return due

    def show_summary(self) -> None:
        """Put the latest summary into the title; a few times a second, because faster can't be read."""
        self.bar.summary.set_text(self._summary)

    def restyle(self) -> None:
        px = self._theme.px
        self.bar.restyle()
        self._column.setContentsMargins(px(4), 0, px(4), px(4))  # an opaque view stays clear of the round corners
        self.setMinimumSize(px(140), px(72))

    def refresh_mark(self) -> None:
        provenance = self.view.provenance
        if provenance != self.bar.mark.text():
            self.bar.mark.set(provenance, provenance, MEANING[provenance])
            self.bar.fit()

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        # It fell on a part of the view that had no use for it.
        self.fill_wanted.emit(self.view.key)
        event.accept()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.resized.emit()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._see_floating()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        radius = 0 if self.isFloating() else self._theme.px(8)
        if self.rect().adjusted(radius, 1, -radius, -radius).contains(event.rect()) and event.rect().top() >= radius:
            painter.fillRect(event.rect(), self._theme.color("panel"))  # clear of edges and corners: most repaints
            return
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(self._theme.color("border"))
        painter.setBrush(self._theme.color("panel"))
        painter.drawRoundedRect(self.rect().adjusted(0, 0, -1, -1), radius, radius)

    def follow_tabs(self) -> None:
        """Behind a tab the tab says the title; don't say it twice."""
        window = self.parentWidget()
        tabbed = isinstance(window, QMainWindow) and bool(window.tabifiedDockWidgets(self))
        self.bar.set_titled(not tabbed or self.isFloating())

    def set_short(self, short: bool) -> None:
        """A tab among many says the short name; the title bar keeps the whole one."""
        title = self.view.short if short and self.view.short else self.view.title
        if title != self.windowTitle():
            self.setWindowTitle(title)

    def _keep_summary(self, text: str) -> None:
        self._summary = text

    def _see_floating(self) -> None:
        """Qt doesn't say that a dock came in sight which was behind a tab when it began to float."""
        if self.isFloating() and self.isVisible():
            self._set_shown(True)

    def _set_shown(self, shown: bool) -> None:
        if shown != self.shown:
            self.shown = shown
            self.shown_changed.emit(self.view.key, shown)
