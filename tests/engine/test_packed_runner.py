"""The runner over packed weights: float32's logits but for int8 activations, and the same bits in any batch."""

from __future__ import annotations

import gc
import threading
from dataclasses import fields
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType

from engine.cpu.forward import OPS, forward
from engine.cpu.packed_matrix import PackedMatrix, dequantise
from engine.model.architecture import ModelConfig
from engine.model.packed_weights import PackedWeights, load_packed
from engine.model.store import ModelFiles
from engine.model.weights import LayerWeights, Weights
from engine.runner import packed
from engine.runner.base import OutOfDeviceMemory
from engine.runner.cpu import CpuRunner
from engine.runner.packed import PackedRunner
from engine.runner.pooled import dummy_batch
from tests.support import gguf_files, tiny_models
from tests.support.paged import Driven, Driver

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 16}  # fmt: skip
V = tiny_models.VOCABULARY  # 97: the last tile of the head has one output
BLOCKS = 64
# Of the logits' own spread. Activations are rounded to 1/127 of the largest of their 32, which is off by 1 % of their
# spread (a third of 1/127 · 3); some dozen roundings in three layers of random weights add up to two or three of it.
NOISE = 0.05


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("packed")


@cache
def weights_of(folder: Path, kind: str, tied: bool = False, gguf: bool = False) -> tuple[ModelConfig, PackedWeights]:
    """int8 of a directory, or a Q4_1 file as it is."""
    path = folder / f"{kind}-{tied}"
    if not gguf:
        tiny_models.save(path, kind, tied, **SIZES)
        return load_packed(ModelFiles("hf", path, path, kind), "int8")
    model = tiny_models.make(tiny_models.config_of(kind, tied, **SIZES))
    gguf_files.write(path.with_suffix(".gguf"), model, GGMLQuantizationType.Q4_1, kind)
    return load_packed(ModelFiles("gguf", path.with_suffix(".gguf"), path, kind), "file")


def runner_of(folder: Path, kind: str = "llama", tied: bool = False, gguf: bool = False, **more: int) -> PackedRunner:
    options = {"threads": 2, "block_size": 16, "num_blocks": BLOCKS, **more}
    return PackedRunner(*weights_of(folder, kind, tied, gguf), kind, **options)


def in_floats(weights: PackedWeights) -> Weights:
    def tensor(part: PackedMatrix | np.ndarray | None) -> torch.Tensor | None:
        part = dequantise(part) if isinstance(part, PackedMatrix) else part
        return None if part is None else torch.from_numpy(part)

    layers = [LayerWeights(*(tensor(getattr(layer, f.name)) for f in fields(layer))) for layer in weights.layers]
    return Weights(
        tensor(weights.embedding), layers, tensor(weights.norm), tensor(weights.head),
        torch.from_numpy(weights.inverse_frequencies), weights.parameters,
    )  # fmt: skip


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, V, count).tolist()


def through(runner: PackedRunner | CpuRunner, sequence: list[int], counts: list[int], seed: int = 0) -> torch.Tensor:
    """Logits of every token, computed `counts` at a time."""
    driver, driven = Driver(runner, seed), Driven(sequence)
    return torch.cat([driver.run([(driven, count)])[0] for count in counts])


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.numpy().tobytes() == b.numpy().tobytes()


# --- against the model in floats ---


