"""The key-value header of a GGUF file, versions 2 and 3, and where its tensors lie.

Reads the header in one pass without making an array of each string, so that a vocabulary costs milliseconds.
Knows nothing of what keys mean. A truncated or corrupt header is a ModelProblem, never a huge allocation.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.model.problem import ModelProblem

Value = str | int | float | bool | list

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
MAX_DEPTH = 4  # arrays of arrays; the format sets no end, real files don't nest


@dataclass(frozen=True)
class TensorInfo:
    name: str
    shape: tuple[int, ...]  # as in the file, fastest axis first
    kind: int  # GGML type number
    offset: int  # bytes from the start of the file


@dataclass(frozen=True)
class Header:
    values: dict[str, Value]
    tensors: list[TensorInfo]


def read_header(path: Path) -> Header:
    """Raises ModelProblem."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data, path).header()
    except (OSError, ValueError) as error:  # ValueError: an empty file can't be mapped
        raise ModelProblem(f"cannot read {path}: {error}") from error


class _Reader:
    """A cursor over the mapped file."""

    def __init__(self, data: mmap.mmap, path: Path):
        self.data, self.path, self.at, self.size = data, path, 0, len(data)

    def header(self) -> Header:
        if self.data[:4] != b"GGUF":
            raise ModelProblem(f"{self.path} is not a GGUF file")
        self.at = 4
        version = self._one("I")
        if version & 0xFFFF == 0:  # the low half is empty when read in the other byte order
            raise ModelProblem(f"{self.path} is a big-endian GGUF file; convert it (gguf-convert-endian)")
        if version not in (2, 3):
            raise ModelProblem(f"{self.path} is GGUF version {version}; versions 2 and 3 can be read")
        tensors, pairs = self._one("Q"), self._one("Q")
        values = {}
        for _ in range(self._plausible(pairs, 13)):
            key = self._string()
            values[key] = self._value(self._one("I"), 0)
        found = [self._tensor() for _ in range(self._plausible(tensors, 24))]
        alignment = values.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise self._corrupt()
        base = -(-self.at // alignment) * alignment
        return Header(values, [TensorInfo(t.name, t.shape, t.kind, base + t.offset) for t in found])

    def _tensor(self) -> TensorInfo:
        name = self._string()
        dimensions = self._one("I")
        if dimensions > 8:
            raise self._corrupt()
        shape = tuple(self._one("Q") for _ in range(dimensions))
        return TensorInfo(name, shape, self._one("I"), self._one("Q"))

    def _value(self, kind: int, depth: int) -> Value:
        if kind in _SCALARS:
            return self._one(_SCALARS[kind])
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY and depth < MAX_DEPTH:
            return self._array(depth + 1)
        raise self._corrupt()

    def _array(self, depth: int) -> list:
        kind, count = self._one("I"), self._one("Q")
        if kind in _SCALARS:
            dtype = np.dtype("<" + {"?": "u1"}.get(_SCALARS[kind], np.dtype(_SCALARS[kind]).str[1:]))
            start = self._advance(count * dtype.itemsize)
            return np.frombuffer(self.data[start : self.at], dtype).tolist()
        return [self._value(kind, depth) for _ in range(self._plausible(count, 8))]

    def _string(self) -> str:
        length = self._one("Q")
        start = self._advance(length)
        # the format wants UTF-8, but vocabularies hold pieces that are none
        return self.data[start : self.at].decode("utf-8", "replace")

    def _one(self, code: str) -> int | float | bool:
        layout = "<" + code
        start = self._advance(struct.calcsize(layout))
        return struct.unpack_from(layout, self.data, start)[0]

    def _advance(self, count: int) -> int:
        start = self.at
        if count > self.size - start:
            raise self._corrupt()
        self.at = start + count
        return start

    def _plausible(self, count: int, least: int) -> int:
        """`count` entries of at least `least` bytes each must fit into what is left."""
        if count * least > self.size - self.at:
            raise self._corrupt()
        return count

    def _corrupt(self) -> ModelProblem:
        return ModelProblem(
            f"{self.path} is truncated or corrupt (its header breaks off at byte {self.at:,} of {self.size:,}); "
            "fetch it again"
        )
