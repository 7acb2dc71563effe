"""Another block size while requests run: everybody starts again in the new blocks, and gives the same tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.config import SettingRefused
from engine.core import Engine
from engine.loop import Loop
from engine.records import Ack, Between, Change, Dropped, Preempted, Ready, Request, Sampling
from engine.runner.base import OutOfDeviceMemory
from engine.sampler import Sampler
from engine.speculation.ngram import NgramProposer
from tests.engine.test_runner import build as build_real
from tests.support import tiny_models
from tests.support.applier import Applier
from tests.support.fake_runner import FakeRunner, TableModel, settings
from tests.support.inprocess import InProcessEngine
from tests.support.paged import Driven, Driver
from ui.mirror import Mirror


def build(room: int = 200, **changes: int | float | bool | str) -> tuple[Engine, Applier]:
    now = settings(**{"draft_method": "ngram", **changes})
    runner = FakeRunner(now.kv_blocks, 8, TableModel(8, seed=3, sharpness=3.0), room)
    runner.resize_host(now.swap_blocks)
    engine = Engine(runner, now, Sampler(8), bounds=runner.bounds(), proposers={"ngram": NgramProposer.of})
    return engine, Applier(engine.keyframe())


def submit(engine: Engine, count: int = 4) -> None:
    for number in range(count):
        prompt = [(number + i) % 7 for i in range(20)]
        request = Request(number=number, max_tokens=30, ignore_eos=True, sampling=Sampling(temperature=0.0))
        engine.submit(number, prompt, request)


def follow(engine: Engine, reader: Applier) -> None:
    record = engine.between()
    if record is not None:
        reader.apply(record)
    engine.check()
    reader.expect(engine.keyframe())


def test_nobodys_output_changes() -> None:
    engine, reader = build(room=400, preemption="swap", swap_blocks=8, kv_blocks=20)
    submit(engine)
    sizes, step = [16, 8, 32, 64, 8, 128], 0
    while engine.has_work:
        reader.apply(engine.step())
        step += 1
        if step % 5 == 0 and sizes:
            engine.change({"block_size": sizes.pop(0), "kv_blocks": 20})
            assert not engine.scheduler.running and engine.pool.used_count == engine.pool.cached_count == 0
            follow(engine, reader)
    model = engine.runner.table_model
    for seq in range(1, 5):
        prompt = [(seq - 1 + i) % 7 for i in range(20)]
        assert reader.outputs[seq] == model.greedy(prompt, 30)


def test_the_pools_hold_what_they_held_unless_they_are_sized_too() -> None:
    engine, _ = build(kv_blocks=32, swap_blocks=6)
    new = engine.change({"block_size": 16})
    assert (new.kv_blocks, new.swap_blocks) == (16, 3) == (engine.runner.num_blocks, engine.runner.host_blocks)
    assert engine.bounds["kv_blocks"].high == (1 << 20) // 2 and "524,288 blocks" in engine.bounds["kv_blocks"].reason
    new = engine.change({"block_size": 8, "kv_blocks": 40, "swap_blocks": 0})
    assert (new.kv_blocks, new.swap_blocks) == (40, 0)
    engine.check()


def test_everybody_is_preempted_by_recompute_and_the_host_pool_gives_up_what_it_holds() -> None:
    engine, reader = build(preemption="swap", swap_blocks=8)
    submit(engine, 2)
    for _ in range(3):
        reader.apply(engine.step())
    engine.scheduler.preempt(engine.scheduler.running[1], "max_batch")
    engine.change({"watermark": 0.1})  # copies
    follow(engine, reader)
    engine.change({"block_size": 16})
    record = engine.between()
    assert isinstance(record, Between) and record.settings.block_size == 16
    lost, dropped = record.events
    assert isinstance(lost, Preempted) and (lost.cause, lost.swapped) == ("block_size", 0) and lost.lost > 20
    assert isinstance(dropped, Dropped) and (dropped.seq, dropped.cause) == (2, "block_size")
    reader.apply(record)
    reader.expect(engine.keyframe())


def test_there_and_back_between_two_records_is_told_whole() -> None:
    engine, reader = build()
    submit(engine, 3)
    for _ in range(4):
        reader.apply(engine.step())
    engine.change({"block_size": 16})
    engine.change({"block_size": 8})
    follow(engine, reader)


@pytest.mark.parametrize(
    ("changes", "key", "says"),
    [
        ({"block_size": 24}, "block_size", "not a power of two: take one of 8, 16, 32, 64, 128"),
        ({"block_size": 256}, "block_size", "outside 8 to 128"),
        ({"block_size": 8, "kv_blocks": 5}, "kv_blocks", "is|may need|needs"),
        ({"block_size": 128, "kv_blocks": 100}, "block_size", "a pool of 100 blocks needs"),
    ],
)
def test_what_is_refused_leaves_everything_running(changes: dict[str, int], key: str, says: str) -> None:
    engine, reader = build(room=64)
    submit(engine)
    for _ in range(3):
        reader.apply(engine.step())
    before = engine.settings, engine.keyframe()
    with pytest.raises(SettingRefused, match=says) as refused:
        engine.change(changes)
    assert refused.value.key == key and engine.settings is before[0]
    assert engine.keyframe().table_blocks == before[1].table_blocks
    while engine.has_work:
        reader.apply(engine.step())
    assert reader.outputs[1] == engine.runner.table_model.greedy([i % 7 for i in range(20)], 30)


def test_the_answer_carries_the_limits_that_moved_and_the_mirror_follows() -> None:
    engine, _ = build()
    said: list[object] = []
    loop = Loop(engine, lambda request: list(request.token_ids or []), said.append)
    mirror = Mirror()
    loop.handle(Change(id=7, changes={"block_size": 32}))
    (ack,) = said
    assert isinstance(ack, Ack) and ack.ok and ack.limits == engine.bounds
    loop.handle(Change(id=8, changes={"watermark": 0.2}))
    assert said[1].limits is None

    source = InProcessEngine(_config())
    mirror.apply_all(source.poll())
    assert isinstance(mirror.ready, Ready) and mirror.ready.block_size == 8
    high = mirror.ready.limits["kv_blocks"].high
    source.send(Change(id=source.next_id(), changes={"block_size": 32}))
    mirror.apply_all(source.poll())
    assert mirror.live.block_size == mirror.ready.block_size == 32
    assert mirror.ready.limits["kv_blocks"].high == high // 4
    assert ("block_size", 8, 32) in [(mark.key, mark.old, mark.new) for mark in mirror.history.marks]


def _config():
    from engine.config import EngineConfig

    return EngineConfig(block_size=8, settings=settings())


# --- the pool's memory ---


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    tiny_models.save(path, "llama", tied=False)
    return path


@pytest.mark.parametrize(("blocks", "size"), [(20, 32), (80, 8), (7, 64), (200, 8)])
def test_a_rebuilt_pool_serves(directory: Path, blocks: int, size: int) -> None:
    runner, tokens = build_real(directory), [(7 * i) % 97 for i in range(90)]
    (before,) = Driver(runner).run([(Driven(tokens), 90)])
    where = runner._pool.layers[0][0].data_ptr()
    runner.rebuild(blocks, size, 3)
    assert (runner.num_blocks, runner.block_size, runner.host_blocks) == (blocks, size, 3)
    assert runner.memory().kv_pool == blocks * size * runner.model.kv_bytes_per_token
    assert (runner._pool.layers[0][0].data_ptr() == where) == (blocks * size == 640)  # as many tokens take no memory
    (after,) = Driver(runner, seed=5).run([(Driven(tokens), 90)])
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5)


def test_a_pool_that_cannot_be_rebuilt_is_as_it_was(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner, tokens = build_real(directory), [(7 * i) % 97 for i in range(90)]
    driver, sequence = Driver(runner), Driven(tokens)
    driver.run([(sequence, 80)])

    def failing(*_: object) -> torch.Tensor:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(torch.Tensor, "new_empty", failing)
    with pytest.raises(OutOfDeviceMemory):
        runner.rebuild(100, 8, 0)
    monkeypatch.undo()
    assert (runner.num_blocks, runner.block_size) == (40, 16)
    (got,) = driver.run([(sequence, 10)])
    (fresh,) = Driver(build_real(directory)).run([(Driven(tokens), 90)])
    torch.testing.assert_close(got, fresh[80:], rtol=1e-5, atol=1e-5)