@pytest.mark.parametrize(
    ("kind", "tied", "gguf"),
    [
        ("llama", False, False), ("llama", True, False), ("llama3", False, False), ("mistral", True, False),
        ("qwen2", False, False), ("qwen3", False, False), ("qwen3", True, False), ("llama", False, True),
        ("llama", True, True), ("qwen2", True, True), ("qwen3", False, True),
    ],
)  # fmt: skip
def test_logits_are_those_of_the_same_weights_in_floats(folder: Path, kind: str, tied: bool, gguf: bool):
    """llama3 has biases everywhere and stretched rotation."""
    config, weights = weights_of(folder, kind, tied, gguf)
    dense = CpuRunner(config, in_floats(weights), kind, torch.float32, torch.device("cpu"), 16, BLOCKS)
    sequence = tokens(170)
    got = through(runner_of(folder, kind, tied, gguf), sequence, [100, 50, *[1] * 20])
    wanted = through(dense, sequence, [170])
    assert got.shape == wanted.shape == (170, V)
    noise = ((got - wanted).std() / wanted.std()).item()
    agree = (got.argmax(1) == wanted.argmax(1)).float().mean().item()
    print(f"{kind}: noise {noise:.4f} of the logits' spread, {agree:.1%} agree in the likeliest token")
    assert noise < NOISE and agree > 0.85
    gap = wanted.topk(2).values.diff(dim=1)[:, 0].abs()
    clear = gap > 6 * noise * wanted.std()
    assert clear.any() and (got.argmax(1) == wanted.argmax(1))[clear].all()


@pytest.mark.parametrize(("kind", "tied"), [("llama", True), ("llama3", False), ("qwen2", False), ("qwen3", True)])
def test_bfloat16_is_float32_but_for_rounded_keys_and_values(folder: Path, kind: str, tied: bool):
    path = folder / f"half-{kind}-{tied}"
    tiny_models.save(path, kind, tied, **SIZES)
    config, weights = load_packed(ModelFiles("hf", path, path, kind), "bfloat16")
    assert weights.form == "bfloat16" and weights.head.bits == 16 and (weights.head is weights.embedding) == tied
    runner = PackedRunner(config, weights, kind, threads=2, block_size=16, num_blocks=BLOCKS)
    dense = CpuRunner(config, in_floats(weights), kind, torch.float32, torch.device("cpu"), 16, BLOCKS)
    sequence = tokens(170)
    got = through(runner, sequence, [100, 50, *[1] * 20])
    wanted = through(dense, sequence, [170])
    assert ((got - wanted).std() / wanted.std()).item() < 1e-3  # float16 keys and values: 2⁻¹¹ of each
    assert same_bits(through(runner, sequence, [170]), got)


# --- the same bits ---


@pytest.mark.parametrize("block_size", [8, 16, 32, 64, 128])
def test_a_prompt_has_the_same_bits_however_it_is_cut(folder: Path, block_size: int):
    runner, sequence = runner_of(folder, "llama3", block_size=block_size), tokens(200)
    whole = through(runner, sequence, [200])
    for seed, counts in enumerate(([1] * 200, [7] * 28 + [4], [33, 67, 100], [150, *[1] * 50], [3] * 60 + [20]), 1):
        assert same_bits(through(runner, sequence, counts, seed), whole), counts[:3]


@pytest.mark.parametrize("gguf", [False, True])
def test_a_sequence_has_the_same_bits_in_any_batch(folder: Path, gguf: bool):
    runner = runner_of(folder, "qwen3", gguf=gguf, num_blocks=200)
    sequences = [tokens(20 + 13 * i, seed=i) for i in range(9)]
    alone = [through(runner, sequence, [len(sequence)]) for sequence in sequences]
    driver, driven = Driver(runner, 3), [Driven(sequence) for sequence in sequences]
    got: list[list[torch.Tensor]] = [[] for _ in sequences]
    rng = np.random.default_rng(0)
    while any(d.computed < len(d.tokens) for d in driven):
        rows = [(i, min(int(rng.integers(1, 9)), len(d.tokens) - d.computed)) for i, d in enumerate(driven)]
        rows = [(i, count) for i, count in rows if count and rng.random() < 0.7] or [r for r in rows if r[1]][:1]
        rng.shuffle(rows)
        for (i, _), logits in zip(rows, driver.run([(driven[i], int(count)) for i, count in rows]), strict=True):
            got[i].append(logits)
    for parts, wanted in zip(got, alone, strict=True):
        assert same_bits(torch.cat(parts), wanted)


