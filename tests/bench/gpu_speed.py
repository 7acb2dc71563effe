"""How near paged attention, a decode step in 16 and in 4 bits, and quantised products come to what memory allows.

The step is a graph of the engine's own forward pass (engine/runner/cuda_forward.py) over random weights in the shape of
Llama 3 8B: batch 1, a few keys, so that weights are nearly all that is read.
"""

from __future__ import annotations

import statistics
import time

import torch

from tests.bench.gpu_model import dense_weights, quantised_weights, random_matrix, shape
from tests.bench.gpu_timer import Bench

ATTENTION_SHARE, DECODE_SHARE, PRODUCT_SHARE, OVERHEAD_SHARE = 0.80, 0.80, 0.60, 0.05  # what is to be reached
CONTEXTS, BATCHES = (8192, 16384, 32768, 65536), (1, 4, 16, 64)
KV_BYTES = 24 << 30  # of the largest pool; larger combinations are left out
CONTEXT = 512  # of the decode step, tokens


def attention(bench: Bench) -> dict[str, object]:
    """Heads as Llama 3 8B has them, bfloat16, blocks of 16 in shuffled order."""
    from engine.kernels.paged_decode import decode_workspace, paged_decode

    heads, kv_heads, d, block = (4, 2, 64, 16) if bench.dry else (32, 8, 128, 16)
    dtype = torch.float32 if bench.dry else torch.bfloat16
    rows = []
    for context in (48,) if bench.dry else CONTEXTS:
        for batch in (1, 2) if bench.dry else BATCHES:
            blocks = batch * context // block
            size = 2 * kv_heads * blocks * block * d * dtype.itemsize
            if size > KV_BYTES:
                continue
            keys, values = (
                torch.empty(kv_heads, blocks, block, d, dtype=dtype, device=bench.device).normal_() for _ in range(2)
            )
            tables = torch.randperm(blocks, device=bench.device).int().view(batch, -1)
            contexts = torch.full((batch,), context, dtype=torch.int32, device=bench.device)
            q = bench.random(batch, heads, d, dtype=dtype)
            out, workspace = torch.empty_like(q), decode_workspace(batch, heads, d, bench.device)
            seconds = bench.seconds(
                lambda a=(q, keys, values, tables, contexts, out, workspace): paged_decode(*a), repeats=10
            )
            share = size / seconds / bench.bandwidth
            rows.append({"context": context, "batch": batch, "us": round(1e6 * seconds, 1), "share": round(share, 3)})
            del keys, values
    least = min(row["share"] for row in rows)
    return {
        "ok": bench.dry or least >= ATTENTION_SHARE,
        "copy_gb_per_s": round(bench.bandwidth / 1e9, 1),
        "least_share": least,
        "wanted": ATTENTION_SHARE,
        "runs": rows,
    }


