"""How the views are laid out, as plain data: the default for a size of window, and what is remembered of the
user's own. No Qt: docks are named by their views' keys, sizes are shares.

A row is a list of cells from left to right; a cell is a view, or several views as tabs, the first on top. Pool and
tables dominate; the playground is on the first screen wherever two columns fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

VERSION = 1  # of the remembered dock state; another one is ignored rather than half restored


class Store(Protocol):
    """Where settings of the window are kept between runs. Values are JSON: strings, numbers, lists, dictionaries."""

    def get(self, key: str, default: object = None) -> object: ...

    def set(self, key: str, value: object) -> None: ...


class NoStore:
    """Remembers nothing beyond the run: for tests and pictures."""

    def __init__(self) -> None:
        self._values: dict[str, object] = {}

    def get(self, key: str, default: object = None) -> object:
        return self._values.get(key, default)

    def set(self, key: str, value: object) -> None:
        self._values[key] = value


@dataclass(frozen=True)
class Cell:
    views: tuple[str, ...]
    share: float  # of the row's width


@dataclass(frozen=True)
class Row:
    cells: tuple[Cell, ...]
    share: float  # of the height


Rows = tuple[Row, ...]

ROOMY: Rows = (
    Row((Cell(("pool",), 0.57), Cell(("tables", "prefix"), 0.43)), 0.35),
    Row((Cell(("batch",), 0.54), Cell(("requests",), 0.46)), 0.34),
    Row((Cell(("speculation",), 0.44), Cell(("memory", "lives"), 0.25), Cell(("latency",), 0.31)), 0.31),
)
TIGHT: Rows = (
    Row((Cell(("pool",), 0.56), Cell(("tables",), 0.44)), 0.50),
    Row(
        (
            Cell(("batch", "prefix", "speculation", "memory", "lives", "latency"), 0.56),
            Cell(("requests",), 0.44),
        ),
        0.50,
    ),
)
SMALL: Rows = (
    Row(
        (
            Cell(("pool", "tables", "prefix", "batch", "speculation", "memory", "lives", "latency"), 0.54),
            Cell(("requests",), 0.46),
        ),
        1.0,
    ),
)
# at the largest text the last ones may lie beyond the end of the bar, whose arrows reach them
ONE: Rows = (
    Row(
        (Cell(("pool", "requests", "batch", "tables", "speculation", "memory", "latency", "prefix", "lives"), 1.0),),
        1.0,
    ),
)
# Below this room, in pixels at text scale 1, seven panels side by side can't be read.
_ROOMY_WIDTH, _ROOMY_HEIGHT = 1180, 760
_TIGHT_HEIGHT = 400  # two rows need this
_SMALL_WIDTH = 640  # two columns need this


def default_rows(width: int, height: int, scale: float) -> Rows:
    """The layout for a deck of so many pixels at a text scale."""
    wide, high = width / scale, height / scale
    if wide < _SMALL_WIDTH:
        return ONE
    if high < _TIGHT_HEIGHT:
        return SMALL
    return ROOMY if wide >= _ROOMY_WIDTH and high >= _ROOMY_HEIGHT else TIGHT


def placed(rows: Rows) -> list[str]:
    """The views of a layout, in order."""
    return [view for row in rows for cell in row.cells for view in cell.views]


@dataclass(frozen=True)
class Remembered:
    """What of the window outlives a run."""

    theme: str = "dark"
    scale: float | None = None  # None: never chosen, it follows the screen
    geometry: str = ""  # Qt's own bytes, base64
    docks: str = ""
    controls: bool = True


def fitting_scale(screen_height: int) -> float:
    """The text scale to begin with on a screen of so many (device-independent) pixels: a projector or a large
    screen at 1:1 is read from afar."""
    if screen_height >= 1900:
        return 1.75
    return 1.25 if screen_height >= 1400 else 1.0


def load(store: Store) -> Remembered:
    """What was remembered; defaults for whatever is missing, of another version or not what it should be."""
    saved = store.get("window")
    if not isinstance(saved, dict) or saved.get("version") != VERSION:
        return Remembered()
    theme, scale = saved.get("theme"), saved.get("scale")
    geometry, docks = saved.get("geometry"), saved.get("docks")
    return Remembered(
        theme=theme if theme in ("dark", "light") else "dark",
        scale=float(min(2, max(1, scale))) if isinstance(scale, int | float) else None,  # first cut: any integer
        geometry=geometry if isinstance(geometry, str) else "",
        docks=docks if isinstance(docks, str) else "",
        controls=saved.get("controls") is not False,
    )


def save(store: Store, remembered: Remembered) -> None:
    store.set(
        "window",
        {
            "version": VERSION,
            "theme": remembered.theme,
            "scale": remembered.scale,
            "geometry": remembered.geometry,
            "docks": remembered.docks,
            "controls": remembered.controls,
        },
    )
