"""Views that only remember what they were asked: the window is tested without the real ones."""

from __future__ import annotations

from ui.changes import Kinds
from ui.views.base import View

KEYS = ("pool", "tables", "batch", "speculation", "memory", "latency", "requests")


def recording_views() -> list[type[View]]:
    return [
        type(f"{key.title()}View", (_Recording,), {"key": key, "title": key.title(), "kinds": Kinds.ALL})
        for key in KEYS
    ]


class _Recording(View):
    key = title = ""

    def __init__(self, context, parent=None):
        super().__init__(context, parent)
        self.seen: list[Kinds] = []
        self.fails = False

    def refresh(self, kinds: Kinds) -> None:
        if self.fails:
            raise RuntimeError("no paint left")
        self.seen.append(kinds)
        self.summarise(f"step {self.context.cursor.step}")
