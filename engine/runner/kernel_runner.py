"""A runner whose passes are asked for now and done later: kernels into buffers that stay, replayed as graphs.

A decode or verification step is staged (one copy), replayed, its tokens chosen where they are, and one copy of them
sent back, which `Chosen.result` awaits by an event: nothing is read on the host before. Larger steps launch the same
kernels one by one, into buffers of their own that grow.

Knows no card: device, operations and graphs are handed over, so that all of it runs on the CPU as well, through
Triton's interpreter and the graphs' twin.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import torch

from engine.memory import NOTHING, Resident, plainly, ran_out
from engine.model.architecture import ModelConfig
from engine.model.weights import Weights
from engine.records import Memory
from engine.runner.batch import Ints, PackedBatch
from engine.runner.chosen import Chooser
from engine.runner.cuda_forward import Activations, AttentionPlan, CudaForward
from engine.runner.cuda_ops import Ops
from engine.runner.graphs import MOST_TOKENS, Bucket, Graph, GraphMaker, bucket_of, buckets_for
from engine.runner.quantised_weights import QuantisedWeights
from engine.runner.step_inputs import Staging, ints_of, layout
from engine.runner.torch_runner import TorchRunner
from engine.sampler import SampleRow

if TYPE_CHECKING:
    from engine.runner.device_sampler import DeviceSampler
    from engine.runner.launch import Pending

# A shape that warm-up didn't expect, as after a change of γ, is captured when it is asked for again: capturing takes as
# long as some ten steps.
CAPTURED_AT = 2


class KernelRunner(TorchRunner):
    """See `engine.runner.base.Runner` and `engine.runner.launch.Launcher`. `most_rows`, `draft_length`: what warm-up
    captures graphs for; `graphs`: makes them, None = every step launches its kernels one by one; `sampler`: decides
    rows where their logits are, None = the host's does."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights | QuantisedWeights,
        name: str,
        dtype: torch.dtype,
        device: torch.device,
        block_size: int,
        num_blocks: int,
        baseline: Resident = NOTHING,
        consume: bool = False,
        *,
        ops: Ops,
        graphs: GraphMaker | None,
        most_rows: int = 16,
        draft_length: int = 0,
        most_tokens: int = MOST_TOKENS,
        sampler: DeviceSampler | None = None,
    ):
        self._ops, self._graphs, self._most_tokens = ops.told_whole(), graphs, most_tokens
        self.sampler, self._draft_length = sampler, draft_length
        self._expected = buckets_for(most_rows, draft_length, most_tokens)
        self._most_rows = most_rows
        self._begin()
        super().__init__(config, weights, name, dtype, device, block_size, num_blocks, baseline, consume)

    def _form(self, weights: Weights | QuantisedWeights, dtype: torch.dtype) -> tuple[str, int]:  # type: ignore[override]
        return (weights.form, weights.bytes) if isinstance(weights, QuantisedWeights) else super()._form(weights, dtype)

    def _made(  # type: ignore[override]
        self, config: ModelConfig, weights: Weights | QuantisedWeights, consume: bool
    ) -> CudaForward:
        return CudaForward(config, weights, self._ops)

    def _begin(self) -> None:
        """Without buffers and graphs."""
        self._staging: Staging | None = None
        self._workspace: Any = None
        self._chooser: Chooser | None = None
        self._held: Activations | None = None  # of graphs
        self._grown: Activations | None = None  # of other steps
        self._asked: Counter[Bucket] = Counter()
        self.forget_graphs()

    def first(self, layers: int) -> KernelRunner:
        few = super().first(layers)
        few.sampler = None
        few._begin()
        return few

    # --- a pass ---

    @torch.inference_mode()
    def execute(self, batch: PackedBatch) -> torch.Tensor:
        """→ (N, vocabulary) float32, until the next call. Raises MemoryError or torch.OutOfMemoryError."""
        buffers, count = self._pass(batch), len(batch.logit_index)
        self._transformer.wanted = buffers.wanted[:count]
        return buffers.logits[:count]

    @torch.inference_mode()
    def launch(self, batch: PackedBatch, rows: list[SampleRow]) -> Pending:
        logits = self._pass(batch).logits[: len(rows)]
        assert self._staging is not None and len(rows) == len(batch.logit_index)
        if self._chooser is None:
            self._chooser = Chooser(self.config.vocabulary, self.device, self.sampler)
        return self._chooser.choose(logits, rows, self._staging.chosen)

    def hidden(self) -> torch.Tensor:
        return self._transformer.wanted.to(torch.float32, copy=True)

    def _pass(self, batch: PackedBatch) -> Activations:
        """Ask for it; logits and what they were made from will be in the buffers' first N rows."""
        started = time.perf_counter()
        try:
            lengths = np.diff(batch.row_starts)
            bucket = bucket_of(len(lengths), int(lengths.max()), self._most_tokens) if self._graphs else None
            self._make_room(batch, bucket)
            graph = None if bucket is None else self._graph(bucket)
            buffers = self._one_by_one(batch, lengths) if graph is None else self._replayed(batch, bucket, graph)
        except RuntimeError as error:
            if type(error) is RuntimeError and ran_out(error):
                raise MemoryError(plainly(error)) from error
            raise
        self._seconds += time.perf_counter() - started
        return buffers

    def _replayed(self, batch: PackedBatch, bucket: Bucket, graph: Graph) -> Activations:
        assert self._staging is not None and self._held is not None
        self._staging.put(batch, bucket.tokens, bucket.rows, bucket.tokens)
        batch.graph, batch.padded = True, bucket.tokens - len(batch.tokens)
        graph.replay()
        return self._held

    def _one_by_one(self, batch: PackedBatch, lengths: Ints) -> Activations:
        assert self._staging is not None
        shape = len(batch.tokens), len(lengths), len(batch.logit_index)
        buffers = self._grow(shape[0], shape[2])
        longer = lengths != 1
        singles = int(longer.argmax()) if longer.any() else len(lengths)  # decode rows come first
        plan = AttentionPlan(singles, int(lengths[singles:].max(initial=0)))
        self._staging.put(batch, *shape)
        batch.graph, batch.padded = False, 0
        self._transformer.run(self._staging.views(*shape), plan, buffers, self._workspace, self._pool.layers)
        return buffers

    # --- buffers ---

    def _make_room(self, batch: PackedBatch, bucket: Bucket | None) -> None:
        """For the integers of `batch`; where that moves them, graphs are void."""
        rows, width = batch.tables.shape
        ints = ints_of(batch)
        if bucket is not None:
            rows = max(rows, bucket.rows)
            ints = max(ints, layout(bucket.tokens, bucket.rows, bucket.tokens)[1] + batch.tables.size)
        old = self._staging
        if old is not None and ints <= old.ints and rows <= old.rows and width <= old.width:
            return
        widest = -(-self.config.max_positions // self.block_size)
        size = max(2 * ints, 1 << 14), max(rows, self._most_tokens), max(width, widest)
        self.forget_graphs()
        self._staging = Staging(*size, self.device)
        if old is not None:
            self._staging.chosen.copy_(old.chosen)
        if old is None or old.rows < size[1]:
            self._workspace = self._ops.workspace(size[1], self.config.heads, self.config.head_dim, self.device)

    def _grow(self, tokens: int, wanted: int) -> Activations:
        held = self._grown
        if held is None or held.tokens < tokens or held.wanted_rows < wanted:
            self._grown = None  # its memory first
            tokens, wanted = (1 << (max(n, 1) - 1).bit_length() for n in (tokens, wanted))
            before = (held.tokens, held.wanted_rows) if held is not None else (0, 0)
            del held
            size = max(tokens, before[0]), max(wanted, before[1])
            self._grown = Activations(self.config, *size, self.dtype, self.device)
        return self._grown

    # --- graphs ---

    def _graph(self, bucket: Bucket) -> Graph | None:
        """That serves `bucket`, captured if it is worth it by now."""
        if bucket in self._captured:
            return self._captured[bucket]
        self._asked[bucket] += 1
        if self._asked[bucket] < CAPTURED_AT or bucket in self._too_large:
            return None
        try:
            return self._capture(bucket)
        except (RuntimeError, MemoryError) as error:
            if not _memory_ran_out(error):
                raise
            self._too_large.add(bucket)  # its steps launch their kernels one by one, until there is another pool
            return None

    def _capture(self, bucket: Bucket) -> Graph | None:
        assert self._graphs is not None and self._staging is not None
        staging, queries = self._staging, bucket.queries
        if self._held is None:
            most = self._most_tokens
            self._held = Activations(self.config, most, most, self.dtype, self.device)
        shape = bucket.tokens, bucket.rows, bucket.tokens
        inputs, buffers, workspace = staging.views(*shape), self._held, self._workspace
        plan = AttentionPlan(bucket.rows) if queries == 1 else AttentionPlan(0, queries)

        def run() -> None:
            self._transformer.run(inputs, plan, buffers, workspace, self._pool.layers)

        staging.put(None, *shape)  # nothing but padding: it writes no K/V
        run()
        graph = self._graphs(staging.staged)
        graph.capture(run)
        self._captured[bucket] = graph
        return graph

    def forget_graphs(self) -> None:
        """Something that they read or write has moved. What was worth a graph is captured anew when it comes next."""
        for bucket in getattr(self, "_captured", ()):
            self._asked[bucket] = CAPTURED_AT
        self._captured: dict[Bucket, Graph] = {}
        self._too_large: set[Bucket] = set()  # memory ran out over them

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Raises what the device raises when it runs out of memory; `fewer_graphs` is then worth trying."""
        super().warm_up()
        if self._graphs is not None:
            for bucket in self._expected:
                if bucket not in self._captured:
                    self._capture(bucket)
        if self.sampler is not None:
            lengths = {0, min(1, self._draft_length), self._draft_length}  # kernels are compiled anew for 0, 1 and more
            buffers = self._held or self._grown
            assert buffers is not None
            self.sampler.warm_up(buffers.logits[: self._most_rows * (1 + self._draft_length)], lengths)

    @property
    def graphs_captured(self) -> int:
        return len(self._captured)

    @property
    def graphs_missing(self) -> float:
        """Of those that warm-up captures, the share that isn't captured."""
        expected = self._expected if self._graphs is not None else []
        missing = sum(bucket not in self._captured for bucket in expected)
        return missing / len(expected) if expected else 0.0

    @property
    def graph_tokens(self) -> int:
        """Of the largest step that may get a graph."""
        return self._most_tokens if self._graphs is not None else 0

    # --- memory ---

    def fewer_graphs(self) -> bool:
        self.give_back()
        if self.sampler is not None:
            self.sampler.shrink()
        if not self.graph_tokens:
            return False
        self._most_tokens //= 2
        self._expected = [bucket for bucket in self._expected if bucket.tokens <= self._most_tokens]
        if not self._expected:
            self._graphs, self._most_tokens = None, 0
        return True

    def give_back(self) -> None:
        self.forget_graphs()
        self._staging = self._workspace = self._held = self._grown = None
        self._asked.clear()
        if self.sampler is not None:
            self.sampler.give_back()

    def resize(self, num_blocks: int) -> None:
        self.forget_graphs()
        super().resize(num_blocks)

    def rebuild(self, num_blocks: int, block_size: int, host_blocks: int) -> None:
        self.forget_graphs()
        super().rebuild(num_blocks, block_size, host_blocks)

    def memory(self) -> Memory:
        """`graphs`: the buffers that they hold."""
        parts = (self._held, self._staging) if self._captured else ()
        return msgspec.structs.replace(super().memory(), graphs=sum(part.bytes for part in parts if part is not None))


def _memory_ran_out(error: BaseException | None) -> bool:
    """A capture that fails over memory ends with another error, told in its course."""
    while error is not None:
        if ran_out(error):
            return True
        error = error.__context__
    return False
