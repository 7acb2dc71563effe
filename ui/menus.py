"""The menu bar, from the window's actions. Owns no state: checks follow the window when a menu opens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QActionGroup
from PySide6.QtWidgets import QHBoxLayout, QMenu, QMenuBar, QWidget

from ui.explain import count, size
from ui.story_menu import TITLE, add_stories
from ui.theme import SCALES
from ui.transport import SPEEDS

if TYPE_CHECKING:
    from ui.window import Window


def row(bar: QMenuBar, window: Window, signs: list[QWidget]) -> QWidget:
    """The menus, and at their right the signs that the window shows when they are needed."""
    strip = QWidget()
    across = QHBoxLayout(strip)
    across.setContentsMargins(0, 0, 12, 0)
    across.setSpacing(8)
    build(bar, window)
    across.addWidget(bar, 1)
    for sign in signs:
        across.addWidget(sign, 0, Qt.AlignmentFlag.AlignVCenter)
        sign.hide()
    return strip


def build(bar: QMenuBar, window: Window) -> None:
    bar.setNativeMenuBar(False)  # the sign that the past is shown sits beside it
    _file(bar.addMenu("&File"), window)
    _view(bar.addMenu("&View"), window)
    _engine(bar.addMenu("&Engine"), window)
    if window.context.stories.listed:
        add_stories(bar.addMenu(TITLE), window)
    help_menu = bar.addMenu("&Help")
    _add(help_menu, "Keys and mouse\t?", window.help.toggle)


def _file(menu: QMenu, window: Window) -> None:
    _add(menu, "Copy settings as command lines", window.controls.copy_settings)
    menu.addSeparator()
    quit_action = _add(menu, "Quit", window.close)
    quit_action.setShortcut("Ctrl+Q")


def _view(menu: QMenu, window: Window) -> None:
    docks = [(dock, _add(menu, dock.view.title, _toggle(window, dock))) for dock in window.deck.docks.values()]
    controls = _add(menu, "Controls", lambda: window.controls.setVisible(window.controls.isHidden()))
    for action in (*(action for _, action in docks), controls):
        action.setCheckable(True)
    menu.addSeparator()
    _add(menu, "Default layout", window.reset_layout)
    fill = menu.addMenu("Fill the window with")
    for key, dock in window.deck.docks.items():
        _add(fill, dock.view.title, lambda key=key: window.fill(key))
    _add(menu, "Full screen\tF11", window.toggle_full_screen)
    menu.addSeparator()
    scales, themes = menu.addMenu("Text size"), menu.addMenu("Theme")
    scale_group, theme_group = QActionGroup(scales), QActionGroup(themes)
    scale_actions = {scale: _add(scales, f"{scale:.0%}", lambda s=scale: window.theme.set_scale(s)) for scale in SCALES}
    theme_actions = {
        name: _add(themes, name.capitalize(), lambda n=name: window.theme.set_name(n)) for name in ("dark", "light")
    }
    for group, actions in ((scale_group, scale_actions), (theme_group, theme_actions)):
        for action in actions.values():
            action.setCheckable(True)
            group.addAction(action)

    def follow() -> None:
        for dock, action in docks:
            action.setChecked(not dock.isHidden())
        controls.setChecked(not window.controls.isHidden())
        for scale, action in scale_actions.items():
            action.setChecked(scale == window.theme.scale)
        for name, action in theme_actions.items():
            action.setChecked(name == window.theme.name)

    menu.aboutToShow.connect(follow)


def _engine(menu: QMenu, window: Window) -> None:
    pause = _add(menu, "Pause\tSpace", window.transport.toggle)
    _add(menu, "One step\t→", window.transport.step)
    slow = menu.addMenu("Speed")
    for speed in SPEEDS:
        _add(slow, f"{speed.label}   {speed.meaning}", lambda s=speed: window.transport.slow(s))
    menu.addSeparator()
    _add(menu, "Abort all requests", window.abort_all)
    unload = _add(menu, "Unload", window.lifecycle.unload)
    restart = _add(menu, "Restart", window.lifecycle.restart)

    def follow() -> None:
        pause.setText("Resume\tSpace" if window.transport.paused else "Pause\tSpace")
        state, memory = window.context.source.state, window.mirror.live.memory
        restart.setEnabled(state in ("dead", "ended"))
        unload.setEnabled(state == "ready")
        held = f": {size(memory.resident - memory.resident_files)}" if memory and state == "ready" else ""
        ends = len(window.mirror.live.sequences)
        unload.setText(f"Unload{held}" + (f", ends {count(ends, 'request')}" if ends else ""))

    menu.aboutToShow.connect(follow)


def _toggle(window: Window, dock):
    def toggle() -> None:
        if dock.isHidden():
            window.deck.open(dock.view.key)
        else:
            dock.close()

    return toggle


def _add(menu: QMenu, text: str, call) -> QAction:
    action = menu.addAction(text)
    action.triggered.connect(lambda _checked=False: call())
    return action
