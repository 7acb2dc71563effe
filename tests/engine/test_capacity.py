"""The calculator's arithmetic: every memory example and trap of the reference, and round trips of what fits."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.capacity import Factors
from engine.formulas import GIB, KIB, MIB
from engine.shape import from_config

GB = 10**9


def factors(layers: int, kv_heads: int, head_dim: int, **rest) -> Factors:
    rest = {"heads": kv_heads, "parameters": 1, "kv_bytes": 2, "block_size": 1, **rest}
    return Factors(layers=layers, kv_heads=kv_heads, head_dim=head_dim, **rest)


def preset(name: str) -> dict:
    listed = json.loads((files("assets") / "calculator" / "models.json").read_text("utf-8"))
    return next(one for one in listed if one["name"] == name)


# --- the reference's worked examples ---


@pytest.mark.parametrize(
    ("layers", "kv_heads", "head_dim", "context", "batch", "expected"),
    [
        (32, 32, 128, 4096, 1, 2_147_483_648),  # Llama-2 7B: 2.0 GiB
        (32, 32, 128, 4096, 32, 64 * GIB),
        (32, 8, 128, 8192, 1, GIB),  # Llama-3 8B
        (40, 40, 128, 4096, 4, 12.5 * GIB),  # Llama-2 13B
    ],
)
def test_kv_of_a_batch(layers, kv_heads, head_dim, context, batch, expected):
    found = factors(layers, kv_heads, head_dim, context=context, batch=batch)
    assert found.kv == expected
    assert found.with_(block_size=16).kv_held == expected  # whole blocks: these contexts fill theirs


@pytest.mark.parametrize(
    ("layers", "kv_heads", "head_dim", "expected"),
    [(24, 4, 64, 24_576), (24, 20, 64, 120 * KIB), (24, 1, 64, 6 * KIB), (30, 3, 64, 23_040)],
)
def test_kv_of_a_token(layers, kv_heads, head_dim, expected):
    assert factors(layers, kv_heads, head_dim).kv_per_token == expected


@pytest.mark.parametrize(
    ("parameters", "each", "gigabytes"), [(489_300_000, 2, 0.98), (489_300_000, 0.5, 0.25), (6_738_415_616, 2, 13.5)]
)
def test_weights(parameters, each, gigabytes):
    found = factors(1, 1, 1, parameters=parameters, weight_bytes=each).weights
    assert found / GB == pytest.approx(gigabytes, rel=0.025)


# --- its traps ---


def test_two_bytes_are_counted_once():
    """8·L·d_model·s·b counts them twice, and gets 4 GiB."""
    config = preset("Llama-2 7B")["config"]
    found = factors(32, 32, 128, context=4096)
    assert found.kv == 2 * GIB
    assert 8 * config["num_hidden_layers"] * config["hidden_size"] * 4096 == 4 * GIB


def test_llama_2_13b_is_multi_head():
    shape = from_config(preset("Llama-2 13B")["config"]).shape
    assert shape.kv_heads == shape.heads == 40
    assert from_config(preset("Llama-3 8B")["config"]).shape.kv_heads == 8


def test_a_last_block_counts_whole():
    found = factors(32, 8, 128, context=4097, block_size=16)
    assert found.kv_held - found.kv == 15 * found.kv_per_token


def test_shops_gigabytes_are_near_gibibytes_on_the_card():
    for card in json.loads((files("assets") / "calculator" / "cards.json").read_text("utf-8")):
        assert card["mib"] * MIB == pytest.approx(card["sold_as_gb"] * GIB, rel=0.07), card
        assert card["mib"] * MIB > card["sold_as_gb"] * GB * 0.99, card


# --- models ---


def test_presets_have_the_parameters_that_their_sizes_give():
    listed = json.loads((files("assets") / "calculator" / "models.json").read_text("utf-8"))
    assert len({one["name"] for one in listed}) == len(listed) == 12
    for one in listed:
        found = from_config(one["config"]).shape
        assert found.parameters == pytest.approx(one["parameters"], rel=0.01), one["name"]
        assert found.parameters == one["parameters"], one["name"]  # they are even equal


@pytest.mark.parametrize(
    ("name", "billions"),
    [("Llama-2 7B", 6.74), ("Llama-2 13B", 13.0), ("Llama-3 8B", 8.03), ("Llama-3 70B", 70.6), ("Qwen3 8B", 8.2),
     ("Qwen3 32B", 32.8), ("Gemma 2B, multi-query", 2.51), ("SmolLM2 135M", 0.135), ("Mistral 7B v0.3", 7.25)],
)  # fmt: skip
def test_presets_are_as_large_as_published(name, billions):
    assert preset(name)["parameters"] / 1e9 == pytest.approx(billions, rel=0.01)


# --- attention side by side ---


@pytest.mark.parametrize(
    ("heads", "kv_heads", "expected"),
    [
        (32, 8, (("MHA", 32), ("GQA", 8), ("MQA", 1))),
        (32, 32, (("MHA", 32), ("GQA", 8), ("MQA", 1))),
        (8, 1, (("MHA", 8), ("GQA", 2), ("MQA", 1))),
        (15, 5, (("MHA", 15), ("GQA", 5), ("MQA", 1))),
        (2, 1, (("MHA", 2), ("MQA", 1))),
        (1, 1, (("MQA", 1),)),
        (4, 9, (("own", 9), ("MHA", 4), ("GQA", 2), ("MQA", 1))),
    ],
)
def test_attention_side_by_side(heads, kv_heads, expected):
    assert factors(2, kv_heads, 64, heads=heads).attention() == expected


# --- what fits ---

sizes = st.builds(
    Factors,
    layers=st.integers(1, 128),
    heads=st.just(64),
    kv_heads=st.integers(1, 64),
    head_dim=st.sampled_from([16, 64, 80, 128, 256]),
    parameters=st.integers(1, 10**12),
    kv_bytes=st.sampled_from([4.0, 2.0, 1.0, 0.5, 0.5625, 0.3]),
    weight_bytes=st.sampled_from([4.0, 2.0, 1.0625, 0.5, 0.667]),
    context=st.integers(1, 2_000_000),
    batch=st.integers(1, 5_000),
    block_size=st.integers(1, 256),
    headroom=st.floats(0, 0.9),
)
memory = st.integers(GIB, 1024 * GIB)


@given(sizes, memory)
def test_the_largest_batch_fits_and_one_more_does_not(one, card):
    most = one.largest_batch(card)
    assert not one.with_(batch=most + 1).fits(card)
    assert most == 0 or one.with_(batch=most).fits(card)


@given(sizes, memory)
def test_the_longest_context_fits_and_one_token_more_does_not(one, card):
    most = one.longest_context(card)
    assert most % one.block_size == 0
    assert not one.with_(context=most + 1).fits(card)
    assert most == 0 or one.with_(context=most).fits(card)


@given(sizes, memory)
def test_there_and_back(one, card):
    """At the largest batch of a context, contexts as long fit; at the longest context of a batch, batches as large."""
    if (batch := one.largest_batch(card)) > 0:
        assert one.with_(batch=batch).longest_context(card) >= one.context
    if (context := one.longest_context(card)) > 0:
        assert one.with_(context=context).largest_batch(card) >= one.batch


@given(sizes, memory)
def test_more_room_never_holds_less(one, card):
    assert one.largest_batch(card + GIB) >= one.largest_batch(card)
    assert one.with_(headroom=0.0).longest_context(card) >= one.longest_context(card)
