"""Which drafted tokens stay and how each row ends, on the device: the exact rule, for a whole batch, nothing read back.

    accepted while draw·q < p; the ending token by inverse CDF from p after a whole draft (bonus), else from
    max(0, p − q) (resampled), which is p without the drafted token where the draft was certain of it

The rule and its words are engine/speculation/accept.py's; a row without drafts is one whose draft was accepted whole.
p = w ÷ Σw of what engine/kernels/sample.py left; of a greedy row p is 1 for the likeliest token, and no draw decides.
Uniform numbers come in, from engine/random_numbers.py, for every way in which a row may end.

Three launches. Bytes: of each row one weight a draft, then its last place's weights (8·vocabulary) and, where it has
them, the draft's probabilities once; the draw reads the sums of blocks and a single block.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.interpreted import widened
from engine.kernels.sample import BLOCK, EVERY, GREEDY, Kinds, SampleWorkspace

ROW = 3  # leading columns of `rows`: first place of its logits, drafts, first of q_rows or −1; then the drafted tokens
# leading columns of `results`; then p of each drafted token, then q
ACCEPTED, LAST, LAST_P, LAST_Q, BAD, BAD_VALUE, RESULT = range(7)


@triton.jit
def _total(sums, place, blocks, BLOCKS_PADDED: tl.constexpr):
    each = tl.arange(0, BLOCKS_PADDED)
    return tl.sum(tl.load(sums + place * blocks + each, mask=each < blocks, other=0.0), axis=0)


@triton.jit
def _verify_accept(
    rows, uniforms, params, tops, best, weights, sums, q_rows, q_totals, results, vocabulary, blocks, gamma, q_stride,
    DRAWN: tl.constexpr, BLOCKS_PADDED: tl.constexpr,
):  # fmt: skip
    """Grid (R)."""
    row = tl.program_id(0).to(tl.int64)
    own, out = rows + row * (3 + gamma), results + row * (6 + 2 * gamma)
    start, count, q_first = tl.load(own), tl.load(own + 1), tl.load(own + 2)
    going = tl.full((), 1, tl.int32)
    accepted = tl.zeros((), tl.int32)
    bad = tl.zeros((), tl.int32)
    value = tl.zeros((), tl.float32)
    for i in range(0, gamma + 1):
        if i <= count:
            top = tl.load(tops + start + i)
            broken = (tl.abs(top) < float("inf")) == 0
            value = tl.where(broken & (bad == 0), top, value)
            bad += broken.to(tl.int32)
        if i < count:
            token, place = tl.load(own + 3 + i), start + i
            p = (tl.load(best + place) == token).to(tl.float64)
            if tl.load(params + place * 4) >= GREEDY:
                p = tl.load(weights + place * vocabulary + token) / _total(sums, place, blocks, BLOCKS_PADDED)
            q = tl.full((), 1.0, tl.float64)
            if DRAWN:  # noqa: SIM102 — decided when compiled, the other is not
                if q_first >= 0:
                    at = q_first + i
                    q = widened(tl.load(q_rows + at * q_stride + token)).to(tl.float64) / tl.load(q_totals + at)
            passes = tl.load(uniforms + row * (2 * gamma + 1) + i) * q < p
            going = tl.where(passes, going, 0)
            accepted += going
            tl.store(out + 6 + i, p)
            tl.store(out + 6 + gamma + i, q)
    tl.store(out, accepted.to(tl.float64))
    tl.store(out + 4, bad.to(tl.float64))
    tl.store(out + 5, value.to(tl.float64))


@triton.jit
def _left(
    own, weights, q_rows, q_totals, place, accepted, total, at, vocabulary, q_stride, resampled, DRAWN: tl.constexpr
):  # fmt: skip
    """Of tokens `at`, what the row's ending token is drawn from: weights, or the residual where it is `resampled`."""
    w = tl.load(weights + place * vocabulary + at, mask=at < vocabulary, other=0.0)
    if resampled:
        w = w / total
        q_first = tl.load(own + 2)
        if q_first < 0:
            w = tl.where(at == tl.load(own + 3 + accepted), 0.0, w)
        else:
            if DRAWN:
                drafted = q_first + accepted
                q = tl.load(q_rows + drafted * q_stride + at, mask=at < vocabulary, other=0.0)
                w = tl.maximum(w - widened(q).to(tl.float64) / tl.load(q_totals + drafted), 0.0)
    return w


