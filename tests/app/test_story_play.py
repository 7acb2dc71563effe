"""A story drives the real scheduler and pool: it ends as it must and gives back what it took, come what may."""

from __future__ import annotations

import msgspec
import pytest

from app.stories import figures, play
from engine import records as r
from engine.formulas import blocks_for
from tests.support.stories import BEFORE, TICK, Stage, story


def figure(stage: Stage, phase: str, name: str, group: str = "") -> float:
    return stage.player.results.figure(phase, name, group)


def changed(stage: Stage) -> dict[str, tuple[object, object]]:
    """Settings that are other ones than before the story."""
    now = stage.engine.settings
    return {
        field.name: (getattr(BEFORE, field.name), getattr(now, field.name))
        for field in msgspec.structs.fields(type(now))
        if getattr(BEFORE, field.name) != getattr(now, field.name)
    }


# --- to the end ---


def test_reserved_runs_four_of_eight_where_paged_runs_all():
    stage = Stage()
    stage.play(told := story())
    player = stage.player
    assert player.stage == "over", player.caption
    assert figure(stage, "a", "running_max") == 4 and figure(stage, "b", "running_max") == 8
    assert player.verdict == player.caption == "2.0× as many."
    assert stage.captions == ["First reserved.", "4 of 8 ran.", "Then paged.", "Running now.", "2.0× as many."]
    assert not changed(stage) and not stage.arrivals.held
    assert figure(stage, "a", "tokens") == figure(stage, "b", "tokens") > 8  # nobody's output changes
    shown = player.shown
    assert shown.names == ("reserved", "paged") and shown.progress == (1.0, 1.0)
    assert [panel.title for panel in shown.panels][:1] == ["Running sequences"]
    assert len(shown.panels) == len(told.panels) and all(len(panel.curves) == 2 for panel in shown.panels)


def test_waste_is_what_the_formula_gives_for_the_lengths():
    """Each request holds the blocks of its limit when reserved, and those of its tokens when paged."""
    stage = Stage()
    stage.play(story())
    size, limit = 8, 128
    for phase, held_for in (("a", lambda tokens: limit), ("b", lambda tokens: tokens)):
        measured = stage.player.results.phases["ab".index(phase)]
        stored = held = 0
        for record in stage.seen.of(r.StepRecord):
            if not measured.start <= record.clock <= measured.clock:
                continue
            ended = {event.seq for event in record.events if isinstance(event, r.Finished)}
            for row in r.unpack(record.rows, r.ROW):
                if int(row["seq"]) not in ended:
                    stored += int(row["context"])
                    held += blocks_for(held_for(int(row["context"])), size) * size
        gaps = sum(waste.gaps for waste in measured.wastes)
        assert measured.waste().stored == stored and measured.waste().held == held + gaps
        assert figure(stage, phase, "waste") == pytest.approx(1 - stored / (held + gaps))
        parts = [figure(stage, phase, f"waste_{part}") for part in ("reserved", "last_block", "gaps")]
        assert sum(parts) == pytest.approx(figure(stage, phase, "waste"))
    assert figure(stage, "a", "waste") > 2 * figure(stage, "b", "waste")


def test_the_second_phase_begins_with_an_empty_pool_unless_the_story_keeps_it():
    for keep in (False, True):
        stage, told = Stage(), story()
        told = msgspec.structs.replace(
            told,
            settings=told.settings | {"kv_tokens": 1024},
            phase=[
                msgspec.structs.replace(told.phase[0], settings={}),
                msgspec.structs.replace(told.phase[1], keep_cache=keep),
            ],
        )
        stage.play(told)
        assert stage.player.stage == "over"
        assert figure(stage, "a", "cached_tokens") == 0
        assert (figure(stage, "b", "cached_tokens") > 0) is keep


