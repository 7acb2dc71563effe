"""Sends changes of settings, at most one unanswered per setting; the latest wish wins. No Qt.

A slider that is dragged makes many wishes a second. The first is sent at once; wishes that come before its Ack
replace each other, and the last one is sent when the Ack arrives. So the engine never works through a backlog of
values that nobody wants any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from engine.records import Ack, Change
from ui.contracts import Source

Value = int | float | bool | str | list[float]


class ChangeSender:
    """Keeps what was asked for and not yet answered.

    Attributes:
        on_pending: called with (key, pending) when a key starts or stops waiting for an Ack.
        on_refused: called with (key, message) when the engine refuses the last wish for a key.
        on_accepted: called with (key, step) when a wish is in force from `step` on.
    """

    def __init__(self, source: Source):
        self._source = source
        # key: command id, value, what changes with it
        self._in_flight: dict[str, tuple[int, Value, Mapping[str, Value]]] = {}
        self._wished: dict[str, tuple[Value, dict[str, Value]]] = {}  # key: value, what changes with it
        self.on_pending: Callable[[str, bool], None] = lambda key, pending: None
        self.on_refused: Callable[[str, str], None] = lambda key, message: None
        self.on_accepted: Callable[[str, int], None] = lambda key, step: None

    def pending(self, key: str) -> bool:
        return key in self._in_flight

    def wish(self, key: str, value: Value, along: Mapping[str, Value] | None = None) -> None:
        """`along`: settings that change with it, all of them or none."""
        if key in self._in_flight:
            self._wished[key] = value, dict(along or {})
        else:
            self._send(key, value, along or {})
            self.on_pending(key, True)

    def settle(self, acks: Mapping[int, Ack]) -> None:
        """Look for the answers among those that came; called once a frame."""
        for key, (command, *sent) in list(self._in_flight.items()):
            if command in acks:
                self._answered(key, tuple(sent), acks[command])

    def forget(self) -> None:
        """The engine is gone: nothing sent to it will be answered."""
        keys = list(self._in_flight)
        self._in_flight.clear()
        self._wished.clear()
        for key in keys:
            self.on_pending(key, False)

    def _send(self, key: str, value: Value, along: Mapping[str, Value]) -> None:
        command = self._source.next_id()
        self._in_flight[key] = command, value, dict(along)
        self._source.send(Change(id=command, changes={key: value, **along}))

    def _answered(self, key: str, sent: tuple[Value, Mapping[str, Value]], ack: Ack) -> None:
        del self._in_flight[key]
        wished = self._wished.pop(key, sent)
        if wished != sent:
            self._send(key, *wished)
            return
        self.on_pending(key, False)
        if ack.ok:
            self.on_accepted(key, ack.step)
        else:
            self.on_refused(key, ack.message)
