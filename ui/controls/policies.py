"""The policies as choices: what paging and continuous batching replaced, what becomes of the preempted, what admission
waits for, and how large a block is. Words and values only; the panel shows and sends them."""

from __future__ import annotations

from collections.abc import Mapping

from engine.config import BLOCK_SIZES, Limit, LiveSettings
from ui.controls.segments import Choice, Segments
from ui.theme import Theme

TITLE = "Policies"
SLIDERS = {"watermark": "Watermark", "swap_blocks": "Host pool", "max_gap": "Gap at most"}
_ADMITTED = "Binds requests admitted from now on."

# key: title, choices, what they mean and whom a switch binds
_CHOICES: dict[str, tuple[str, list[Choice], str]] = {
    "allocation": (
        "Allocation",
        [("paged", "paged"), ("reserved", "reserved")],
        "paged: blocks as they are needed. reserved: the most a request may come to hold, in a row, from the start.\n"
        + _ADMITTED,
    ),
    "batching": (
        "Batching",
        [("continuous", "continuous"), ("static", "static")],
        "continuous: join whenever there is room. static: nobody joins until all that run have left.\n" + _ADMITTED,
    ),
    "admission": (
        "Admission",
        [("prompt", "prompt"), ("chunk", "chunk")],
        "prompt: wait for room for the whole prompt. chunk: only for what its next chunk needs.\n" + _ADMITTED,
    ),
    "preemption": (
        "Preempted",
        [("recompute", "recompute"), ("swap", "swap")],
        "recompute: forget the keys and values, compute them again. swap: move them to the host pool and back.\n"
        "Binds preemptions from now on.",
    ),
    "block_size": (
        "Block size",
        [(str(size), size) for size in BLOCK_SIZES],
        "Tokens in a block: small ones waste less at their ends, large ones make shorter tables.\n"
        "Another size rebuilds the pool; what runs is computed again, and goes on.",
    ),
}  # fmt: skip


def segments(theme: Theme) -> dict[str, Segments]:
    return {key: Segments(theme, key, title, choices, tip) for key, (title, choices, tip) in _CHOICES.items()}


def along(key: str, value: object, settings: LiveSettings, limits: Mapping[str, Limit]) -> dict[str, int]:
    """What has to change with a choice: swapping needs a host pool, and one as large as the KV pool holds all."""
    if key != "preemption" or value != "swap" or settings.swap_blocks:
        return {}
    most = limits["swap_blocks"].high if "swap_blocks" in limits else settings.kv_blocks
    return {"swap_blocks": int(min(settings.kv_blocks, most))}
