"""A synthetic stream behind a context, and a view shown on it."""

from __future__ import annotations

from typing import TypeVar

from PySide6.QtWidgets import QWidget

from tests.support.synthetic import NoProbe, NoWorkload, SyntheticSource
from ui.changes import Kinds
from ui.context import ViewContext
from ui.cursor import Cursor
from ui.mirror import Mirror
from ui.selection import Selection
from ui.theme import Name, Theme
from ui.views.base import View

V = TypeVar("V", bound=View)


def scene(
    blocks: int = 512, sequences: int = 16, steps: int = 60, seed: int = 7, fill: float = 0.6, theme: Name = "dark"
) -> ViewContext:
    source = SyntheticSource(blocks, sequences, seed, fill=fill)
    mirror = Mirror()
    source.advance(steps)
    mirror.apply_all(source.poll())
    return ViewContext(mirror, Cursor(mirror), Selection(), Theme(theme), source, NoWorkload(), NoProbe())


def advance(context: ViewContext, steps: int = 1) -> None:
    context.source.advance(steps)  # type: ignore[attr-defined]
    context.mirror.apply_all(context.source.poll())


def show(qtbot, view: V, width: int, height: int) -> V:
    """In a window without a layout: the offscreen platform warns of windows with size hints."""
    host = QWidget()
    # without a strong reference the host and all in it would go with the next collection, even in a paint event
    qtbot.addWidget(host, before_close_func=lambda _, kept=(host, view): None)
    host.resize(width, height)
    view.setParent(host)
    view.resize(width, height)
    host.show()
    view.refresh(Kinds.ALL)
    return view
