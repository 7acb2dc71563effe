"""From logits to what a token is drawn from: temperature, min-p, top-k and top-p, on the device, without a sort.

    x = logit/T − max(logit)/T; kept where x ≥ log(min_p), among the top_k largest, and then among the fewest largest
    whose weights reach top_p of what is left; w = exp(x) where kept, else 0

Everything as in engine/distribution.py, ties included (of equals the lower id stays), in float64 as there: what differs
is the order of sums and at most the last bit of exp, 1e-13 of a probability. Greedy rows need the first sweep alone.

A filter is a threshold, and the threshold is searched for, not sorted for: float64 numbers of one sign are ordered as
their bits are, so the range of bits is halved until one of the row's own numbers is left. Each sweep moves both ends
of the range to numbers that occur, so it takes about log2(range ÷ gap) sweeps, 15 to 20 of 152,064 logits where bits
alone would take 60, over a row that stays in the L2 cache. A sort would write as much as it reads, each time.

Bytes: logits are read twice (8·vocabulary a row), weights written and read once (16·vocabulary), and each filter reads
the weights once a sweep and writes them once. The grid follows from shapes alone. Weights take 8·vocabulary bytes a
row, 1.2 MB of 152,064, which lies in the workspace for as long as it does.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.kernels.interpreted import widened

PARAMS = 4  # columns of `params`: temperature, log(min_p) or −inf, top_k or 0, top_p
GREEDY = tl.constexpr(1e-5)  # engine/sampler.py's GREEDY_BELOW
FILTER_REGISTERS = 128  # a thread's at most; left alone, ptxas aims at 80 and spills 8 bytes
# Of a vocabulary; a row of 152,064 is 75 programs' work. Tests cut small ones smaller.
BLOCK = 2048
_LOWEST = tl.constexpr(-(2**63) + 1)
_HIGHEST = tl.constexpr(2**63 - 1)


@dataclass(frozen=True)
class Kinds:
    """What a batch's rows ask for: what nobody asks for isn't launched. A captured graph serves all, so has all on."""

    sampled: bool = True  # a temperature above 0
    top_k: bool = True
    top_p: bool = True


EVERY = Kinds()


@dataclass(frozen=True)
class SampleWorkspace:
    """For at most N rows of logits; made once. Of greedy rows only `best` and `tops` are ever written."""

    weights: torch.Tensor  # float64 (N, vocabulary)
    sums: torch.Tensor  # float64 (N, blocks) of weights
    peaks: torch.Tensor  # float32 (N, blocks) of logits; NaN where one is
    peak_ids: torch.Tensor  # int32 (N, blocks) the first token that has it
    tops: torch.Tensor  # float32 (N) the largest logit; not finite where the logits are no numbers
    best: torch.Tensor  # int32 (N) its token
    block: int

    @property
    def blocks(self) -> int:
        return self.sums.shape[1]


def sample_workspace(places: int, vocabulary: int, device: torch.device, block: int = BLOCK) -> SampleWorkspace:
    blocks = -(-vocabulary // block)

    def empty(dtype: torch.dtype, *shape: int) -> torch.Tensor:
        return torch.zeros(*shape, dtype=dtype, device=device)

    return SampleWorkspace(
        empty(torch.float64, places, vocabulary),
        empty(torch.float64, places, blocks),
        empty(torch.float32, places, blocks),
        empty(torch.int32, places, blocks),
        empty(torch.float32, places),
        empty(torch.int32, places),
        block,
    )


@triton.jit
def _sample_peaks(logits, peaks, peak_ids, stride, vocabulary, blocks, BLOCK: tl.constexpr):
    """Grid (blocks, N)."""
    block, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    at = block * BLOCK + tl.arange(0, BLOCK)
    x = widened(tl.load(logits + row * stride + at, mask=at < vocabulary, other=-float("inf"))).to(tl.float32)
    nan = tl.max((x != x).to(tl.int32), axis=0)
    peak = tl.max(tl.where(x != x, -float("inf"), x), axis=0)
    tl.store(peaks + row * blocks + block, tl.where(nan > 0, float("nan"), peak))
    tl.store(peak_ids + row * blocks + block, tl.min(tl.where(x == peak, at, vocabulary), axis=0))


@triton.jit
def _sample_temper(
    logits, params, peaks, peak_ids, tops, best, weights, stride, vocabulary, blocks,
    BLOCK: tl.constexpr, BLOCKS_PADDED: tl.constexpr, SAMPLED: tl.constexpr,
):  # fmt: skip
    """Grid (blocks, N), or (1, N) where all are greedy. Leaves x for top-k to choose among, else weights."""
    block, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    each = tl.arange(0, BLOCKS_PADDED)
    found = tl.load(peaks + row * blocks + each, mask=each < blocks, other=-float("inf"))
    ids = tl.load(peak_ids + row * blocks + each, mask=each < blocks, other=vocabulary)
    nan = tl.max((found != found).to(tl.int32), axis=0)
    top = tl.max(tl.where(found != found, -float("inf"), found), axis=0)
    if block == 0:
        tl.store(tops + row, tl.where(nan > 0, float("nan"), top))
        tl.store(best + row, tl.min(tl.where(found == top, ids, vocabulary - 1), axis=0))
    if SAMPLED:
        temperature = tl.load(params + row * 4)
        if temperature >= GREEDY:
            lowest, top_k = tl.load(params + row * 4 + 1), tl.load(params + row * 4 + 2)
            at = block * BLOCK + tl.arange(0, BLOCK)
            logit = tl.load(logits + row * stride + at, mask=at < vocabulary, other=-float("inf"))
            x = widened(logit).to(tl.float64) / temperature - top.to(tl.float64) / temperature
            x = tl.where(x < lowest, -float("inf"), x)
            limited = (top_k > 0) & (top_k < vocabulary)
            tl.store(weights + row * vocabulary + at, tl.where(limited, x, tl.exp(x)), mask=at < vocabulary)


@triton.jit
def _key(x, COUNTED: tl.constexpr):
    """int64, ordered as x is: of x ≤ 0 where COUNTED, else of weights ≥ 0."""
    bits = tl.abs(x).to(tl.int64, bitcast=True)
    if COUNTED:
        bits = -bits
    return bits


@triton.jit
def _sample_filter(params, tops, weights, vocabulary, COUNTED: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (N). COUNTED: of the x that `_sample_temper` left the top_k largest become weights, the others 0. Else: of
    the weights the fewest largest that reach top_p of their sum stay, the others become 0."""
    row = tl.program_id(0).to(tl.int64)
    temperature, top_k, top_p = tl.load(params + row * 4), tl.load(params + row * 4 + 2), tl.load(params + row * 4 + 3)
    top = tl.load(tops + row)
    # of logits that are no numbers nothing can be searched for: the batch is refused as a whole
    sound = (temperature >= GREEDY) & (tl.abs(top) < float("inf"))
    limited = (top_k > 0) & (top_k < vocabulary) if COUNTED else top_p < 1
    if sound & limited:
        own = weights + row * vocabulary
        step = tl.arange(0, BLOCK)
        total = tl.zeros((), tl.float64)
        low = tl.full((), _HIGHEST, tl.int64)
        high = tl.full((), _LOWEST, tl.int64)
        for begin in range(0, vocabulary, BLOCK):
            there = begin + step < vocabulary
            x = tl.load(own + begin + step, mask=there, other=0.0)
            key = _key(x, COUNTED)
            total += tl.sum(x, axis=0)
            low = tl.minimum(low, tl.min(tl.where(there, key, _HIGHEST), axis=0))
            high = tl.maximum(high, tl.max(tl.where(there, key, _LOWEST), axis=0))
        wanted = top_k if COUNTED else top_p * total
        high += 1
        # kept from `low` on there are enough, from `high` on too few; `low` and `high` − 1 occur in the row
        while high - low > 1:
            middle = low + (high - low) // 2
            reached = tl.zeros((), tl.float64)
            least = tl.full((), _HIGHEST, tl.int64)  # of those from the middle on
            most = tl.full((), _LOWEST, tl.int64)  # of those below
            for begin in range(0, vocabulary, BLOCK):
                there = begin + step < vocabulary
                x = tl.load(own + begin + step, mask=there, other=0.0)
                key = _key(x, COUNTED)
                upper = there & (key >= middle)
                reached += tl.sum(tl.where(upper, 1.0 if COUNTED else x, 0.0), axis=0)
                least = tl.minimum(least, tl.min(tl.where(upper, key, _HIGHEST), axis=0))
                most = tl.maximum(most, tl.max(tl.where(there & (key < middle), key, _LOWEST), axis=0))
            enough = reached >= wanted
            low = tl.where(enough, least, low)
            high = tl.where(enough, high, most + 1)
        above = tl.zeros((), tl.float64)
        for begin in range(0, vocabulary, BLOCK):
            there = begin + step < vocabulary
            x = tl.load(own + begin + step, mask=there, other=0.0)
            above += tl.sum(tl.where(there & (_key(x, COUNTED) > low), 1.0 if COUNTED else x, 0.0), axis=0)
        # how many of those equal to the threshold it takes; one at least
        if COUNTED:
            equal = wanted - above
        else:
            level = low.to(tl.float64, bitcast=True)
            equal = tl.maximum(tl.ceil((wanted - above) / tl.where(level > 0, level, 1.0)), 1.0)
        seen = tl.zeros((), tl.int32)
        for begin in range(0, vocabulary, BLOCK):
            there = begin + step < vocabulary
            x = tl.load(own + begin + step, mask=there, other=0.0)
            key = _key(x, COUNTED)
            same = (there & (key == low)).to(tl.int32)
            kept = (key > low) | ((same > 0) & ((seen + tl.cumsum(same, axis=0)).to(tl.float64) <= equal))
            tl.store(own + begin + step, tl.where(kept, tl.exp(x) if COUNTED else x, 0.0), mask=there)
            seen += tl.sum(same, axis=0)


