"""How much everything that an object holds amounts to, by where it is held: what a test of bounds looks at."""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

import numpy as np

OURS = ("ui.", "engine.", "app.")


def sizes(*roots: object) -> Counter[str]:
    """By 'Class.attribute', with [] for what is within a container: elements of all containers found there, and
    elements of arrays and characters of strings."""
    found: Counter[str] = Counter()
    seen: set[int] = set()
    todo: list[tuple[str, object]] = [(type(root).__name__, root) for root in roots]
    while todo:
        where, what = todo.pop()
        if id(what) in seen or isinstance(what, type) or what is None:
            continue
        if isinstance(what, str | bytes):
            found[where] += len(what)
            continue
        seen.add(id(what))
        if isinstance(what, np.ndarray | array):
            found[where] += what.size if isinstance(what, np.ndarray) else len(what)
        elif isinstance(what, Mapping):
            found[where] += len(what)
            todo += [(f"{where}[]", each) for each in what.values()]
        elif isinstance(what, list | tuple | deque | AbstractSet):
            found[where] += len(what)
            todo += [(f"{where}[]", each) for each in what]
        elif type(what).__module__.startswith(OURS):
            todo += [(f"{type(what).__name__}.{name}", value) for name, value in _attributes(what)]
        elif hasattr(what, "__self__"):  # a bound method
            todo.append((where, what.__self__))
        elif getattr(what, "__closure__", None):
            todo += [(where, cell.cell_contents) for cell in what.__closure__]
    return found


def _attributes(what: object) -> list[tuple[str, object]]:
    names = list(getattr(what, "__dict__", ()))
    for kind in type(what).__mro__:
        names += [name for name in getattr(kind, "__slots__", ()) if isinstance(name, str)]
    fields = getattr(type(what), "__struct_fields__", ())  # of msgspec
    names += fields if isinstance(fields, tuple) else ()
    return [(name, getattr(what, name)) for name in dict.fromkeys(names) if hasattr(what, name)]


def grown(
    earlier: Counter[str], later: Counter[str], share: float = 0.1, least: int = 64
) -> dict[str, tuple[int, int]]:
    """Where `later` holds more than `share` and `least` more than `earlier`."""
    return {
        where: (earlier[where], count)
        for where, count in later.items()
        if count - earlier[where] > max(least, share * earlier[where])
    }
