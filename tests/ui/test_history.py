"""The history is bounded, contiguous and loses the oldest first."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.synthetic import SyntheticSource
from ui.latency import Samples
from ui.mirror import Mirror


@pytest.mark.parametrize("capacity", [50, 1_000, 1_500])
def test_capacity_and_order(capacity: int) -> None:
    source, mirror = SyntheticSource(60, 3, 2), Mirror(capacity=capacity)
    mirror.apply_all(source.poll())
    for _ in range(6):
        source.advance(700)
        mirror.apply_all(source.poll())
        history = mirror.history
        columns = history.slice()
        assert len(columns) == len(history) == min(capacity, history.last)
        assert columns.step.tolist() == list(range(history.last - len(history) + 1, history.last + 1))
        assert (np.diff(columns.end) > 0).all()
    assert history.slice(4_190, 4_195).step.tolist() == [4_190, 4_191, 4_192, 4_193, 4_194, 4_195]
    assert len(history.slice(9_000, 9_100)) == 0
    assert all(len(buffer) <= max(1_024, 2 * capacity) for buffer in history._buffers.values())
    since = history.since(int(columns.end[-10]))
    assert since.step.tolist() == columns.step[-9:].tolist()


def test_samples_are_a_ring() -> None:
    samples, kept = Samples(500), []
    for clock in range(1, 400):
        values = [clock + i / 10 for i in range(clock % 7)]
        samples.extend(clock, values, [clock] * len(values))
        kept += [(clock, value) for value in values]
    assert len(samples) == 500
    assert list(zip(samples.clock.tolist(), samples.value.tolist(), strict=True)) == kept[-500:]
    clocks, values = samples.since(390)
    assert list(zip(clocks.tolist(), values.tolist(), strict=True)) == [k for k in kept if k[0] > 390]
    assert samples.since(390, 395)[0].max() == 395
    assert len(samples._clock) <= 1_010


def test_memory_does_not_grow_once_everything_is_full() -> None:
    source, mirror = SyntheticSource(60, 3, 2), Mirror(capacity=400, budget=300_000)
    mirror.apply_all(source.poll())
    sizes = []
    for _ in range(8):
        source.advance(500)
        mirror.apply_all(source.poll())
        sizes.append(sum(b.nbytes for b in mirror.history._buffers.values()))
        assert mirror.nbytes <= 300_000
    assert len(set(sizes[3:])) == 1
    assert len(mirror.live.recent) <= 64
