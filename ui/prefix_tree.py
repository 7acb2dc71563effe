"""The prefix cache as a tree to look at: chains of blocks that never branch folded into runs. Numpy, no Qt.

Built when somebody looks, in a time that grows with the blocks that can be found, not with the pool. A *run* is a
longest chain in which every block is continued by exactly one other; a *branch* is a run with all that follows it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engine.records import USED
from ui.state import EngineState

TOP, INNER = 12, 6  # branches shown where prompts begin, and of any one run; the rest is 'and N more'
MOST = 400  # rows in all
_EDGE = 8  # blocks at each end of a long run whose text is looked at where only the ends have room


@dataclass(slots=True)
class Run:
    """
    Attributes:
        blocks: in the order of their tokens.
        start: index of the first one in its prompt.
        parent: the run that it continues, −1 where prompts begin.
        lost: what it continues is no longer in the cache, so no prompt can find it.
        hash: of its first block; stays the same while blocks come and go.
        seq: who computed that block.
        total: blocks of the branch. latest: step at which any of them was last taken, hit or let go of.
        reused: a block of the branch is shared, or was found by a prompt.
    """

    blocks: NDArray[np.intp]
    start: int
    parent: int
    lost: bool
    hash: int
    seq: int
    total: int
    latest: int
    reused: bool
    children: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Tree:
    """
    Attributes:
        runs: all of them. roots: those where prompts begin, and those that have lost what they continue.
        run_of: one entry a block: its run, −1 where it can't be found.
    """

    runs: list[Run]
    roots: list[int]
    run_of: NDArray[np.int32]

    def path(self, run: int) -> list[int]:
        """The runs from the root to this one."""
        found = []
        while run >= 0:
            found.append(run)
            run = self.runs[run].parent
        return found[::-1]


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the drawn tree: a run, or, with run −1, the branches that were left out.

    Attributes:
        level: runs before it. guides: for each of these, whether more of its siblings follow below.
        last: no sibling follows. under: the run whose branches these are, −1 where prompts begin.
        hidden, blocks: branches left out, and their blocks.
    """

    run: int
    level: int
    guides: tuple[bool, ...]
    last: bool
    under: int = -1
    hidden: int = 0
    blocks: int = 0


def build(state: EngineState) -> Tree:
    """The tree of all findable blocks at that moment."""
    links, known = state.prefixes.links, state.prefixes.get
    found = links.findable
    count, size = len(found), state.num_blocks
    run_of = np.full(size, -1, np.int32)
    if not count:
        return Tree([], [], run_of)
    up, depth = links.up[found], links.depth[found]
    children = np.bincount(up[up >= 0], minlength=size)
    leads = (up < 0) | (children[up] != 1)
    place = np.zeros(size, np.intp)
    place[found] = np.arange(count)
    head = np.where(leads, np.arange(count), place[up])
    while not np.array_equal(head, further := head[head]):  # twice as far towards the head each time
        head = further
    order = np.argsort(head * (int(depth.max()) + 1) + depth)
    edges = np.flatnonzero(np.diff(head[order], prepend=-1))
    run_of[found[order]] = np.repeat(np.arange(len(edges)), np.diff(edges, append=count))
    blocks = found[order]
    latest = np.maximum.reduceat(np.maximum(state.since, state.hit)[blocks], edges).tolist()
    reused = np.logical_or.reduceat((state.refcount[blocks] > 1) | (state.hit[blocks] > 0), edges).tolist()
    runs: list[Run] = []
    for number, part in enumerate(np.split(blocks, edges[1:])):
        first = int(part[0])
        entry, above = known(first), int(links.up[first])
        assert entry is not None
        parent = int(run_of[above]) if above >= 0 else -1
        lost = above < 0 and entry.parent != 0
        runs.append(Run(part, entry.index, parent, lost, entry.hash, entry.seq, len(part),
                        latest[number], reused[number]))  # fmt: skip
    return Tree(runs, _hang(runs), run_of)


def _hang(runs: list[Run]) -> list[int]:
    """Children to their parents, and what a branch comes to; the roots."""
    roots = []
    for number in sorted(range(len(runs)), key=lambda n: -runs[n].start):  # children before their parents
        run = runs[number]
        if run.parent < 0:
            roots.append(number)
            continue
        parent = runs[run.parent]
        parent.children.append(number)
        parent.total += run.total
        parent.latest = max(parent.latest, run.latest)
        parent.reused |= run.reused
    return roots


