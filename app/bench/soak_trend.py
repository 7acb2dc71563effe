"""Whether a quantity that was sampled over time grows: its slope with an interval, and its first and last quarter.

Memory wobbles with what is served at the moment, so nothing here looks at single samples: the samples are folded into
a few medians, and the slope is the median of the slopes between all pairs of those (Theil 1950, Sen 1968), with Sen's
95 % interval from Kendall's variance. Neither asks for a distribution, and neither minds a few outliers.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from statistics import median

HOUR = 3600.0  # s
BINS = 40  # medians that the samples are folded into
LEAST = 8  # samples without which nothing can be said
_Z = 1.96  # 95 % of a normal distribution


@dataclass(frozen=True)
class Allowance:
    """What may come between the first and the last quarter's median: `absolute` in the quantity's unit, or `share` of
    the first quarter, whichever is more."""

    absolute: float
    share: float = 0.0

    def of(self, first: float) -> float:
        return max(self.absolute, self.share * first)


@dataclass(frozen=True)
class Trend:
    """slope, low, high: per hour, with its 95 % interval. first, last: medians of these quarters. allowed: what may
    lie between the two. flat: less does, or the slope can't be told from none."""

    slope: float
    low: float
    high: float
    first: float
    last: float
    allowed: float
    flat: bool


def trend(times: list[float], values: list[float], allowance: Allowance) -> Trend:
    """`times` in seconds, ascending. Raises ValueError for fewer than LEAST samples."""
    if len(values) < LEAST:
        raise ValueError(f"{len(values)} samples say nothing of a trend; it takes {LEAST}")
    slope, low, high = _slope(*_folded(times, values))
    quarter = len(values) // 4
    first, last = median(values[:quarter]), median(values[-quarter:])
    allowed = allowance.of(first)
    return Trend(
        *(HOUR * each for each in (slope, low, high)), first, last, allowed,
        flat=low <= 0 or last - first <= allowed,
    )  # fmt: skip


def _folded(times: list[float], values: list[float]) -> tuple[list[float], list[float]]:
    count = min(BINS, len(values))
    edges = [round(i * len(values) / count) for i in range(count + 1)]
    bins = list(itertools.pairwise(edges))
    return [median(times[a:b]) for a, b in bins], [median(values[a:b]) for a, b in bins]


def _slope(times: list[float], values: list[float]) -> tuple[float, float, float]:
    n = len(times)
    slopes = sorted(
        (values[j] - values[i]) / (times[j] - times[i])
        for i in range(n) for j in range(i + 1, n) if times[j] > times[i]
    )  # fmt: skip
    if not slopes:
        return 0.0, 0.0, 0.0
    half = _Z * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = max(0, math.floor((len(slopes) - half) / 2))
    high = min(len(slopes) - 1, math.ceil((len(slopes) + half) / 2))
    return median(slopes), slopes[low], slopes[high]
