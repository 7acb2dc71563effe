"""Which steps a plot over steps shows, and where: bar width, folding of several steps into one bar, panning.

Newest at the right edge until the user pans away or pins a moment further back. No Qt.
"""

from __future__ import annotations

# (pixels per bar, steps per bar): bars under 2 px can't be told apart, so from there on steps share a bar
ZOOMS = (
    (32, 1), (24, 1), (16, 1), (12, 1), (8, 1), (6, 1), (4, 1), (3, 1), (2, 1),
    (2, 2), (2, 4), (2, 8), (2, 16), (2, 32), (2, 64),
)  # fmt: skip
DEFAULT = ZOOMS.index((6, 1))


class StepAxis:
    """Maps steps to pixels.

    Attributes:
        bar, fold: pixels per bar and steps per bar.
        low, high: first and last step in view.
        left: pixel of the first bar.
    """

    def __init__(self) -> None:
        self._zoom = DEFAULT
        self._right: int | None = None  # last step in view when not following the newest
        self.low = self.high = self.left = 0
        self._base = 0  # number of the first bar's group

    @property
    def bar(self) -> int:
        return ZOOMS[self._zoom][0]

    @property
    def fold(self) -> int:
        return ZOOMS[self._zoom][1]

    @property
    def follows(self) -> bool:
        return self._right is None

    def fit(self, width: int, first: int, last: int, pinned: int | None) -> int:
        """Choose the steps in view for `width` pixels over steps first..last; returns the number of bars."""
        bars = max(1, width // self.bar)
        span = bars * self.fold
        right = last if self._right is None else min(max(self._right, first + span - 1), last)
        if self._right is not None and right >= last and pinned is None:
            self._right = None
        if pinned is not None and not right - span < pinned <= right:
            right = min(last, pinned + span // 2)
            self._right = right
        self._base = max(first // self.fold, right // self.fold - bars + 1)
        self.low = max(first, self._base * self.fold)
        self.high = right
        return right // self.fold - self._base + 1

    def x(self, step: int) -> int:
        """Left pixel of the bar that holds a step."""
        return self.left + (step // self.fold - self._base) * self.bar

    def steps_at(self, x: int) -> tuple[int, int] | None:
        """First and last step of the bar under a pixel."""
        group = self._base + (x - self.left) // self.bar
        low, high = max(self.low, group * self.fold), min(self.high, group * self.fold + self.fold - 1)
        return (low, high) if low <= high and x >= self.left else None

    def zoom(self, clicks: int, keep: int | None = None, width: int = 0) -> None:
        """Wheel clicks: positive comes nearer. The step `keep` stays where it is when the plot doesn't follow."""
        before = self.x(keep) if keep is not None else 0
        self._zoom = min(len(ZOOMS) - 1, max(0, self._zoom - clicks))
        if keep is not None and self._right is not None:
            self._right = keep + (self.left + width - before) // self.bar * self.fold

    def pan(self, bars: int) -> None:
        """Positive is towards the past."""
        self._right = (self.high if self._right is None else self._right) - bars * self.fold

    def freeze(self) -> None:
        """Stay where it is although steps come."""
        self._right = self.high

    def follow(self) -> None:
        self._right = None
