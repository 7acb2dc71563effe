"""Which blocks the lanes of one request hold together: what sharing spares, and where they part. No Qt."""

from __future__ import annotations

from dataclasses import dataclass

from ui.branches import Tree
from ui.state import EngineState


@dataclass(frozen=True, slots=True)
class Held:
    """A block at one logical place, and the lanes whose tables have it there."""

    block: int
    lanes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LaneBlocks:
    """By logical place, the different blocks there, in the order of their lanes.

    Attributes:
        places: for each logical index.
        lanes: that hold blocks.
        entries: of all their tables; distinct: blocks behind them.
        whole: blocks that every lane holds; some: that more than one does, but not all.
    """

    places: list[list[Held]]
    lanes: tuple[int, ...]
    entries: int
    distinct: int
    whole: int
    some: int

    @property
    def spared(self) -> int:
        """Blocks that would be needed beside these, were nothing shared."""
        return self.entries - self.distinct


def lane_blocks(state: EngineState, tree: Tree) -> LaneBlocks:
    """At the moment that `state` is."""
    tables = {index: state.table(lane.seq).tolist() for index, lane in sorted(tree.lanes.items())}
    tables = {index: table for index, table in tables.items() if table}
    places = []
    for place in range(max(map(len, tables.values()), default=0)):
        held: dict[int, list[int]] = {}
        for index, table in tables.items():
            if place < len(table):
                held.setdefault(table[place], []).append(index)
        places.append([Held(block, tuple(lanes)) for block, lanes in held.items()])
    blocks = [held for place in places for held in place]
    several = len(tables) > 1
    return LaneBlocks(
        places=places,
        lanes=tuple(tables),
        entries=sum(map(len, tables.values())),
        distinct=len(blocks),
        whole=sum(several and len(held.lanes) == len(tables) for held in blocks),
        some=sum(1 < len(held.lanes) < len(tables) for held in blocks),
    )
