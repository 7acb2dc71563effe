"""The CUDA runner's logic without a card: kernels as formulas, graphs by their strict twin. What it gives is
token-equal to transformers under the settings of the exactness matrix; what it reads on the host, allocates and pads is
counted.

Its kernels themselves, interpreted, run the same course in tests/kernels/test_cuda_runner.py.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from app.bench.combinations import FULL, Combination
from app.bench.equality import Reference, compare
from engine.config import LiveSettings, limits
from engine.core import Engine
from engine.model.store import ModelFiles
from engine.model.weights import load
from engine.runner.cuda_ops import Ops
from engine.runner.device_sampler import DeviceSampler
from engine.runner.graphs import MOST_TOKENS, Bucket, NotReplayable, ReplayedGraph, bucket_of, buckets_for
from engine.runner.pooled import dummy_batch
from engine.sampler import BadLogits, Sampler, SampleRow
from engine.speculation.ngram import NgramProposer
from tests.support import tiny_models
from tests.support.cuda_on_cpu import CPU, CudaOnCpu, HostReads, on_cpu, plain, tiny
from tests.support.paged import Driven, Driver
from tests.support.served import serve

NEW_TOKENS = 24
ROOMY, TIGHT = 1024, 192  # tokens in the pool: for all prompts, or for hardly more than two
STEPS = ([20, 7, 1], [1, 1, 1], [3, 1, 2], [1, 1, 1], [1, 1, 1], [5, 1, 30], [2, 3, 3], [4, 4, 4])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny(tmp_path_factory.mktemp("model"), "qwen3")


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    """A tiny model, and greedy references by transformers."""
    directory = tmp_path_factory.mktemp("oracle")
    dense = tiny_models.save(directory, "llama", tied=False)
    rng = np.random.default_rng(3)
    references = []
    for length in (3, 40, 17, 61, 1, 90, 24):
        phrase = rng.integers(0, tiny_models.VOCABULARY, max(1, length // 3)).tolist()
        tokens, best = (phrase * 4)[:length], []  # repeats, so that prompt lookup drafts
        prompt = list(tokens)
        for _ in range(NEW_TOKENS):
            best.append(tiny_models.logits(dense, tokens)[-1].topk(2))
            tokens = [*tokens, int(best[-1].indices[0])]
        gaps = [float(b.values[0] - b.values[1]) for b in best]
        references.append(Reference(prompt, tokens[length:], gaps))
    return load(ModelFiles("hf", directory, directory, "tiny"), torch.float32, CPU), references


def started(runner: CudaOnCpu, settings: LiveSettings, overlap: bool = False) -> Engine:
    runner.resize(settings.kv_blocks)
    runner.warm_up()
    return Engine(
        runner,
        settings,
        Sampler(runner.model.vocabulary),
        bounds=limits(runner.model, runner.block_size, 1 << 16),
        proposers={"ngram": NgramProposer.of},
        launcher=runner if overlap else None,
    )


# --- what it computes ---


@pytest.mark.parametrize("kind", ["llama3", "qwen2", "qwen3"])
@pytest.mark.parametrize("graphs", [ReplayedGraph, None], ids=["graphs", "without"])
def test_logits_are_the_cpu_runners(tmp_path, kind: str, graphs):
    config, weights = tiny(tmp_path, kind)
    runner = on_cpu(config, weights, 16, 64, graphs=graphs, most_rows=4, draft_length=2)
    runner.warm_up()
    tokens = np.random.default_rng(0).integers(0, tiny_models.VOCABULARY, (3, 80)).tolist()
    ours, theirs = [Driven(t) for t in tokens], [Driven(t) for t in tokens]
    drivers = Driver(runner), Driver(plain(config, weights, 16, 64))
    for counts in STEPS:
        got, wanted = (d.run(list(zip(s, counts, strict=True))) for d, s in zip(drivers, (ours, theirs), strict=True))
        torch.testing.assert_close(torch.cat(got), torch.cat(wanted), rtol=1e-5, atol=2e-5)
        torch.testing.assert_close(runner.hidden(), drivers[1].runner.hidden(), rtol=1e-5, atol=2e-5)
    assert bool(runner.graphs_captured) == (graphs is not None)


def test_bfloat16_logits_are_near(tmp_path):
    """Both round to 8 bits on the way, at different places."""
    config, weights = tiny(tmp_path, "qwen3", torch.bfloat16)
    runner, other = on_cpu(config, weights, 16, 16, most_rows=4), plain(config, weights, 16, 16)
    runner.warm_up()
    for lengths in ([9, 3, 1], [1, 1, 1]):
        got, wanted = (r.execute(dummy_batch(lengths, 16)) for r in (runner, other))
        assert got.dtype == torch.float32
        torch.testing.assert_close(got, wanted, rtol=0, atol=0.05 * float(wanted.abs().max()))


@pytest.mark.parametrize("combination", FULL, ids=str)
def test_token_equal_over_the_matrix(oracle, combination: Combination):
    (config, weights), references = oracle
    blocks = (TIGHT if combination.preempt else ROOMY) // combination.block_size
    settings = replace(combination.settings(), kv_blocks=blocks, max_context=TIGHT)
    batch, size, gamma = combination.batch, combination.block_size, combination.gamma
    runner = on_cpu(config, weights, size, most_rows=batch, draft_length=gamma)
    engine, graphed, padded = started(runner, settings), 0, 0

    def between(step, record) -> None:
        nonlocal graphed, padded
        graphed, padded = graphed + record.graph, padded + record.padded
        if combination.preempt and combination.batch == 1 and step % 8 in (3, 6):
            engine.change({"max_batch": 2 if step % 8 == 3 else 1})

    outputs, preempted = serve(engine, [reference.prompt for reference in references], NEW_TOKENS, between)
    report = compare(outputs, references)
    assert report.equal, str(report)
    assert (preempted > 0) == combination.preempt
    assert graphed > 0 and (padded > 0 or combination.batch == 1)


def test_token_equal_while_steps_overlap(oracle):
    (config, weights), references = oracle
    settings = LiveSettings(
        max_batch=4, max_context=TIGHT, kv_blocks=ROOMY // 16, token_budget=48, draft_method="off", temperature=0.0
    )
    engine, overlapped = started(on_cpu(config, weights, 16), settings, overlap=True), 0

    def between(step, record) -> None:
        nonlocal overlapped
        overlapped += record.overlapped

    outputs, _ = serve(engine, [reference.prompt for reference in references], NEW_TOKENS, between)
    report = compare(outputs, references)
    assert report.equal, str(report)
    assert overlapped > 20


def test_first_layers(model):
    config, weights = model
    runner = on_cpu(config, weights, 16, 16)
    few, theirs = runner.first(2), plain(config, weights, 16, 16).first(2)
    for each in (few, theirs):
        each.resize(8)
    batch = dummy_batch([5, 1, 9], 16)
    torch.testing.assert_close(few.execute(batch), theirs.execute(batch), rtol=1e-5, atol=2e-5)
    assert few.graphs_captured == runner.graphs_captured == 0 and few._staging is not runner._staging


# --- launched passes ---


def test_tokens_come_from_the_pass_before(model):
    """Greedy decoding of two rows, whose tokens the host doesn't send."""
    config, weights = model
    runner, other = on_cpu(config, weights, 16, 8), plain(config, weights, 16, 8)
    prompt = dummy_batch([4, 7], 16)
    prompt.tokens[:] = np.arange(11)
    rows = [SampleRow(), SampleRow()]
    pending = [runner.launch(prompt, rows)]
    wanted = [other.execute(prompt).argmax(dim=1).numpy()]
    for step in range(3):
        contexts = prompt.contexts + step + 1
        slots = prompt.tables[:, 0] * 16 + contexts - 1
        fields = {"positions": contexts - 1, "slots": slots, "contexts": contexts, "tables": prompt.tables}
        batch = partial(type(prompt), row_starts=np.arange(3), logit_index=np.arange(2), **fields)
        # the rows change places every time
        turn = np.array([1, 0]) if step % 2 else np.array([0, 1])
        mixed = {name: array[turn] for name, array in fields.items()}
        order = turn if step else np.array([0, 1])
        before = np.array([0, 1]) if step < 1 else (np.array([1, 0]) if (step - 1) % 2 else np.array([0, 1]))
        sources = np.array([int(np.flatnonzero(before == row)[0]) for row in turn])
        unknown = np.full(2, -1)
        pending.append(
            runner.launch(
                type(prompt)(
                    tokens=unknown, row_starts=np.arange(3), logit_index=np.arange(2), sources=sources, **mixed
                ),
                rows,
            )
        )
        assert (order == turn).all()
        wanted.append(other.execute(batch(tokens=wanted[-1])).argmax(dim=1).numpy())
    assert pending[-2].result().tolist() == wanted[-2][turn_of(2)].tolist()
    assert pending[-1].result().tolist() == wanted[-1][turn_of(3)].tolist()


