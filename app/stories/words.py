"""Captions with figures in them: `{a.running_max}`, `{b.tokens_per_s / a.tokens_per_s}`.

A figure is written as `phase.name`, or `phase.group.name` for the requests of a named group alone. Of two with a
stroke between them the ratio is written. What was not measured reads as a dash; nothing here knows what a figure is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping

_FIELD = re.compile(r"\{([^{}]*)\}")
_NAME = re.compile(r"([ab])\.(?:(\w+)\.)?(\w+)")
DASH = "–"

Format = Callable[[float], str]


class BadTemplate(ValueError):
    """Braces that name no figure."""


def check(text: str, figures: Collection[str], groups: Collection[str] = ()) -> None:
    """Raises BadTemplate naming the first thing in braces that is no figure."""
    for inside in _FIELD.findall(text):
        parts = [part.strip() for part in inside.split("/")]
        if len(parts) > 2 or not all(_known(part, figures, groups) for part in parts):
            raise BadTemplate(f"{{{inside}}} names no figure; write it as {{a.tokens}} or {{b.tokens / a.tokens}}")
    if "{" in (rest := _FIELD.sub("", text)) or "}" in rest:
        raise BadTemplate("a brace stands alone; close it, or leave it out")


def fill(text: str, value: Callable[[str, str, str], float], formats: Mapping[str, Format]) -> str:
    """`value(phase, group, figure)`: NaN where there is none."""

    def one(match: re.Match[str]) -> str:
        parts = [_split(part.strip()) for part in match[1].split("/")]
        numbers = [value(*part) for part in parts]
        if any(map(math.isnan, numbers)):
            return DASH
        if len(numbers) == 1:
            return formats[parts[0][2]](numbers[0])
        return ratio(numbers[0] / numbers[1]) if numbers[1] else DASH

    return _FIELD.sub(one, text)


def ratio(value: float) -> str:
    """In three digits at most, in two where it is no small one."""
    return f"{value:.0f}×" if value >= 9.95 else f"{value:.1f}×" if value >= 1.95 else f"{value:.2f}×"


def _known(name: str, figures: Collection[str], groups: Collection[str]) -> bool:
    match = _NAME.fullmatch(name)
    return match is not None and match[3] in figures and (match[2] is None or match[2] in groups)


def _split(name: str) -> tuple[str, str, str]:
    match = _NAME.fullmatch(name)
    assert match is not None, name  # checked when the file was read
    return match[1], match[2] or "", match[3]
