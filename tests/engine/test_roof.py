"""The roof over a device: REFERENCE's ridges and ceiling, whose data sheet it is, what a CPU's own measuring gives."""

from __future__ import annotations

import gc
from pathlib import Path

import msgspec
import numpy as np
import pytest

from engine import cost_model
from engine import records as r
from engine.build import build
from engine.config import EngineConfig, LiveSettings, Simulation
from engine.cost_model import Counts, attended
from engine.formulas import decode_ceiling
from engine.profiles import devices, parse
from engine.roof import DRIVER_NAMES, Roof, of_card, simulated, unavailable
from engine.shape import read_config
from engine.simulation.build import build as build_simulated
from tests.support.tiny_directory import make_directory

COUNTS = Counts(weights=1000, body=400, head=100, kv=10, pair=8)
WHOLE_GROUPS = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
                "head_dim": 16}  # fmt: skip


def roof(bandwidth: float, flops: float, **more) -> Roof:
    return Roof(device="d", bandwidth=bandwidth, flops=flops, source="data sheet", counts=COUNTS, **more)


def test_the_reference_s_ridges_and_its_ceiling():
    assert roof(1.5e12, 312e12).ridge == pytest.approx(208)  # A100
    card = of_card("NVIDIA GeForce RTX 5090", "bfloat16", COUNTS)
    assert card.ridge == pytest.approx(117, abs=0.5) and card.source == "data sheet" and card.known
    assert decode_ceiling(1.8e12, 0.98e9) == pytest.approx(1_800, rel=0.03)


def test_what_it_allows_is_the_lower_of_slope_and_peak():
    one = roof(2.0, 10.0)
    assert [one.allows(intensity) for intensity in (0.5, 5, 50)] == [1.0, 10.0, 10.0] and one.ridge == 5


def test_cards_are_known_by_their_driver_s_name_alone():
    assert {device.name for device in devices()} == set(DRIVER_NAMES.values())
    for name, card in DRIVER_NAMES.items():
        sheet = next(device for device in devices() if device.name == card)
        found = of_card(name, "bfloat16", COUNTS)
        assert (found.bandwidth, found.flops, found.device) == (sheet.bandwidth, sheet.flops, card)
    for stranger in ("NVIDIA H100 PCIe", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", ""):
        found = of_card(stranger, "bfloat16", COUNTS)
        assert not found.known and found.source == "unavailable" and stranger in found.note
        assert found.counts == COUNTS  # points can be drawn without a roof
    other = of_card("NVIDIA H200", "float32", COUNTS)
    assert not other.known and "bfloat16 only" in other.note


def test_it_travels_with_ready_and_older_bytes_have_none():
    engine = build_simulated(_simulation(), lambda *_: None)
    ready = engine.ready
    profile = parse("h200:llama-3-8b")
    assert ready.roof == simulated(profile.device, cost_model.counts(profile.model))
    assert ready.roof.source == "simulated" and (ready.roof.bandwidth_share, ready.roof.flops_share) == (0.8, 0.6)
    assert r.decode(r.encode(ready)) == ready
    fields = msgspec.msgpack.decode(r.encode(ready))
    del fields["roof"]
    assert r.decode(msgspec.msgpack.encode(fields)).roof is None


def _simulation() -> EngineConfig:
    settings = LiveSettings(max_batch=4, kv_blocks=200, max_context=512)
    return EngineConfig(simulation=Simulation(profile="h200:llama-3-8b", paced=False), settings=settings)


@pytest.mark.parametrize("form", ["int8", "bfloat16", "float32"])
def test_a_cpu_is_measured_with_the_model_it_holds(tmp_path: Path, form: str):
    directory = make_directory(tmp_path, **WHOLE_GROUPS)
    settings = LiveSettings(max_batch=4, kv_blocks=64, max_context=128, draft_method="off")
    config = EngineConfig(model=str(directory), dtype=form, device="cpu", threads=2, block_size=16, settings=settings)
    built = build(config, lambda *_: None)
    found, runner, shape = built.ready.roof, built.engine.runner, read_config(directory).shape
    assert found.source == "measured" and found.known and found.device == "CPU, 2 threads"
    assert 1e8 < found.bandwidth < 1e13 and 1e8 < found.flops < 1e14
    assert found.note.endswith("products of bytes" if form == "int8" else "products of float32")
    expected = Counts(
        weights=runner.step_bytes,
        body=shape.products,
        head=shape.embedding,
        kv=runner.model.kv_bytes_per_token,
        pair=4 * shape.layers * shape.heads * shape.head_dim,
    )
    assert found.counts == expected and 0 < found.counts.weights <= runner.weight_bytes
    # K/V of 2 layers' keys and values: 2 bytes a number in the compiled program, 4 in float32
    del built, runner  # its threads end with it
    gc.collect()
    assert found.counts.kv == 2 * shape.layers * shape.kv_heads * shape.head_dim * (4 if form == "float32" else 2)


def test_sums_over_rows_make_the_same_work_also_of_many_steps_at_once():
    steps = [([100], [100], 1), ([1] * 8, [40, 41, 50, 60, 70, 80, 90, 100], 8), ([300, 5], [300, 64], 6)]
    works = [COUNTS.work(*step) for step in steps]
    sums = np.array([(sum(t), *attended(np.array(t), np.array(c)), n) for t, c, n in steps]).T
    together = COUNTS.of(*sums)
    for place, work in enumerate(works):
        assert [float(column[place]) for column in together] == pytest.approx(list(work))
    # by hand: 100 tokens attend to 1 … 100 of themselves, in one tile
    assert works[0].flops == 2 * 400 * 100 + 2 * 100 * 1 + 8 * 5050 and works[0].bytes == 1000 + 10 * (100 + 100)
    assert attended(np.array([300]), np.array([300])) == (3 * 300, 300 * 301 / 2)  # three tiles of 128


def test_nothing_is_known_of_an_unavailable_one():
    assert not unavailable("TPU", COUNTS, "nothing is known of TPU").known
