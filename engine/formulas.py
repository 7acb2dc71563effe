"""Every formula that the engine, the views and the benches share, in one place.

Symbols: L layers, H_kv key/value heads, d_h head width, s context in tokens, b sequences, n bytes per number,
γ draft length, α acceptance probability per drafted token, T_p one target step, T_q one draft step.
Sizes are bytes, times are in any one unit unless said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def kv_bytes_per_token(layers: int, kv_heads: int, head_dim: int, bytes_per_number: int) -> int:
    """2·L·H_kv·d_h·n; the 2 counts keys and values."""
    return 2 * layers * kv_heads * head_dim * bytes_per_number


def kv_bytes(layers: int, kv_heads: int, head_dim: int, context: int, sequences: int, bytes_per_number: int) -> int:
    """2·L·H_kv·d_h·s·b·n."""
    return kv_bytes_per_token(layers, kv_heads, head_dim, bytes_per_number) * context * sequences


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold `tokens` tokens."""
    return -(-tokens // block_size)


def weight_bytes(parameters: float, bytes_per_number: float) -> float:
    return parameters * bytes_per_number


def decode_ceiling(bandwidth: float, bytes_read_per_token: float) -> float:
    """Tokens/s of one stream when reading weights and KV is all that counts; bandwidth in bytes/s."""
    return bandwidth / bytes_read_per_token


def ridge_point(peak_flops: float, bandwidth: float) -> float:
    """FLOP per byte above which arithmetic is the limit (Williams et al. 2009, the roofline)."""
    return peak_flops / bandwidth


def waste(stored_tokens: int, blocks_held: int, block_size: int) -> float:
    """Share of held KV slots that hold no token; 0 when nothing is held."""
    held = blocks_held * block_size
    return 1 - stored_tokens / held if held else 0.0


class Waste(NamedTuple):
    """KV slots that are held and hold no token, in tokens, by why; `stored` are those that hold one.

    `reserved`: in blocks without any token. `last_block`: unfilled ends of blocks with some. `gaps`: in blocks that
    nobody uses, in runs too short for the request that waits for one.
    """

    stored: int
    reserved: int
    last_block: int
    gaps: int

    @property
    def held(self) -> int:
        return sum(self)

    @property
    def share(self) -> float:
        """1 − stored ÷ held, the sum of the parts' shares; over a run add the counts up first."""
        return waste(self.stored, self.held, 1)


def waste_parts(stored: int, used: int, empty: int, gaps: int, block_size: int) -> Waste:
    """From a record's counts: tokens stored in used blocks, used blocks, those of them without a token, gap blocks."""
    return Waste(stored, empty * block_size, (used - empty) * block_size - stored, gaps * block_size)


def pairs_per_token(layers: int, heads: int, head_dim: int, parameters: int) -> float:
    """Arithmetic of 1,000 attended query-key pairs over that of a token's products: 1000·4·L·H·d_h / 2·N."""
    return 2000 * layers * heads * head_dim / max(1, parameters)


# --- Speculative decoding (Leviathan et al. 2211.17192, Chen et al. 2302.01318) ---


def accept_probability(p: float, q: float) -> float:
    """min(1, p/q), for one drafted token with target probability p that was drawn from the draft with q."""
    return min(1.0, p / q)


def expected_tokens_per_pass(alpha: float, gamma: int) -> float:
    """(1 − α^(γ+1)) / (1 − α): accepted drafts and the one token that every pass adds."""
    return float(gamma + 1) if alpha >= 1 else (1 - alpha ** (gamma + 1)) / (1 - alpha)


def expected_accepted(alpha: float, gamma: int) -> float:
    """α(1 − α^γ) / (1 − α)."""
    return float(gamma) if alpha >= 1 else alpha * (1 - alpha**gamma) / (1 - alpha)


def speedup(tokens_per_pass: float, plain_step: float, draft: float, verify: float) -> float:
    """(E[accepted] + 1)·T_p / (T_draft + T_v): `draft` is the time of the whole draft of a pass, `verify` that of
    the target's pass over γ + 1 tokens. Verification costs more than a plain step; take measured times."""
    return tokens_per_pass * plain_step / (draft + verify)


def speedup_ideal(alpha: float, gamma: int, target_over_draft: float) -> float:
    """The textbook form, which takes a verification for one plain step: (E+1)·T_p / (γ·T_q + T_p)."""
    return speedup(expected_accepted(alpha, gamma) + 1, target_over_draft, gamma, target_over_draft)


def break_even_acceptance(gamma: int, plain_step: float, draft: float, verify: float) -> float | None:
    """The α at which speculation costs as much as it gives, from measured times; None if no α < 1 does."""
    if gamma < 1 or speedup(gamma + 1, plain_step, draft, verify) < 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if speedup(expected_tokens_per_pass(middle, gamma), plain_step, draft, verify) < 1:
            low = middle
        else:
            high = middle
    return high


# --- Latency ---


def time_to_first_token(arrival: float, first_token: float) -> float:
    """Queue and prefill: arrival → first output token, on the engine's clock (pauses left out)."""
    return first_token - arrival


def time_per_output_token(first_token: float, last_token: float, output_tokens: int) -> float | None:
    """Mean time per output token after the first; None when there is none after the first."""
    return (last_token - first_token) / (output_tokens - 1) if output_tokens > 1 else None


def met_targets(ttft: float, tpot: float | None, ttft_target: float, tpot_target: float) -> bool:
    return ttft <= ttft_target and (tpot is None or tpot <= tpot_target)


def goodput(met: Sequence[bool], seconds: float) -> float:
    """Requests/s that met both their targets."""
    return sum(met) / seconds if seconds > 0 else 0.0


def percentile(values: Sequence[float], q: float) -> float:
    """Nearest-rank percentile, q in 0..100; NaN of nothing. Never a value that was not measured."""
    if not len(values):
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q / 100 * len(ordered)) - 1)]