@triton.jit
def _sample_sums(params, weights, sums, vocabulary, blocks, BLOCK: tl.constexpr):
    """Grid (blocks, N)."""
    block, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    if tl.load(params + row * 4) >= GREEDY:
        at = block * BLOCK + tl.arange(0, BLOCK)
        w = tl.load(weights + row * vocabulary + at, mask=at < vocabulary, other=0.0)
        tl.store(sums + row * blocks + block, tl.sum(w, axis=0))


def row_weights(logits: torch.Tensor, params: torch.Tensor, work: SampleWorkspace, kinds: Kinds = EVERY) -> None:
    """logits (N, vocabulary); params float64 (N, PARAMS) → `work`: best and tops of all, weights and their sums of rows
    with temperature. Reads nothing back."""
    places, vocabulary = _checked(logits, params, work)
    if not places:
        return
    block, blocks = work.block, work.blocks
    grid, sizes = (blocks, places), (vocabulary, blocks)
    _sample_peaks[grid](logits, work.peaks, work.peak_ids, logits.stride(0), *sizes, BLOCK=block)
    _sample_temper[grid if kinds.sampled else (1, places)](
        logits, params, work.peaks, work.peak_ids, work.tops, work.best, work.weights, logits.stride(0), *sizes,
        BLOCK=block, BLOCKS_PADDED=triton.next_power_of_2(blocks), SAMPLED=kinds.sampled,
    )  # fmt: skip
    if not kinds.sampled:
        return
    for counted, asked in ((True, kinds.top_k), (False, kinds.top_p)):
        if asked:
            _sample_filter[(places,)](
                params, work.tops, work.weights, vocabulary,
                COUNTED=counted, BLOCK=block, num_warps=8, maxnreg=FILTER_REGISTERS,
            )
    _sample_sums[grid](params, work.weights, work.sums, *sizes, BLOCK=block)


