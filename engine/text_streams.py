"""Tokens to text while they come: never half a character, never a part of what may become a stop string.

Each token is a few bytes; what is shown is the UTF-8 in them, so an append costs the token's own length whatever
the stream's. Special tokens have no bytes. Knows nothing of why a sequence runs or ends.

shown     pieces returned so far
held      text that may be the beginning of a stop string
tail      what is still held when the sequence ends, with an unfinished character as U+FFFD
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Protocol

_Utf8 = codecs.getincrementaldecoder("utf-8")


class TokenBytes(Protocol):
    """What a stream needs of a tokenizer."""

    @property
    def drops_first_space(self) -> bool:
        """SentencePiece puts a space before the first word; text leaves it out."""

    def token_bytes(self, token: int) -> bytes: ...


class StopMatcher:
    """Finds the stop string that is complete first, character by character (Knuth, Morris, Pratt).

    Independent of how text is cut into tokens. Where two are complete at once, the longer one counts.
    """

    def __init__(self, stops: Iterable[str]):
        self._stops = [(stop, _borders(stop)) for stop in stops if stop]
        self._matched = [0] * len(self._stops)  # characters of each stop string that the text ends with

    def __bool__(self) -> bool:
        return bool(self._stops)

    @property
    def held(self) -> int:
        """Characters at the end of the text that may begin a stop string."""
        return max(self._matched, default=0)

    def feed(self, character: str) -> int:
        """Length of the stop string that ends here; 0 = none."""
        longest = 0
        for at, (stop, borders) in enumerate(self._stops):
            count = self._matched[at]
            while count and stop[count] != character:
                count = borders[count - 1]
            count += stop[count] == character
            if count == len(stop):
                longest = max(longest, count)
                count = borders[count - 1]
            self._matched[at] = count
        return longest


def _borders(text: str) -> list[int]:
    """For each prefix, the length of its longest proper prefix that it also ends with."""
    borders, length = [0] * len(text), 0
    for at in range(1, len(text)):
        while length and text[at] != text[length]:
            length = borders[length - 1]
        length += text[at] == text[length]
        borders[at] = length
    return borders


class _Stream:
    """One sequence's text."""

    __slots__ = ("characters", "drop_space", "held", "matcher", "stopped")

    def __init__(self, stops: Iterable[str], drop_space: bool):
        self.characters = _Utf8("replace")
        self.matcher = StopMatcher(stops)
        self.held = ""
        self.drop_space = drop_space
        self.stopped = False

    def feed(self, data: bytes, final: bool = False) -> str:
        if self.drop_space and data:
            data, self.drop_space = data.removeprefix(b" "), False
        text = self.characters.decode(data, final)
        return self._checked(text) if self.matcher else text

    def _checked(self, text: str) -> str:
        """`held` and `text` up to a stop string, or up to what may become one."""
        whole = self.held + text
        for at, character in enumerate(text, start=len(self.held) + 1):
            ended = self.matcher.feed(character)
            if ended:
                self.stopped, self.held = True, ""
                return whole[: at - ended]
        shown = len(whole) - self.matcher.held
        self.held = whole[shown:]
        return whole[:shown]


class TextStreams:
    """The texts of all live sequences."""

    def __init__(self, tokenizer: TokenBytes):
        self._tokenizer = tokenizer
        self._streams: dict[int, _Stream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def start(self, seq: int, stop: Iterable[str] = ()) -> None:
        self._streams[seq] = _Stream(stop, self._tokenizer.drops_first_space)

    def append(self, seq: int, token: int) -> tuple[str, bool]:
        """The piece to show now, and whether a stop string is complete. After that nothing more is shown."""
        stream = self._streams[seq]
        if stream.stopped:
            return "", True
        return stream.feed(self._tokenizer.token_bytes(token)), stream.stopped

    def finish(self, seq: int) -> str:
        """The tail; the stream is gone. "" for a stopped or unknown one."""
        stream = self._streams.pop(seq, None)
        if stream is None or stream.stopped:
            return ""
        piece = stream.feed(b"", final=True)
        return piece if stream.stopped else piece + stream.held

    def piece(self, token: int) -> str:
        """One token alone, for drafts: half a character is U+FFFD."""
        return self._tokenizer.token_bytes(token).decode("utf-8", "replace")

    def whole(self, tokens: Iterable[int]) -> str:
        """Output tokens as one text."""
        stream = _Stream((), self._tokenizer.drops_first_space)
        return "".join([stream.feed(self._tokenizer.token_bytes(token)) for token in tokens]) + stream.feed(b"", True)

    def span(self, tokens: list[int]) -> str:
        """Some tokens in a row, for blocks: a character that the first or the last of them cuts in two is U+FFFD."""
        return b"".join(map(self._tokenizer.token_bytes, tokens)).decode("utf-8", "replace")
