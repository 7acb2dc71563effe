"""The settings that exactness is shown under: every combination, or a pairwise cover of them.

Six two-valued settings. `FULL` has each combination of the first five, the prefix cache alternating; `PAIRWISE` is
the least set of runs in which every two settings meet with every two values. Knows no engine: only which settings to
give it, and what to change between its steps to force preemptions.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import product
from typing import ClassVar

from engine.config import LiveSettings

LONGEST = 672  # tokens: the longest prompt, its output, and what fills both block sizes
ROOMY, TIGHT = 16 * LONGEST, 1536  # tokens in the pool: 16 of the longest, or hardly more than two
PERIOD = 40  # steps from one forced preemption to the next


@dataclass(frozen=True)
class Combination:
    batch: int
    block_size: int  # tokens
    budget: int  # tokens per step
    gamma: int
    preempt: bool
    prefix_cache: bool
    samples: ClassVar[int] = 1  # answers asked for to each prompt

    def settings(self) -> LiveSettings:
        """A preempting run has a tight pool too, so that rows are preempted for its blocks as well."""
        return LiveSettings(
            max_batch=self.batch,
            max_context=LONGEST,
            block_size=self.block_size,
            kv_blocks=(TIGHT if self.preempt else ROOMY) // self.block_size,
            token_budget=self.budget,
            draft_length=self.gamma,
            draft_method="ngram",
            prefix_cache=self.prefix_cache,
            temperature=0.0,
        )

    def change_at(self, step: int) -> dict[str, int] | None:
        """What to change after the step of that number, counted from this run's first.

        A batch of 16 is squeezed to 4 for two steps; one of 1 is widened to 2, and narrowed again when the second
        sequence has computed something to lose.
        """
        if not self.preempt or step < PERIOD:
            return None
        narrow, wide = (1, 2) if self.batch == 1 else (4, self.batch)
        if step % PERIOD == 0:
            return {"max_batch": wide if self.batch == 1 else narrow}
        if step % PERIOD == (5 if self.batch == 1 else 2):
            return {"max_batch": narrow if self.batch == 1 else wide}
        return None

    def __str__(self) -> str:
        return (
            f"batch {self.batch:2}, blocks of {self.block_size}, budget {self.budget:3}, γ {self.gamma}, "
            f"preemption {'forced' if self.preempt else 'none  '}, prefix cache {'on ' if self.prefix_cache else 'off'}"
        )

    def fields(self) -> dict[str, int | bool]:
        return asdict(self)


def _pick(batch: int, bits: str) -> Combination:
    """One digit each: the block size, the budget, γ, preemption and the prefix cache take their second value."""
    block, budget, gamma, preempt, prefix = (digit == "1" for digit in bits)
    return Combination(batch, 32 if block else 16, 512 if budget else 32, 4 if gamma else 0, preempt, prefix)


FULL = [
    _pick(batch, "".join(bits) + ("1" if bits.count("1") % 2 else "0"))
    for batch in (1, 16)
    for bits in product("01", repeat=4)
]
# Two runs at batch 1, the slow ones, which are each other's complement: they hold every two settings at equal values.
# In the four at batch 16 each setting has each value twice, and no two settings go together: every two of them meet at
# unequal values, both ways.
PAIRWISE = [
    _pick(1, "01000"),
    _pick(1, "10111"),
    _pick(16, "10100"),
    _pick(16, "11011"),
    _pick(16, "00010"),
    _pick(16, "01101"),
]
