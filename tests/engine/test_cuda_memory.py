"""Memory that runs out under the CUDA runner, without a card: fewer graphs, smaller groups, a smaller pool, or a
refusal with figures; and what graphs share is let go of in time."""

from __future__ import annotations

import weakref

import pytest
import torch
from gguf import GGMLQuantizationType

from engine import build as engine_build
from engine.config import EngineConfig, LiveSettings
from engine.memory import NOTHING
from engine.model.problem import ModelProblem
from engine.model.store import ModelFiles
from engine.model.tensor_plan import open_planned
from engine.runner import build, cuda, graphs, kernel_runner, kv_pool
from engine.runner.base import OutOfDeviceMemory
from engine.runner.build import MIN_BLOCKS, warm
from engine.runner.cuda import OnCard
from engine.runner.cuda_ops import torch_ops
from engine.runner.device_sampler import DeviceSampler
from engine.runner.graphs import CudaGraphs, ReplayedGraph
from engine.runner.kv_pool import KVPool
from engine.runner.pooled import dummy_batch
from engine.runner.profile import MARGIN, Profile
from tests.support import gguf_files, tiny_models
from tests.support.cuda_on_cpu import CPU, CudaOnCpu, on_cpu, plain, tiny

V = tiny_models.VOCABULARY
OUT = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny(tmp_path_factory.mktemp("model"), "qwen3")


class Scarce:
    """A maker of graphs that has room for `most`; `error`: what the next one ends with."""

    def __init__(self, most: int, error: Exception = OUT):
        self.most, self.made, self.error = most, 0, error

    def __call__(self, staged):
        self.made += 1
        if self.made > self.most:
            raise self.error
        return ReplayedGraph(staged)


# --- graphs ---


