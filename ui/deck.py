"""The docks: places them by the layout, fills the window with one of them, and remembers where the user put them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from PySide6.QtCore import QByteArray, QEvent, Qt, QTimer
from PySide6.QtGui import QCursor, QFontMetrics, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QApplication, QMainWindow, QTabBar, QTabWidget, QWidget
from shiboken6 import isValid

from ui.dock import ViewDock
from ui.layout import ROOMY, VERSION, Rows, default_rows
from ui.paint.labels import empty
from ui.theme import Theme
from ui.views.base import View

NOTHING = "Every view is closed or in a window of its own"
_TAB_PADDING = 12  # pixels at text scale 1, at each side of a tab's name, as the style sheet has it


class Deck(QMainWindow):
    """A field of docks, without a middle.

    Attributes:
        docks: by the key of their views, in their order.
        filled: the key of the view that has the deck to itself, or None.
    """

    def __init__(self, theme: Theme, views: Sequence[View], parent: QWidget | None = None):
        super().__init__(parent, Qt.WindowType.Widget)
        self.setObjectName("deck")
        self._theme = theme
        self._rows: Rows | None = None  # the default layout in force; None once the user made one
        self._before: QByteArray | None = None  # the docks as they were before one filled the deck
        self.filled: str | None = None
        self._opened = False  # that view was closed, and closes again
        self._naming = False  # the tabs are to be named with the next turn of the event loop
        self.setDockOptions(QMainWindow.DockOption.AllowNestedDocks | QMainWindow.DockOption.AllowTabbedDocks)
        self.setTabPosition(Qt.DockWidgetArea.AllDockWidgetAreas, QTabWidget.TabPosition.North)
        self.docks = {view.key: ViewDock(view, theme, self) for view in views}
        for dock in self.docks.values():
            dock.topLevelChanged.connect(self._customised)
            dock.visibilityChanged.connect(self._follow_tabs)
            dock.resized.connect(self._name_soon)
        self._close_aside()
        self.arrange(ROOMY)

    def restyle(self) -> None:
        for dock in self.docks.values():
            dock.restyle()
        if self._rows is not None and self.filled is None:  # else when the others come back
            self._settle()
        self._name_tabs()

    def arrange(self, rows: Rows) -> None:
        """Place every dock as a default layout says; views it doesn't name come last, as tabs. Of those that stand
        aside only the open ones are placed, as tabs of the first."""
        self.unfill()
        self._rows = None  # moves of docks from here on aren't the user's
        placed = [[[self.docks[key] for key in cell.views if key in self.docks] for cell in row.cells] for row in rows]
        rest = set(self.docks.values())
        opened = {dock for dock in self.docks.values() if not dock.isHidden()}
        for dock in self.docks.values():
            dock.setFloating(False)
            self.removeDockWidget(dock)
        heads = [next(cell for cell in row if cell)[0] for row in placed if any(row)]
        for above, head in zip([None, *heads], heads, strict=False):
            if above is None:
                self.addDockWidget(Qt.DockWidgetArea.TopDockWidgetArea, head)
            else:
                self.splitDockWidget(above, head, Qt.Orientation.Vertical)
        for row in placed:
            cells = [cell for cell in row if cell]
            for left, cell in pairwise(cells):
                self.splitDockWidget(left[0], cell[0], Qt.Orientation.Horizontal)
            for cell in cells:
                for dock in cell[1:]:
                    self.tabifyDockWidget(cell[0], dock)
                rest -= set(cell)
        for dock in self.docks.values():
            if dock.view.aside and dock not in opened:
                continue
            if dock in rest and heads:
                self.tabifyDockWidget(heads[0 if dock.view.aside else -1], dock)
            elif dock in rest:
                self.addDockWidget(Qt.DockWidgetArea.TopDockWidgetArea, dock)
            dock.show()
        for row in placed:
            for cell in row:
                if len(cell) > 1:
                    cell[0].raise_()
        self._rows = rows
        self._share()

    def reset(self) -> None:
        """Back to the default layout for the size at hand; what is no part of it closes."""
        self._close_aside()
        self.arrange(default_rows(self.width(), self.height(), self._theme.scale))

    def open(self, key: str) -> None:
        """Bring a view in sight, wherever it was closed."""
        dock = self.docks[key]
        self._place_aside(dock)
        dock.show()
        dock.raise_()

    def fill(self, key: str) -> None:
        """Give the deck to one view; again, or `unfill`, brings the others back."""
        if self.filled is not None:
            again = self.filled == key
            self.unfill()
            if again:
                return
        self._before = self.saveState(VERSION)
        self.filled = key
        dock = self.docks[key]
        self._opened = dock.view.aside and dock.isHidden()
        self._place_aside(dock)
        dock.setFloating(False)
        for other in self.docks.values():
            other.setVisible(other is dock)
        dock.bar.set_filled(True)

    def unfill(self) -> None:
        if self.filled is None:
            return
        dock = self.docks[self.filled]
        dock.bar.set_filled(False)
        self.filled = None
        if self._opened:  # what was kept of the docks doesn't know it
            self.removeDockWidget(dock)
        if self._before is not None:
            self.restoreState(self._before, VERSION)
            self._before = None
        if self._rows is not None:
            self._settle()

    def under_mouse(self) -> str | None:
        """The view that the mouse is over."""
        widget = QApplication.widgetAt(QCursor.pos())
        while widget is not None and not isinstance(widget, ViewDock):
            widget = widget.parentWidget()
        return widget.view.key if widget is not None and widget.view.key in self.docks else None

    def state(self) -> str:
        """Where the docks are, to be remembered; empty while the default layout is in force."""
        if self._rows is not None and self.filled is None:
            return ""
        data = self._before if self._before is not None else self.saveState(VERSION)
        return bytes(data.toBase64().data()).decode("ascii")

    def restore(self, state: str) -> bool:
        """Put the docks where they were; False, and nothing changed, when the state is none of this version."""
        if not state:
            return False
        if self.restoreState(QByteArray.fromBase64(state.encode("ascii", "ignore")), VERSION):
            self._rows = None
            return True
        return False

    def _place_aside(self, dock: ViewDock) -> None:
        """A view that stands aside has no place before it is opened."""
        if dock.view.aside and self.dockWidgetArea(dock) == Qt.DockWidgetArea.NoDockWidgetArea:
            beside = next((d for d in self.docks.values() if d is not dock and not d.isHidden()), None)
            if beside is not None and not beside.isFloating():
                self.tabifyDockWidget(beside, dock)
            else:
                self.addDockWidget(Qt.DockWidgetArea.TopDockWidgetArea, dock)

    def _close_aside(self) -> None:
        for dock in self.docks.values():
            if dock.view.aside:
                dock.hide()

    def _follow_tabs(self) -> None:
        """A dock that comes or goes changes its neighbours too: the last of a group of tabs stands alone."""
        for dock in self.docks.values():
            if isValid(dock):  # docks also go while Qt takes the window apart
                dock.follow_tabs()
        self._name_soon()

    def _name_soon(self) -> None:
        """With the next turn of the event loop, when Qt has laid out everything."""
        if not self._naming:
            self._naming = True
            QTimer.singleShot(0, self, self._name_tabs)

    def _name_tabs(self) -> None:
        """Tabs that would not fit under their whole names get short ones, closer together."""
        self._naming = False
        metrics, pad = QFontMetrics(self._theme.font("body")), 2 * self._theme.px(_TAB_PADDING)
        narrow: set[str] = set()
        for dock in self.docks.values():
            if not isValid(dock):
                return
            group = [dock, *self.tabifiedDockWidgets(dock)]
            room = next((one.width() for one in group if one.shown), 0)
            needed = sum(metrics.horizontalAdvance(one.view.title) + pad + 1 for one in group)  # Qt rounds up
            if len(group) > 1 and not dock.isFloating() and room and needed > room:
                narrow.add(dock.view.title)
            dock.set_short(dock.view.title in narrow)
        short = {dock.windowTitle() for dock in self.docks.values() if dock.view.title in narrow}
        for bar in self._tab_bars():
            tight = bar.count() > 0 and bar.tabText(0) in short
            if bool(bar.property("narrow")) != tight:
                bar.setProperty("narrow", tight)
                self.style().unpolish(bar)
                self.style().polish(bar)

    def _tab_bars(self) -> list[QTabBar]:
        """Qt makes these anew whenever docks move. `findChildren` would make each a child of this object in Python too,
        where it stays after Qt has deleted it."""
        return [each for each in QApplication.allWidgets() if isinstance(each, QTabBar) and self.isAncestorOf(each)]

    def _customised(self) -> None:
        if self.filled is None:
            self._rows = None

    def _settle(self) -> None:
        """While the default layout is in force it follows the window's size."""
        rows = default_rows(self.width(), self.height(), self._theme.scale)
        if rows is not self._rows:
            self.arrange(rows)
        else:
            self._share()

    def _share(self) -> None:
        if self._rows is None:
            return
        heads, heights = [], []
        for row in self._rows:
            cells = [(self.docks[cell.views[0]], cell.share) for cell in row.cells if cell.views[0] in self.docks]
            if cells:
                docks, shares = zip(*cells, strict=True)
                self.resizeDocks(list(docks), [round(self.width() * s) for s in shares], Qt.Orientation.Horizontal)
                heads.append(docks[0])
                heights.append(round(self.height() * row.share))
        self.resizeDocks(heads, heights, Qt.Orientation.Vertical)

    def event(self, event: QEvent) -> bool:
        # A press on a gap between docks: the user sets sizes now. Presses that views ignore arrive here too.
        if event.type() == QEvent.Type.MouseButtonPress and self.childAt(event.position().toPoint()) is None:
            self._customised()
        return super().event(event)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if default_rows(self.width(), self.height(), self._theme.scale) is self._rows and self.filled is None:
            self._share()
        # Docks don't change places here: Qt is in the middle of laying out the window, and crashes over it.
        QTimer.singleShot(0, self, self._resized)

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        if all(dock.isHidden() or dock.isFloating() for dock in self.docks.values()):
            painter = QPainter(self)
            empty(painter, self.rect(), self._theme, NOTHING, "View > Default layout brings all of them back.")
            painter.end()

    def _resized(self) -> None:
        rows = default_rows(self.width(), self.height(), self._theme.scale)
        if self._rows is not None and self.filled is None and rows is not self._rows:
            self.arrange(rows)
        self._name_tabs()
