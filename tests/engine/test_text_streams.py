"""Pieces add up to the whole text, whatever the cuts; stop strings end it at the same place, whatever the cuts."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.model.store import resolve
from engine.text_streams import StopMatcher, TextStreams
from engine.tokenizer import Tokenizer


class Bytes:
    """A vocabulary of which token n is `pieces[n]`; beyond it, special tokens."""

    def __init__(self, pieces: list[bytes], drops_first_space: bool = False):
        self.pieces, self.drops_first_space = pieces, drops_first_space

    def token_bytes(self, token: int) -> bytes:
        return self.pieces[token] if token < len(self.pieces) else b""


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(resolve("default").tokenizer_path)


def run(streams: TextStreams, tokens: list[int], stop: list[str]) -> tuple[str, bool, list[str]]:
    streams.start(1, stop)
    pieces, hit = [], False
    for token in tokens:
        piece, hit = streams.append(1, token)
        pieces.append(piece)
        if hit:
            break
    pieces.append(streams.finish(1))
    return "".join(pieces), hit, pieces


def before_stop(text: str, stops: list[str]) -> tuple[str, bool]:
    """The definition, by brute force: the stop string that is complete first; of two at once the longer."""
    for end in range(1, len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            return text[: end - max(map(len, ended))], True
    return text, False


@given(tokens=st.lists(st.integers(0, 49151), max_size=60))
@settings(max_examples=300)
def test_pieces_add_up_to_the_decoded_text(tokenizer: Tokenizer, tokens: list[int]) -> None:
    assert run(TextStreams(tokenizer), tokens, [])[0] == tokenizer.decode(tokens)


@given(text=st.text(max_size=80))
@settings(max_examples=200)
def test_text_comes_back_and_never_in_broken_characters(tokenizer: Tokenizer, text: str) -> None:
    whole, _, pieces = run(TextStreams(tokenizer), tokenizer.encode(text, add_special=False), [])
    plain = tokenizer.decode(tokenizer.encode(text, add_special=False))
    assert whole == plain
    if "\N{REPLACEMENT CHARACTER}" not in plain:  # this vocabulary lacks a few bytes
        assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


@given(
    cuts=st.lists(st.text("ab", min_size=1, max_size=4), max_size=20),
    stops=st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=3),
)
@settings(max_examples=500)
def test_stop_strings_cut_at_their_first_occurrence(cuts: list[str], stops: list[str]) -> None:
    streams = TextStreams(Bytes([cut.encode() for cut in cuts]))
    whole, hit, pieces = run(streams, list(range(len(cuts))), stops)
    assert (whole, hit) == before_stop("".join(cuts), stops)
    if hit:
        assert pieces[-1] == ""  # no tail after a stop


@given(text=st.text("añ€🎉", max_size=20), data=st.data())
@settings(max_examples=200)
def test_bytes_in_any_portions(text: str, data: st.DataObject) -> None:
    raw, pieces = text.encode(), []
    while raw:
        size = data.draw(st.integers(1, 5))
        pieces.append(raw[:size])
        raw = raw[size:]
    stops = data.draw(st.lists(st.text("añ€🎉", min_size=1, max_size=3), max_size=2))
    whole, hit, _ = run(TextStreams(Bytes(pieces)), list(range(len(pieces))), stops)
    assert (whole, hit) == before_stop(text, stops)


def test_half_a_character_waits_and_ends_as_a_replacement() -> None:
    streams = TextStreams(Bytes([b"a\xf0\x9f", b"\x8e", b"\x89b", b"\xe2\x82"]))
    streams.start(7)
    assert [streams.append(7, token)[0] for token in (0, 1, 2, 3)] == ["a", "", "🎉b", ""]
    assert streams.finish(7) == "\N{REPLACEMENT CHARACTER}"
    assert len(streams) == 0 and streams.finish(7) == ""


def test_text_that_only_began_a_stop_string_is_shown() -> None:
    streams = TextStreams(Bytes([b"one\n", b"\nU", b"ser", b"s"]))
    streams.start(1, ["\n\nUser:"])
    assert [streams.append(1, token) for token in (0, 1, 2)] == [("one", False), ("", False), ("", False)]
    assert streams.append(1, 3) == ("\n\nUsers", False)
    assert streams.append(1, 0) == ("one", False)
    assert streams.finish(1) == "\n"


def test_a_stop_string_ends_the_text_for_good() -> None:
    streams = TextStreams(Bytes([b"yes END no", b"more"]))
    streams.start(1, ["END"])
    assert streams.append(1, 0) == ("yes ", True)
    assert streams.append(1, 1) == ("", True)
    assert streams.finish(1) == ""


def test_an_unfinished_character_can_complete_a_stop_string() -> None:
    streams = TextStreams(Bytes([b"a", b"\xe2"]))
    streams.start(1, ["\N{REPLACEMENT CHARACTER}"])
    streams.append(1, 0), streams.append(1, 1)
    assert streams.finish(1) == ""


def test_special_tokens_are_invisible_also_inside_a_character() -> None:
    streams = TextStreams(Bytes([b"\xe2\x82", b"\xac"]))
    assert run(streams, [99, 0, 99, 1, 99], [])[2] == ["", "", "", "€", "", ""]
    assert streams.piece(99) == "" and streams.piece(0) == "\N{REPLACEMENT CHARACTER}"


def test_the_first_space_of_sentencepiece_is_left_out() -> None:
    streams = TextStreams(Bytes([b" two", b" words", b"  x"], drops_first_space=True))
    assert run(streams, [99, 0, 1], [])[0] == "two words"
    assert run(streams, [2, 0], [])[0] == " x two"


def test_streams_do_not_disturb_each_other() -> None:
    streams = TextStreams(Bytes([b"\xe2\x82", b"\xac", b"a"]))
    streams.start(1)
    streams.start(2)
    streams.append(1, 0)
    assert streams.append(2, 2) == ("a", False)
    assert streams.append(1, 1) == ("€", False)


def test_matcher_without_stops_is_falsy_and_empty_stops_are_dropped() -> None:
    assert not StopMatcher([]) and not StopMatcher([""])


@pytest.mark.parametrize("piece", [b"word ", b"\xff", b"\x80"])
def test_an_append_costs_the_same_at_any_length(piece: bytes) -> None:
    """Even where the bytes never make a character, and where all of it might begin a stop string."""
    streams = TextStreams(Bytes([piece]))
    streams.start(1, ["zzz", "x" * 4000])

    def seconds(count: int) -> float:
        started = time.perf_counter()
        for _ in range(count):
            streams.append(1, 0)
        return time.perf_counter() - started

    seconds(500)
    early = min(seconds(500) for _ in range(5))
    seconds(30_000)
    assert min(seconds(500) for _ in range(5)) < 5 * early