@triton.jit
def _verify_left(
    rows, params, weights, sums, q_rows, q_totals, results, left, vocabulary, blocks, gamma, q_stride,
    DRAWN: tl.constexpr, BLOCK: tl.constexpr, BLOCKS_PADDED: tl.constexpr,
):  # fmt: skip
    """Grid (blocks, R)."""
    block, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    own = rows + row * (3 + gamma)
    accepted = tl.load(results + row * (6 + 2 * gamma)).to(tl.int64)
    place = tl.load(own) + accepted
    if (tl.load(params + place * 4) >= GREEDY) & (accepted < tl.load(own + 1)):
        at = block * BLOCK + tl.arange(0, BLOCK)
        total = _total(sums, place, blocks, BLOCKS_PADDED)
        w = _left(own, weights, q_rows, q_totals, place, accepted, total, at, vocabulary, q_stride, True, DRAWN)
        tl.store(left + row * blocks + block, tl.sum(w, axis=0))


@triton.jit
def _verify_end(
    rows, uniforms, params, best, weights, sums, q_rows, q_totals, left, results, tokens,
    vocabulary, blocks, gamma, q_stride,
    DRAWN: tl.constexpr, BLOCK: tl.constexpr, BLOCKS_PADDED: tl.constexpr,
):  # fmt: skip
    """Grid (R)."""
    row = tl.program_id(0).to(tl.int64)
    own, out = rows + row * (3 + gamma), results + row * (6 + 2 * gamma)
    accepted = tl.load(out).to(tl.int64)
    rejected = accepted < tl.load(own + 1)
    place = tl.load(own) + accepted
    last = tl.load(best + place).to(tl.int64)
    last_p = tl.full((), 1.0, tl.float64)
    last_q = tl.full((), 0.0, tl.float64)
    if tl.load(params + place * 4) >= GREEDY:
        each = tl.arange(0, BLOCKS_PADDED)
        parts = tl.load(sums + place * blocks + each, mask=each < blocks, other=0.0)
        total = tl.sum(parts, axis=0)
        resampled = rejected
        if rejected:
            remains = tl.load(left + row * blocks + each, mask=each < blocks, other=0.0)
            # nothing is left only if p and q agree to rounding, and then a draw from p is the right one
            resampled = tl.sum(remains, axis=0) > 0
            parts = tl.where(resampled, remains, parts)
        ends = tl.cumsum(parts, axis=0)
        target = tl.load(uniforms + row * (2 * gamma + 1) + gamma + accepted) * tl.max(ends, axis=0)
        # sums in blocks and within one round differently: a draw on a seam takes the nearest token that may be drawn
        block = tl.minimum(tl.sum((ends <= target).to(tl.int32), axis=0), tl.max(tl.where(parts > 0, each, 0), axis=0))
        before = tl.sum(tl.where(each < block, parts, 0.0), axis=0)
        at = block * BLOCK + tl.arange(0, BLOCK)
        w = _left(own, weights, q_rows, q_totals, place, accepted, total, at, vocabulary, q_stride, resampled, DRAWN)
        beyond = (before + tl.cumsum(w, axis=0) > target) & (w > 0)
        first = tl.min(tl.where(beyond, at, vocabulary), axis=0)
        final = tl.max(tl.where(w > 0, at, 0), axis=0)
        last = tl.where(first < vocabulary, first, final).to(tl.int64)
        last_p = tl.load(weights + place * vocabulary + last) / total
        if DRAWN:
            q_first = tl.load(own + 2)
            if rejected & (q_first >= 0):
                drafted = q_first + accepted
                q = widened(tl.load(q_rows + drafted * q_stride + last)).to(tl.float64)
                last_q = q / tl.load(q_totals + drafted)
    tl.store(tokens + row, last)
    tl.store(out + 1, last.to(tl.float64))
    tl.store(out + 2, last_p)
    tl.store(out + 3, last_q)


