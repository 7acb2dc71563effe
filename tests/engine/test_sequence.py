"""A sequence's counters and what its check refuses."""

from __future__ import annotations

from array import array

import pytest

from engine.records import Request
from engine.sequence import Sequence


def make(prompt: int = 5, output: int = 0, computed: int = 0, blocks: int = 0) -> Sequence:
    sequence = Sequence(
        seq=1,
        number=10,
        request=Request(number=10, max_tokens=20, label="test"),
        prompt_tokens=prompt,
        tokens=list(range(prompt + output)),
        arrival=1,
        order=(0, 1),
    )
    sequence.status, sequence.limit = "running", 25
    sequence.computed, sequence.table = computed, array("q", range(blocks))
    return sequence


def test_counters() -> None:
    sequence = make(prompt=5, output=3)
    assert (sequence.known, sequence.output_tokens, sequence.priority) == (8, 3, 0)


@pytest.mark.parametrize(
    ("prompt", "output", "computed", "decoding"),
    [
        (5, 0, 4, False),  # a prompt's last token is prefill, whatever the chunk
        (5, 1, 5, True),
        (5, 3, 7, True),
        (5, 3, 6, False),  # recomputing after a preemption
        (5, 3, 0, False),
    ],
)
def test_decoding(prompt: int, output: int, computed: int, decoding: bool) -> None:
    assert make(prompt, output, computed).decoding is decoding


@pytest.mark.parametrize("computed, blocks", [(8, 2), (8, 3), (7, 2), (0, 0), (0, 1)])
def test_tables_that_fit_what_is_computed(computed: int, blocks: int) -> None:
    make(prompt=9, computed=computed, blocks=blocks).check(block_size=4)


@pytest.mark.parametrize("computed, blocks", [(8, 1), (8, 4), (7, 3), (1, 0), (9, 3), (0, 2)])
def test_tables_and_counters_that_do_not(computed: int, blocks: int) -> None:
    with pytest.raises(AssertionError):
        make(prompt=9, computed=computed, blocks=blocks).check(block_size=4)


def test_a_waiting_sequence_holds_nothing() -> None:
    sequence = make(computed=3, blocks=1)
    sequence.status = "waiting"
    with pytest.raises(AssertionError):
        sequence.check(block_size=4)


def test_more_accepted_than_drafted_is_caught() -> None:
    sequence = make()
    sequence.accepted = 1
    with pytest.raises(AssertionError):
        sequence.check(block_size=4)


def test_state_carries_the_counters() -> None:
    sequence = make(prompt=5, output=3, computed=7, blocks=2)
    sequence.pieces = ["a", "b", "c"]
    state = sequence.state("hello")
    assert (state.known, state.computed, state.limit, state.output, state.prompt) == (8, 7, 25, "abc", "hello")
    assert (state.number, state.max_tokens, state.label, state.status) == (10, 20, "test", "running")
