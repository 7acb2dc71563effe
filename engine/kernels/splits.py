"""How a row's keys are divided among programs of a GPU when there are fewer rows than it can run, and where they meet.

A row with few queries and a long context is one program's work for each key/value head: on a card with hundreds of
places for programs nearly all would stand empty. So its keys are cut into `splits` stretches. Each program leaves its
mean and the logarithm of its weights' sum, and the last to arrive merges them (engine/kernels/paged_tiles.py).

The number of splits follows from the shape of the batch and the card alone, never from the contexts, which a captured
graph doesn't know; a program whose stretch a short row doesn't reach returns at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

# Programs of these kernels that a multiprocessor holds at once: 4 warps each, their tiles in half its shared memory.
PROGRAMS_PER_MULTIPROCESSOR = 2
# A full batch is still cut into so many, since rows differ in length and the longest would otherwise end alone. What a
# split writes and reads again is 4·d·heads a row, under a hundredth of its keys and values from 512 tokens on.
LEAST = 4
MOST = 128
# A whole number of rounds over the card is not to be had for every shape: the fewest splits so near to the best do.
NEAR_BEST = 0.95
# Of a card that can't be asked, as in the interpreter: few, so that tests cut rows with few tokens.
MULTIPROCESSORS_UNKNOWN = 4


@dataclass(frozen=True)
class SplitWorkspace:
    """Made once for the largest batch; two launches that may run at the same time must not share one."""

    means: torch.Tensor  # float32, flat: of unit · split · its rows · d
    log_sums: torch.Tensor  # float32, flat: of unit · split · its rows; log2 of the sum of weights
    arrivals: torch.Tensor  # int32 (units): splits that are done; 0 between launches
    programs: int  # that run at once on this card

    def splits(self, units: int, numbers: int) -> int:
        """For `units` independent pieces of work with `numbers` in the result of each (rows · d)."""
        if units > len(self.arrivals):
            return 1
        return max(1, min(choose(units, self.programs), len(self.means) // max(1, units * numbers)))


@lru_cache(maxsize=1024)  # asked by every launch, in every layer
def choose(units: int, programs: int) -> int:
    """Splits for each of `units` so that the card's places are full in each round of programs, or nearly."""

    def filled(splits: int) -> float:
        work = units * splits
        return work / (-(-work // programs) * programs)

    offers = range(LEAST, max(LEAST, min(MOST, 2 * programs // max(units, 1))) + 1)
    best = max(map(filled, offers))
    return next(splits for splits in offers if filled(splits) >= NEAR_BEST * best)


def decode_workspace(
    rows: int, heads: int, d: int, device: torch.device, multiprocessors: int | None = None
) -> SplitWorkspace:
    """For batches of at most `rows` decoding rows; verification rows share it, with fewer splits if they must."""
    if multiprocessors is None:
        multiprocessors = (
            torch.cuda.get_device_properties(device).multi_processor_count
            if device.type == "cuda"
            else MULTIPROCESSORS_UNKNOWN
        )
    programs = multiprocessors * PROGRAMS_PER_MULTIPROCESSOR
    # what `choose` can ask for, over all counts of units: few rows are cut into up to MOST, many into LEAST
    shares = max(min(rows * MOST, 2 * programs), rows * LEAST) * heads
    return SplitWorkspace(
        torch.zeros(shares * d, dtype=torch.float32, device=device),
        torch.zeros(shares, dtype=torch.float32, device=device),
        torch.zeros(rows * heads, dtype=torch.int32, device=device),
        programs,
    )
