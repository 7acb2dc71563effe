"""A verification as a walk: its stages, its chips as far as one has come, and every sentence with its numbers."""

from __future__ import annotations

import pytest

from engine.records import ACCEPTED, BONUS, DISCARDED, REJECTED, RESAMPLED, Candidate, Drawn, Examined, Sampling
from engine.records import Verification as Whole
from ui.verification import Kind, Told, Walk, chips, rows
from ui.verification_words import apart, chance, distribution, equals, figures, number, words


def candidate(token: int, p: float, q: float = 0.0, left: float = 0.0, below: float = 0.0) -> Candidate:
    return Candidate(token=token, text=f" w{token}", p=p, q=q, left=left, below=below)


CANDIDATES = [candidate(1, 0.5, 0.2, 0.75), candidate(2, 0.3, 0.5), candidate(3, 0.1, 0.0, 0.25, 0.75)]
ACCEPTS = Examined(position=10, verdict=ACCEPTED, token=2, text=" w2", p=0.3, q=0.5, draw=0.41, candidates=CANDIDATES)
REJECTS = Examined(
    position=11, verdict=REJECTED, token=2, text=" w2", p=0.3, q=0.5, draw=0.61, candidates=CANDIDATES, rejection=0.4,
    drawn=Drawn(token=1, text=" w1", draw=0.2, share=0.75, below=0.0),
)  # fmt: skip
UNSEEN = Examined(position=12, verdict=DISCARDED, token=3, text=" w3", q=0.4)
EXTRA = Examined(
    position=11, verdict=BONUS,
    candidates=[candidate(1, 0.5), candidate(2, 0.3, below=0.5), candidate(3, 0.1, below=0.8)],
    drawn=Drawn(token=3, text=" w3", draw=0.9, share=0.1, below=0.8),
)  # fmt: skip


def walk(*positions: Examined, greedy: bool = False, certain: bool = False, **told) -> Walk:
    whole = Whole(seq=3, greedy=greedy, certain=certain, positions=list(positions))
    told.setdefault("kept", {10: " w2", 11: " w1"})
    return Walk(Told(41, whole, **told))


REJECTED_WALK = (ACCEPTS, REJECTS, UNSEEN)


def at(shown: Walk, kind: Kind) -> Walk:
    shown.go(next(place for place, stage in enumerate(shown.stages) if stage.kind is kind))
    return shown


def test_stages_follow_the_rule():
    assert [s.name for s in walk(*REJECTED_WALK).stages] == ["draft", "test 1", "test 2", "leftover", "output"]
    assert [s.name for s in walk(ACCEPTS, EXTRA).stages] == ["draft", "test 1", "bonus", "output"]
    assert [s.name for s in walk(*REJECTED_WALK, greedy=True).stages][3] == "replacement"


def test_a_walk_ends_where_it_ends():
    shown = walk(*REJECTED_WALK)
    assert not shown.go(-1) and shown.go(2) and shown.at == 2
    assert shown.go(99) and shown.over and not shown.go(99)


def test_chips_know_no_more_than_what_was_walked():
    shown = walk(*REJECTED_WALK)
    found = []
    for _ in shown.stages:
        found.append([(chip.symbol, chip.verdict, chip.current) for chip in chips(shown)])
        shown.go(shown.at + 1)
    new, yes, no, gone = ("", None, False), ("✓", ACCEPTED, False), ("✕", REJECTED, False), ("–", DISCARDED, False)
    assert found[0] == [new, new, new]
    assert found[1] == [("✓", ACCEPTED, True), new, new]
    assert found[2] == [yes, ("✕", REJECTED, True), new]
    assert found[3] == [yes, no, ("↳", RESAMPLED, True), gone]
    assert found[4] == [yes, no, ("↳", RESAMPLED, False), gone]


def test_the_bonus_comes_last():
    shown = at(walk(ACCEPTS, EXTRA), Kind.BONUS)
    assert [(chip.symbol, chip.current) for chip in chips(shown)] == [("✓", False), ("+", True)]


def test_the_test_in_words():
    shown = walk(*REJECTED_WALK)
    shown.go(1)
    said = words(shown)
    assert said.line == "accept with probability min(1, 0.30/0.50) = 0.60; drew 0.41" and said.outcome == "accepted"
    shown.go(2)
    said = words(shown)
    assert said.line == "accept with probability min(1, 0.30/0.50) = 0.60; drew 0.61" and said.outcome == "rejected"
    shown.go(3)
    said = words(shown)
    assert said.line == "rejected: draw from what p has over q, max(0, p − q) ÷ 0.40; drew 0.20"
    assert said.outcome == "“w1”"
    shown.go(4)
    said = words(shown)
    assert said.outcome == "2 tokens" and "1 accepted + 1 in place of the rejected one" in said.line
    assert "1 draft never examined" in said.note


