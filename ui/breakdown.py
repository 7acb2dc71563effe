"""The bytes of a device or a process taken apart, so that the parts sum exactly to the whole.

What the parts don't explain is a part too: the rest. No part is ever negative. Where what the engine tells of itself
comes to more than what the system counts (figures of two moments, pages that were swapped out or given back), the
parts that are least sure are shown with what is really there, and say how much of them isn't. Knows records and plain
numbers, no Qt.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from engine.formulas import Waste
from engine.records import Memory
from ui.contracts import DeviceMemory
from ui.explain import size


@dataclass(frozen=True)
class Part:
    """`token` is the theme's colour; `note` tells where the figure comes from; `short` is for where room is scarce."""

    token: str
    name: str
    bytes: int
    note: str
    short: str = ""


@dataclass(frozen=True)
class Breakdown:
    """Parts from left to right, their sum, and the whole that they explain."""

    scope: str
    parts: tuple[Part, ...]
    total: int
    over: int = 0  # bytes that the engine tells of and the system doesn't count
    free: int | None = None  # of the device, beside the parts
    driver: int | None = None  # of the total, kept by the driver for itself; None where it doesn't tell that apart
    counted: bool = True  # the total is the system's count; else it tells none, and the total is what the parts come to


def kv_parts(pool: int, used: int, cached: int, free: int) -> tuple[int, int, int]:
    """The pool's bytes by block state; they sum to `pool` exactly."""
    blocks = used + cached + free
    if not blocks:
        return 0, 0, pool
    a = pool * used // blocks
    b = pool * (used + cached) // blocks - a
    return a, b, pool - a - b


def process(
    memory: Memory, used: int, cached: int, free: int, reason: str, host: tuple[int, int] = (0, 0)
) -> Breakdown:
    """The engine's process. The sum is its resident memory: pages of its own (weights, KV pool, draft, host pool, what
    Python and torch had before the model came, the rest) and pages of files, where the system tells those apart.
    `host`: blocks of the host pool that are used, and all of them."""
    parts = [Part("weights", "weights", memory.weights, "the tensors of the model, copied into memory, none mapped")]
    parts += [*_kv(memory.kv_pool, used, cached, free), *_draft(memory)]
    if memory.host_pool:
        parts.append(Part("host_pool", "host pool", memory.host_pool, f"{host[0]:,} of {host[1]:,} blocks"))
    files = memory.resident_files
    before = memory.baseline - memory.baseline_files if files else memory.baseline
    parts.append(Part("baseline", "Python, torch", before, "own pages before the model came", "Python"))
    if files:
        note = "pages of libraries and files that are mapped: the system takes them back when it needs them"
        parts.append(Part("slack", "files, mapped", files, note, "files"))
    own = memory.resident - files
    kept, over = _within([p for p in parts if p.token != "slack"], own, "Python, torch", "KV free", "host pool")
    parts = [*kept, *(p for p in parts if p.token == "slack")]
    return _close(reason, parts, memory.resident, over, "rest", "activations, compiled code, allocator")


def device(memory: Memory, sample: DeviceMemory, used: int, cached: int, free: int) -> Breakdown:
    """The card, by the driver's count: this engine's process, other processes, what the driver keeps, and what nobody
    explains. The sum is what isn't free. The process is taken apart by torch's allocator: what it has from the driver
    is weights, KV pool, graphs, other tensors, the most that a step took beside them, and slack; the rest of the
    process is its CUDA context, libraries' code and workspaces included."""
    parts = _of_engine(memory, used, cached, free)
    over = 0
    if sample.process is not None:
        if sample.process:
            context = max(0, sample.process - sum(part.bytes for part in parts))
            parts.append(Part("baseline", "CUDA context", context, "this process beyond torch's allocator", "context"))
        order = ("allocator slack", "peak activations", "other tensors", "KV free")
        parts, over = _within(parts, sample.process, *order)
    if sample.others is not None:
        parts.append(Part("cached", "other processes", sample.others, "by NVML", "others"))
    whole = sum(part.bytes for part in parts) if sample.used is None else sample.used
    parts, more = _within(parts, whole, "other processes", "CUDA context", "allocator slack")
    rest = "used by the driver's count, in no part above"
    if sample.process is None:
        rest += "; the driver doesn't tell this process apart, so its CUDA context is in here"
    if sample.reserved:
        parts.append(Part("limit", "driver", sample.reserved, "kept by the driver and the firmware for themselves"))
        whole += sample.reserved
    elif sample.reserved is None:
        rest += "; what the driver keeps for itself is in here"
    counted = sample.used is not None
    closed = _close(sample.name, parts, whole, over + more, "unexplained", rest)
    if not counted:  # nobody knows whether there is more
        closed = replace(closed, parts=closed.parts[:-1])
    left = None if sample.total is None or not counted else max(0, sample.total - whole)
    return replace(closed, free=left, driver=sample.reserved, counted=counted)


