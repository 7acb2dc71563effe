"""The KV blocks behind the lanes: by logical place, one bar a block, as wide as the lanes that share it."""

from __future__ import annotations

from PySide6.QtCore import QRect, Qt
from PySide6.QtGui import QPainter, QPen

from ui import explain
from ui.branches import Tree
from ui.lane_blocks import LaneBlocks
from ui.paint.labels import CENTER, write
from ui.views.beams_grid import blend
from ui.views.painted import PaintedView

PLACE = 46  # pixels at text scale 1, a logical block
LOWEST, HIGHEST = 5, 16  # one lane's share of it


def words(found: LaneBlocks, tree: Tree, copies: int) -> str:
    """What sharing comes to."""
    if not found.entries:
        return "no blocks held now"
    said = [explain.count(found.distinct, "block") + (f" instead of {found.entries:,}" if found.spared else "")]
    if found.whole:
        said.append(f"{found.whole:,} shared by all {len(found.lanes)} lanes")
    if found.some:
        said.append(f"{found.some:,} by some")
    if copies:
        said.append(f"{copies:,} copied before a write")
    return " · ".join(said)


def height(view: PaintedView, lanes: int, room: int = 0) -> int:
    """What so many lanes take of the room; more than the room where they can't be drawn lower."""
    rest = view.line() + view.theme.px(4) + view.line("mono_small")
    unit = min(view.theme.px(HIGHEST), max(view.theme.px(LOWEST), (room - rest) // max(1, lanes)))
    return rest + lanes * unit


def draw(
    view: PaintedView, painter: QPainter, area: QRect, found: LaneBlocks, tree: Tree, copies: int
) -> list[tuple[QRect, str]]:
    """Returns (box, explanation) of each bar."""
    theme = view.theme
    title = QRect(area.left(), area.top(), area.width(), view.line())
    used = write(painter, title, "KV blocks by logical place   ", theme.font("strong"), theme.color("text_dim"))
    write(painter, title.adjusted(used, 0, 0, 0), words(found, tree, copies), theme.font("small"), theme.color("text"))
    top, width = title.bottom() + theme.px(4), theme.px(PLACE)
    unit = (area.bottom() + 1 - top - view.line("mono_small")) // max(1, len(found.lanes))
    fits = max(1, area.width() // width)
    hits: list[tuple[QRect, str]] = []
    first = max(0, len(found.places) - fits)
    bottom = top + len(found.lanes) * unit
    for column, place in enumerate(range(first, len(found.places))):
        x, y = area.left() + column * width, top
        for held in found.places[place]:
            box = QRect(x, y, width - theme.px(4), len(held.lanes) * unit - theme.px(2))
            hue = theme.sequence_color(tree.lanes[held.lanes[0]].seq)
            shared = len(held.lanes) > 1
            painter.setPen(QPen(theme.color("selection"), 1) if shared else Qt.PenStyle.NoPen)
            painter.setBrush(blend(hue, theme.color("panel"), 0.75 if shared else 0.45))
            painter.drawRect(box.adjusted(0, 0, -1, -1) if shared else box)
            if box.height() >= view.line("mono_small"):
                ink = theme.ink_on(painter.brush().color())
                write(painter, box, str(held.block), theme.font("mono_small"), ink, CENTER)
            seqs = ", ".join(str(tree.lanes[lane].seq) for lane in held.lanes)
            hits.append((box, f"block {held.block}: logical {place} of seq {seqs}"))
            y += len(held.lanes) * unit
        name = QRect(x, bottom, width - theme.px(4), view.line("mono_small"))
        write(painter, name, str(place), theme.font("mono_small"), theme.color("text_faint"), CENTER)
    return hits
