"""Slider positions ↔ values. A slider walks over values a person would choose: whole numbers first, then eight to
the doubling (8, 9, … 16, 18, … 32, 36, …), so that powers of two are always among them. No Qt."""

from __future__ import annotations

from bisect import bisect_left

_PER_DOUBLING = 8


class Scale:
    """The values of one slider, ascending; its positions are 0 … len − 1."""

    def __init__(self, values: list[float]):
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def value(self, position: int) -> float:
        return self.values[min(len(self.values) - 1, max(0, position))]

    def position(self, value: float) -> int:
        """The position nearest to a value; values between two positions are fine in the box beside it."""
        right = bisect_left(self.values, value)
        if right == 0:
            return 0
        if right == len(self.values):
            return right - 1
        left = right - 1
        return left if value - self.values[left] <= self.values[right] - value else right


def doubling(low: int, high: int) -> Scale:
    """Whole numbers from low to high, even by ratio."""
    values: list[float] = [low]
    value = low
    while value < high:
        step = max(1, 1 << max(0, value.bit_length() - 1 - _PER_DOUBLING.bit_length() + 1))
        value = value // step * step + step
        values.append(min(value, high))
    return Scale(values)


def whole(low: int, high: int) -> Scale:
    """Every whole number."""
    return Scale([float(v) for v in range(low, high + 1)])


def rate(high: float) -> Scale:
    """0, then tenths up to 2, quarters up to 5, then halves: rates that differ visibly."""
    values = [i / 10 for i in range(21)]
    values += [2 + i / 4 for i in range(1, 13)]
    values += [5 + i / 2 for i in range(1, 31)]
    return Scale([v for v in values if v < high] + [high])


def even(low: float, high: float, step: float) -> Scale:
    """Equal steps."""
    count = round((high - low) / step)
    return Scale([round(low + i * step, 6) for i in range(count)] + [high])