def verify(
    rows: torch.Tensor,
    uniforms: torch.Tensor,
    params: torch.Tensor,
    work: SampleWorkspace,
    q_rows: torch.Tensor | None,
    q_totals: torch.Tensor | None,
    left: torch.Tensor,
    results: torch.Tensor,
    tokens: torch.Tensor,
    kinds: Kinds = EVERY,
) -> None:
    """After `row_weights`. rows int64 (R, ROW + γ); uniforms float64 (R, 2γ + 1): of each draft's test, then of the
    ending after each number of accepted ones; params as there; q_rows (D, vocabulary) of any float type, their sums
    float64 (D), or None; left float64 (R, blocks), scratch. → results float64 (R, RESULT + 2γ) and tokens int64 (R),
    the ending ones."""
    count, gamma = _checked(rows, uniforms, params, work, q_rows, q_totals, left, results, tokens)
    if not count:
        return
    vocabulary, blocks, drawn = work.weights.shape[1], work.blocks, q_rows is not None
    q, totals, stride = (q_rows, q_totals, q_rows.stride(0)) if q_rows is not None else (work.weights, work.sums, 0)
    sizes = (vocabulary, blocks, gamma, stride)
    padded = triton.next_power_of_2(blocks)
    _verify_accept[(count,)](
        rows, uniforms, params, work.tops, work.best, work.weights, work.sums, q, totals, results, *sizes,
        DRAWN=drawn, BLOCKS_PADDED=padded,
    )  # fmt: skip
    if kinds.sampled and gamma:
        _verify_left[(blocks, count)](
            rows, params, work.weights, work.sums, q, totals, results, left, *sizes,
            DRAWN=drawn, BLOCK=work.block, BLOCKS_PADDED=padded,
        )  # fmt: skip
    _verify_end[(count,)](
        rows, uniforms, params, work.best, work.weights, work.sums, q, totals, left, results, tokens, *sizes,
        DRAWN=drawn, BLOCK=work.block, BLOCKS_PADDED=padded,
    )  # fmt: skip


def verify_reference(
    rows: torch.Tensor,
    uniforms: torch.Tensor,
    params: torch.Tensor,
    work: SampleWorkspace,
    q_rows: torch.Tensor | None,
    q_totals: torch.Tensor | None,
    left: torch.Tensor,
    results: torch.Tensor,
    tokens: torch.Tensor,
    kinds: Kinds = EVERY,
) -> None:
    """The whole vocabulary of each row's ending at once."""
    _, gamma = _checked(rows, uniforms, params, work, q_rows, q_totals, left, results, tokens)
    start, drafts, q_first, drafted = rows[:, 0], rows[:, 1], rows[:, 2], rows[:, ROW:]
    each = torch.arange(gamma, device=rows.device)
    real = each < drafts[:, None]  # (R, γ)
    places = torch.where(real, start[:, None] + each, start[:, None])
    greedy = params[:, 0] < GREEDY.value
    totals = work.weights.sum(dim=1)
    certain = (work.best[places] == drafted).double()
    p = torch.where(greedy[places], certain, work.weights[places, drafted] / totals[places])
    q, drawn = torch.ones_like(p), (q_first >= 0)[:, None] & real
    if q_rows is not None and q_totals is not None:
        at = torch.where(drawn, q_first[:, None] + each, 0)
        q = torch.where(drawn, q_rows[at, drafted].double() / q_totals[at], 1.0)
    accepted = ((uniforms[:, :gamma] * q < p) & real).long().cumprod(dim=1).sum(dim=1)
    ends, rejected = start + accepted, accepted < drafts
    weights = work.weights[ends]  # (R, vocabulary)
    final, last_q = weights, torch.zeros_like(weights)
    if gamma:
        inside = accepted.clamp(max=gamma - 1)
        share = weights / totals[ends][:, None]
        residual = share.scatter(1, drafted.gather(1, inside[:, None]), 0.0)
        if q_rows is not None and q_totals is not None:
            with_q = rejected & (q_first >= 0)
            at = torch.where(with_q, q_first + inside, 0)
            last_q = torch.where(with_q[:, None], q_rows[at].double() / q_totals[at][:, None], 0.0)
            residual = torch.where(with_q[:, None], (share - last_q).clamp(min=0), residual)
        left_over = rejected & (residual.sum(dim=1) > 0)
        final = torch.where(left_over[:, None], residual, weights)
    cumulative = final.cumsum(dim=1)
    targets = uniforms.gather(1, gamma + accepted[:, None]) * cumulative[:, -1:]
    last = torch.searchsorted(cumulative, targets, right=True).clamp(max=weights.shape[1] - 1)
    plain = greedy[ends]
    last = torch.where(plain[:, None], work.best[ends].long()[:, None], last)
    last_p = torch.where(plain, 1.0, weights.gather(1, last)[:, 0] / totals[ends])
    mine = torch.arange(gamma + 1, device=rows.device) <= drafts[:, None]
    tops = work.tops[torch.where(mine, start[:, None] + torch.arange(gamma + 1, device=rows.device), start[:, None])]
    bad = mine & ~tops.isfinite()
    first_bad = tops.gather(1, bad.long().argmax(dim=1, keepdim=True))[:, 0]
    tokens.copy_(last[:, 0])
    results[:, ACCEPTED], results[:, LAST], results[:, LAST_P] = accepted.double(), last[:, 0].double(), last_p
    results[:, LAST_Q] = torch.where(plain, 0.0, last_q.gather(1, last)[:, 0])
    results[:, BAD], results[:, BAD_VALUE] = bad.sum(dim=1).double(), first_bad.double()
    results[:, RESULT : RESULT + gamma], results[:, RESULT + gamma :] = p, q


