"""Templates of checkpoints work; templates that attack end soon, with a message."""

from __future__ import annotations

import sys
import threading
import time

import pytest

from engine.model import chat_template
from engine.model.chat_template import ChatTemplate, TemplateProblem, plain_format

USER = [{"role": "user", "content": "Hi <b>&"}]


def render(source: str, messages: list[dict[str, str]] = USER, **tokens: str) -> str:
    return ChatTemplate(source, **tokens).render(messages)


def test_names_that_templates_expect() -> None:
    assert render("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", bos_token="<s>", eos_token="</s>") == (
        "<s>Hi <b>&</s>"
    )
    assert render("{% if add_generation_prompt and not tools %}yes{% endif %}") == "yes"
    assert render("{{ messages[0]['content'] | tojson }}") == '"Hi <b>&"'
    assert render("{{ {'b': 'ä', 'a': [1]} | tojson(indent=1) }}") == '{\n "b": "ä",\n "a": [\n  1\n ]\n}'
    assert render("{{ strftime_now('%Y') | length }}") == "4"
    assert render("{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = i %}{% endfor %}{{ ns.n }}") == "2"


def test_loop_controls_and_generation_marks() -> None:
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert render("a{% generation %}{{ messages[0].role }}{% endgeneration %}b") == "auserb"


def test_blocks_leave_no_blank_lines() -> None:
    assert render("{% if true %}\n    {% if true %}\nx\n    {% endif %}\n{% endif %}") == "x\n"


def test_concatenation_joins_anything() -> None:
    assert render("{{ 'a' ~ 1 ~ none ~ ('b' ~ 'c') }}{% set x = 'd' ~ 2 %}{{ x }}") == "a1Nonebcd2"


def test_ordinary_operators_still_work() -> None:
    assert render("{{ '-' * 3 }} {{ 2 ** 5 }} {{ 7 % 4 }} {{ [1] + [2] }}") == "--- 32 3 [1, 2]"
    assert render("{{ '%d:%5.1f' % (3, 2.5) }}") == "3:  2.5"


def test_a_refusal_reaches_the_user() -> None:
    with pytest.raises(TemplateProblem, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize("source", ["{% if %}", "{{ messages", "{% endfor %}", "{{ " + "(" * 3000 + ")" * 3000 + " }}"])
def test_a_template_that_does_not_compile(source: str) -> None:
    with pytest.raises(TemplateProblem):
        ChatTemplate(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__.sys }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ self.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ '{0.__class__.__mro__}'.format(1) }}",
        "{{ namespace.__init__.__globals__ }}",
        "{% include '/etc/passwd' %}",
        "{{ undefined_thing.attribute }}",
        "{{ 1 / 0 }}",
    ],
)
def test_ways_out_are_closed(source: str) -> None:
    messages = [dict(USER[0])]
    with pytest.raises(TemplateProblem):
        render(source, messages)
    assert messages == USER


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' * 10**10 }}",
        "{{ 10 ** 10000000 }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (10**9, 1) }}",
        "{{ 'x'.center(10**10) }}",
        "{{ 'x'.ljust(10**10) }}",
        "{{ 'x' | center(10**10) }}",
        "{{ range(10**10) | list }}",
        "{{ [0] * 10**10 }}",
        "{{ messages | tojson(indent=10**9) }}",
        "{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(n=9) %}{% for i in range(60) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
        "{% macro again(n) %}{{ again(n + 1) }}{% endmacro %}{{ again(0) }}",
    ],
)
def test_growth_ends_at_once(source: str) -> None:
    started = time.monotonic()
    with pytest.raises(TemplateProblem):
        render(source)
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro twice(n) %}{% if n %}{{ twice(n - 1) }}{{ twice(n - 1) }}{% endif %}{% endmacro %}{{ twice(60) }}",
        "{% for i in [1, 2] recursive %}{{ loop([1, 2]) if loop.depth < 60 }}{% endfor %}",
    ],
)
def test_time_is_limited_in_any_thread(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "TIME_LIMIT", 0.2)
    template, failures = ChatTemplate(source), []

    def run() -> None:
        try:
            template.render(USER)
        except TemplateProblem as problem:
            failures.append(str(problem))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert failures == ["the chat template ran for more than 0.2 seconds"]


def test_an_earlier_trace_function_is_put_back() -> None:
    def mine(*arguments: object) -> None:
        return None

    before = sys.gettrace()
    sys.settrace(mine)
    try:
        render("x")
        assert sys.gettrace() is mine
    finally:
        sys.settrace(before)


def test_long_conversations_are_not_growth() -> None:
    text = "word " * 500_000
    said = [{"role": "user", "content": text}]
    assert render("{% for m in messages %}{{ m.role + ': ' + m.content }}{% endfor %}", said) == f"user: {text}"


def test_plain_format() -> None:
    assert plain_format([{"role": "system", "content": "Be brief."}, *USER]) == (
        "System: Be brief.\n\nUser: Hi <b>&\n\nAssistant:"
    )
