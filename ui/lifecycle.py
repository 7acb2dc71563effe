"""The engine's process as the window lets it end and start again, and what comes back of its memory."""

from __future__ import annotations

from collections.abc import Callable

from engine.config import Dtype
from engine.records import Stop
from ui.changes import Kinds
from ui.context import ViewContext


class Lifecycle:
    """`mark`: is told what changed, other than by a message."""

    def __init__(self, context: ViewContext, mark: Callable[[Kinds], None]):
        self._context, self._mark = context, mark

    def restart(self) -> None:
        self._context.unload.forget()
        self._context.source.restart()
        self._mark(Kinds.SOURCE)

    def rebuild(self, form: Dtype) -> None:
        """Start again with weights in another form."""
        self._context.unload.forget()
        self._context.source.rebuild(form)
        self._mark(Kinds.SOURCE)

    def unload(self) -> None:
        """End the engine, and tell what came back of what it held."""
        probe, source = self._context.probe, self._context.source
        self._context.unload.begin(probe.host(), probe.latest())
        source.send(Stop(id=source.next_id()))
        self._mark(Kinds.SOURCE)

    def tend(self) -> None:
        """With every frame: look for what came back, once the process is gone."""
        unload, probe = self._context.unload, self._context.probe
        if unload.begun and not unload.done and self._context.source.state in ("ended", "dead"):
            unload.look(probe.host(), probe.latest())
            self._mark(Kinds.SOURCE | Kinds.MEMORY)