def _of_engine(memory: Memory, used: int, cached: int, free: int) -> list[Part]:
    """What torch's allocator has from the driver, taken apart."""
    known = memory.weights + memory.kv_pool + memory.draft + memory.graphs
    other = max(0, memory.allocated - known)
    peak = max(0, min(memory.peak, memory.reserved) - max(memory.allocated, known))
    slack = max(0, memory.reserved - known - other - peak)
    return [
        Part("weights", "weights", memory.weights, "the tensors of the model"),
        *_kv(memory.kv_pool, used, cached, free),
        *_draft(memory),
        Part("graphs", "graphs", memory.graphs, "captured CUDA graphs"),
        Part("baseline", "other tensors", other, "allocated beside weights, KV pool, draft and graphs", "tensors"),
        Part("host_pool", "peak activations", peak, "the most that a step took beside what stays; kept for the next",
             "step peak"),
        Part("slack", "allocator slack", slack, "reserved from the driver, in no tensor so far", "slack"),
    ]


def waste_words(waste: Waste) -> tuple[str, ...]:
    """Held KV slots without a token as shares of all held ones, from the longest words to the shortest."""
    if not waste.held:
        return ("waste: nothing is held",)
    empty, ends, gaps = (f"{100 * part / waste.held:.0f} %" for part in waste[1:])
    head = f"waste {100 * waste.share:.0f} %"
    return (
        f"{head} of KV held: reserved, empty {empty} · ends of last blocks {ends} · gaps too short {gaps}",
        f"{head} of KV held: empty {empty} · last blocks {ends} · gaps {gaps}",
        f"{head}: empty {empty} · last {ends} · gaps {gaps}",
        head,
    )


def _kv(pool: int, used: int, cached: int, free: int) -> list[Part]:
    a, b, c = kv_parts(pool, used, cached, free)
    return [
        Part("kv_used", "KV used", a, _blocks(used)),
        Part("kv_cached", "KV cached", b, _blocks(cached)),
        Part("kv_free", "KV free", c, _blocks(free)),
    ]


def _draft(memory: Memory) -> list[Part]:
    """What drafting holds, where a model drafts."""
    note = "the draft's weights, where they aren't the model's own, and its KV pool"
    return [Part("draft", "draft", memory.draft, note)] if memory.draft else []


def _within(parts: Iterable[Part], whole: int, *first: str) -> tuple[list[Part], int]:
    """Parts that come to no more than `whole`, and how many bytes had to go: of those named `first`, in that order,
    then of the last ones."""
    found = list(parts)
    over = max(0, sum(part.bytes for part in found) - whole)
    left = over
    order = [i for name in first for i, part in enumerate(found) if part.name == name]
    for i in order + [i for i in reversed(range(len(found))) if i not in order]:
        cut = min(left, found[i].bytes)
        if cut:
            note = f"{found[i].note}; {size(cut)} more by the engine's count, not there by the system's"
            found[i], left = replace(found[i], bytes=found[i].bytes - cut, note=note), left - cut
    return found, over


def _close(scope: str, parts: list[Part], whole: int, over: int, name: str, note: str) -> Breakdown:
    """`parts` come to `whole` at most."""
    rest = whole - sum(part.bytes for part in parts)
    assert rest >= 0
    return Breakdown(scope, (*parts, Part("rest", name, rest, note, "rest")), whole, over)


def _blocks(count: int) -> str:
    return f"{count:,} block{'' if count == 1 else 's'}"
