"""Which kinds of things changed: a view redraws only for its own. No Qt."""

from __future__ import annotations

from enum import IntFlag, auto


class Kinds(IntFlag):
    """What `Mirror.apply` says it changed, and what a view says it draws."""

    NONE = 0
    STEPS = auto()  # a step was added to the history
    BLOCKS = auto()
    TABLES = auto()
    QUEUE = auto()  # sequences came, went, or moved between running and waiting
    TOKENS = auto()  # output text
    DRAFTS = auto()
    MEMORY = auto()
    SETTINGS = auto()
    SOURCE = auto()  # ready, died, paused, a notice
    CURSOR = auto()  # the shown moment moved
    SELECTION = auto()
    THEME = auto()  # colours or text scale
    ALL = (
        STEPS | BLOCKS | TABLES | QUEUE | TOKENS | DRAFTS | MEMORY | SETTINGS | SOURCE | CURSOR | SELECTION | THEME
    )
