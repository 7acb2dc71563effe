"""A checkpoint's chat template, run as what it is: a program by a stranger.

Runs in jinja2's immutable sandbox: no attributes that lead out, no change of what it is given. On top of that a
render may take only so long and grow only so large, whatever it loops over: a trace function of the rendering
thread looks at the clock at every line, so loops, recursive macros and generators all end. What a trace can't
interrupt, one single call inside C, is kept small by refusing large operands. A template that still finds a way
to be slow harms only the engine's own process. Knows nothing of tokens.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import FrameType

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = dict[str, str]  # role, content

TIME_LIMIT = 2.0  # seconds; real templates take under a millisecond
GROWTH_LIMIT = 1_000_000  # characters or entries that a template may add to what it was given
# padding makes any length out of one small number; no chat format needs it
PADDING = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs"})


class TemplateProblem(Exception):
    """The template refused the messages, or was refused itself; the message says which."""


class _TooSlow(TemplateProblem):
    """Its time was up."""


class ChatTemplate:
    """Renders messages to the text that the model was trained on."""

    def __init__(self, source: str, bos_token: str = "", eos_token: str = ""):
        """Raises TemplateProblem for a template that doesn't compile."""
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._too_slow = ""  # why it is never run again: each try would hold up whatever else is served
        try:
            self._template = _Environment().from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateProblem(f"the chat template does not compile: {error}") from error
        except RecursionError as error:
            raise TemplateProblem("the chat template is nested too deep") from error

    def render(self, messages: Sequence[Message]) -> str:
        """The text up to where the model's answer begins. Raises TemplateProblem."""
        if self._too_slow:
            raise TemplateProblem(self._too_slow)
        given = sum(len(message["content"]) for message in messages)
        limit = GROWTH_LIMIT + 4 * given
        try:
            with _time_limit(TIME_LIMIT):
                self._template.environment.growth_limit = limit
                text = _joined(
                    self._template.generate(
                        messages=list(messages), add_generation_prompt=True, tools=None, documents=None, **self._tokens
                    ),
                    limit,
                )
        except _TooSlow as error:
            self._too_slow = str(error)
            raise
        except TemplateProblem:
            raise
        except Exception as error:  # a template can fail in any way that Python can
            raise TemplateProblem(f"the chat template failed: {str(error) or type(error).__name__}") from error
        return text


def plain_format(messages: Sequence[Message]) -> str:
    """What stands in for a template that a model doesn't have."""
    said = [f"{message['role'].capitalize()}: {message['content']}\n\n" for message in messages]
    return "".join(said) + "Assistant:"


def _joined(pieces: Iterator[str], limit: int) -> str:
    parts, size = [], 0
    for piece in pieces:
        parts.append(piece)
        size += len(piece)
        if size > limit:
            raise _too_large(limit)
    return "".join(parts)


def _too_large(limit: int) -> TemplateProblem:
    return TemplateProblem(f"the chat template makes more than {limit:,} characters")


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox with the names that templates of checkpoints expect, and operators that refuse large results."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation], autoescape=False
        )
        self.growth_limit = GROWTH_LIMIT
        self.filters["tojson"] = _tojson
        self.filters["_concat"] = self._concat
        for name in PADDING & self.filters.keys():
            del self.filters[name]
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        if isinstance(obj, str) and attr in PADDING:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: object, operator: str, left: object, right: object) -> object:
        if _size_of(operator, left, right) > self.growth_limit:
            raise _too_large(self.growth_limit)
        return super().call_binop(context, operator, left, right)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """`a ~ b` is no operator to the sandbox; make it a filter that counts."""
        tree = super()._parse(source, name, filename)
        _replace_concat(tree)
        return tree

    def _concat(self, parts: list[object]) -> str:
        return _joined(map(str, parts), self.growth_limit)


def _replace_concat(node: nodes.Node) -> None:
    for field, value in node.iter_fields():
        if isinstance(value, list):
            value[:] = [_counted(item) for item in value]
        elif isinstance(value, nodes.Node):
            setattr(node, field, _counted(value))


def _counted(node: object) -> object:
    if not isinstance(node, nodes.Node):
        return node
    _replace_concat(node)
    if not isinstance(node, nodes.Concat):
        return node
    line = node.lineno
    return nodes.Filter(nodes.List(node.nodes, lineno=line), "_concat", [], [], None, None, lineno=line)


def _size_of(operator: str, left: object, right: object) -> int:
    """How large the result may become: characters, entries, or decimal digits roughly."""
    if operator == "**":
        if isinstance(left, int) and isinstance(right, int):
            return left.bit_length() * max(right, 0)
        return 0
    if operator == "%":
        return _format_width(left) if isinstance(left, str) else 0
    sizes = [len(x) if isinstance(x, str | list | tuple) else None for x in (left, right)]
    if operator == "+":
        return sum(size or 0 for size in sizes)
    counts = [x for x in (left, right) if isinstance(x, int)]
    held = [size for size in sizes if size is not None]
    if held and counts:
        return held[0] * max(counts[0], 0)
    return sum(x.bit_length() for x in counts) if len(counts) == 2 else 0


def _format_width(pattern: str) -> int:
    """The widest field that a %-pattern asks for; `*` takes its width from a value and is refused."""
    widest, digits, inside = 0, "", False
    for character in pattern:
        if character == "%":
            digits, inside = "", not inside
        elif inside and character.isdigit():
            digits += character
            widest = max(widest, 10 ** min(len(digits), 18))
        elif inside and character == "*":
            return sys.maxsize
        elif inside and character.isalpha():
            inside = False
        elif inside:
            digits = ""
    return widest


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's words for training; here it only passes on."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 reads it from the class

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own escapes HTML, which no model was trained on."""
    if isinstance(indent, int) and indent > 16:
        raise TemplateProblem("the chat template indents JSON by more than 16")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise TemplateProblem(f"the chat template refuses this conversation: {message}")


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise TemplateProblem in this thread when its Python code runs on past `seconds`."""
    end = time.monotonic() + seconds
    before = sys.gettrace()

    def look(frame: FrameType, event: str, argument: object) -> Callable | None:
        if time.monotonic() > end:
            sys.settrace(before)  # once: what cleans up must not be stopped again
            raise _TooSlow(f"the chat template ran for more than {seconds:g} seconds")
        return look

    sys.settrace(look)
    try:
        yield
    finally:
        sys.settrace(before)
