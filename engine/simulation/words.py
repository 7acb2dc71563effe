"""In the place of a tokenizer: prompts cut into pieces of about four characters, answers of filler words.

No model reads a prompt, so ids only have to be the same for the same text: then shared prefixes are found and shown as
they would be. What is 'generated' is filler, the kind of text that everybody knows to mean nothing.
"""

from __future__ import annotations

import re
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from engine.random_numbers import SAMPLE, uniform
from engine.records import Request
from engine.tokenizer import BadPrompt

END = 0
_TEXT = (
    "lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore et dolore magna "
    "aliqua enim ad minim veniam quis nostrud exercitation ullamco laboris nisi aliquip ex ea commodo consequat duis "
    "aute irure in reprehenderit voluptate velit esse cillum eu fugiat nulla pariatur"
)
FILLER = (*_TEXT.split(), "\n\n")  # the last one ends a paragraph
FIRST_PIECE = 256  # ids below are the end and filler
_PIECES = re.compile(r"\s?\w{1,4}|\s?[^\w\s]|\s", re.UNICODE)


class SimulatedWords:
    """What text streams and the worker need of a tokenizer. `vocabulary`: ids."""

    drops_first_space = True
    eos_ids = frozenset({END})

    def __init__(self, vocabulary: int):
        self._vocabulary = vocabulary
        self._bytes = {END: b""} | {
            1 + i: (word if word.isspace() else f" {word}").encode() for i, word in enumerate(FILLER)
        }

    def encode_request(self, request: Request) -> list[int]:
        """Raises BadPrompt."""
        if request.token_ids is not None:
            if not request.token_ids:
                raise BadPrompt("the prompt has no tokens; give at least one")
            return list(request.token_ids)
        if not request.prompt.strip():
            raise BadPrompt("the prompt is empty; type at least one word")
        text = f"{request.system}\n{request.prompt}" if request.system and not request.raw else request.prompt
        return [self._id(piece) for piece in _PIECES.findall(text)]

    def token_bytes(self, token: int) -> bytes:
        return self._bytes.get(token, b"?")

    def _id(self, piece: str) -> int:
        data = piece.encode("utf-8", "replace")
        token = FIRST_PIECE + crc32(data) % (self._vocabulary - FIRST_PIECE)
        self._bytes.setdefault(token, data)
        return token


def filler(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """The token that a simulated target chooses at each position of a request with that seed; they broadcast."""
    return 1 + (uniform(seeds, positions, SAMPLE) * len(FILLER)).astype(np.int64)


def another(token: int) -> int:
    """A filler token that isn't this one."""
    return 1 + token % len(FILLER)