def test_the_number_of_threads_changes_no_bit(folder: Path):
    sequence, batches = tokens(150), [100, 40, *[1] * 10]
    wanted = through(runner_of(folder, threads=1), sequence, batches)
    for threads in (2, 3, 5):
        assert same_bits(through(runner_of(folder, threads=threads), sequence, batches), wanted)


def test_an_outlier_in_one_row_changes_no_bit_of_another(folder: Path):
    config, weights = weights_of(folder, "llama")
    runner, sequence = runner_of(folder), tokens(40)
    wanted = through(runner, sequence, [40])
    token = next(t for t in range(V) if t not in sequence)
    loud = weights.embedding.scales.copy()
    loud[token // 16, :, :, token % 16] *= 50
    louder = PackedWeights(
        PackedMatrix(8, V, config.hidden, weights.embedding.codes, loud),
        *(getattr(weights, f.name) for f in fields(weights)[1:]),
    )
    runner = PackedRunner(config, louder, "loud", 2, 16, BLOCKS)
    mine, other = Driven(sequence), Driven([token] * 40)
    got, _ = Driver(runner).run([(mine, 40), (other, 40)])
    assert same_bits(got, wanted)


# --- the pool ---


def test_resize_keeps_contents_both_ways(folder: Path):
    runner, sequence = runner_of(folder), tokens(90)
    wanted = through(runner, sequence, [90])
    driver, driven = Driver(runner), Driven(sequence, table=[3, 1, 0, 5, 4, 2])  # all below the smallest size
    driver.run([(driven, 80)])
    for blocks in (6, 200, 6, 64):
        runner.resize(blocks)
        assert runner.num_blocks == blocks
    assert same_bits(driver.run([(driven, 10)])[0], wanted[80:])


@pytest.mark.parametrize("blocks", [80, 20])
def test_memory_that_runs_out_midway_leaves_contents(folder: Path, monkeypatch: pytest.MonkeyPatch, blocks: int):
    """Growing fails and leaves the old pool, in places that have moved; shrinking makes do with a part of the old."""
    runner, sequence = runner_of(folder), tokens(60)
    wanted = through(runner, sequence, [60])
    driver, driven = Driver(runner), Driven(sequence, table=[2, 0, 3, 1])
    driver.run([(driven, 50)])
    real, calls = torch.Tensor.new_empty, []

    def failing(self: torch.Tensor, *shape: object) -> torch.Tensor:
        calls.append(shape)
        if len(calls) == 4:  # the values of the second layer
            raise RuntimeError("out of memory")
        return real(self, *shape)

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "new_empty", failing)
        if blocks > BLOCKS:
            with pytest.raises(OutOfDeviceMemory):
                runner.resize(blocks)
        else:
            runner.resize(blocks)
    assert runner.num_blocks == min(blocks, BLOCKS) and len(calls) >= 4
    gc.collect()
    assert same_bits(driver.run([(driven, 5)])[0], wanted[50:55])
    runner.resize(30)
    assert same_bits(driver.run([(driven, 5)])[0], wanted[55:])


def test_a_preempted_sequence_is_computed_again_to_the_same_bits(folder: Path):
    runner, sequence = runner_of(folder), tokens(120)
    wanted = through(runner, sequence, [120])
    driver, driven = Driver(runner), Driven(sequence)
    driver.run([(driven, 90)])
    other = Driven(tokens(90, seed=5), table=driven.table)  # its blocks go to another
    driver.run([(other, 90)])
    again = Driven(sequence)
    parts = driver.run([(again, 90)]) + [driver.run([(again, 1), (Driven(tokens(3)), 3)])[0] for _ in range(5)]
    assert same_bits(torch.cat(parts), wanted[:95])