def row_weights_reference(
    logits: torch.Tensor, params: torch.Tensor, work: SampleWorkspace, kinds: Kinds = EVERY
) -> None:
    """By sorting."""
    places, vocabulary = _checked(logits, params, work)
    top = logits.max(dim=1)
    work.tops[:places] = top.values.float()
    first = torch.where(logits == top.values[:, None], torch.arange(vocabulary, device=logits.device), vocabulary - 1)
    work.best[:places] = first.amin(dim=1).int()
    temperature, lowest, top_k, top_p = params[:, :, None].unbind(1)  # (N, 1)
    x = logits.double() / temperature - top.values[:, None].double() / temperature
    x = torch.where(x < lowest, -torch.inf, x)
    rank = torch.arange(vocabulary, device=logits.device)[None]
    if kinds.top_k:
        order = x.sort(dim=1, descending=True, stable=True).indices
        kept = torch.empty_like(order).scatter_(1, order, rank.expand_as(order)) < top_k
        x = torch.where(kept | (top_k == 0), x, -torch.inf)
    weights = x.exp()
    if kinds.top_p:
        ordered = weights.sort(dim=1, descending=True, stable=True)
        reached = ordered.values.cumsum(dim=1) - ordered.values  # before each
        within = (reached < top_p * weights.sum(dim=1, keepdim=True)) | (rank == 0) | (top_p >= 1)
        weights = torch.where(torch.empty_like(within).scatter_(1, ordered.indices, within), weights, 0.0)
    work.weights[:places] = weights
    padded = torch.nn.functional.pad(weights, (0, work.blocks * work.block - vocabulary))
    work.sums[:places] = padded.view(places, work.blocks, work.block).sum(dim=2)