def decode(bench: Bench, bits: int = 16) -> dict[str, object]:
    """A step of batch 1, of weights in bfloat16 or, with activations of it, in 4 bits."""
    from engine.runner.cuda_forward import Activations, AttentionPlan, CudaForward
    from engine.runner.cuda_ops import kernel_ops
    from engine.runner.graphs import CudaGraphs, ReplayedGraph
    from engine.runner.pooled import dummy_batch
    from engine.runner.step_inputs import Staging

    config = shape(bench.dry)
    dtype = torch.float32 if bench.dry else torch.bfloat16
    ops = kernel_ops().told_whole() if bench.dry else kernel_ops()
    few = bits == 4
    weights = quantised_weights(bench, config, dtype) if few else dense_weights(config, dtype, bench.device)
    forward = CudaForward(config, weights, ops)
    block, context = 16, 20 if bench.dry else CONTEXT
    blocks = -(-context // block)
    pools = [
        tuple(bench.random(config.kv_heads, blocks, block, config.head_dim, dtype=dtype) for _ in range(2))
        for _ in range(config.layers)
    ]
    staging = Staging(1024, 1, blocks, bench.device)
    work = ops.workspace(1, config.heads, config.head_dim, bench.device)
    activations = Activations(config, 1, 1, dtype, bench.device)
    inputs = staging.views(1, 1, 1)
    best = torch.zeros(1, dtype=torch.int64, device=bench.device)

    def run() -> None:
        forward.run(inputs, AttentionPlan(singles=1), activations, work, pools)
        torch.argmax(activations.logits, dim=-1, out=best)

    whole = dummy_batch([context], block)
    batch = type(whole)(
        tokens=whole.tokens[-1:], positions=whole.positions[-1:], slots=whole.slots[-1:],
        row_starts=whole.row_starts.clip(max=1), contexts=whole.contexts, tables=whole.tables,
        logit_index=whole.logit_index * 0,
    )  # fmt: skip
    with torch.inference_mode():
        staging.put(batch, 1, 1, 1)
        run()
        graph = ReplayedGraph(staging.staged) if bench.dry else CudaGraphs()(staging.staged)
        graph.capture(run)
        device = bench.seconds(graph.replay, flush=False)  # weights are larger than any cache

        def step() -> int:
            staging.put(batch, 1, 1, 1)
            graph.replay()
            return int(best.cpu())

        for _ in range(1 if bench.dry else 5):
            step()
        times = []
        for _ in range(2 if bench.dry else 50):
            started = time.perf_counter()
            step()
            times.append(time.perf_counter() - started)
    wall = statistics.median(times)
    kv = 2 * config.layers * config.kv_heads * config.head_dim * context * dtype.itemsize
    share = (forward.bytes_read + kv) / device / bench.bandwidth
    overhead = max(0.0, wall - device) / wall
    wanted = PRODUCT_SHARE if few else DECODE_SHARE
    return {
        "ok": bench.dry or (share >= wanted and (few or overhead <= OVERHEAD_SHARE)),
        "model": "Llama 3 8B's shape, random" if not bench.dry else "tiny, random",
        "weights": "4 bits (W4A16)" if few else str(dtype).removeprefix("torch."),
        "bytes_read": forward.bytes_read + kv,
        "graph_ms": round(1e3 * device, 3),
        "step_ms": round(1e3 * wall, 3),
        "tokens_per_s": round(1 / wall, 1),
        "share": round(share, 3),
        "wanted": wanted,
        "overhead_share": round(overhead, 4),
        "overhead_allowed": OVERHEAD_SHARE,
    }


def products(bench: Bench) -> dict[str, object]:
    """4-bit weights, rows of bfloat16: the four products of a layer in Llama 3 8B's shape, one after another."""
    from engine.kernels.quantised_product import product_workspace, quantised_product

    c = shape(bench.dry)
    dtype = torch.float32 if bench.dry else torch.bfloat16
    shapes = (
        (c.hidden, (c.heads + 2 * c.kv_heads) * c.head_dim), (c.heads * c.head_dim, c.hidden),
        (c.hidden, 2 * c.intermediate), (c.intermediate, c.hidden),
    )  # fmt: skip
    matrices = [random_matrix(bench, inputs, outputs, 4) for inputs, outputs in shapes]
    size = sum(part.nbytes for matrix in matrices for part in matrix)
    found = []
    for rows in (1,) if bench.dry else (1, 4, 8, 16):
        work = product_workspace(rows, max(outputs for _, outputs in shapes), bench.device)
        given = [
            (bench.random(rows, inputs, dtype=dtype), torch.empty(rows, outputs, dtype=dtype, device=bench.device))
            for inputs, outputs in shapes
        ]

        def layer(given=given, work=work) -> None:
            for (x, out), matrix in zip(given, matrices, strict=True):
                quantised_product(x, *matrix, out, work)

        seconds = bench.seconds(layer)
        share = size / seconds / bench.bandwidth
        found.append({"rows": rows, "us": round(1e6 * seconds, 1), "share": round(share, 3)})
    return {
        "ok": bench.dry or found[0]["share"] >= PRODUCT_SHARE,
        "share": found[0]["share"],
        "wanted": PRODUCT_SHARE,
        "bits_per_weight": round(8 * size / sum(inputs * outputs for inputs, outputs in shapes), 2),
        "runs": found,
    }
