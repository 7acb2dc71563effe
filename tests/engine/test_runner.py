"""The runner around the forward pass: its pool, its memory, its groups of rows, its choices."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from engine import memory as process_memory
from engine.config import EngineConfig, LiveSettings
from engine.formulas import kv_bytes_per_token
from engine.kernels import paged_attention
from engine.kernels.linear import Linear, prepack
from engine.kernels.paged_attention import attend, attend_reference, plan
from engine.kernels.rms_norm import rms_norm
from engine.kernels.rope import rope, rope_table
from engine.memory import Resident
from engine.model.problem import ModelProblem
from engine.model.store import ModelFiles
from engine.runner import cpu
from engine.runner.base import OutOfDeviceMemory
from engine.runner.build import build_runner, pick_device
from engine.runner.pooled import dummy_batch
from engine.runner.torch_runner import TorchRunner
from tests.support import tiny_models
from tests.support.paged import Driven, Driver


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    tiny_models.save(path, "llama", tied=False)
    return path


def build(directory: Path, blocks: int = 40, **changes: object) -> TorchRunner:
    config = EngineConfig(
        **{"dtype": "float32", "device": "cpu", "threads": 1, **changes}, settings=LiveSettings(kv_blocks=blocks)
    )
    return build_runner(config, ModelFiles("hf", directory, directory, "tiny"))


# --- the pool ---


def test_resize_keeps_contents_both_ways(directory: Path):
    runner = build(directory, blocks=64)
    tokens = np.random.default_rng(0).integers(0, 97, 90).tolist()
    driver, sequence = Driver(runner), Driven(tokens)
    sequence.table = [3, 1, 0, 5, 4, 2]  # all below the smallest size
    driver.run([(sequence, 80)])
    for blocks in (6, 200, 6, 64):
        runner.resize(blocks)
        assert runner.num_blocks == blocks
        assert runner.memory().kv_pool == blocks * 16 * runner.model.kv_bytes_per_token
        assert runner._pool.layers[0][0].shape[1] == blocks
    (got,) = driver.run([(sequence, 10)])
    (fresh,) = Driver(build(directory)).run([(Driven(tokens), 90)])
    torch.testing.assert_close(got, fresh[80:], rtol=1e-5, atol=1e-5)


def test_a_pool_that_does_not_fit_leaves_the_old(directory: Path, monkeypatch: pytest.MonkeyPatch):
    runner = build(directory)
    monkeypatch.setattr(cpu, "available_bytes", lambda: cpu.RESERVE + 1_000_000)
    with pytest.raises(OutOfDeviceMemory) as caught:
        runner.resize(100_000)
    assert caught.value.needed == 100_000 * 16 * runner.model.kv_bytes_per_token > caught.value.free
    assert runner.num_blocks == 40


def test_memory_that_runs_out_midway_leaves_the_old(directory: Path, monkeypatch: pytest.MonkeyPatch):
    runner = build(directory)
    tokens = np.random.default_rng(1).integers(0, 97, 60).tolist()
    driver, sequence = Driver(runner), Driven(tokens)
    driver.run([(sequence, 50)])
    real, calls = torch.Tensor.new_empty, []

    def failing(self: torch.Tensor, *shape: object) -> torch.Tensor:
        calls.append(shape)
        if len(calls) == 4:
            raise RuntimeError("out of memory")
        return real(self, *shape)

    monkeypatch.setattr(torch.Tensor, "new_empty", failing)
    with pytest.raises(OutOfDeviceMemory):
        runner.resize(80)
    assert runner.num_blocks == 40 and all(k.shape[1] == v.shape[1] == 40 for k, v in runner._pool.layers)
    calls.clear()
    sequence.table = _moved(runner, sequence.table)
    runner.resize(20)  # the layer without room for a copy becomes a view
    monkeypatch.undo()
    assert len(calls) == 6 and all(k.shape[1] == v.shape[1] == 20 for k, v in runner._pool.layers)
    (got,) = driver.run([(sequence, 10)])
    (fresh,) = Driver(build(directory)).run([(Driven(tokens), 60)])
    torch.testing.assert_close(got, fresh[50:], rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def _moved(runner: TorchRunner, table: list[int]) -> list[int]:
    """Copy the blocks of a table to blocks 0, 1, …, as it would be if they had been handed out in order."""
    for pools in runner._pool.layers:
        for pool in pools:
            pool[:, : len(table)] = pool[:, table].clone()
    return list(range(len(table)))


def test_a_first_pool_that_does_not_fit_is_lowered_and_said(directory: Path, monkeypatch: pytest.MonkeyPatch):
    model = build(directory).model
    room = 30 * 16 * model.kv_bytes_per_token
    monkeypatch.setattr(cpu, "available_bytes", lambda: cpu.RESERVE + room)
    runner = build(directory, blocks=5_000)
    assert 4 <= runner.num_blocks <= 30
    assert any("kv_blocks" in notice for notice in runner.notices)


def test_no_memory_at_all_is_a_model_problem(directory: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cpu, "available_bytes", lambda: 0)
    with pytest.raises(ModelProblem, match="memory"):
        build(directory)


def test_pages_of_the_pool_are_really_there(directory: Path):
    runner = build(directory)
    before = process_memory.resident().total
    runner.resize(40 + (64 << 20) // (16 * runner.model.kv_bytes_per_token))
    assert not before or process_memory.resident().total - before > 60 << 20  # 0: this system doesn't tell


# --- what it says of itself ---


def test_the_model_record(directory: Path):
    model = build(directory).model
    assert (model.layers, model.heads, model.kv_heads, model.head_dim, model.vocabulary) == (3, 6, 2, 8, 97)
    assert model.kv_bytes_per_token == kv_bytes_per_token(3, 2, 8, 4)
    assert model.weight_bytes == 4 * model.parameters
    assert build(directory, dtype="bfloat16").model.kv_bytes_per_token == kv_bytes_per_token(3, 2, 8, 2)


def test_memory_figures(directory: Path, monkeypatch: pytest.MonkeyPatch):
    runner = build(directory)
    # the process's own at this moment, but that of a test's process moves with what other tests free meanwhile
    now = Resident(runner.memory().baseline + 7, runner.memory().baseline_files + 3)
    monkeypatch.setattr("engine.runner.pooled.resident", lambda: now)
    memory = runner.memory()
    assert memory.weights >= runner.model.weight_bytes
    assert memory.kv_pool == 40 * 16 * runner.model.kv_bytes_per_token
    assert memory.resident - memory.baseline == 7 and memory.baseline > 0
    assert memory.resident_files - memory.baseline_files == 3
    assert runner.max_blocks() > 40
    assert runner.device_text.startswith("CPU, ")


def test_available_memory_is_sane():
    available = process_memory.available_bytes()
    assert available is None or 0 < available < 1 << 50


def test_warm_up_leaves_an_empty_pool(directory: Path):
    runner = build(directory)
    runner.warm_up()
    assert all(not k.any() and not v.any() for k, v in runner._pool.layers)


def test_devices():
    assert pick_device("cpu").type == "cpu"
    if not torch.cuda.is_available():
        assert pick_device("auto").type == "cpu"
        with pytest.raises(ModelProblem, match="cuda"):
            pick_device("cuda")


# --- groups of rows ---


def groups_of(lengths: list[int], contexts: list[int], block_size: int = 16, shared: int = 3):
    starts = np.concatenate(([0], np.cumsum(lengths)))
    most = -(-max(contexts) // block_size)
    tables = np.arange(len(lengths) * most).reshape(len(lengths), most)
    return plan(starts, np.array(contexts), tables, block_size, shared, torch.float32, torch.device("cpu"))


def test_every_query_is_in_one_group_and_sees_its_past():
    random = np.random.default_rng(3)
    for _ in range(30):
        rows = int(random.integers(1, 40))
        lengths = random.choice([1, 1, 1, 5, 17, 130, 300], rows)
        contexts = lengths + random.integers(0, 400, rows)
        position = np.concatenate([np.arange(c - n, c) for n, c in zip(lengths, contexts, strict=True)])
        seen = np.zeros(len(position), dtype=int)
        for group in groups_of(lengths.tolist(), contexts.tolist()):
            everything = group.pieces * group.mask.shape[2] // 3
            real = np.arange(everything) if group.outputs is None else group.outputs.numpy()
            targets = np.arange(len(position)) if group.targets is None else group.targets.numpy()
            visible = (group.mask[0, :, ::3] == 0).sum(-1).flatten().numpy()
            np.testing.assert_array_equal(visible[real], position[targets] + 1)
            assert (visible > 0).all()  # a padded query too: a softmax over nothing is NaN
            seen[targets] += 1
        assert (seen == 1).all()


def test_equal_rows_make_one_group_without_copies():
    (group,) = groups_of([1] * 32, [160] * 32)
    assert group.queries is None and group.outputs is None
    (group,) = groups_of([5] * 8, [77] * 8)
    assert group.queries is None


def test_very_different_rows_are_not_padded_to_each_other():
    groups = groups_of([1] * 15 + [100], [2000] * 5 + [60] * 10 + [100])
    padded = sum(g.mask.shape[1] * g.mask.shape[2] * g.mask.shape[3] for g in groups)
    real = 3 * (5 * 2000 + 10 * 64 + 100 * 112)
    assert padded < 1.5 * real


def test_large_batches_are_cut_into_bounded_groups():
    for lengths, contexts in (([128] * 64, [2048] * 64), ([1] * 400, [4000] * 400)):
        for group in groups_of(lengths, contexts):
            assert group.pieces == 1 or group.mask.numel() <= paged_attention.MAX_SCORES
            assert group.pieces == 1 or group.mask.shape[1] * group.mask.shape[3] <= paged_attention.MAX_KEYS


# --- single operations, against their formulas ---


def test_attention_paths_agree():
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 3, 15, 16), torch.randn(2, 3, 48, 16), torch.randn(2, 3, 48, 16)
    mask = torch.zeros(1, 3, 15, 48).masked_fill(torch.rand(1, 3, 15, 48) > 0.7, -torch.inf)
    mask[..., 0] = 0
    torch.testing.assert_close(attend(q, k, v, mask), attend_reference(q, k, v, mask), rtol=1e-5, atol=1e-5)


def test_rms_norm():
    torch.manual_seed(0)
    x, weight = torch.randn(5, 48), torch.rand(48)
    torch.testing.assert_close(rms_norm(x, weight, 1e-5), F.rms_norm(x, (48,), weight, 1e-5))
    heads, rows = torch.randn(5, 4, 16), torch.rand(4, 16)
    torch.testing.assert_close(rms_norm(heads, rows, 1e-5), F.rms_norm(heads, (16,), None, 1e-5) * rows)
    half = rms_norm(x.bfloat16(), weight, 1e-5)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), rms_norm(x, weight, 1e-5), rtol=2e-2, atol=2e-2)


def test_rope_turns_each_pair_by_its_angle():
    frequencies = torch.tensor([1.0, 0.1])
    x = torch.randn(3, 2, 4)
    got = rope(x, *rope_table(torch.tensor([0, 1, 7]), frequencies, torch.float32))
    torch.testing.assert_close(got[0], x[0])
    for row, position in enumerate((0, 1, 7)):
        turned = torch.complex(x[row, :, :2], x[row, :, 2:]) * torch.exp(1j * position * frequencies)
        torch.testing.assert_close(got[row], torch.cat((turned.real, turned.imag), dim=-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_linear_with_and_without_prepacking(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    weight, bias, x = torch.randn(33, 48).to(dtype), torch.randn(33).to(dtype), torch.randn(7, 48).to(dtype)
    wanted = F.linear(x.double(), weight.double(), bias.double())
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(Linear(weight, bias)(x).double(), wanted, rtol=tolerance, atol=10 * tolerance)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert prepack(weight) is None
    torch.testing.assert_close(Linear(weight, bias)(x).double(), wanted, rtol=tolerance, atol=10 * tolerance)


def test_dummy_batches_are_well_formed():
    batch = dummy_batch([1, 20, 16], 16)
    assert batch.slots.tolist() == [0, *range(16, 36), *range(48, 64)]
    assert batch.logit_index.tolist() == [0, 20, 36]


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_gpu_that_is_chosen_is_the_only_one_that_cuda_sees(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # restored after
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    seen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: seen.append(dict(os.environ)) or True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert pick_device(device, "GPU-1") == torch.device("cuda", 0)
    assert seen and all(e["CUDA_VISIBLE_DEVICES"] == "GPU-1" and e["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID" for e in seen)


def test_a_gpu_that_is_not_there_is_not_replaced_by_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ModelProblem, match="gpu '7' was asked for, but torch sees no such card"):
        pick_device("auto", "7")
    with pytest.raises(ModelProblem, match="device 'cpu'"):
        pick_device("cpu", "7")