def test_figures_are_those_of_the_records():
    stage = Stage()
    stage.play(story())
    for index, phase in enumerate("ab"):
        measured = stage.player.results.phases[index]
        numbers = set(measured.answers.by_number)
        arrivals = {e.number: e.arrival for e in stage.seen.events(r.Submitted) if e.number in numbers}
        # the first step waited until all were there
        assert measured.times[0] >= (max(arrivals.values()) - min(arrivals.values())) / 1e9
        assert len({e.number for e in stage.seen.events(r.Submitted)} & numbers) == 8
        ends = {e.number: e.output_tokens for e in stage.seen.events(r.Finished) if e.number in numbers}
        assert figure(stage, phase, "tokens") == sum(ends.values())
        last = max(answer.last_token for answer in measured.answers.by_number.values())
        seconds = (last - min(arrivals.values())) / 1e9
        assert figure(stage, phase, "tokens_per_s") == pytest.approx(sum(ends.values()) / seconds)
        assert measured.rate()[1].max() > 0
        assert set(figures.all_of(measured)) == set(figures.FIGURES)


def test_requests_that_come_later_come_at_their_time_of_the_engines_clock():
    told = story()
    late = msgspec.structs.replace(told.requests[0], prompts=["late"], at=0.4, name="late")
    stage = Stage()
    stage.play(msgspec.structs.replace(told, requests=[told.requests[0], late]))
    assert stage.player.stage == "over"
    for measured in stage.player.results.phases:
        arrival = {a.number: (a.arrival - measured.start) / 1e9 for a in measured.of("late")}
        assert len(arrival) == 1 and len(measured.of("")) == 9
    assert figure(stage, "a", "tokens", "late") < figure(stage, "a", "tokens")


# --- in between ---


def test_a_paused_engine_holds_the_story_and_slow_motion_does_not_break_it():
    stage = Stage()
    stage.player.start(story())
    stage.until(lambda: stage.player.stage == "telling")
    stage.engine.send(r.Pause(id=stage.engine.next_id()))
    stage.turn(400)  # 20 s, in which the caption would have been read
    assert stage.player.stage == "telling" and stage.player.results.phases == []
    stage.engine.send(r.Resume(id=stage.engine.next_id()))
    stage.until(lambda: stage.player.stage == "running" and len(stage.player.results.phases[0].times) > 3)
    stage.engine.send(r.Pause(id=stage.engine.next_id()))
    stage.turn(10)
    steps = len(stage.player.results.phases[0].times)
    stage.turn(200)
    assert len(stage.player.results.phases[0].times) == steps and stage.player.stage == "running"
    stage.engine.send(r.StepOnce(id=stage.engine.next_id(), steps=2))
    stage.turn(10)
    assert len(stage.player.results.phases[0].times) == steps + 2
    stage.engine.send(r.SetDelay(id=stage.engine.next_id(), seconds=0.002))
    stage.engine.send(r.Resume(id=stage.engine.next_id()))
    stage.until(lambda: not stage.player.going, turns=1_000_000)  # turns are much shorter than the delay
    assert stage.player.stage == "over" and figure(stage, "b", "running_max") == 8


def test_a_story_begun_while_paused_waits_and_leaves_the_pause_alone():
    stage = Stage()
    stage.engine.send(r.Pause(id=stage.engine.next_id()))
    stage.turn(2)
    stage.player.start(story())
    stage.turn(300)
    assert stage.player.going and not stage.player.results.phases
    stage.player.leave()
    stage.until(lambda: not stage.player.going)
    assert stage.engine._loop._paused and not changed(stage)


def test_skipping_ends_a_caption_and_nothing_else():
    stage = Stage()
    stage.player.start(story())
    stage.until(lambda: stage.player.stage == "telling")
    before = stage.now
    stage.player.skip()
    stage.until(lambda: stage.player.stage == "running")
    assert stage.now - before < play.LEAST_READING / 2
    stage.player.skip()
    assert stage.player.stage == "running"


