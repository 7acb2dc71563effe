"""The past from differences: the same as from whole copies, through all that can happen to a pool."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from tests.support.synthetic import SyntheticSource
from tests.ui.test_mirror import assert_same
from ui.mirror import Mirror
from ui.snapshots import Snapshots
from ui.state import EngineState


class Told:
    """A stream into a mirror; a copy of the state after every so many steps."""

    def __init__(self, blocks: int, sequences: int, fill: float = 0.02, every: int = 37, **mirror: int):
        self.source, self.mirror = SyntheticSource(blocks, sequences, 4, fill=fill), Mirror(**mirror)
        self.was: dict[int, EngineState] = {}
        self._every = every
        self.mirror.apply_all(self.source.poll())

    @property
    def kept(self) -> Snapshots:
        return self.mirror._snapshots

    def go(self, steps: int) -> None:
        for _ in range(steps):
            self.source.advance()
            self.mirror.apply_all(self.source.poll())
            if self.mirror.live.step % self._every == 0:
                self.was[self.mirror.live.step] = self.mirror.live.copy()

    def check(self) -> int:
        """Every moment that is still kept; how many."""
        kept = {step: state for step, state in self.was.items() if step >= self.mirror.first_step}
        for step, state in kept.items():
            assert_same(self.mirror.state_at(step), state)
            np.testing.assert_array_equal(self.mirror.state_at(step).source, state.source)
        return len(kept)

    def differences(self) -> list[bool]:
        return [stretch.difference is not None for stretch in self.kept._stretches]


@pytest.fixture
def told() -> Told:
    """A pool so large that a few sequences change little of it."""
    return Told(20_000, 8)


def test_most_copies_are_differences_and_the_past_is_exact(told: Told) -> None:
    told.go(2600)
    first, second, *rest = told.differences()
    assert not first and not second, "what was so at step 0 seems to have changed in it"
    assert len(rest) > 4 and all(rest)
    assert told.check() == 70


def test_a_pool_of_another_size_and_an_emptied_cache_are_copied_whole(told: Told) -> None:
    told.go(600)
    told.source.world.change(kv_blocks=22_000)
    told.go(600)
    told.source.world.change(prefix_cache=False)
    told.go(600)
    told.source.world.change(prefix_cache=True)
    told.go(1200)
    assert told.differences().count(False) >= 3 and any(told.differences())
    told.check()


def test_a_keyframe_within_is_no_harm(told: Told) -> None:
    told.go(600)
    told.mirror.apply(msgspec.structs.replace(told.source.world.keyframe(), memory=None))  # which no record told
    assert told.mirror.drift == 0
    told.go(1300)
    assert any(told.differences())
    told.check()


def test_a_pool_that_changes_often_is_copied_whole_now_and_then() -> None:
    told = Told(200, 12, fill=0.6)
    told.go(1500)
    assert told.differences().count(False) > 2
    assert told.check() == 40


def test_the_whole_copy_goes_with_the_oldest_and_the_rest_stays_exact() -> None:
    told = Told(20_000, 8, budget=5_000_000)
    told.go(1500)
    first = told.kept._stretches[0].state.blocks_state
    for _ in range(4):
        told.go(700)
        assert told.kept.full and told.mirror.nbytes <= 5_000_000
        assert told.kept._stretches[0].state.blocks_state is first, "it was never copied again"
        assert told.differences()[:2] == [False, True] and told.check() > 4


def test_what_is_held_is_what_is_told(told: Told) -> None:
    told.go(2000)
    held = sum(stretch.weight + stretch.size for stretch in told.kept._stretches)
    assert told.mirror.nbytes == held
    whole = told.mirror.live.nbytes + told.mirror.live.pool_nbytes
    assert all(stretch.weight < whole / 2 for stretch in list(told.kept._stretches)[2:])
    assert not any(stretch.sealed for stretch in list(told.kept._stretches)[:-1])


def test_a_moment_that_was_shown_is_nobody_elses(told: Told) -> None:
    told.go(1400)
    shown = told.mirror.state_at(1000)
    for name in ("blocks_state", "owner", "filled", "since"):
        getattr(shown, name)[:] = 0
    shown.prefixes.entries[:] = None
    assert told.check() == 37


def test_a_lost_difference_is_caught(told: Told) -> None:
    told.go(1400)
    told.kept._stretches[2].difference.blocks[:] = 0
    with pytest.raises(AssertionError):
        told.check()