def turn_of(launch: int) -> np.ndarray:
    return np.array([1, 0]) if (launch - 1) % 2 else np.array([0, 1])


@pytest.mark.parametrize("where", ["device", "host"])
def test_sampled_rows_take_the_samplers_tokens(model, where: str):
    config, weights = model
    sampler = DeviceSampler(tiny_models.VOCABULARY, CPU, kernels=False) if where == "device" else None
    runner, other = on_cpu(config, weights, 16, 8, sampler=sampler), plain(config, weights, 16, 8)
    rows = [SampleRow(temperature=0.9, seed=4, position=3), SampleRow()]
    batch = dummy_batch([3, 5], 16)
    wanted = Sampler(tiny_models.VOCABULARY).sample(other.execute(batch), rows)
    assert runner.launch(batch, rows).result().tolist() == [outcome.tokens[0] for outcome in wanted]


def test_logits_that_are_no_numbers_are_told_by_who_awaits(tmp_path):
    config, weights = tiny(tmp_path)
    runner = on_cpu(config, weights, 16, 8)
    weights.head[5, 0] = torch.nan
    pending = runner.launch(dummy_batch([1, 2], 16), [SampleRow(), SampleRow()])
    with pytest.raises(BadLogits, match=r"2 of 2 rows.*try float32"):
        pending.result()


