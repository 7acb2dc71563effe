"""Lanes that branch and die, from records: the grid at any moment, paths, and what was found."""

from __future__ import annotations

from tests.support.lanes import Lanes, sky
from ui.branches import Branches, Tree
from ui.lane_blocks import Held, lane_blocks
from ui.mirror import Mirror


def grown(records) -> Tree:
    branches = Branches()
    for record in records:
        assert branches.step(record)
    (tree,) = branches
    return tree


def words(tree: Tree, step: int) -> list[str]:
    return [tree.text(tree.path(end)) for end in tree.ends(step)]


def test_a_lane_that_was_taken_over_reads_as_its_parent_did():
    tree = grown(sky())
    assert words(tree, 1) == ["It", "The", "Sky"]
    assert words(tree, 2) == ["It is", "The sky", "It was"]
    assert words(tree, 3) == ["It is blue", "It is red", "It was not"]
    assert tree.path((1, 2)) == [(0, 0), (0, 1), (1, 2)]


def test_what_died_is_what_no_lane_descends_from():
    tree = grown(sky()[:3])
    assert tree.alive(1) == {(0, 0), (1, 0), (2, 0)}
    assert tree.alive(2) == {(0, 0), (1, 0), (0, 1), (1, 1), (2, 1)}  # "Sky" died
    assert tree.alive(3) == {(0, 0), (0, 1), (2, 1), (0, 2), (1, 2), (2, 2)}  # "The sky" too


def test_an_earlier_moment_is_the_same_grid_read_up_to_there():
    whole, parts = grown(sky()), grown(sky()[:2])
    assert whole.length(2) == parts.length(2) == 2
    assert whole.alive(2) == parts.alive(2)
    assert whole.length(0) == 0 and whole.ends(0) == []


def test_what_was_found_are_paths_without_their_last_token():
    tree = grown(sky())
    assert tree.over == 4
    assert tree.paths == [[(0, 0), (0, 1), (1, 2)], [(0, 0), (0, 1), (0, 2)], [(1, 0)]]
    assert tree.alive(4) == {(0, 0), (0, 1), (1, 2), (0, 2), (1, 0)}
    assert tree.alive(3) == grown(sky()[:3]).alive(3)


def test_samples_all_live_and_may_differ_in_length():
    lanes = Lanes(2, beams=False)
    tree = grown(
        [
            lanes.record({0: (1, "a"), 1: (2, "b")}, 0, [*lanes.submitted(), lanes.fork(1, 0, 0)]),
            lanes.record({0: (3, "c")}, 1),
        ]
    )
    assert tree.kind == "samples" and tree.ends(2) == [(0, 1), (1, 0)]
    assert tree.alive(2) == {(0, 0), (0, 1), (1, 0)}
    assert words(tree, 2) == ["ac", "b"]


def test_a_beam_that_lags_behind_has_died():
    lanes = Lanes(2)
    tree = grown(
        [
            lanes.record({0: (1, "a"), 1: (2, "b")}, 0, [*lanes.submitted(), lanes.fork(1, 0, 0)]),
            lanes.record({0: (3, "c")}, 1),
        ]
    )
    assert tree.ends(2) == [(0, 1)]


def test_requests_of_one_sequence_are_not_kept():
    lanes = Lanes(1, beams=False)
    branches = Branches()
    assert not branches.step(lanes.record({0: (1, "a")}, 0, lanes.submitted()))
    assert not len(branches)


def test_the_oldest_tree_goes_and_its_lanes_with_it():
    branches = Branches(kept=2)
    for number in range(3):
        lanes = Lanes(2, number=number, first=10 * number)
        lanes.step = number
        branches.step(lanes.record({0: (1, "a")}, 0, lanes.submitted()))
    assert [tree.number for tree in branches] == [1, 2]
    assert branches.of(0) is None and branches.of(11).number == 1
    assert branches.at(2).number == 1 and branches.at(99).number == 2


def test_sharing_is_counted_by_logical_place():
    mirror = Mirror()
    for record in sky()[:2]:
        mirror.apply(record)
    (tree,) = mirror.branches
    found = lane_blocks(mirror.live, tree)
    assert found.places == [[Held(5, (0, 1, 2))], [Held(7, (0,)), Held(6, (1,)), Held(8, (2,))]]
    assert (found.entries, found.distinct, found.whole, found.some, found.spared) == (6, 4, 1, 0, 2)
    assert tree.copied(1) == 0 and tree.copied(2) == 2
    for record in sky()[2:]:
        mirror.apply(record)
    assert lane_blocks(mirror.live, tree).entries == 0
    assert lane_blocks(mirror.state_at(1), tree).whole == 2
