"""The menu of stories: each in one line with its key, and what can be done to one that goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from PySide6.QtCore import QPoint
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QMenu

if TYPE_CHECKING:
    from ui.window import Window

TITLE = "&Stories"


def add_stories(menu: QMenu, window: Window) -> None:
    told = window.context.stories
    starts = [
        _add(menu, f"{one.title}: {one.line}\t{place}", lambda p=place - 1: window.telling.begin(p))
        for place, one in enumerate(told.listed, 1)
    ]
    menu.addSeparator()
    after = _add(menu, "Next\tN", told.skip)
    leave = _add(menu, "Leave the story\tL", told.leave)
    close = _add(menu, "Close its result", window.telling.close)

    def follow() -> None:
        shown = told.shown
        going = shown is not None and shown.going
        for start in starts:
            start.setEnabled(not going)
        after.setEnabled(going and shown.stage == "telling")
        leave.setEnabled(going)
        close.setEnabled(shown is not None and not going)

    menu.aboutToShow.connect(follow)


def popup(window: Window) -> None:
    """The menu in the middle of the window, where there are stories."""
    menu = next((a.menu() for a in window.menu_bar.actions() if a.text() == TITLE), None)
    if menu is not None:
        size = menu.sizeHint()
        middle = window.rect().center() - QPoint(size.width() // 2, size.height() // 2)
        menu.popup(window.mapToGlobal(middle))


def _add(menu: QMenu, text: str, call: Callable[[], None]) -> QAction:
    action = menu.addAction(text)
    action.triggered.connect(lambda _checked=False: call())
    return action
