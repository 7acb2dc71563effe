"""Measure: γ goes to 0 and back, nobody else sees it, and it ends when somebody wants another γ."""

from __future__ import annotations

import pytest

from engine.records import Change
from tests.support.synthetic import SyntheticSource
from ui.alternation import PERIOD, PLAIN
from ui.mirror import Mirror


class Rig:
    """An engine that takes `lag` steps to hear of a command."""

    def __init__(self):
        self.source, self.mirror = SyntheticSource(256, 4), Mirror()
        self.run(5)

    @property
    def machine(self):
        return self.mirror.alternation

    @property
    def sent(self) -> list[int]:
        return [c.changes["draft_length"] for c in self.source.sent if isinstance(c, Change)]

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.source.advance(1)
            self.mirror.apply_all(self.source.poll())
            self.tick()

    def tick(self) -> None:
        mirror = self.mirror
        mirror.alternation.tick(self.source, mirror.settings, mirror.last_step, mirror.acks)

    def begin(self) -> None:
        self.machine.begin(self.mirror.settings, self.mirror.last_step)


@pytest.fixture
def rig():
    return Rig()


def test_it_goes_to_nothing_and_back_again_and_again(rig):
    rig.begin()
    before = rig.mirror.last_step
    rig.run(3 * PERIOD)
    assert rig.sent[:6] == [0, 4, 0, 4, 0, 4]
    gamma = rig.mirror.history.slice(before + 1).gamma
    plain = int((gamma == 0).sum())
    assert abs(plain - 3 * PLAIN) <= 6 and set(gamma.tolist()) == {0, 4}


def test_it_leaves_no_marks_and_the_slider_stays(rig):
    rig.begin()
    shown = set()
    for _ in range(PERIOD + PLAIN):
        rig.run(1)
        shown.add(rig.machine.meant(rig.mirror.settings.draft_length))
    assert rig.mirror.history.marks == [] and shown == {4}


def test_ending_in_a_plain_stretch_gives_the_draft_length_back(rig):
    rig.begin()
    rig.run(PLAIN // 2)
    assert rig.machine.plain and rig.mirror.settings.draft_length == 0
    rig.machine.end(rig.source)
    rig.run(3)
    assert rig.mirror.settings.draft_length == 4 and not rig.machine.on and rig.mirror.history.marks == []


def test_another_draft_length_ends_it_and_gets_its_mark(rig):
    rig.begin()
    rig.run(PLAIN // 2)
    rig.machine.leave()
    rig.source.send(Change(id=rig.source.next_id(), changes={"draft_length": 6}))
    rig.run(2 * PERIOD)
    assert rig.mirror.settings.draft_length == 6 and not rig.machine.on
    assert [(m.key, m.old, m.new) for m in rig.mirror.history.marks] == [("draft_length", 4, 6)]


def test_leaving_while_a_change_is_on_its_way_is_no_mark_either(rig):
    rig.begin()
    rig.tick()  # asked for 0, not yet answered
    rig.machine.leave()
    rig.source.send(Change(id=rig.source.next_id(), changes={"draft_length": 6}))
    rig.run(3)
    assert [(m.old, m.new) for m in rig.mirror.history.marks] == [(4, 6)]


def test_somebody_elses_draft_length_ends_it(rig):
    rig.begin()
    rig.run(PLAIN + 8)
    rig.source.world.change(draft_length=2)
    rig.run(2)
    assert not rig.machine.on and rig.mirror.settings.draft_length == 2


def test_with_drafts_off_there_is_nothing_to_measure(rig):
    rig.source.world.change(draft_method="off")
    rig.run(2)
    rig.begin()
    assert not rig.machine.on


def test_an_engine_that_dies_in_a_plain_stretch_comes_back_with_its_drafts(rig):
    rig.begin()
    rig.run(PLAIN // 2)
    rig.source.state = "dead"
    rig.tick()
    rig.source.state = "ready"
    rig.run(3)
    assert rig.mirror.settings.draft_length == 4 and not rig.machine.on


def test_a_refusal_ends_it_and_is_kept(rig):
    rig.source.world.change = lambda **changes: (_ for _ in ()).throw(ValueError("no"))
    rig.begin()
    rig.run(2)
    assert not rig.machine.on and rig.machine.refused == "no"