def test_captions_stay_as_long_as_they_take_to_read():
    stage = Stage()
    stage.player.start(story())
    stage.until(lambda: stage.player.stage == "telling")
    before = stage.now
    stage.until(lambda: stage.player.stage == "running")
    assert stage.now - before == pytest.approx(play.LEAST_READING, abs=3 * TICK)


# --- others ---


def test_it_waits_for_what_runs_already():
    stage = Stage()
    other = stage.submit()
    stage.turn(3)
    stage.player.start(story())
    assert stage.player.stage == "clearing" and stage.arrivals.held
    assert stage.captions[-1:] != [] or stage.player.caption == "Waiting for 1 request that runs to end first."
    stage.until(lambda: stage.player.stage == "telling")
    assert other in {event.number for event in stage.seen.events(r.Finished)}
    stage.until(lambda: not stage.player.going)
    assert stage.player.note == ""


def test_requests_of_others_beside_it_are_told():
    stage = Stage()
    stage.player.start(story())
    stage.until(lambda: stage.player.stage == "running")
    other = stage.submit()
    stage.until(lambda: not stage.player.going)
    assert stage.player.stage == "over" and "Requests of others" in stage.player.note
    assert other not in stage.player.results.phases[0].answers.by_number


@pytest.mark.parametrize("stage_name", ["clearing", "telling", "running"])
def test_leaving_gives_everything_back_and_aborts_only_its_own(stage_name: str):
    stage = Stage()
    if stage_name == "clearing":
        stage.submit()
        stage.turn(2)
    stage.player.start(story())
    stage.until(lambda: stage.player.stage == stage_name)
    other = stage.submit(max_tokens=50)
    stage.turn(3)
    stage.player.leave()
    stage.until(lambda: not stage.player.going)
    assert stage.player.shown is None and not stage.arrivals.held and not changed(stage)
    stage.until(lambda: not stage.engine.engine.has_work)
    aborted = {event.number for event in stage.seen.events(r.Aborted)}
    assert other not in aborted and other in {event.number for event in stage.seen.events(r.Finished)}
    assert len(aborted) == (8 if stage_name == "running" else 0)
    stage.engine.engine.check()


# --- trouble ---


def test_a_refused_change_is_told_and_the_story_ends_in_good_order():
    stage = Stage()
    told = story()
    stage.play(msgspec.structs.replace(told, settings=told.settings | {"max_context": 100_000}))
    assert stage.player.stage == "failed"
    assert "The engine refused what the story needs: max_context 100,000 is outside" in stage.player.caption
    assert not changed(stage) and not stage.arrivals.held
    stage.player.close()
    assert stage.player.shown is None
    stage.play(story())  # and another can be told
    assert stage.player.stage == "over"


def test_a_refused_request_ends_it():
    stage = Stage()
    told = story()
    stage.play(msgspec.structs.replace(told, requests=[msgspec.structs.replace(told.requests[0], stop=[""])]))
    assert stage.player.stage == "failed" and "was not served: a stop string is empty" in stage.player.caption
    assert not changed(stage)


def test_requests_aborted_by_others_end_it():
    stage = Stage()
    stage.player.start(story())
    stage.until(lambda: stage.player.stage == "running" and stage.player.results.phases[0].times)
    stage.engine.send(r.Abort(id=stage.engine.next_id()))
    stage.until(lambda: not stage.player.going)
    assert stage.player.stage == "failed" and "aborted" in stage.player.caption and not changed(stage)


def test_a_dead_engine_ends_it_and_the_next_one_gets_the_settings_back():
    stage = Stage()
    stage.player.start(story())
    stage.until(lambda: stage.player.stage == "running")
    story_settings = stage.engine.settings
    stage.player.take([r.Died(reason="a test")])
    assert stage.player.caption == "The engine stopped, and the story with it."
    stage.engine.config = msgspec.structs.replace(stage.engine.config, settings=story_settings)  # as a client would
    stage.engine.restart()
    stage.until(lambda: not stage.player.going)
    assert stage.player.stage == "failed" and not changed(stage)


