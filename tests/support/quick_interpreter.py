"""Triton's interpreter, relieved of work that it repeats at every operation: the same results in half the time.

What is kept instead of made again: the type of a block, the shape that tensors of a type have, numpy's type for one of
Triton's, and the patched language, which every call of one jitted function by another would patch anew. None of it
touches a number. Only the version that this was written for is touched: any other interprets as it likes, slower.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import triton
from triton.language import core
from triton.runtime import interpreter

VERSION = "3.9."


@contextmanager
def quick_interpreter() -> Iterator[bool]:
    """While it is entered. Gives whether this version of Triton is one that it knows."""
    if not triton.__version__.startswith(VERSION):
        yield False
        return
    block_type, function = core.block_type, interpreter.InterpretedFunction
    made, call, numpy_type = block_type.__init__, function.__call__, interpreter._get_np_dtype
    blocks: dict[tuple, Any] = {}
    numpy_types: dict[tuple, Any] = {}
    patched: set[Any] = set()
    shapes: dict[int, tuple] = {}
    made_tensor, equal_tuples = core.tensor.__init__, core.tuple.__eq__

    def new(cls: type, element: Any, shape: Any) -> Any:
        lengths = [n.value if isinstance(n, core.constexpr) else n for n in shape]
        key = (type(element), element.name, *lengths)
        if key not in blocks:
            blocks[key] = object.__new__(cls)
            made(blocks[key], element, shape)
        return blocks[key]

    def kept_numpy_type(of: Any) -> Any:
        scalar = of.element_ty if isinstance(of, block_type) else of
        key = type(scalar), scalar.name
        if key not in numpy_types:
            numpy_types[key] = numpy_type(of)
        return numpy_types[key]

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        # a launch patches what its kernel sees; Triton's own functions see another module, which stays patched
        if self.fn.__globals__.get("core") is core and core not in patched:
            interpreter._patch_lang(self.fn)
            patched.add(core)
        try:
            return self.rewrite()(*args, **kwargs)
        except Exception as error:
            raise interpreter.InterpreterError(repr(error)) from error

    def tensor_made(self: Any, handle: Any, of: Any) -> None:
        shape = shapes.get(id(of))
        if shape is None:
            made_tensor(self, handle, of)
            shapes[id(of)] = self.shape, self.numel, self.dtype, of  # which holds on to the type, and so to its id
        else:
            self.handle, self.type = handle, of
            self.shape, self.numel, self.dtype, _ = shape

    def equal(self: Any, other: Any) -> Any:
        if type(other) is core.tuple:
            return core.constexpr(self.values == other.values)
        return equal_tuples(self, other)

    block_type.__new__, block_type.__init__ = new, lambda *_: None
    core.tensor.__init__, core.tuple.__eq__ = tensor_made, equal
    interpreter._get_np_dtype, function.__call__ = kept_numpy_type, called
    try:
        yield True
    finally:
        block_type.__new__, block_type.__init__ = lambda cls, *_: object.__new__(cls), made
        core.tensor.__init__, core.tuple.__eq__ = made_tensor, equal_tuples
        interpreter._get_np_dtype, function.__call__ = numpy_type, call
