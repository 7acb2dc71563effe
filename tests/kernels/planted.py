"""A fault planted in a kernel: its source with a few words changed, interpreted in its place.

A test that passes then as well would see no such fault. The words must occur once, so that a plant can't go stale.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def planted(kernel: Any, words: str, instead: str) -> Iterator[None]:
    """While entered, `kernel`, what @triton.jit made in the interpreter, runs as if `instead` stood for `words`."""
    rewriter, rewritten = kernel.rewriter, type(kernel).rewritten_fn
    before, prepare = rewritten.pop(kernel.fn, None), rewriter._prepare_source

    def with_fault(lines: list[str]) -> str:
        source = prepare(lines)
        assert source.count(words) == 1, f"{words!r} occurs {source.count(words)} times in {kernel.__name__}"
        return source.replace(words, instead)

    rewriter._prepare_source = with_fault
    try:
        yield
    finally:
        del rewriter._prepare_source
        rewritten.pop(kernel.fn, None)
        if before is not None:
            rewritten[kernel.fn] = before