def test_greedy_needs_no_draw():
    best = Examined(position=10, verdict=ACCEPTED, token=1, text=" w1", p=0.5, q=1.0, candidates=CANDIDATES)
    other = Examined(
        position=11, verdict=REJECTED, token=2, text=" w2", p=0.3, q=1.0, candidates=CANDIDATES,
        drawn=Drawn(token=1, text=" w1"),
    )  # fmt: skip
    shown = walk(best, other, greedy=True, certain=True)
    shown.go(1)
    assert words(shown).line == "greedy: accepted if the draft is the likeliest; it is"
    shown.go(2)
    assert words(shown).line == "greedy: accepted if the draft is the likeliest; “w1” is likelier"
    shown.go(3)
    assert words(shown).line == "greedy: the likeliest token takes the rejected one's place"
    assert "no draw" in words(shown).note


def test_simulated_acceptance_is_said_to_be():
    shown = walk(*REJECTED_WALK, simulated=(0.8, 0.5))
    shown.go(2)
    assert words(shown).line == ("simulated: accepted at the rate set for it, 0.50, whatever p and q are; drew 0.61")
    assert words(shown).outcome == "rejected" and chance(shown.told, 9) == 0.5
    assert chance(walk(*REJECTED_WALK).told, 1) == pytest.approx(0.6)


def test_an_end_is_said_where_it_cut_the_pass():
    shown = at(walk(ACCEPTS, EXTRA, kept={10: " w2"}, ended="length"), Kind.COMMIT)
    assert words(shown).outcome == "1 token" and "1 of 2 are kept" in words(shown).note


@pytest.mark.parametrize(("method", "certain", "line"), [
    ("ngram", True, "n-gram lookup proposes what it is certain of: q = 1"),
    ("model", False, "the draft model draws each token from its own distribution q"),
    ("another", False, "another draws"),
])  # fmt: skip
def test_who_drafts_is_named(method, certain, line):
    said = words(walk(*REJECTED_WALK, method=method, certain=certain))
    assert said.line.startswith(line) and said.outcome == "3 tokens drafted"


def test_rows_keep_what_was_decided_about():
    found = rows(REJECTS, 2)
    assert [(r.text, r.drafted, r.drawn) for r in found[:-1]] == [(" w1", False, True), (" w2", True, False)]
    assert found[-1].others and found[-1].p == pytest.approx(0.2) and found[-1].left == pytest.approx(0.25)
    assert [r.text for r in rows(REJECTS, 9)] == [" w1", " w2", " w3", "all others"]
    assert rows(EXTRA, 3)[-1].q == 0  # a bonus has no draft


def test_numbers_are_as_long_as_they_must_be():
    assert [number(p) for p in (0.0, 1.0, 0.412, 0.004, 0.0001)] == ["0.00", "1.00", "0.41", "0.004", "<.001"]
    assert [number(p) for p in (0.994, 0.9962, 0.99999)] == ["0.99", "0.996", ">.999"]
    assert [figures(p) for p in (0.3, 0.0104, 0.00251, 0.9991)] == ["0.30", "0.010", "0.0025", "0.9991"]
    assert [equals(p) for p in (0.6, 0.0001, 0.99999)] == ["= 0.60", "< .001", "> .999"]
    assert apart(0.604, 0.601) == 3 and apart(0.6, 0.4) == 2


def test_what_was_done_to_p_is_named():
    def said(**sampling) -> str:
        return distribution(Whole(seq=1, greedy=False, certain=True, positions=[], sampling=Sampling(**sampling)))

    assert said(temperature=0.8, top_k=0, top_p=1.0, min_p=0.0) == "after temperature 0.8"
    assert said(temperature=1.0, top_k=5, top_p=0.9, min_p=0.1, presence_penalty=0.5) == (
        "after temperature 1, top-k 5, top-p 0.9, min-p 0.1, penalties"
    )
    own = Whole(seq=1, greedy=True, certain=True, positions=[], sampling=Sampling(temperature=0.0, top_k=5))
    assert distribution(own) == "the model's own at temperature 1"
    held = Whole(seq=1, greedy=True, certain=True, positions=[], sampling=Sampling(repetition_penalty=1.2))
    assert distribution(held) == "the model's own at temperature 1 after penalties"
