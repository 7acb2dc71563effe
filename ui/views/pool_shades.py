"""What a block looks like: its rank (an index that is also its loudness) and the colours of the ranks.

Ranks: 0 free; then cached, by hue; then used, by fill and hue. So where several blocks share a pixel and the highest
rank wins, used blocks show before cached ones, those before free ones, and fuller ones before emptier ones.
"""

from __future__ import annotations

from copy import copy

import numpy as np
from numpy.typing import NDArray

from engine.records import CACHED, USED
from ui.paint.cell_image import Colours
from ui.state import EngineState
from ui.theme import SEQUENCE_HUES as HUES
from ui.theme import Theme

LEVELS = 16  # steps of fill told apart by shade; exact for blocks of 16 tokens
FIRST_CACHED, FIRST_USED = 1, 1 + HUES
RANKS = FIRST_USED + (LEVELS + 1) * HUES
# no block; and marks where a cell has one colour only
BLANK, SELECTED, POINTED, HIT, HALO = RANKS, RANKS + 1, RANKS + 2, RANKS + 3, RANKS + 4
FULL = FIRST_USED + LEVELS * HUES  # the first rank of full blocks

_EMPTY_SHARE = 0.36  # of the hue in a used block without tokens
_CACHED_SHARE = 0.24
_DOT_SHARE = 0.62
_HATCH_SHARE = 0.68  # of the hue in the lines over an empty block
_PART_SHARE, _REST_SHARE = 0.52, 0.20  # filled and empty part under a number: one ink reads on both
_CALM_SHARE = 0.42  # of everything that is not the selected sequence's, over the panel
_HALO_SHARE = 0.55  # of the selection's near-white around its blocks, where a cell is too small to be found alone
_RING_SHARE = 0.28  # of the hue in the outline of a shared block; the rest is the selection's near-white


def rank(state: EngineState, blocks: NDArray | slice) -> NDArray[np.uint16]:
    """Ranks of some blocks."""
    hue = (state.owner[blocks] % HUES).astype(np.uint16)
    filled = state.filled[blocks].astype(np.uint32)
    size = state.block_size
    # what holds a token is never shown as empty, what has room never as full
    level = np.clip((filled * LEVELS + size // 2) // size, filled > 0, LEVELS - (filled < size)).astype(np.uint16)
    kind = state.blocks_state[blocks]
    used = FIRST_USED + level * HUES + hue
    return np.where(kind == USED, used, np.where(kind == CACHED, FIRST_CACHED + hue, 0)).astype(np.uint16)


class Shades:
    """The colours of ranks under a theme.

    Attributes:
        flat: by rank, fill told by shade. barred: by rank, for cells whose fill is painted as a bar: partly filled
            ones have the shade of empty ones.
        full, dot, ring: by hue: a full block, the dot of a cached one, the outline of a shared one.
        hatch: by hue: the lines over a used block without tokens.
        part, rest: by hue: what is filled and what is empty of a block that a number stands on.
        background, selection, pointed, hit, copied: single colours.
        calm: the same, turned down, for all that a selection leaves aside; its own `calm` is None.
    """

    calm: Shades | None = None

    def __init__(self, theme: Theme):
        hues = theme.sequence_rgb().astype(np.float64)
        panel, free = _rgb(theme, "panel"), _rgb(theme, "free")
        light = _rgb(theme, "selection")
        empty = _mix(hues, panel, _EMPTY_SHARE)
        table = np.empty((RANKS, 3))
        table[0] = free
        table[FIRST_CACHED:FIRST_USED] = _mix(hues, free, _CACHED_SHARE)
        for level in range(LEVELS + 1):
            start = FIRST_USED + level * HUES
            table[start : start + HUES] = _mix(hues, empty, level / LEVELS)
        halo = _mix(light, panel, _HALO_SHARE)
        marks = packed(np.array((panel, light, _rgb(theme, "accent"), light, halo)))
        self.flat = np.concatenate((packed(table), marks))
        self.barred = self.flat.copy()
        self.barred[FIRST_USED:FULL] = np.tile(packed(empty), LEVELS)
        self.full = packed(hues)
        self.part, self.rest = (packed(_mix(hues, panel, share)) for share in (_PART_SHARE, _REST_SHARE))
        self.dot = packed(_mix(hues, free, _DOT_SHARE))
        self.hatch = packed(_mix(hues, panel, _HATCH_SHARE))
        self.ring = packed(_mix(hues, light, _RING_SHARE))
        self.glow = packed(_mix(hues, panel, 0.75))
        self.background = int(packed(panel[None])[0])
        self.selection = int(packed(light[None])[0])
        self.pointed = int(packed(_rgb(theme, "accent")[None])[0])
        self.hit = self.selection
        self.copied = int(packed(_rgb(theme, "bonus")[None])[0])
        self.calm = self._turned_down(panel)

    def _turned_down(self, panel: NDArray) -> Shades:
        calm = copy(self)
        for name in ("flat", "barred", "full", "dot", "hatch", "ring", "glow"):
            setattr(calm, name, _calmed(getattr(self, name), panel))
        # what another sequence hit or copied must not pass for the selection's own
        for name in ("hit", "copied"):
            setattr(calm, name, int(_calmed(np.array([getattr(self, name)], np.uint32), panel)[0]))
        for table in (calm.flat, calm.barred):
            for mark in (BLANK, SELECTED, POINTED, HALO):  # marks of what was chosen stay as they are
                table[mark] = self.flat[mark]
        return calm


def packed(rgb: NDArray) -> Colours:
    """(n, 3) 0..255 → 0xffRRGGBB."""
    whole = np.rint(rgb).astype(np.uint32)
    return (0xFF000000 | whole[:, 0] << 16 | whole[:, 1] << 8 | whole[:, 2]).astype(np.uint32)


def _calmed(colours: Colours, panel: NDArray) -> Colours:
    rgb = np.stack([colours >> shift & 0xFF for shift in (16, 8, 0)], axis=1).astype(np.float64)
    return packed(_mix(rgb, panel, _CALM_SHARE))


def _mix(top: NDArray, below: NDArray, share: float) -> NDArray:
    return top * share + below * (1 - share)


def _rgb(theme: Theme, token: str) -> NDArray[np.float64]:
    colour = theme.color(token)
    return np.array((colour.red(), colour.green(), colour.blue()), np.float64)
