"""A tree of lanes as it stood after a step: what lives, what was found, and which blocks are behind it. No Qt."""

from __future__ import annotations

from dataclasses import dataclass, field

from ui.branches import Spot, Tree
from ui.lane_blocks import LaneBlocks


@dataclass(slots=True)
class Moment:
    """
    Attributes:
        length: output positions. alive: cells that a lane's latest token descends from, or that are part of what was
            found. ends: those latest tokens; none once a search is over. best: cells of the best sequence found.
    """

    tree: Tree
    step: int
    length: int
    alive: set[Spot]
    ends: set[Spot]
    best: set[Spot]
    marks: dict[Spot, list[int]] = field(default_factory=dict)  # ranks of the hypotheses that end after a cell
    blocks: LaneBlocks | None = None

    @classmethod
    def of(cls, tree: Tree, step: int) -> Moment:
        length = tree.length(step)
        ends = set(tree.ends(step))
        over = bool(tree.over) and step >= tree.over
        made = cls(tree, step, length, tree.alive(step), set() if over else ends, set())
        if over:
            for rank, path in enumerate(tree.paths):
                if path:
                    made.marks.setdefault(path[-1], []).append(rank)
            made.best = set(tree.paths[0]) if tree.paths else set()
        return made

    def continued(self, spot: Spot) -> bool:
        """Whether some lane went on from this cell."""
        lane, after = spot[0], spot[1] + 1
        following = (self.tree.cell((index, after)) for index in self.tree.lanes)
        return any(cell is not None and cell.step <= self.step and cell.parent == lane for cell in following)