def test_a_sequence_that_was_swapped_out_goes_on_with_the_same_bits(folder: Path):
    runner, sequence = runner_of(folder), tokens(120)
    wanted = through(runner, sequence, [120])
    driver, driven = Driver(runner), Driven(sequence)
    driver.run([(driven, 90)])
    held, host = np.array(driven.table), np.arange(3, 3 + len(driven.table))
    runner.resize_host(12)
    runner.swap_out(held, host)
    runner.resize_host(10)
    driver.run([(Driven(tokens(60, seed=4), table=held[::-1].tolist()), 60)])  # another's, in its place
    back = np.setdiff1d(np.arange(BLOCKS), held)[: len(held)]
    runner.swap_in(host, back)
    driven.table = back.tolist()
    assert same_bits(driver.run([(driven, 30)])[0], wanted[90:])


@pytest.mark.parametrize(("blocks", "size"), [(2 * BLOCKS, 8), (BLOCKS // 2, 32), (12, 64), (30, 16)])
def test_blocks_of_another_size_give_the_same_bits(folder: Path, blocks: int, size: int):
    runner, sequence = runner_of(folder), tokens(120)
    wanted = through(runner, sequence, [120])
    runner.rebuild(blocks, size, 4)
    assert (runner.num_blocks, runner.block_size, runner.host_blocks) == (blocks, size, 4)
    assert same_bits(through(runner, sequence, [90, 30], seed=3), wanted)


def test_warm_up_leaves_an_empty_pool(folder: Path):
    runner = runner_of(folder)
    runner.warm_up()
    assert all(not k.any() and not v.any() for k, v in runner._pool.layers)


# --- its buffers, its threads ---


def test_only_rows_that_want_logits_have_them(folder: Path):
    runner = runner_of(folder)
    batch = dummy_batch([30, 1, 7], 16)
    some = runner.execute(batch).clone()
    assert some.shape == (3, V)
    batch.logit_index = np.arange(38)
    assert same_bits(runner.execute(batch)[[29, 30, 37]].contiguous(), some)
    batch.logit_index = np.zeros(0, np.int64)
    assert runner.execute(batch).shape == (0, V)


def test_batches_that_grow_and_shrink(folder: Path):
    runner = runner_of(folder, num_blocks=600)
    one = runner.execute(dummy_batch([1], 16)).clone()
    for lengths in ([1] * 300, [500, 3], [1], [1] * 70, [2000], [1] * 3):
        assert same_bits(runner.execute(dummy_batch([1, *lengths], 16))[:1].contiguous(), one)


def test_what_it_says_of_itself(folder: Path):
    runner = runner_of(folder)
    assert runner.device_text == "CPU, 2 threads" and runner.model.dtype == "int8"
    assert runner.memory().weights == runner.weight_bytes == runner.model.weight_bytes
    runner.execute(dummy_batch([20], 16))
    seconds = runner.op_seconds()
    assert set(seconds) == set(OPS) and all(value > 0 for value in seconds.values())


def test_the_program_is_compiled_once_and_before_any_thread_wants_it(folder: Path):
    runner = runner_of(folder)
    before = list(forward.overloads)
    runner.execute(dummy_batch([20], 16))
    assert list(forward.overloads) == before and len(before) == 1


def test_a_program_that_cannot_be_compiled_is_said_by_the_constructor(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*arguments: object) -> None:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(packed, "compile_for", fail)
    with pytest.raises(RuntimeError, match="no such instruction"):
        runner_of(folder)


def test_another_thread_may_run_it_and_nothing_is_left_of_it(folder: Path):
    before = set(threading.enumerate())
    runner, sequence = runner_of(folder, threads=3), tokens(60)
    wanted = through(runner, sequence, [60])
    assert len(set(threading.enumerate()) - before) == 2
    got: list[torch.Tensor] = []
    other = threading.Thread(target=lambda it: got.append(through(it, sequence, [50, *[1] * 10])), args=(runner,))
    other.start()
    other.join()
    assert same_bits(got[0], wanted)
    del runner, other
    gc.collect()
    assert not set(threading.enumerate()) - before
