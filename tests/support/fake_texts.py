"""Text without a tokenizer: token 0 is 'a', 1 is 'b' and so on; stop strings are held back as real streams do."""

from __future__ import annotations

from collections.abc import Iterable


class LetterTexts:
    """Implements `engine.texts.Texts`. `open`: sequences whose stream was started and not finished."""

    def __init__(self) -> None:
        self.open: dict[int, tuple[str, list[str]]] = {}  # seq → text held back, stop strings

    def start(self, seq: int, stop: list[str]) -> None:
        assert seq not in self.open
        self.open[seq] = "", stop

    def append(self, seq: int, token: int) -> tuple[str, bool]:
        held, stop = self.open[seq]
        held += self.piece(token)
        hits = [held.index(s) for s in stop if s in held]
        if hits:
            self.open[seq] = "", stop
            return held[: min(hits)], True
        keep = max((n for s in stop for n in range(1, len(s)) if held.endswith(s[:n])), default=0)
        self.open[seq] = held[len(held) - keep :], stop
        return held[: len(held) - keep], False

    def finish(self, seq: int) -> str:
        held, _ = self.open.pop(seq)
        return held

    def whole(self, tokens: Iterable[int]) -> str:
        return "".join(map(self.piece, tokens))

    def piece(self, token: int) -> str:
        return chr(ord("a") + token)

    def span(self, tokens: list[int]) -> str:
        return "".join(map(self.piece, tokens))
