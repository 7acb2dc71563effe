"""Steps recorded once and replayed: CUDA graphs, which of them serves a batch, and a twin that needs no card.

A graph is a forward pass with everything frozen but what its buffers hold: shapes, addresses and every number that
Python gave. So a batch is padded to a *bucket*, so many rows of at most so many queries each; a padded row is empty
(context 0) and a padded token belongs to no row (slot −1). Padding is told in the step's record.

The twin, `ReplayedGraph`, replays by calling again what was captured, on the same buffers, and is strict where a graph
would be silently wrong: at every replay each operation must come in the same order, with the same numbers, on tensors
at the same addresses as when it was captured, and what the host staged is overwritten with nonsense meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _get_current_dispatch_mode
from torch.utils._pytree import tree_leaves

# Tokens of the largest bucket. Beyond it a step takes long enough that launching its kernels one by one hides behind
# it; and a bucket's logits are kept for good: 256 rows of 128,256 float32 are 125 MiB.
MOST_TOKENS = 256
ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
QUERIES = (1, 2, 3, 5, 9, 17)  # γ + 1; other γ are padded to these


class Bucket(NamedTuple):
    """A graph serves every batch of at most `rows` rows with at most `queries` tokens each."""

    rows: int
    queries: int

    @property
    def tokens(self) -> int:
        return self.rows * self.queries


def bucket_of(rows: int, longest: int, most_tokens: int = MOST_TOKENS) -> Bucket | None:
    """The least that serves; None: none does."""
    queries = next((q for q in QUERIES if q >= longest), None)
    held = next((r for r in ROWS if r >= rows), None)
    if queries is None or held is None or held * queries > most_tokens:
        return None
    return Bucket(held, queries)


def buckets_for(most_rows: int, draft_length: int, most_tokens: int = MOST_TOKENS) -> list[Bucket]:
    """What batches of up to `most_rows` decoding rows need, and of verifying ones; the largest first, so that smaller
    ones find the memory that it took."""
    found = set()
    for longest in {1, draft_length + 1}:
        for rows in ROWS:
            bucket = bucket_of(min(rows, most_rows), longest, most_tokens)
            if bucket is not None:
                found.add(bucket)
    return sorted(found, key=lambda bucket: (bucket.tokens, bucket.rows), reverse=True)


class Graph(Protocol):
    def capture(self, run: Callable[[], None]) -> None:
        """Record `run`. It has run before, so that nothing is compiled or set up meanwhile; whether it runs now is
        not said."""
        ...

    def replay(self) -> None: ...


class GraphMaker(Protocol):
    def __call__(self, staged: Sequence[torch.Tensor]) -> Graph:
        """`staged`: buffers on the host, of which a graph knows nothing."""
        ...


class CudaGraphs:
    """Makes CUDA graphs that share what memory they need besides their buffers."""

    def __init__(self) -> None:
        self._pool: Any = None
        self._alive: WeakSet[_CudaGraph] = WeakSet()

    def __call__(self, staged: Sequence[torch.Tensor]) -> Graph:
        if not self._alive:  # torch refuses a pool whose last graph is gone
            self._pool = torch.cuda.graph_pool_handle()
        graph = _CudaGraph(self._pool)
        self._alive.add(graph)
        return graph


class _CudaGraph:
    def __init__(self, pool: Any):
        self._graph, self._pool = torch.cuda.CUDAGraph(), pool

    def capture(self, run: Callable[[], None]) -> None:
        torch.cuda.synchronize()
        with torch.cuda.graph(self._graph, pool=self._pool):
            run()

    def replay(self) -> None:
        self._graph.replay()


# --- the twin ---

NONSENSE = -(1 << 30)


class NotReplayable(AssertionError):
    """What was captured depends on more than what its buffers hold."""


class ReplayedGraph:
    def __init__(self, staged: Sequence[torch.Tensor] = ()):
        self._staged = staged
        self._tape: list[tuple[object, ...]] = []
        self._run: Callable[[], None] | None = None

    def capture(self, run: Callable[[], None]) -> None:
        self._run, self._tape = run, []
        with Tape(self._tape.append):
            run()

    def replay(self) -> None:
        assert self._run is not None, "replayed before it was captured"
        kept = [tensor.clone() for tensor in self._staged]
        for tensor in self._staged:
            tensor.fill_(NONSENSE)
        seen = 0

        def compare(entry: tuple[object, ...]) -> None:
            nonlocal seen
            wanted = self._tape[seen] if seen < len(self._tape) else "nothing more"
            if entry != wanted:
                raise NotReplayable(f"operation {seen} is {entry}, and was {wanted} when it was captured")
            seen += 1

        try:
            with Tape(compare):
                self._run()
        finally:
            for tensor, old in zip(self._staged, kept, strict=True):
                tensor.copy_(old)
        if seen != len(self._tape):
            raise NotReplayable(f"{seen} operations of {len(self._tape)} that were captured")


class Tape(TorchDispatchMode):
    """Tells `note` of every operation: its name, and of each argument the number, or a tensor's address and shape."""

    def __init__(self, note: Callable[[tuple[object, ...]], None]):
        super().__init__()
        self._note = note

    def tell(self, name: str, args: object) -> None:
        self._note((name, *(_told(leaf) for leaf in tree_leaves(args))))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.tell(str(func), (args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def as_one(op: Callable[..., None]) -> Callable[..., None]:
    """`op`, told to a tape as one operation, whatever it does inside."""

    @wraps(op)
    def told(*args: object, **kwargs: object) -> None:
        mode = _get_current_dispatch_mode()
        if isinstance(mode, Tape):
            mode.tell(op.__name__, (args, kwargs))
            with _disable_current_modes():
                op(*args, **kwargs)
        else:
            op(*args, **kwargs)

    return told


def _told(leaf: object) -> object:
    if isinstance(leaf, torch.Tensor):
        return leaf.data_ptr(), tuple(leaf.shape), leaf.stride(), leaf.dtype
    return leaf if isinstance(leaf, (int, float, str, bool, torch.dtype, torch.device)) else type(leaf).__name__
