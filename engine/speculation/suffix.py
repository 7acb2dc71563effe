"""The draft is what followed the longest suffix of the sequence that came before, in itself or in what others said.

SuffixDecoding (Oliaro et al. 2411.04975). Prompt lookup knows one sequence and the last few tokens of it; this follows
a match to its full length, through outputs of requests that are done as well, so that a question asked again, or an
answer in a known form, is drafted from the first time. Of several continuations the most frequent is taken.

How long a match is says how far to trust it: a draft has at most `PER_MATCHED` tokens for each that matched, and it
ends where so many other continuations were seen that the whole of it is unlikely. Measured on 64 greedy outputs of the
default model (chat, lists, code, edits; 9,000 tokens) with γ 8, against tokens a pass ÷ what a pass over so many tokens
takes on two cores:
    prompt lookup, 2 to 4 tokens            1.46 tokens a pass, 1.44 times as fast
    one matched token, 1.0 for each, 0.5    1.58                1.55
    one matched token, 1.5 for each, 0.5    1.61                1.56    (edits alone: 3.63 and 2.78)
    two matched tokens, 2.0 for each, 0.5   1.54                1.51
    two matched tokens, 4.0 for each, 0.3   1.56                1.43
    only this output, no past ones: 0.02 less throughout, in a set of prompts that hardly repeat

Past outputs are kept in two automata of half the room each. What is said now goes into the younger; when that is full
the older is dropped. Text that is said again is thereby kept. Knows tokens only.
"""

from __future__ import annotations

from collections import deque

from engine.config import LiveSettings
from engine.speculation.automaton import SuffixAutomaton
from engine.speculation.proposer import Lookup

LEAST = 1  # tokens
PER_MATCHED = 1.5
LIKELY = 0.5  # share of what followed that all of a draft has
ROOM = 1 << 16  # tokens of past outputs: 30 MB
BEFORE = 64  # tokens at the end of a sequence that a match in past outputs is looked for from
_NOWHERE = (0, 0)
A_PASS = 128  # tokens of them put in beside a pass, so that no step waits for a long output: 0.3 ms


class _Own:
    """One live sequence. `tokens`: as far as they are in `text`. `places`: where a suffix of them is in each automaton
    of past outputs, and how long it is."""

    __slots__ = ("matched", "output", "places", "text", "tokens")

    def __init__(self, output: int):
        self.text = SuffixAutomaton()
        self.tokens: list[int] = []
        self.output = output  # where its output begins, about
        self.places: dict[SuffixAutomaton, tuple[int, int]] = {}
        self.matched = 0


class SuffixProposer(Lookup):
    """The longest match wins, the sequence's own among equals."""

    def __init__(self, least: int = LEAST, room: int = ROOM):
        """`least`: tokens that must match. `room`: tokens of past outputs that are kept."""
        if least < 1 or room < 2:
            raise ValueError(f"a match has at least one token, and two halves have room for one each: {least}, {room}")
        self._least, self._half = least, room // 2
        self._live: dict[int, _Own] = {}
        self._past = [SuffixAutomaton(), SuffixAutomaton()]  # the younger first
        self._ended: deque[list[int]] = deque()  # outputs that are still to be put in
        self._taken = 0  # tokens of the first of them that are
        self._waiting = 0  # tokens of all of them

    @classmethod
    def of(cls, settings: LiveSettings) -> SuffixProposer:
        return cls()

    def matched(self, seq: int) -> int:
        """Tokens that matched when it was last asked for, at least the least; 0: nothing did."""
        own = self._live.get(seq)
        return own.matched if own is not None else 0

    @property
    def past(self) -> int:
        """Tokens of past outputs that are kept."""
        return sum(half.size for half in self._past)

    def follow(self, seq: int, tokens: list[int], limit: int) -> list[int]:
        """At most `limit` tokens that are likely to come after `tokens`, all that the sequence has; none where nothing
        long enough matches."""
        if self._ended:
            self._take(A_PASS)
        own = self._live.get(seq)
        if own is None:
            own = self._live[seq] = _Own(max(0, len(tokens) - 1))
        self._extend(own, tokens)
        place, matched = own.text.repeated()
        where = own.text
        for half, (at, length) in own.places.items():
            if length > matched:
                where, place, matched = half, at, length
        own.matched = matched if matched >= self._least else 0
        if not own.matched:
            return []
        found, likely = [], 1.0
        for token, share in where.continuation(place, min(limit, int(PER_MATCHED * matched)), self._least):
            likely *= share
            if likely < LIKELY:
                break
            found.append(token)
        return found

    def forget(self, seq: int) -> None:
        """Its output goes to the past ones, but for what came with its last pass."""
        own = self._live.pop(seq, None)
        if own is not None and len(own.tokens) > own.output:
            self._ended.append(own.tokens[own.output :])
            self._waiting += len(self._ended[-1])
            while self._waiting > self._half and len(self._ended) > 1:  # more than is looked for: the oldest go
                self._waiting -= len(self._ended.popleft())
                self._taken = 0

    def _extend(self, own: _Own, tokens: list[int]) -> None:
        text, past = own.text, self._past
        new = tokens[len(own.tokens) :]
        own.tokens += new
        for token in new:
            text.append(token)
        for half in past:
            (at, length), follows = own.places.get(half, _NOWHERE), new
            if half not in own.places or len(new) > BEFORE:  # a match may have begun a little before
                (at, length), follows = _NOWHERE, tokens[-BEFORE:]
            for token in follows:
                at, length = half.step(at, length, token)
            own.places[half] = half.settled(at, length)
        if len(own.places) > len(past):
            own.places = {half: own.places[half] for half in past}

    def _take(self, most: int) -> None:
        """Put in as much of the outputs that ended."""
        while self._ended and most:
            output = self._ended[0]
            if self._past[0].size >= self._half:
                self._past = [SuffixAutomaton(), self._past[0]]
            young = self._past[0]
            if not self._taken or not young.size:
                young.begin()
            count = min(most, len(output) - self._taken, self._half - young.size)
            for token in output[self._taken : self._taken + count]:
                young.append(token)
            self._taken += count
            most -= count
            if self._taken == len(output):
                self._waiting -= len(self._ended.popleft())
                self._taken = 0
