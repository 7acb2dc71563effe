"""The engine on the CUDA runner with the device's sampler, without a card: tokens, verdicts, p, q and draws are those
of the host's sampler over the same logits, whatever is asked for; and what a step reads on the host and allocates.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from app.bench.combinations import FULL, Combination
from app.bench.equality import compare
from engine.build import launcher_of, sampler_of
from engine.config import EngineConfig, LiveSettings, limits
from engine.core import Engine
from engine.penalties import Penalties
from engine.records import DRAFT, TOKEN, Request, Sampling, StepRecord, unpack
from engine.runner import device_sampler as module
from engine.runner.chosen import Chooser
from engine.runner.cuda_ops import Ops
from engine.runner.device_sampler import DeviceSampler, Part, parts_of
from engine.runner.pooled import PooledRunner, dummy_batch
from engine.runner.transfers import ToDevice, ToHost
from engine.sampler import Sampler, SampleRow
from engine.speculation.ngram import NgramProposer
from engine.speculation.proposer import Lookup
from engine.speculation.simulated import SimulatedRule
from tests.engine.test_cuda_runner import NEW_TOKENS, ROOMY, TIGHT, Called, nothing, oracle  # noqa: F401
from tests.kernels.sampled_rows import assert_same
from tests.support import tiny_models
from tests.support.cuda_on_cpu import CPU, HostReads, on_cpu, plain, tiny
from tests.support.served import serve

V = tiny_models.VOCABULARY
KINDS = [
    Sampling(temperature=0.0),
    Sampling(temperature=0.9, seed=1),
    Sampling(temperature=1.2, top_k=5, seed=2),
    Sampling(temperature=0.8, top_p=0.8, min_p=0.02, seed=3),
    Sampling(temperature=0.7, repetition_penalty=1.3, frequency_penalty=0.2, seed=4),
    Sampling(temperature=0.0, presence_penalty=0.5),
]
PLAIN = KINDS[:4]  # that overlap too


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny(tmp_path_factory.mktemp("model"), "qwen3")


def engine_on(runner: PooledRunner, settings: LiveSettings, overlap: bool = False) -> Engine:
    runner.resize(settings.kv_blocks)
    runner.warm_up()
    sampler = sampler_of(runner)
    return Engine(
        runner,
        settings,
        sampler,
        bounds=limits(runner.model, runner.block_size, 1 << 16),
        proposers={"ngram": NgramProposer.of},
        launcher=launcher_of(EngineConfig(overlap="auto" if overlap else "off"), runner, sampler),
    )


@dataclass
class Served:
    tokens: dict[int, list[int]] = field(default_factory=dict)
    drafts: list[tuple] = field(default_factory=list)
    records: list[StepRecord] = field(default_factory=list)


def served(engine: Engine, kinds: list[Sampling], **more) -> Served:
    """Repeating prompts, one of each kind."""
    found, rng = Served(), np.random.default_rng(5)
    for number, sampling in enumerate(kinds):
        prompt = (rng.integers(0, V, 4 + number).tolist() * 4)[: 12 + 3 * number]
        request = Request(number=number, max_tokens=16, ignore_eos=True, sampling=sampling, **more)
        engine.submit(number, prompt, request)
    while engine.has_work:
        record = engine.step()
        found.records.append(record)
        for token in unpack(record.emitted, TOKEN):
            found.tokens.setdefault(int(token["seq"]), []).append(int(token["token"]))
        found.drafts += [tuple(each) for each in unpack(record.drafts, DRAFT).tolist()]
    engine.check()
    return found


def settings(**changes) -> LiveSettings:
    given = {"max_batch": 4, "max_context": 128, "kv_blocks": 64, "token_budget": 48, "draft_method": "ngram"}
    return LiveSettings(**{**given, **changes})


def device(runner_or_model, **options):
    return on_cpu(*runner_or_model, 16, sampler=DeviceSampler(V, CPU, kernels=False, **options), most_rows=4)


# --- the same tokens ---


def test_the_engine_takes_the_runners_sampler(model):
    runner = device(model)
    assert sampler_of(runner) is runner.sampler and type(sampler_of(plain(*model))) is Sampler
    assert type(sampler_of(on_cpu(*model))) is Sampler


@pytest.mark.parametrize("gamma", range(5))
def test_all_kinds_with_drafts_are_as_the_hosts_sampler_has_them(model, gamma: int):
    ours = served(engine_on(device(model), settings(draft_length=gamma)), KINDS)
    theirs = served(engine_on(on_cpu(*model, 16, most_rows=4), settings(draft_length=gamma)), KINDS)
    assert ours.tokens == theirs.tokens and len(ours.tokens) == len(KINDS)
    assert [d[:4] for d in ours.drafts] == [d[:4] for d in theirs.drafts]
    for mine, other in zip(ours.drafts, theirs.drafts, strict=True):
        np.testing.assert_allclose(mine[4:], other[4:], rtol=1e-9, atol=1e-12, equal_nan=True)
    assert (len(ours.drafts) > 0) == (gamma > 0)
    cpu = served(engine_on(plain(*model, 16), settings(draft_length=gamma)), KINDS)
    assert cpu.tokens == ours.tokens


@pytest.mark.parametrize("kinds", [PLAIN, KINDS], ids=["overlap", "penalties among them"])
def test_overlap_changes_nothing(model, kinds):
    off = settings(draft_method="off")
    ours = served(engine_on(device(model), off, overlap=True), kinds)
    theirs = served(engine_on(plain(*model, 16), off), kinds)
    assert ours.tokens == theirs.tokens
    overlapped = sum(record.overlapped for record in ours.records)
    assert overlapped > 0.5 * len(ours.records) if kinds is PLAIN else "penalties" in {r.serial for r in ours.records}


@pytest.mark.parametrize("combination", FULL, ids=str)
def test_token_equal_over_the_matrix(oracle, combination: Combination):  # noqa: F811
    (config, weights), references = oracle
    blocks = (TIGHT if combination.preempt else ROOMY) // combination.block_size
    chosen = replace(combination.settings(), kv_blocks=blocks, max_context=TIGHT)
    sampler = DeviceSampler(V, CPU, kernels=False)
    given = {"most_rows": combination.batch, "draft_length": combination.gamma, "sampler": sampler}
    engine = engine_on(on_cpu(config, weights, combination.block_size, **given), chosen, overlap=combination.gamma == 0)

    def between(step, record) -> None:
        if combination.preempt and combination.batch == 1 and step % 8 in (3, 6):
            engine.drain()
            engine.change({"max_batch": 2 if step % 8 == 3 else 1})

    outputs, _ = serve_draining(engine, [reference.prompt for reference in references], between)
    report = compare(outputs, references)
    assert report.equal, str(report)


def serve_draining(engine: Engine, prompts: list[list[int]], between):
    """As `serve`; what a drained step emitted is counted too."""
    drained: list[StepRecord] = []
    drain = engine.drain
    engine.drain = lambda: drained.append(drain())  # type: ignore[method-assign]
    outputs, preempted = serve(engine, prompts, NEW_TOKENS, between)
    late: dict[int, dict[int, int]] = {}
    for record in filter(None, drained):
        for token in unpack(record.emitted, TOKEN):
            late.setdefault(int(token["seq"]), {})[int(token["position"])] = int(token["token"])
    for seq, tokens in late.items():
        for position in sorted(tokens):
            outputs[seq - 1].insert(position - len(prompts[seq - 1]), tokens[position])
    return outputs, preempted


@pytest.mark.parametrize("more", [{"n": 3}, {"beams": 2}])
def test_samples_and_beams_are_the_hosts(model, more: dict):
    kinds = [Sampling(temperature=0.9, seed=1) if "n" in more else Sampling(temperature=0.0)]
    ours = served(engine_on(device(model), settings(), overlap=True), kinds, **more)
    theirs = served(engine_on(plain(*model, 16), settings()), kinds, **more)
    assert ours.tokens == theirs.tokens
    assert any(record.serial in ("samples", "beams", "drafts") for record in ours.records)


def test_the_stepper_and_the_likeliest_tokens_see_the_models_own_numbers(model):
    """Of a penalised request with drafts: the sampler leaves the logits as they were."""
    found = []
    for runner in (device(model), on_cpu(*model, 16, most_rows=4)):
        engine = engine_on(runner, settings(draft_length=3))
        engine.watch(1, 5)
        records = served(engine, [Sampling(temperature=0.0, presence_penalty=0.01)]).records
        found.append(([r.top for r in records], [r.verification for r in records]))
    (top, verifications), wanted = found
    assert any(verifications) and sum(map(len, top)) >= 16
    for mine, other in zip(top, wanted[0], strict=True):
        assert [t.tokens for t in mine] == [t.tokens for t in other]
        for one, two in zip(mine, other, strict=True):
            np.testing.assert_allclose(one.probabilities, two.probabilities, rtol=1e-9)
    for mine, other in zip(verifications, wanted[1], strict=True):
        assert (mine is None) == (other is None)
        if mine is not None:
            assert [(p.position, p.verdict, p.token) for p in mine.positions] == [
                (p.position, p.verdict, p.token) for p in other.positions
            ]


def test_a_rule_of_its_own_is_the_hosts(model, monkeypatch):
    runner = device(model)
    engine = engine_on(runner, settings(draft_length=3, simulated_acceptance=(0.8,)))
    launched, launch = [], runner.sampler.launch
    monkeypatch.setattr(runner.sampler, "launch", lambda logits, rows: launched.append(rows) or launch(logits, rows))
    assert served(engine, [KINDS[1]]).drafts and not launched
    logits, rows = torch.randn(2, V), [SampleRow(drafts=[1], temperature=1.0)]
    rule = SimulatedRule((0.5,))
    assert_same(runner.sampler.sample(logits, rows, rule), Sampler(V).sample(logits, rows, rule))
    assert not launched
    assert_same(runner.sampler.sample(logits, rows), Sampler(V).sample(logits, rows))
    assert launched == [rows]


# --- groups, so that memory has a bound ---


def test_parts():
    rows = [SampleRow(drafts=[0] * count) for count in (2, 0, 0, 4, 1)]  # 3 + 1 + 1 + 5 + 2 rows of logits
    whole = [Part(slice(0, 5), slice(0, 12))]
    assert parts_of(rows, 12) == whole and parts_of(rows, 100) == whole
    assert parts_of(rows, 5) == [
        Part(slice(0, 3), slice(0, 5)), Part(slice(3, 4), slice(5, 10)), Part(slice(4, 5), slice(10, 12)),
    ]  # fmt: skip
    assert [part.rows.stop for part in parts_of(rows, 1)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("places", [1, 3, 8])
def test_rows_decided_in_parts_are_decided_alike(places: int):
    rows, logits = mixed_rows(12)
    ours = DeviceSampler(V, CPU, kernels=False, most_bytes=8 * V * places)
    assert_same(ours.sample(logits, rows), Sampler(V).sample(logits, rows))
    ours.shrink()
    assert_same(ours.sample(logits, rows), Sampler(V).sample(logits, rows))
    largest = max(places, 5)  # one row's are always together
    assert ours.bytes < 8 * V * 2 * largest + 12 * V * 16 + (1 << 20)


def mixed_rows(count: int, drawn: bool = True) -> tuple[list[SampleRow], torch.Tensor]:
    chance = torch.Generator().manual_seed(0)
    rows = []
    for i in range(count):
        gamma = i % 5
        penalties = Penalties(1.5, 1.0, 0.5) if i % 4 == 1 else None
        if penalties is not None:
            penalties.follow([5, 6, 7, 5], 2)
        q_rows = torch.randn(gamma, V, generator=chance).softmax(dim=1) if gamma and drawn and i % 2 else None
        rows.append(
            SampleRow(drafts=[(7 * i + d) % V for d in range(gamma)], temperature=(0.0, 1.0, 0.7)[i % 3],
                      top_k=(0, 20)[i % 2], top_p=(1.0, 0.9)[i % 2], seed=i, position=9, q_rows=q_rows,
                      penalties=penalties)
        )  # fmt: skip
    return rows, torch.randn(sum(len(r.drafts) + 1 for r in rows), V, generator=chance)


# --- what a step reads and allocates ---


class Clock:
    """Events that count."""

    def __init__(self) -> None:
        self.recorded = self.awaited = 0

    def __call__(self) -> Clock:
        return self

    def record(self) -> None:
        self.recorded += 1

    def synchronize(self) -> None:
        self.awaited += 1


@pytest.fixture
def silent(model, monkeypatch: pytest.MonkeyPatch):
    """A runner whose operations and kernels do nothing: theirs run on the card."""
    monkeypatch.setattr(module.sample, "row_weights_reference", nothing)
    monkeypatch.setattr(module.verify, "verify_reference", nothing)
    ops = Ops(nothing, nothing, nothing, nothing, nothing, nothing)
    clock = Clock()
    sampler = DeviceSampler(V, CPU, kernels=False, events=lambda: clock)
    runner = on_cpu(*model, 16, 16, ops, Called, most_rows=4, draft_length=2, sampler=sampler)
    runner._chooser = Chooser(V, CPU, sampler, events=lambda: clock)
    runner.warm_up()
    return runner, clock


@pytest.mark.parametrize("kind", ["greedy", "sampled", "penalised", "drawn"])
def test_a_steady_verification_has_one_copy_and_no_allocation(silent, kind: str):
    runner, clock = silent
    rows = [SampleRow(drafts=[1, 2], temperature=0.0 if kind == "greedy" else 0.8, top_p=0.9) for _ in range(3)]
    if kind == "penalised":
        for row in rows:
            row.penalties = Penalties(1.1, 0.1, 0.1)
            row.penalties.follow([3, 4, 5], 1)
    if kind == "drawn":
        q = torch.full((2, V), 1 / V)
        for row in rows:
            row.q_rows = q
    lengths = [3, 3, 3]

    def step():
        batch = dummy_batch(lengths, 16)
        batch.logit_index = np.arange(9)
        return batch, runner.execute(batch)

    for _ in range(3):
        runner.sampler.sample(step()[1], rows)
    clock.recorded = clock.awaited = 0
    with torch.inference_mode(), HostReads() as reads:
        batch, logits = step()
        decided = runner.sampler.launch(logits, rows)
    assert batch.graph and reads.seen == [] and reads.made == []
    assert (clock.recorded, clock.awaited) == (2, 1)  # numbers up and results down; the upload's of two steps ago
    clock.recorded = clock.awaited = 0
    with HostReads() as reads:
        decided.outcomes()
        decided.outcomes()
    assert reads.seen == ["numpy"] and (clock.recorded, clock.awaited) == (0, 1)


def test_a_steady_launch_of_sampled_rows_too(silent):
    runner, clock = silent
    rows = [SampleRow(), SampleRow(temperature=0.9, top_k=4), SampleRow(temperature=1.1)]
    for _ in range(3):
        runner.launch(dummy_batch([1, 1, 1], 16), rows).result()
    clock.recorded = clock.awaited = 0
    batch = dummy_batch([1, 1, 1], 16)
    with torch.inference_mode(), HostReads() as reads:
        pending = runner.launch(batch, rows)
        behind = runner.launch(batch, rows)
    assert batch.graph and reads.seen == [] and reads.made == []
    clock.awaited = 0
    with HostReads() as reads:
        pending.result()
        behind.result()
    assert reads.seen == ["numpy"] * 2 and clock.awaited == 2


class Drafter(Lookup):
    """Always two tokens."""

    def follow(self, seq: int, tokens: list[int], limit: int) -> list[int]:
        return [1, 2][:limit]

    def forget(self, seq: int) -> None:
        return None


@pytest.mark.parametrize("overlap", [False, True], ids=["drafts", "overlap"])
def test_a_whole_step_of_the_engine_has_one_copy_and_no_allocation(silent, overlap: bool):
    runner, clock = silent
    engine = Engine(
        runner,
        settings(kv_blocks=16, draft_length=0 if overlap else 2, draft_method="off" if overlap else "ngram"),
        sampler_of(runner),
        bounds=limits(runner.model, 16, 1 << 16),
        proposers={"ngram": lambda settings: Drafter()},
        launcher=runner if overlap else None,
    )
    for number, sampling in enumerate(PLAIN):
        request = Request(number=number, max_tokens=40, ignore_eos=True, sampling=sampling)
        engine.submit(number, [3, 4, 5], request)
    for _ in range(6):
        engine.step()
    seen, made, awaited = [], [], []
    for _ in range(5):
        clock.awaited = 0
        with HostReads() as reads:
            record = engine.step()
        assert record.graph and len(unpack(record.emitted, TOKEN)) == 4 and record.overlapped == overlap
        seen.append(reads.seen), made.append(reads.made), awaited.append(clock.awaited)
    assert seen == [["numpy"]] * 5 and made == [[]] * 5
    assert awaited == [2] * 5  # that the staged numbers of two steps ago are up, at once; and the results


def test_numbers_come_and_go_in_memory_that_stays():
    clock = Clock()
    up, down = ToDevice(CPU, lambda: clock), ToHost(torch.float64, 4, CPU, lambda: clock)
    parts = [np.arange(3), np.linspace(0, 1, 6).reshape(2, 3), np.zeros((0, 2)), np.arange(5)[::-1]]
    for _ in range(3):
        sent = up.send(parts)
        for tensor, part in zip(sent, parts, strict=True):
            assert torch.equal(tensor, torch.from_numpy(np.ascontiguousarray(part)))
            assert tensor.data_ptr() % 16 == 0 or not tensor.numel()
    first = sent[0].data_ptr()
    assert up.send(parts)[0].data_ptr() == first
    numbers = [torch.tensor([[1.0, 2.0]]), torch.tensor([3.0] * 9)]
    coming = [down.send(each) for each in numbers]
    assert [each.wait().tolist() for each in coming] == [[[1.0, 2.0]], [3.0] * 9]
