"""What the core asks of text: ids in, pieces out. The core itself never sees a character.

`engine.tokenizer.TextStreams` is the real one; `NullTexts` serves benches and tests that need ids alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Texts(Protocol):
    """One stream of text for each sequence between `start` and `finish`."""

    def start(self, seq: int, stop: list[str]) -> None: ...

    def append(self, seq: int, token: int) -> tuple[str, bool]:
        """The text that can be shown now, and whether a stop string was completed."""

    def finish(self, seq: int) -> str:
        """End the stream; the text held back until now."""

    def piece(self, token: int) -> str:
        """One token alone."""

    def whole(self, tokens: Iterable[int]) -> str:
        """Output tokens as one text."""

    def span(self, tokens: list[int]) -> str:
        """Some tokens in a row, out of any stream."""


class NullTexts:
    """No text: every piece is empty and no stop string is ever met."""

    def start(self, seq: int, stop: list[str]) -> None:
        return None

    def append(self, seq: int, token: int) -> tuple[str, bool]:
        return "", False

    def finish(self, seq: int) -> str:
        return ""

    def piece(self, token: int) -> str:
        return ""

    def whole(self, tokens: Iterable[int]) -> str:
        return ""

    def span(self, tokens: list[int]) -> str:
        return ""