def test_fewer_graphs_are_captured_with_smaller_buffers(model):
    runner = on_cpu(*model, 16, 32, most_rows=16, draft_length=3, sampler=DeviceSampler(V, CPU, kernels=False))
    runner.warm_up()
    captured, held, tokens = runner.graphs_captured, runner.memory().graphs, runner.graph_tokens
    expected = plain(*model, 16, 32).execute(dummy_batch([1] * 12, 16))
    seen = []
    while runner.fewer_graphs():
        assert runner.graphs_captured == 0 and runner.memory().graphs == 0
        runner.warm_up()
        seen.append((runner.graph_tokens, runner.graphs_captured, runner.memory().graphs))
        assert runner.graphs_missing == 0
        torch.testing.assert_close(runner.execute(dummy_batch([1] * 12, 16)), expected, rtol=1e-5, atol=2e-5)
    assert [t for t, *_ in seen[:2]] == [tokens // 2, tokens // 4] and seen[-1] == (0, 0, 0)
    assert all(c <= captured and m <= held for _, c, m in seen) and seen[0][2] < held


@pytest.mark.parametrize("error", [OUT, MemoryError("no more")])
def test_a_graph_that_does_not_fit_while_steps_run_is_done_without(model, error: Exception):
    maker = Scarce(0, error)
    runner = on_cpu(*model, 16, 32, graphs=maker, most_rows=2)
    batches = [dummy_batch([1, 1], 16) for _ in range(4)]
    logits = [runner.execute(batch).clone() for batch in batches]
    assert not any(batch.graph for batch in batches) and maker.made == 1
    assert all(torch.equal(each, logits[0]) for each in logits)
    maker.most = 10
    runner.resize(24)  # there may be room again
    for batch in (batches := [dummy_batch([1, 1], 16) for _ in range(2)]):
        runner.execute(batch)
    assert batches[-1].graph


def test_what_is_no_lack_of_memory_is_told(model):
    runner = on_cpu(*model, 16, 32, graphs=Scarce(0, RuntimeError("an illegal memory access")), most_rows=2)
    runner.execute(dummy_batch([1, 1], 16))
    with pytest.raises(RuntimeError, match="illegal"):
        runner.execute(dummy_batch([1, 1], 16))


def test_a_capture_that_ends_in_another_error_ran_out_of_memory_all_the_same():
    try:
        try:
            raise OUT
        except torch.OutOfMemoryError:
            raise RuntimeError("operation failed due to a previous error during capture")  # noqa: B904
    except RuntimeError as error:
        assert kernel_runner._memory_ran_out(error)
    assert not kernel_runner._memory_ran_out(RuntimeError("an illegal memory access"))


def test_graphs_share_a_pool_while_one_of_them_is_there(monkeypatch: pytest.MonkeyPatch):
    """torch refuses to capture into a pool that had graphs and has none."""
    pools = iter(range(10))

    class Captured:
        def __init__(self, pool: int):
            self.pool = pool

    monkeypatch.setattr(graphs.torch.cuda, "graph_pool_handle", lambda: next(pools))
    monkeypatch.setattr(graphs, "_CudaGraph", Captured)
    maker = CudaGraphs()
    first = [maker([]) for _ in range(3)]
    assert [graph.pool for graph in first] == [0, 0, 0]
    del first[0], first[0]
    assert maker([]).pool == 0
    first.clear()
    assert [graph.pool for graph in (maker([]), maker([]))] in ([1, 1], [1, 2])


# --- the first steps ---


def test_warm_up_goes_on_with_fewer_graphs_and_says_so(model):
    runner = on_cpu(*model, 16, 32, most_rows=16)

    def capture(staged):
        if runner.graph_tokens > 4:
            raise OUT
        return ReplayedGraph(staged)

    runner._graphs = capture
    warm(runner)
    assert runner.graphs_captured == 3 and runner.num_blocks == 32
    said = "Memory has no room for CUDA graphs of all steps: those of more than 4 tokens run without one."
    assert said in runner.notices


def test_then_with_a_smaller_pool(model):
    runner = on_cpu(*model, 16, 64, graphs=None)
    really = runner.warm_up

    def scarce() -> None:
        if runner.num_blocks > 20:
            raise OUT
        really()

    runner.warm_up = scarce
    warm(runner)
    assert runner.num_blocks == 16
    assert runner.notices[-1] == "kv_blocks lowered from 64 to 16: memory ran out in the first steps"


def test_then_it_is_refused_with_figures(model):
    runner = on_cpu(*model, 16, 32, graphs=None)

    def never() -> None:
        raise OutOfDeviceMemory(3 << 20, 1 << 20)

    runner.warm_up = never
    with pytest.raises(ModelProblem, match=rf"a KV pool of {MIN_BLOCKS} blocks: .*take a smaller model"):
        warm(runner)
    runner.warm_up = lambda: (_ for _ in ()).throw(RuntimeError("an illegal memory access"))
    with pytest.raises(RuntimeError, match="illegal"):
        warm(runner)


def test_a_budget_that_could_not_be_measured_learns_as_it_goes(model):
    runner = on_cpu(*model, 16, 32, graphs=None)

    def never(batch) -> None:
        raise OUT

    really, runner.execute = runner.execute, never
    assert engine_build.measured(runner).cost.line[0] >= 0
    runner.execute = really
    assert engine_build.measured(runner).cost.line[0] > 0


# --- what the pool may take ---


class Card(OnCard, CudaOnCpu):
    """With figures in place of a card's."""

    free_bytes = OnCard.free_bytes
    fraction = 0.9


def test_what_graphs_take_is_kept_free_only_while_they_are_not_there(model, monkeypatch: pytest.MonkeyPatch):
    config, weights = model
    free = [700]
    for name, value in (("mem_get_info", lambda device: (free[0], 1000)), ("memory_reserved", lambda device: 50),
                        ("memory_allocated", lambda device: 20), ("empty_cache", lambda: None),
                        ("reset_peak_memory_stats", lambda device: None)):  # fmt: skip
        monkeypatch.setattr(cuda.torch.cuda, name, value)
    card = Card(config, weights, "tiny", torch.float32, CPU, 16, 0, ops=torch_ops(), graphs=ReplayedGraph, most_rows=2)
    monkeypatch.setattr(cuda, "profile", lambda *_: Profile(64, 100 - MARGIN, 40, False))
    card.fit(0.9, 64, 2)
    assert card.free_bytes() == 700 + 30 - 140 - 100
    card._pool.resize(8)
    card.warm_up()
    free[0] -= 40
    assert card.graphs_missing == 0 and card.free_bytes() == 700 - 40 + 30 - 100 - 100
    card.forget_graphs()
    assert card.graphs_missing == 1 and card.free_bytes() == 700 - 40 + 30 - 140 - 100


# --- from files to a runner ---


@pytest.mark.parametrize(("form", "held"), [("int8", "int8"), ("file", "Q4_1"), ("bfloat16", "bfloat16")])
def test_a_runner_for_a_card_in_every_form(tmp_path, form: str, held: str):
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
             "head_dim": 16}  # fmt: skip
    dense = tiny_models.make(tiny_models.config_of("llama", tied=True, **sizes))
    gguf_files.write(tmp_path / "model", dense, GGMLQuantizationType.Q4_1)
    planned = open_planned(ModelFiles("gguf", tmp_path / "model", tmp_path / "model", "tiny"))
    config = EngineConfig(settings=LiveSettings(max_batch=2, draft_length=1, draft_method="ngram"))
    told = []
    runner = build._on_card(
        config, form, planned, "tiny", CPU, NOTHING, lambda *words: told.append(words),
        made=CudaOnCpu, ops=torch_ops, graphs=lambda: ReplayedGraph,
    )  # fmt: skip
    runner.resize(8)
    warm(runner)
    assert runner.model.dtype == held and runner.dtype == torch.bfloat16 and runner.graphs_captured == 4
    assert isinstance(engine_build.sampler_of(runner), DeviceSampler) and told
    logits = runner.execute(dummy_batch([5, 1], 16))
    assert logits.isfinite().all() and logits.shape == (2, planned.config.vocabulary)
    if form != "bfloat16":
        assert build._weight_bytes(planned, form, torch.device("cuda")) <= runner.weight_bytes
        assert runner.weight_bytes < 1.4 * planned.parameters


