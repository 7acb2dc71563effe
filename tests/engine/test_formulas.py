"""Every worked example of the reference, and what the formulas say at their edges."""

import math

import pytest

from engine import formulas as f


@pytest.mark.parametrize(
    ("layers", "kv_heads", "head_dim", "context", "sequences", "expected"),
    [
        (32, 32, 128, 4096, 1, 2 * f.GIB),  # Llama-2 7B
        (32, 32, 128, 4096, 32, 64 * f.GIB),
        (32, 8, 128, 8192, 1, 1 * f.GIB),  # Llama-3 8B, grouped-query
        (40, 40, 128, 4096, 4, 12.5 * f.GIB),  # Llama-2 13B is multi-head
    ],
)
def test_kv_bytes(layers, kv_heads, head_dim, context, sequences, expected):
    assert f.kv_bytes(layers, kv_heads, head_dim, context, sequences, 2) == expected


def test_kv_bytes_is_not_counted_twice():
    """8·L·d_model·s·b, a form in circulation, counts bf16's two bytes twice."""
    assert f.kv_bytes(32, 32, 128, 4096, 1, 2) == 2_147_483_648 == 8 * 32 * 4096 * 4096 // 2


@pytest.mark.parametrize(
    ("layers", "kv_heads", "head_dim", "expected"),
    [(24, 4, 64, 24_576), (24, 20, 64, 120 * f.KIB), (24, 1, 64, 6 * f.KIB), (30, 3, 64, 23_040)],
)
def test_kv_bytes_per_token(layers, kv_heads, head_dim, expected):
    assert f.kv_bytes_per_token(layers, kv_heads, head_dim, 2) == expected


def test_weights():
    assert f.weight_bytes(489.3e6, 2) == pytest.approx(0.98e9, rel=0.01)
    assert f.weight_bytes(489.3e6, 0.5) == pytest.approx(0.25e9, rel=0.03)
    assert f.weight_bytes(6.74e9, 2) == pytest.approx(13.5e9, rel=0.01)


def test_blocks_for():
    assert [f.blocks_for(n, 16) for n in (0, 1, 16, 17)] == [0, 1, 1, 2]


def test_waste():
    assert f.waste(0, 0, 16) == 0
    assert f.waste(16, 1, 16) == 0
    assert f.waste(8, 1, 16) == 0.5
    # half of a last block is lost on average: 16-token blocks waste under 4 % from some 200 tokens on
    assert f.waste(200 - 8, f.blocks_for(200 - 8, 16), 16) < 0.04
    assert f.waste(40, f.blocks_for(200, 16), 16) > 0.6  # what reserving the whole length costs


def test_speed_of_light():
    assert f.decode_ceiling(1.8e12, 0.98e9) == pytest.approx(1_800, rel=0.03)
    assert round(f.ridge_point(312e12, 1.5e12)) == 208
    assert round(f.ridge_point(210e12, 1.8e12)) == 117


def test_accept_probability():
    assert f.accept_probability(0.3, 0.5) == pytest.approx(0.6)
    assert f.accept_probability(0.5, 0.3) == 1


def test_tokens_per_pass():
    assert f.expected_tokens_per_pass(0.8, 4) == pytest.approx(3.3616)
    assert f.expected_tokens_per_pass(1.0, 4) == 5
    assert f.expected_tokens_per_pass(0.0, 4) == 1
    assert f.expected_tokens_per_pass(0.8, 0) == pytest.approx(1)
    assert f.expected_accepted(0.8, 5) == pytest.approx(2.689, abs=5e-4)
    assert f.expected_accepted(1.0, 5) == 5
    for alpha in (0.0, 0.3, 0.99, 1.0):
        assert f.expected_tokens_per_pass(alpha, 4) == pytest.approx(f.expected_accepted(alpha, 4) + 1)


def test_speedup():
    assert f.speedup_ideal(0.8, 5, 10) == pytest.approx(2.46, abs=5e-3)
    tokens = f.expected_accepted(0.8, 5) + 1
    assert f.speedup(tokens, plain_step=10, draft=5, verify=10) == pytest.approx(f.speedup_ideal(0.8, 5, 10))
    assert f.speedup(tokens, plain_step=10, draft=5, verify=20) < f.speedup_ideal(0.8, 5, 10)


def test_break_even_is_where_the_speedup_is_one():
    alpha = f.break_even_acceptance(4, plain_step=10, draft=2, verify=18)
    assert alpha is not None
    assert f.speedup(f.expected_tokens_per_pass(alpha, 4), 10, 2, 18) == pytest.approx(1)
    assert f.break_even_acceptance(4, plain_step=10, draft=2, verify=60) is None
    assert f.break_even_acceptance(0, plain_step=10, draft=0, verify=10) is None
    free = f.break_even_acceptance(4, plain_step=10, draft=0, verify=10)
    assert free is not None
    assert free < 1e-9


def test_latency():
    assert f.time_to_first_token(10, 12.5) == 2.5
    assert f.time_per_output_token(1.0, 4.0, 4) == 1.0
    assert f.time_per_output_token(1.0, 1.0, 1) is None


def test_goodput_counts_only_requests_that_met_both_targets():
    served = [(0.5, 0.04), (2.0, 0.04), (0.5, 0.08), (0.5, None)]
    met = [f.met_targets(ttft, tpot, 1.0, 0.05) for ttft, tpot in served]
    assert met == [True, False, False, True]
    assert f.goodput(met, 4.0) == 0.5
    assert f.goodput(met, 0.0) == 0


def test_percentile_is_a_measured_value():
    values = [5.0, 1.0, 3.0]
    assert [f.percentile(values, q) for q in (0, 50, 100)] == [1.0, 3.0, 5.0]
    assert f.percentile(values, 99) == 5.0
    assert math.isnan(f.percentile([], 50))
