"""What else exactness is shown under: every policy of the KV pool, and the pool changed while it is in use.

A batch of 16 under the settings that the cover of `combinations` leaves as they are. Knows no engine: only which
settings to give it, and what to change between its steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from app.bench.combinations import LONGEST, ROOMY, TIGHT
from engine.config import LiveSettings

BLOCK = 16  # tokens, at the beginning of each run
_USUAL = LiveSettings(
    max_batch=16, max_context=LONGEST, block_size=BLOCK, kv_blocks=ROOMY // BLOCK, token_budget=256, draft_length=0,
    draft_method="ngram", temperature=0.0,
)  # fmt: skip
_TIGHT = {"kv_blocks": TIGHT // BLOCK}

Change = Mapping[str, Any]


@dataclass(frozen=True)
class Policy:
    """`own`: settings beside the usual ones. `turns`: changes made one after the other, one every `every` steps.
    `samples`: answers asked for to each prompt, all of which must be equal to the reference."""

    name: str
    own: Change = field(default_factory=dict)
    turns: Sequence[Change] = ()
    every: int = 0
    samples: int = 1
    preempt: bool = False  # a run in which nothing is preempted shows nothing

    block_size = BLOCK

    def settings(self) -> LiveSettings:
        return replace(_USUAL, **self.own)

    def change_at(self, step: int) -> dict[str, Any] | None:
        """What to change after the step of that number, counted from this run's first."""
        if not self.turns or not step or step % self.every:
            return None
        return dict(self.turns[(step // self.every - 1) % len(self.turns)])

    def __str__(self) -> str:
        return f"{self.name:46}"

    def fields(self) -> dict[str, object]:
        return {"policy": self.name, "settings": dict(self.own), "samples": self.samples}


POLICIES = (
    Policy("swap to a host pool, γ 4",
           {**_TIGHT, "preemption": "swap", "swap_blocks": 200, "admission": "chunk", "draft_length": 4}, preempt=True),
    Policy("swap to a host pool that is too small",
           {**_TIGHT, "preemption": "swap", "swap_blocks": 24, "admission": "chunk"}, preempt=True),
    Policy("recompute, admission by chunk, γ 4", {**_TIGHT, "admission": "chunk", "draft_length": 4}, preempt=True),
    Policy("reserved, γ 4", {"allocation": "reserved", "draft_length": 4}),
    Policy("reserved and static in a tight pool", {**_TIGHT, "allocation": "reserved", "batching": "static"}),
    Policy("whole prompts, γ 4", {"chunked_prefill": False, "token_budget": 2 * LONGEST, "draft_length": 4}),
    Policy("the pool resized under load",
           turns=[{"kv_blocks": blocks} for blocks in (96, 400, 60, 672, 130)], every=7, preempt=True),
    Policy("blocks of 16, 32, 8 and 64 in turn under load, γ 4",
           {"draft_length": 4}, turns=[{"block_size": size} for size in (32, 8, 64, 16)], every=25, preempt=True),
    Policy("four samples share each prompt", {"admission": "chunk"}, samples=4),
    Policy("four samples share each prompt in a tight pool", _TIGHT, samples=4, preempt=True),
)  # fmt: skip
