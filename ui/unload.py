"""What came back when the engine was unloaded, by the system's and the driver's count, of what it held. No Qt."""

from __future__ import annotations

from dataclasses import dataclass

from ui.contracts import DeviceMemory, HostMemory
from ui.explain import size

NEAR = 0.25  # of what was held; where the machine's count moved by more or less, other programs moved it


@dataclass(frozen=True)
class _Look:
    host: HostMemory
    card: DeviceMemory | None


class Unload:
    """`begin` before the engine is told to end, `look` now and then until it is `done`.

    Attributes:
        done: its process is gone, and what came back is known.
    """

    def __init__(self) -> None:
        self._before: _Look | None = None
        self._after: _Look | None = None
        self.done = False

    @property
    def begun(self) -> bool:
        return self._before is not None

    def begin(self, host: HostMemory, card: DeviceMemory | None) -> None:
        self._before, self._after, self.done = _Look(host, card), None, False

    def forget(self) -> None:
        """Another engine starts."""
        self._before = self._after = None
        self.done = False

    def look(self, host: HostMemory, card: DeviceMemory | None) -> None:
        """Figures of now. A card's count once, when the driver doesn't list the process any more."""
        if self._before is None or self.done or host.own:
            return
        if card is not None and self._held_on_card and card.process:
            return
        self._after, self.done = _Look(host, card), True

    @property
    def words(self) -> str:
        """'held 312 MiB, 309 MiB came back'; "" before anything was unloaded."""
        if self._before is None:
            return ""
        if self._after is None:
            held = f" and {size(self._held_on_card)} on the card" if self._held_on_card else ""
            return f"it held {size(self._before.host.own or 0)}{held}; waiting for it to come back"
        return "; ".join(part for part in (self._on_card(), self._on_host()) if part) or "its process is gone"

    @property
    def _held_on_card(self) -> int:
        card = self._before.card if self._before else None
        return (card.process or 0) if card else 0

    def _on_card(self) -> str:
        before, after = self._before.card if self._before else None, self._after.card if self._after else None
        if not self._held_on_card or before is None or after is None or None in (before.used, after.used):
            return ""
        others = (after.others or 0) - (before.others or 0)
        back = before.used - after.used + others
        return f"held {size(self._held_on_card)} on {after.name}, {size(back)} came back"

    def _on_host(self) -> str:
        """What the process had to itself; pages of libraries' files belong to the system."""
        assert self._before is not None and self._after is not None
        held, was, now = self._before.host.own, self._before.host.available, self._after.host.available
        if not held:
            return ""
        if was is None or now is None:
            return f"held {size(held)}, and its process is gone"
        back = now - was
        if abs(back - held) <= NEAR * held:
            return f"held {size(held)}, {size(back)} came back"
        moved = f"{size(back)} more" if back >= 0 else f"{size(-back)} less"
        return f"held {size(held)}, all given back with its process (the machine has {moved} free: others moved too)"