def _checked(
    rows: torch.Tensor,
    uniforms: torch.Tensor,
    params: torch.Tensor,
    work: SampleWorkspace,
    q_rows: torch.Tensor | None,
    q_totals: torch.Tensor | None,
    left: torch.Tensor,
    results: torch.Tensor,
    tokens: torch.Tensor,
) -> tuple[int, int]:
    """Rows, and the longest draft."""
    count, gamma = rows.shape[0], rows.shape[1] - ROW
    shapes = {
        "uniforms": (uniforms, (count, 2 * gamma + 1), torch.float64),
        "left": (left, (count, work.blocks), torch.float64),
        "results": (results, (count, RESULT + 2 * gamma), torch.float64),
        "tokens": (tokens, (count,), torch.int64),
        "rows": (rows, (count, ROW + gamma), torch.int64),
        "params": (params, (len(params), 4), torch.float64),
    }
    for name, (tensor, shape, dtype) in shapes.items():
        if tensor.shape != shape or tensor.dtype != dtype or not tensor.is_contiguous():
            raise ValueError(f"{name} {tuple(tensor.shape)} {tensor.dtype}, wanted {shape} {dtype}, contiguous")
    if (q_rows is None) != (q_totals is None):
        raise ValueError("draft distributions come with their sums")
    if q_rows is not None and (q_rows.shape[1] != work.weights.shape[1] or q_rows.stride(1) != 1):
        raise ValueError(f"draft distributions {tuple(q_rows.shape)} for {work.weights.shape[1]} tokens")
    return count, gamma


def ahead() -> list:
    from engine.kernels.ahead import TYPES, Case

    types = dict.fromkeys(("vocabulary", "blocks", "gamma", "q_stride"), "i32")
    types |= dict.fromkeys(("rows", "tokens"), "*i64") | {"tops": "*fp32", "best": "*i32"}
    types |= dict.fromkeys(("uniforms", "params", "weights", "sums", "q_totals", "results", "left"), "*fp64")
    kinds = [("certain drafts", False, "*fp64")]
    kinds += [(f"drafts drawn, {name}", True, f"*{TYPES[name]}") for name in ("float32", "bfloat16")]
    cases = []
    for words, drawn, q in kinds:
        of, constants = {**types, "q_rows": q}, {"DRAWN": drawn, "BLOCKS_PADDED": 128}
        cases.append(Case(_verify_accept, words, of, constants, warps=4))
        cases += [Case(kernel, words, of, {**constants, "BLOCK": BLOCK}) for kernel in (_verify_left, _verify_end)]
    return cases