def rows(
    tree: Tree, wider: dict[int, int] | None = None, wanted: frozenset[int] = frozenset(), times: int = 1
) -> list[Row]:
    """The tree from top to bottom. `wider`: by the hash of a run (0: where prompts begin), how many branches to show
    there at least; `wanted`: runs to show whatever else is left out; `times` as many branches as usual."""
    wider, out = wider or {}, []
    kept = {run for one in wanted for run in tree.path(one)}

    def put(under: int, level: int, guides: tuple[bool, ...]) -> None:
        branches = tree.runs[under].children if under >= 0 else tree.roots
        most = times * (INNER if under >= 0 else TOP)
        most = max(most, wider.get(tree.runs[under].hash if under >= 0 else 0, 0))
        shown = choose(tree, branches, most if len(out) < MOST else 0, kept)
        hidden = len(branches) - len(shown)
        for place, run in enumerate(shown):
            last = place == len(shown) - 1 and not hidden
            out.append(Row(run, level, guides, last, under))
            put(run, level + 1, (*guides, not last))
        if hidden:
            rest = sum(tree.runs[run].total for run in branches) - sum(tree.runs[run].total for run in shown)
            out.append(Row(-1, level, guides, True, under, hidden, rest))

    put(-1, 0, ())
    return out


def filling(
    tree: Tree, room: int, wider: dict[int, int] | None = None, wanted: frozenset[int] = frozenset()
) -> list[Row]:
    """As many branches as `room` lines hold, and at least the usual ones."""
    shown, times = rows(tree, wider, wanted), 2
    while any(row.hidden for row in shown) and len(more := rows(tree, wider, wanted, times)) <= room:
        shown, times = more, 2 * times
    return shown


def choose(tree: Tree, branches: list[int], most: int, kept: set[int] = frozenset()) -> list[int]:  # type: ignore[assignment]
    """The branches to show, in the order in which they came: what was reused before what was not, half of them the
    largest, the rest those last in use, and all that is `kept`."""
    runs = tree.runs
    chosen = set(branches)
    if len(branches) > most + (most > 0):  # a line that says 'and 1 more' has room for that one
        chosen = kept.intersection(branches)
        largest = sorted(branches, key=lambda n: (runs[n].reused, runs[n].total, runs[n].hash), reverse=True)
        latest = sorted(branches, key=lambda n: (runs[n].reused, runs[n].latest, runs[n].hash), reverse=True)
        chosen.update(largest[: most - most // 2])
        for run in latest:
            if len(chosen) >= most:
                break
            chosen.add(run)
    return sorted(chosen, key=lambda n: (runs[n].lost, runs[n].seq, runs[n].hash))


def sharers(state: EngineState, tree: Tree) -> dict[int, list[int]]:
    """Of each run, the sequences whose tables it is in, in the order in which they are scheduled."""
    found: dict[int, list[int]] = {}
    first = np.full(state.num_blocks, -1, np.int32)
    if tree.runs:
        first[[int(run.blocks[0]) for run in tree.runs]] = np.arange(len(tree.runs))
    for seq in state.running:
        table = state.table(seq)
        hits = first[table[table < state.num_blocks]]
        for run in hits[hits >= 0].tolist():
            found.setdefault(run, []).append(seq)
    return found


def text_of(state: EngineState, run: Run, ends: bool = False) -> str:
    """What the run's tokens say; `ends`: of a long one only both ends, for where there is no room for more."""
    blocks = run.blocks.tolist()
    if ends and len(blocks) > 2 * _EDGE:
        return _text(state, blocks[:_EDGE]) + "…" + _text(state, blocks[-_EDGE:])
    return _text(state, blocks)


def alike(state: EngineState, tree: Tree, shown: list[Row]) -> dict[int, int]:
    """How many characters of its text each shown run has in common with all shown beside it: sharing ends at the last
    full block, so branches often go on in the same words for a while."""
    beside: dict[int, list[int]] = {}
    for row in shown:
        if row.run >= 0:
            beside.setdefault(row.under, []).append(row.run)
    found: dict[int, int] = {}
    for runs in beside.values():
        if len(runs) > 1:
            texts = [_text(state, tree.runs[run].blocks[:2].tolist()) for run in runs]
            first, last = min(texts), max(texts)  # whatever these two share, all between them do
            pairs = enumerate(zip(first, last, strict=False))
            same = next((at for at, (one, other) in pairs if one != other), len(first))
            whole = max(first.rfind(space, 0, same) for space in " \n") + 1  # words
            found.update(dict.fromkeys(runs, whole))
    return found


def _text(state: EngineState, blocks: list[int]) -> str:
    entries = (state.prefixes.get(block) for block in blocks)
    return "".join([entry.text for entry in entries if entry is not None])


def used(state: EngineState, run: Run) -> int:
    """Blocks of the run that are in a table."""
    return int(np.count_nonzero(state.blocks_state[run.blocks] == USED))
