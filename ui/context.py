"""What every view is built with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ui.contracts import DeviceProbe, NoStories, Source, Stories, Workload
from ui.figures import Goals
from ui.selection import Selection
from ui.unload import Unload

if TYPE_CHECKING:
    from ui.cursor import Cursor
    from ui.mirror import Mirror
    from ui.theme import Theme


@dataclass(frozen=True)
class ViewContext:
    """The model, what is shown of it, and whom to ask for changes. Views own none of these.

    Attributes:
        goals: the latency targets that goodput is counted by; the latency view lets the user choose them.
        unload: what came back when the engine was last unloaded.
    """

    mirror: Mirror
    cursor: Cursor
    selection: Selection
    theme: Theme
    source: Source
    workload: Workload
    probe: DeviceProbe
    goals: Goals = field(default_factory=Goals)
    unload: Unload = field(default_factory=Unload)
    stories: Stories = field(default_factory=NoStories)