def test_while_the_engine_is_dead_it_can_be_put_away_and_the_settings_come_back_all_the_same():
    stage = Stage()
    stage.player.start(story())
    stage.until(lambda: stage.player.stage == "running")
    settings = stage.engine.settings
    stage.player.take([r.Died(reason="a test")])
    shown = stage.player.shown
    assert shown.stage == "restoring" and shown.panels and shown.progress[0] >= 0  # what was measured stays
    stage.player.leave()
    assert stage.player.shown is None and stage.arrivals.held
    stage.turn(3)
    stage.engine.config = msgspec.structs.replace(stage.engine.config, settings=settings)
    stage.engine.restart()
    stage.until(lambda: not stage.player.going)
    assert stage.player.shown is None and not changed(stage) and not stage.arrivals.held


def test_another_may_follow_one_that_was_put_away_and_gives_back_for_both():
    stage = Stage()
    first = story()
    stage.player.start(first)
    stage.until(lambda: stage.player.stage == "running")
    settings = stage.engine.settings
    stage.player.take([r.Died(reason="a test")])
    stage.player.start(first)  # it is still shown
    assert stage.player.stage == "restoring"
    stage.player.leave()
    stage.player.start(msgspec.structs.replace(story(), settings={"max_batch": 2}))
    assert stage.player.shown.caption == "Waiting for the engine." and stage.arrivals.held
    stage.engine.config = msgspec.structs.replace(stage.engine.config, settings=settings)
    stage.engine.restart()
    stage.until(lambda: not stage.player.going)
    assert stage.player.stage == "over" and not changed(stage) and not stage.arrivals.held


def test_put_away_it_still_tells_that_the_settings_could_not_be_brought_back():
    stage = Stage()
    stage.player.start(story())
    stage.until(lambda: stage.player.stage == "running")
    settings = stage.engine.settings
    stage.player.take([r.Died(reason="a test")])
    stage.player.leave()
    assert stage.player.shown is None
    stage.player._owed = stage.player._owed | {"max_context": 100_000}
    stage.engine.config = msgspec.structs.replace(stage.engine.config, settings=settings)
    stage.engine.restart()
    stage.until(lambda: not stage.player.going)
    assert "could not be brought back" in stage.player.shown.caption and stage.player.shown.stage == "failed"


def test_an_engine_started_again_in_between_ends_it():
    stage = Stage()
    stage.player.start(story())
    stage.until(lambda: stage.player.stage == "running")
    stage.engine.config = msgspec.structs.replace(stage.engine.config, settings=stage.engine.settings)
    stage.engine.restart()
    stage.until(lambda: not stage.player.going)
    assert stage.player.stage == "failed" and "started again" in stage.player.caption and not changed(stage)


def test_an_engine_that_goes_while_settings_are_asked_for_is_waited_for():
    stage = Stage()
    stage.player.start(story())
    assert stage.player.stage == "clearing" and stage.engine._commands, "it waits for an answer"
    stage.player._engine.busy = 3  # so many ran when it went
    stage.player.take([r.Ended()])
    stage.turn(5)
    assert stage.player.stage == "clearing" and stage.player.caption == "Waiting for the engine."
    stage.engine.config = msgspec.structs.replace(stage.engine.config, settings=stage.engine.settings)
    stage.engine.restart()
    stage.until(lambda: not stage.player.going)
    assert stage.player.stage == "over" and not changed(stage)


def test_lost_records_end_it():
    stage = Stage()
    stage.player.start(story())
    stage.until(lambda: stage.player.stage == "running")
    stage.player.take([r.Gap(first=3, last=9)])
    stage.until(lambda: not stage.player.going)
    assert stage.player.stage == "failed" and "tell the story again" in stage.player.caption and not changed(stage)


def test_only_one_story_at_a_time():
    stage = Stage()
    stage.player.start(first := story())
    stage.player.start(msgspec.structs.replace(first, title="Another"))
    assert stage.player.story is first
    stage.player.close()  # not while it goes on
    assert stage.player.shown is not None