def _checked(logits: torch.Tensor, params: torch.Tensor, work: SampleWorkspace) -> tuple[int, int]:
    places, vocabulary = logits.shape
    if places > len(work.weights) or vocabulary != work.weights.shape[1]:
        raise ValueError(f"logits {tuple(logits.shape)} for a workspace of {tuple(work.weights.shape)}")
    if params.shape != (places, PARAMS) or params.dtype != torch.float64 or not params.is_contiguous():
        raise ValueError(f"params {tuple(params.shape)} {params.dtype} for {places} rows of logits")
    if logits.stride(1) != 1:
        raise ValueError("the logits of a row must lie together")
    return places, vocabulary


def ahead() -> list:
    from engine.kernels.ahead import TYPES, Case

    sizes = {"stride": "i32", "vocabulary": "i32", "blocks": "i32"}
    held = {"params": "*fp64", "peaks": "*fp32", "peak_ids": "*i32", "tops": "*fp32", "best": "*i32"}
    types = {**sizes, **held, "weights": "*fp64", "sums": "*fp64"}
    logits = [(name, {**types, "logits": f"*{TYPES[name]}"}) for name in ("float32", "bfloat16")]
    cases = [Case(_sample_peaks, name, of, {"BLOCK": BLOCK}) for name, of in logits]
    cases += [
        Case(_sample_temper, f"{name}, {words}", of, {"BLOCK": BLOCK, "BLOCKS_PADDED": 128, "SAMPLED": sampled})
        for name, of in logits
        for words, sampled in (("greedy", False), ("sampled", True))
    ]
    cases += [
        Case(_sample_filter, words, types, {"BLOCK": BLOCK, "COUNTED": counted}, warps=8, registers=FILTER_REGISTERS)
        for words, counted in (("top-k", True), ("top-p", False))
    ]
    return [*cases, Case(_sample_sums, "float64", types, {"BLOCK": BLOCK})]
