"""The bytes of a device or a process taken apart, so that the parts sum exactly to the whole.

What the parts don't explain is a part too: the rest. It is never negative; where the parts come to more than the
whole (figures sampled at different moments, weights that the system maps from a file), `over` says by how much.
Knows records and plain numbers, no Qt.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.formulas import Waste
from engine.records import Memory
from ui.contracts import DeviceMemory


@dataclass(frozen=True)
class Part:
    """`token` is the theme's colour; `note` says where the figure comes from."""

    token: str
    name: str
    bytes: int
    note: str


@dataclass(frozen=True)
class Breakdown:
    """Parts from left to right, their sum, and the whole that they explain."""

    scope: str
    parts: tuple[Part, ...]
    total: int
    over: int = 0
    free: int | None = None  # of the device, beside the parts


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
    """The engine's process: weights, KV pool, host pool, Python and its libraries, rest. The sum is its resident
    memory. `host`: blocks of the host pool that are used, and all of them."""
    swapped = [Part("host_pool", "host pool", memory.host_pool, f"{host[0]:,} of {host[1]:,} blocks")]
    return _close(
        reason,
        [
            Part("weights", "weights", memory.weights, "the tensors of the model"),
            *_kv(memory.kv_pool, used, cached, free),
            *(swapped if memory.host_pool else []),
            Part("baseline", "Python, torch", memory.baseline, "resident before the model came"),
        ],
        memory.resident,
        "rest",
        "activations, allocator, everything not listed",
    )


def device(memory: Memory, sample: DeviceMemory, used: int, cached: int, free: int) -> Breakdown:
    """The card: this engine's parts, other processes, and what nobody explains. The sum is the used memory."""
    slack = max(0, memory.reserved - memory.allocated)
    parts = [Part("weights", "weights", memory.weights, "the tensors of the model")]
    parts += _kv(memory.kv_pool, used, cached, free)
    activations = max(0, memory.allocated - memory.weights - memory.kv_pool - memory.graphs)
    parts.append(Part("graphs", "graphs", memory.graphs, "captured CUDA graphs"))
    parts.append(Part("slack", "allocator slack", slack, "reserved from the driver, in no tensor"))
    if activations:
        parts.append(Part("baseline", "other tensors", activations, "allocated beside weights, KV and graphs"))
    if sample.process is not None:
        context = sample.process - max(memory.reserved, memory.weights + memory.kv_pool + memory.graphs)
        parts.append(Part("baseline", "CUDA context", max(0, context), "this process beyond the allocator"))
    if sample.others is not None:
        parts.append(Part("cached", "other processes", sample.others, "by NVML"))
    if sample.reserved:
        parts.append(Part("limit", "driver", sample.reserved, "kept by the driver itself"))
    whole = sample.used if sample.used is not None else sum(part.bytes for part in parts)
    left = None if sample.total is None else max(0, sample.total - whole)
    closed = _close(sample.name, parts, whole, "unexplained", "used by the driver's count, in no part above")
    return Breakdown(closed.scope, closed.parts, closed.total, closed.over, left)


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


def _close(scope: str, parts: list[Part], whole: int, name: str, note: str) -> Breakdown:
    known = sum(part.bytes for part in parts)
    rest = max(0, whole - known)
    return Breakdown(scope, (*parts, Part("rest", name, rest, note)), known + rest, max(0, known - whole))


def _blocks(count: int) -> str:
    return f"{count:,} block{'' if count == 1 else 's'}"
