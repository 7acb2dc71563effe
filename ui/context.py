"""What every view is built with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ui.contracts import DeviceProbe, Source, Workload
from ui.selection import Selection

if TYPE_CHECKING:
    from ui.cursor import Cursor
    from ui.mirror import Mirror
    from ui.theme import Theme


@dataclass(frozen=True)
class ViewContext:
    """The model, what is shown of it, and whom to ask for changes. Views own none of these."""

    mirror: Mirror
    cursor: Cursor
    selection: Selection
    theme: Theme
    source: Source
    workload: Workload
    probe: DeviceProbe