def nothing(*args: object) -> None:
    return None


class Called:
    """A graph that is nothing but a call."""

    def __init__(self, staged: object):
        self.run = nothing

    def capture(self, run) -> None:
        self.run = run

    def replay(self) -> None:
        self.run()


def test_a_steady_launch_reads_nothing_and_allocates_nothing(model):
    """With operations that do nothing: theirs run on the card."""
    config, weights = model
    silent = Ops(nothing, nothing, nothing, nothing, nothing, nothing)
    runner = on_cpu(config, weights, 16, 8, silent, Called, most_rows=4)
    runner.warm_up()
    batch, rows = dummy_batch([1, 1, 1], 16), [SampleRow()] * 3
    runner.launch(batch, rows).result()
    with torch.inference_mode(), HostReads() as reads:
        pending = runner.launch(batch, rows)
    assert batch.graph and batch.padded == 1
    assert reads.seen == []
    assert reads.made == []
    with HostReads() as reads:
        pending.result()
    assert reads.seen == ["numpy"]


def test_the_counter_counts():
    x = torch.arange(3)
    with HostReads() as reads:
        int(x[0]), x.tolist(), bool(x[0] == 0), (x + 1)
    assert {"__int__", "tolist", "__bool__"} <= set(reads.seen) and any("add" in name for name in reads.made)


# --- buckets and graphs ---


def test_buckets():
    assert bucket_of(1, 1) == Bucket(1, 1) and bucket_of(5, 1) == Bucket(8, 1) and bucket_of(9, 4) == Bucket(16, 5)
    assert bucket_of(MOST_TOKENS, 1) == Bucket(MOST_TOKENS, 1)
    assert bucket_of(MOST_TOKENS + 1, 1) is bucket_of(MOST_TOKENS, 2) is bucket_of(1, 18) is None
    assert buckets_for(4, 0) == [Bucket(4, 1), Bucket(2, 1), Bucket(1, 1)]
    assert buckets_for(2, 3) == [Bucket(2, 5), Bucket(1, 5), Bucket(2, 1), Bucket(1, 1)]


def test_an_unexpected_shape_is_captured_when_it_comes_again(model):
    runner = on_cpu(*model, 16, 32, most_rows=2)
    runner.warm_up()
    known = runner.graphs_captured
    batches = [dummy_batch([3, 3, 2], 16) for _ in range(3)]
    logits = [runner.execute(batch).clone() for batch in batches]
    assert [batch.graph for batch in batches] == [False, True, True] and runner.graphs_captured == known + 1
    assert batches[2].padded == 4 * 3 - 8
    for other in logits[1:]:
        torch.testing.assert_close(other, logits[0], rtol=1e-5, atol=2e-5)


def test_another_pool_takes_other_graphs(model):
    """The twin would say so if one were replayed on the old pool."""
    runner = on_cpu(*model, 16, 32, most_rows=2)
    runner.warm_up()
    captured = runner.graphs_captured
    batch = dummy_batch([1, 1], 16)
    first = runner.execute(batch).clone()
    runner.resize(40)
    assert runner.graphs_captured == 0 and torch.equal(runner.execute(batch), first) and batch.graph
    runner.rebuild(20, 32, 0)
    again = dummy_batch([1, 1], 32)
    assert torch.equal(runner.execute(again), first) and again.graph
    assert runner.graphs_captured == 1 < captured


def test_more_rows_than_any_graph_has(model):
    runner, other = on_cpu(*model, 16, 70, most_tokens=8), plain(*model, 16, 70)
    runner.warm_up()
    batch = dummy_batch([1] * 65, 16)
    torch.testing.assert_close(runner.execute(batch), other.execute(batch), rtol=1e-5, atol=2e-5)
    assert not batch.graph and batch.padded == 0


def test_the_twin_sees_what_a_graph_would_freeze():
    buffer, other, number = torch.zeros(4), torch.ones(4), [1.0]
    staged = torch.zeros(4, dtype=torch.int32)
    places = {"x": buffer}

    def run() -> None:
        places["x"].add_(number[0])

    graph = ReplayedGraph([staged])
    graph.capture(run)
    graph.replay()
    assert torch.equal(buffer, torch.full((4,), 2.0))
    number[0] = 2.0
    with pytest.raises(NotReplayable, match="operation 0"):
        graph.replay()
    number[0], places["x"] = 1.0, other
    with pytest.raises(NotReplayable, match="operation 0"):
        graph.replay()
    seen = []
    spoilt = ReplayedGraph([staged])
    spoilt.capture(lambda: seen.append(staged.numpy().copy()))
    spoilt.replay()
    assert seen[0].tolist() == [0] * 4 != seen[1].tolist() and staged.tolist() == [0] * 4
