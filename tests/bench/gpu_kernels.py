"""Each kernel as compiled for this card, against its formula in float64, over irregular shapes and the three dtypes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from tests.bench.gpu_timer import Bench

# units in the last place of the largest number; a kernel rounds a few times on the way (bfloat16 weights of attention)
ALLOWED = {torch.float32: 64 * 2.0**-24, torch.float16: 4 * 2.0**-11, torch.bfloat16: 4 * 2.0**-8}
EVERY, NARROW = tuple(ALLOWED), (torch.bfloat16,)
# name; the worst error, as a share of the largest number; the types it is asked for
Check = tuple[str, Callable[[torch.dtype], float], tuple[torch.dtype, ...]]


def run(bench: Bench) -> dict[str, object]:
    torch.manual_seed(1)
    worst: dict[str, dict[str, float]] = {}
    wrong = []
    for name, check, dtypes in checks(bench):
        for dtype in (torch.float32,) if bench.dry else dtypes:
            error = check(dtype)
            worst.setdefault(name, {})[str(dtype).removeprefix("torch.")] = float(f"{error:.2g}")
            if not error <= ALLOWED[dtype]:  # NaN too
                wrong.append(f"{name} in {dtype}: off by {error:.3g} of the largest, {ALLOWED[dtype]:.3g} allowed")
    return {"ok": not wrong, "wrong": wrong, "worst": worst}


def checks(bench: Bench) -> Iterator[Check]:
    """Every kernel in every type. What costs a card's minutes is compiling, a second or two each: of further shapes
    only bfloat16, so that there are some sixty compilations."""
    for d, block, group in ((64, 16, 3),) if bench.dry else ((64, 16, 3), (80, 32, 1), (96, 128, 4), (128, 16, 8)):
        contexts = [0, 1, 17] if bench.dry else [0, 1, 17, 100, 1025, 9000]
        shape = f"heads of {d}, blocks of {block}, groups of {group}"
        dtypes = EVERY if d in (64, 128) else NARROW
        yield f"paged_decode, {shape}", _decode(bench, d, block, group, contexts), dtypes
        yield f"paged_prefill, {shape}", _prefill(bench, d, block, group, contexts), dtypes
        yield f"rope_store, {shape}", _rope(bench, d, block, group), dtypes
    for rows, width in ((3, 100),) if bench.dry else ((1, 576), (17, 4096), (1025, 4100)):
        yield f"add_rms_norm, {rows}×{width}", _norm(bench, rows, width), EVERY
        yield f"silu_mul, {rows}×{width}", _silu(bench, rows, width), EVERY
    yield "row_weights", _weights(bench), (torch.float32,)
    yield "verify", _verify(bench), (torch.float32,)
    for bits, form in ((4, "W4A16"), (8, "W8A16")):
        for inputs, outputs, rows in ((64, 40, 3),) if bench.dry else ((4096, 4100, 1), (576, 1537, 17)):
            words = f"quantised_product, {form}, {rows}×{inputs}→{outputs}"
            yield words, _product(bench, bits, inputs, outputs, rows), EVERY if rows == 1 else NARROW
        yield f"dequantise, {form}", _floats(bench, bits), EVERY


class _Pool:
    """K heads' blocks in shuffled order; slots that no context covers are NaN, which must never leak."""

    def __init__(self, bench: Bench, d: int, block: int, group: int, contexts: list[int], dtype: torch.dtype):
        kv_heads, device = 2, bench.device
        held = [-(-context // block) for context in contexts]
        most = max(1, *held)
        order = torch.randperm(sum(held) + 1).int()
        self.tables = torch.zeros(len(contexts), most, dtype=torch.int32)
        start = 0
        for row, count in enumerate(held):
            self.tables[row, :count] = order[start : start + count]
            start += count
        self.tables = self.tables.to(device)
        self.keys, self.values = (
            torch.full((kv_heads, sum(held) + 1, block, d), torch.nan, dtype=dtype, device=device) for _ in range(2)
        )
        for row, context in enumerate(contexts):
            at = torch.arange(context, device=device)
            slots = self.tables[row][at // block].long() * block + at % block
            for pool in (self.keys, self.values):
                pool.view(kv_heads, -1, d)[:, slots] = bench.random(kv_heads, context, d, dtype=dtype)
        self.contexts = torch.tensor(contexts, dtype=torch.int32, device=device)
        self.heads = kv_heads * group


def _decode(bench: Bench, d: int, block: int, group: int, contexts: list[int]) -> Callable[[torch.dtype], float]:
    from engine.kernels.paged_decode import decode_workspace, paged_decode, paged_decode_reference

    def check(dtype: torch.dtype) -> float:
        pool = _Pool(bench, d, block, group, contexts, dtype)
        q = bench.random(len(contexts), pool.heads, d, dtype=dtype)
        out, wanted = torch.full_like(q, torch.nan), torch.zeros_like(q, dtype=torch.float64)
        workspace = decode_workspace(len(contexts), pool.heads, d, bench.device)
        paged_decode(q, pool.keys, pool.values, pool.tables, pool.contexts, out, workspace)
        wide = pool.keys.double(), pool.values.double()
        paged_decode_reference(q.double(), *wide, pool.tables, pool.contexts, wanted, None)
        return off(out, wanted)

    return check


def _prefill(bench: Bench, d: int, block: int, group: int, contexts: list[int]) -> Callable[[torch.dtype], float]:
    from engine.kernels.paged_prefill import paged_prefill, paged_prefill_reference

    def check(dtype: torch.dtype) -> float:
        pool = _Pool(bench, d, block, group, contexts, dtype)
        lengths = [min(context, 5 if context > 100 else context) for context in contexts]  # chunks and verifications
        starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device=bench.device)
        q = bench.random(sum(lengths), pool.heads, d, dtype=dtype)
        out, wanted = torch.full_like(q, torch.nan), torch.zeros_like(q, dtype=torch.float64)
        longest = max(lengths)
        paged_prefill(q, pool.keys, pool.values, pool.tables, starts, pool.contexts, out, longest)
        wide = pool.keys.double(), pool.values.double()
        paged_prefill_reference(q.double(), *wide, pool.tables, starts, pool.contexts, wanted, longest)
        return off(out, wanted)

    return check


def _rope(bench: Bench, d: int, block: int, group: int) -> Callable[[torch.dtype], float]:
    from engine.kernels.rope_store import rope_store, rope_store_reference

    def check(dtype: torch.dtype) -> float:
        tokens, kv_heads, heads = 5 if bench.dry else 100, 2, 2 * group
        qkv = bench.random(tokens, (heads + 2 * kv_heads) * d, dtype=dtype)
        positions = torch.arange(tokens, device=bench.device).int() * 7
        slots = torch.randperm(4 * block)[:tokens].int() if 4 * block >= tokens else torch.arange(tokens).int()
        slots[0] = -1  # not written
        slots = slots.to(bench.device)
        frequencies = 10_000.0 ** (-torch.arange(d // 2, device=bench.device) / (d // 2))
        blocks = -(-max(4 * block, tokens) // block)
        got = [torch.zeros(kv_heads, blocks, block, d, dtype=dtype, device=bench.device) for _ in range(2)]
        wanted = [pool.double() for pool in got]
        out = torch.empty(tokens, heads, d, dtype=dtype, device=bench.device)
        q = torch.empty_like(out, dtype=torch.float64)
        rope_store(qkv, positions, frequencies, slots, *got, heads, kv_heads, out)
        rope_store_reference(qkv.double(), positions, frequencies, slots, *wanted, heads, kv_heads, q)
        return max(off(a, b) for a, b in zip((out, *got), (q, *wanted), strict=True))

    return check


def _norm(bench: Bench, rows: int, width: int) -> Callable[[torch.dtype], float]:
    from engine.kernels.add_rms_norm import add_rms_norm, add_rms_norm_reference

    def check(dtype: torch.dtype) -> float:
        x, residual = (bench.random(rows, width, dtype=dtype) for _ in range(2))
        weight = bench.random(width, dtype=torch.float32)
        out = torch.empty_like(x)
        # the sum is rounded before it is normed: that of the formula is the same
        wanted, total = torch.empty_like(x, dtype=torch.float64), (residual + x).double()
        add_rms_norm_reference(None, total, weight.double(), 1e-5, wanted)
        add_rms_norm(x, residual, weight, 1e-5, out)
        return max(off(out, wanted), off(residual, total))

    return check


def _silu(bench: Bench, rows: int, width: int) -> Callable[[torch.dtype], float]:
    from engine.kernels.silu_mul import silu_mul, silu_mul_reference

    def check(dtype: torch.dtype) -> float:
        both = bench.random(rows, 2 * width, dtype=dtype)
        out = torch.empty(rows, width, dtype=dtype, device=bench.device)
        wanted = torch.empty_like(out, dtype=torch.float64)
        silu_mul(both, out)
        silu_mul_reference(both.double(), wanted)
        return off(out, wanted)

    return check


def _weights(bench: Bench) -> Callable[[torch.dtype], float]:
    """The filtered distributions that sampling and verification draw from; only logits in float32 come."""
    from engine.kernels.sample import row_weights, row_weights_reference, sample_workspace

    def check(_: torch.dtype) -> float:
        rows, vocabulary = (2, 300) if bench.dry else (7, 128_256)
        logits = bench.random(rows, vocabulary, dtype=torch.float32, scale=4.0)
        asked = [[0.8, -torch.inf, 20, 0.9], [1.3, -3.0, 0, 1.0]] * rows
        params = torch.tensor(asked[:rows], dtype=torch.float64, device=bench.device)
        block = 64 if bench.dry else 2048
        got, wanted = (sample_workspace(rows, vocabulary, bench.device, block) for _ in range(2))
        row_weights(logits, params, got)
        row_weights_reference(logits, params, wanted)
        return max(off(got.weights, wanted.weights), float((got.best != wanted.best).sum()))

    return check


def _verify(bench: Bench) -> Callable[[torch.dtype], float]:
    """Tokens, how many drafts were accepted, p and q: of greedy and sampled rows, of certain and drawn drafts."""
    from engine.kernels.sample import row_weights_reference, sample_workspace
    from engine.kernels.verify import BAD_VALUE, RESULT, verify, verify_reference

    def check(_: torch.dtype) -> float:
        count, gamma, vocabulary, block = (4, 2, 300, 64) if bench.dry else (32, 4, 128_256, 2048)
        device, drafts = bench.device, [row % (gamma + 1) for row in range(count)]
        starts = [0, *torch.tensor([n + 1 for n in drafts]).cumsum(0).tolist()]
        logits = bench.random(starts[-1], vocabulary, dtype=torch.float32, scale=3.0)
        near = logits + bench.random(*logits.shape, dtype=torch.float32, scale=2.0)
        likely, q_rows = near.argmax(dim=1).tolist(), near.softmax(dim=1)  # a place's row is its draft's too
        table = [
            [start, n, start if row % 2 else -1, *likely[start : start + n], *[0] * (gamma - n)]
            for row, (start, n) in enumerate(zip(starts, drafts, strict=False))
        ]
        rows = torch.tensor(table, device=device)
        params = torch.tensor([[0.8, -torch.inf, 0, 1.0], [1.3, -6.0, 50, 0.95], [0.0, -torch.inf, 0, 1.0]])
        of_row = torch.tensor([row % 3 for row, n in enumerate(drafts) for _ in range(n + 1)])
        asked = params.double()[of_row].contiguous().to(device)
        uniforms = torch.rand(count, 2 * gamma + 1, dtype=torch.float64, device=device)
        work = sample_workspace(starts[-1], vocabulary, device, block)
        row_weights_reference(logits, asked, work)
        found = []
        for run in (verify, verify_reference):
            left = torch.zeros(count, work.blocks, dtype=torch.float64, device=device)
            results = torch.zeros(count, RESULT + 2 * gamma, dtype=torch.float64, device=device)
            tokens = torch.zeros(count, dtype=torch.int64, device=device)
            run(rows, uniforms, asked, work, q_rows, q_rows.double().sum(dim=1), left, results, tokens)
            found.append((results, tokens))
        (got, ours), (wanted, theirs) = found
        # of what isn't drafted there is no p or q, and of good logits no bad value
        real = torch.arange(gamma, device=device) < rows[:, 1:2]
        told = torch.cat((torch.arange(RESULT, device=device).expand(count, -1) != BAD_VALUE, real, real), dim=1)
        return off(torch.where(told, got, 0.0), torch.where(told, wanted, 0.0)) + float((ours != theirs).sum())

    return check


def _product(bench: Bench, bits: int, inputs: int, outputs: int, rows: int) -> Callable[[torch.dtype], float]:
    from engine.kernels.quantised_product import product_workspace, quantised_product, quantised_product_reference
    from tests.bench.gpu_model import random_matrix

    def check(dtype: torch.dtype) -> float:
        matrix = random_matrix(bench, inputs, outputs, bits)
        x = bench.random(rows, inputs, dtype=dtype)
        out = torch.empty(rows, outputs, dtype=dtype, device=bench.device)
        wanted = torch.empty_like(out, dtype=torch.float64)
        quantised_product(x, *matrix, out, product_workspace(rows, outputs, bench.device))
        quantised_product_reference(x.double(), *matrix, wanted)
        return off(out, wanted)

    return check


def _floats(bench: Bench, bits: int) -> Callable[[torch.dtype], float]:
    from engine.kernels.dequantise import dequantise
    from engine.kernels.quantised_matrix import dequantised
    from tests.bench.gpu_model import random_matrix

    def check(dtype: torch.dtype) -> float:
        matrix = random_matrix(bench, 96, 200, bits)
        out = torch.empty(130, 96, dtype=dtype, device=bench.device)
        dequantise(*matrix, out, 7)
        return off(out, dequantised(*matrix, torch.float64)[7:137])

    return check


def off(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """The worst error as a share of the largest number; NaN where something isn't a number."""
    return ((got.double() - wanted).abs().max() / wanted.abs().max().clamp_min(1e-30)).item()
