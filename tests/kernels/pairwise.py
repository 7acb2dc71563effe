"""A pairwise cover: few combinations of settings, in which any two values of two settings meet at least once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product


def pairwise(*axes: Sequence[object]) -> list[tuple]:
    """Greedy, and the same each time: the next combination is the first of those that meet the most new pairs."""
    every = list(product(*axes))

    def pairs(combination: tuple) -> set:
        return {(i, j, combination[i], combination[j]) for i, j in combinations(range(len(axes)), 2)}

    left = set().union(*map(pairs, every))
    chosen = []
    while left:
        best = max(every, key=lambda one: len(pairs(one) & left))
        chosen.append(best)
        left -= pairs(best)
    return chosen
