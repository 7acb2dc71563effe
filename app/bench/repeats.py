"""How much of an output only repeats itself: a small model falls into loops, and a loop flatters every drafter."""

from __future__ import annotations

GRAM = 8  # tokens; shorter ones recur in any text
LOOPS = 0.2  # share of repeated tokens above which an output counts as one that loops


def repeated(tokens: list[int], gram: int = GRAM) -> int:
    """Tokens inside a `gram`-token run that occurred before in the same output."""
    seen: set[tuple[int, ...]] = set()
    marked = 0  # tokens counted, up to here
    count = 0
    for end in range(gram, len(tokens) + 1):
        run = tuple(tokens[end - gram : end])
        if run in seen:
            count += end - max(marked, end - gram)
            marked = end
        seen.add(run)
    return count


def loops(tokens: list[int]) -> bool:
    return repeated(tokens) > LOOPS * len(tokens)