# --- a pool that shrinks where nothing is left ---


class NoRoom:
    """Stands in for torch's device: other than the CPU's by name, the same memory."""

    type = "cuda"


@pytest.mark.parametrize("away", [True, False], ids=["by way of the host", "with no room there either"])
def test_a_full_card_gets_memory_back_when_the_pool_shrinks(model, monkeypatch: pytest.MonkeyPatch, away: bool):
    config, _ = model
    pool = KVPool(config, 16, torch.float32, CPU)
    pool.resize(8)
    for keys, values in pool.layers:
        keys.normal_(), values.normal_()
    wanted = [(keys[:, :5].clone(), values[:, :5].clone()) for keys, values in pool.layers]
    held = [weakref.ref(keys) for keys, _ in pool.layers]
    really, pool.device = torch.Tensor.to, NoRoom()

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    def to(tensor, where, **more):
        if where == "cpu" and not away:
            raise MemoryError("no more")
        return really(tensor, CPU, **more)

    monkeypatch.setattr(kv_pool, "_resized", full)
    monkeypatch.setattr(torch.Tensor, "to", to)
    pool.resize(5)
    assert pool.num_blocks == 5
    for (keys, values), (k, v) in zip(pool.layers, wanted, strict=True):
        assert torch.equal(keys, k) and torch.equal(values, v)
        assert (keys._base is None) == away, "a part of the old"
    assert all(ref() is None for ref in held) or not away
    with pytest.raises(torch.OutOfMemoryError):
        pool.resize(9)
    assert pool.num_blocks == 5 and all(keys.shape[1] == 5 for keys, _ in pool.layers)
