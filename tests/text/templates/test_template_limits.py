"""Limits of chat templates: each ends in text or one ModelError of one line, in bounded time and memory."""

from __future__ import annotations

import functools
import itertools
import threading
import tracemalloc
from collections.abc import Iterator

import pytest

from camshaft.errors import ModelError
from camshaft.text.chat import ChatTemplate
from camshaft.text.templates import limits as template_limits
from camshaft.text.templates.limits import OUTPUT
from tests.support.quick import full

HELLO = [{"role": "user", "content": "hello"}]
DOUBLED = (
    "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(100) %}{% set ns.x CHANGE %}{% endfor %}{{ ns.x|length }}"
)
NESTED = "{% set ns = namespace(x=(1,), y=(1,)) %}{% for i in range(60) %}{% set ns.x = (ns.x, ns.x) %}{% set ns.y = "
NESTED += "(ns.y, ns.y) %}{% endfor %}"
BIG = "{% set b = 'a' * 4000000 %}"
KEYS = "{% set ns = namespace(x=[]) %}{% set d = dict(range(9998)|batch(2)) %}"
DEEP = "{% set ns = namespace(x=()) %}{% for i in range(100000) %}{% set ns.x = (ns.x,) %}{% endfor %}{{ {ns.x: 1} }}"
ATTACKS = {
    "{{ 10**4000000 }}": "an integer of more than 16,384 bits",
    "{% set ns = namespace(x=2) %}{% for i in range(100) %}{% set ns.x = ns.x * ns.x %}{% endfor %}": "an integer of more",
    "{{ 0x" + "f" * 5000 + " }}": "an integer of more",
    "{{ 1.5|round(10**9, 'ceil') }}": "a precision of more than 300 digits",
    "{{ 'a'*10**12 }}": "a text or list of 1e[+]12 characters; at most 4,000,000 are allowed",
    "{{ [0]*10**12 }}": "a text or list of",
    "{{ 'a'|center(10**9) }}": "a width of more than 100,000 characters",
    "{{ 'a'|center(1000000000) }}": "a width of more",
    "{{ 'a'.ljust(10**9) }}": "a width of more",
    "{{ '%1000000000d' % 1 }}": "a field width of more",
    "{{ '%*d' % (1000000000, 1) }}": "a field width of more",
    "{{ '%.1000000000f'|format(1.5) }}": "a field width of more",
    "{{ '{:1000000000}'.format(1) }}": "a field width of more",
    "{{ '{:{w}}'.format(1, w=1000000000) }}": "a field width of more",
    "{{ ('{0}'*1000000).format('a') }}": "a format of more than 10,000 fields",
    BIG + "{{ '{0}{0}'.format(b) }}": "a text of more",
    BIG + "{{ ('%(b)s'*10000) % {'b': b} }}": "a (text|list) of more",
    BIG + "{{ b.join(['a']*1000) }}": "a text of more",
    BIG + "{{ ([none]*100000)|map('default', b, true)|join }}": "an argument of more than 60 characters",
    BIG + "{{ [b, b] }}": "a list of more than 4,000,000 characters",
    BIG + "{% macro f() %}{{ varargs }}{% endmacro %}{{ f(b, b) }}": "arguments of 8,000,000 characters",
    BIG + "{{ b.rfind('ab' + 'a' * 1000000) }}": "a search for a long text in a long text",
    BIG + "{{ b|trim('b' * 2000000) }}": "a search for a long text",
    BIG + "{{ b|list }}": "a list of 4,000,000 items",
    BIG + "{{ b }}{{ b }}": "the text has more than 4,000,000 characters",
    BIG + "{{ ('\\n' * 1000000)|indent(100000) }}": "a text of more",
    "{{ range(10)|slice(10**12)|list }}": "a width of more",
    "{{ range(10)|batch(10**12, 0)|list }}": "a width of more",
    "{{ range(10**9)|list }}": "Range too big",
    "{{ messages|tojson(indent=10**9) }}": "an indentation of more than 16",
    "{{ strftime_now('%c' * 1000) }}": "a time format of more than 200",
    DOUBLED.replace("CHANGE", "= ns.x ~ ns.x"): "a text of 4,194,304 characters",
    DOUBLED.replace("CHANGE", "= ns.x + ns.x"): "a text of 4,194,304 characters",
    DOUBLED.replace("CHANGE", "= ns.x|replace('a', 'aa')"): "a text of 4,194,304 characters",
    DOUBLED.replace("CHANGE", "= ns.x.replace('', 'aaaa')"): "a text of more",
    DOUBLED.replace("CHANGE", "%}{{ ns.x }}{{ ns.x }}{% endset"): "it makes more than 64,000,000 characters of text",
    NESTED + "{{ ns.x == ns.y }}": "a list of more than 4,000,000 characters",
    NESTED + "{{ ns.x }}": "a list of more",
    NESTED.replace("(ns.x, ns.x)", "{'a': [ns.x, ns.x]}.values()") + "{{ ns.x }}": "a list of more",
    KEYS + "{% for i in range(9000) %}{% set ns.x = ns.x + [d.keys() - {}.keys()] %}{% endfor %}": "of more than",
    "{{ ([namespace()] * 9)|map(attribute='a.' * 2000000)|list }}": "an argument of more than 60 characters",
    DEEP: "lists nested more than 100 deep",
    "{% for i in range(100000) %}" + "a" * 100 + "{% endfor %}": "the text has more than 4,000,000 characters",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "maximum recursion depth exceeded",
    "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}": "maximum recursion depth exceeded",
    "{{ {}.fromkeys(range(1000)) }}": "the method 'fromkeys' of dict is not available",
    "{{ ''.maketrans('a', 'b') }}": "the method 'maketrans' of",
    "{{ (5).to_bytes(1000000000, 'little') }}": "the method 'to_bytes' of int is not available",
    "{{ 'a'.encode('punycode') }}": "the method 'encode' of str is not available",
    "{% include 'x' %}": "the statement 'include' is not available",
    "{% block a %}{{ self.a() }}{% endblock %}": "the statement 'block' is not available",
    "{{ 'x'|pprint }}": "No filter named 'pprint'",
    "{{ " + "(" * 500 + "1" + ")" * 500 + " }}": "nested too deeply",
    "{{ " + "1+" * 3000 + "1 }}": "nested too deeply",
    "{% if 1 %}" * 200 + "{% endif %}" * 200: "nested too deeply|too many levels of indentation",
    "{% for x in y %}" * 30 + "{% endfor %}" * 30: "too many statically nested blocks",
    "{{ " + "1" * 5000 + " }}": "Exceeds the limit",
    "x" * 200_000: "it has 200,000 characters; at most 131,072 are allowed",
    "{{ [" + "1," * 20_001 + "] }}": "it has more than 20,000 parts",
    "{{ raise_exception('a\\nb') }}": "messages: a b$",
    "{{ raise_exception('a'*4000000) }}": "messages: a{297}[.]{3}$",
    "{{ 1 / 0 }}": "division by zero",
    "{{ 2.0 ** 5000 }}": "out of range",
    "{{ '%c' % 0x110000 }}": "not in range",
}
# Behind `full`: those that take 0.5 to 1.5 s until they are stopped.
SLOW = (KEYS, BIG + "{{ ([none]", "{{ [1,")
CASES = [full(source) if source.startswith(SLOW) else source for source in ATTACKS]


@pytest.mark.parametrize("source", CASES, ids=lambda source: source.replace(BIG, "")[:60])
def test_an_attack_is_one_line(source: str) -> None:
    with pytest.raises(ModelError, match=ATTACKS[source]) as caught:
        ChatTemplate(source).render(HELLO)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


LOOPS = [
    "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    "{% for a in range(100000) if range(100000)|select('eq', -1)|list %}{% endfor %}",
    "{% for a in range(100000) %}{{ range(100000)|map('abs')|sum }}{% endfor %}",
    "{% for a in range(9000) if a.b or a.c %}{% endfor %}",
    "{{ range(9000)|map(attribute='b')|list }}",
    "{% set a = [1] %}" + "{{ 2 in a }}" * 60,
    "{% set x = a == b %}" * 60,
]


def _look(name: str, moving: list[str], times: Iterator[int]) -> float:
    return next(times) / 20 if name in moving else 0.0


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The clocks that move on by 50 ms at each look."""
    moving: list[str] = []
    for name in ("clock", "cpu_clock"):
        monkeypatch.setattr(template_limits, name, functools.partial(_look, name, moving, itertools.count()))
    return moving


@pytest.mark.parametrize("source", LOOPS)
def test_time_is_limited(source: str, clocks: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    clocks.append("clock")
    monkeypatch.setattr(template_limits, "cpu_clock", template_limits.clock)
    with pytest.raises(ModelError, match="it takes more than 2 s"):
        ChatTemplate(source).render(HELLO)


def test_a_template_that_waits_for_a_busy_machine_has_time(clocks: list[str]) -> None:
    clocks.append("clock")
    assert len(ChatTemplate("{% for a in range(9000) %}a{% endfor %}").render(HELLO)) == 9000


@pytest.mark.full
def test_memory_is_limited() -> None:
    template = ChatTemplate("{{ range(100000)|map('string')|map('center', 50000)|list|length }}")
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match="it makes values of more than 256 MB"):
            template.render(HELLO)
        assert tracemalloc.get_traced_memory()[1] < 300e6
    finally:
        tracemalloc.stop()


def test_each_rendering_has_limits_of_its_own() -> None:
    template = ChatTemplate("{% set b = 'a' * n %}{{ b }}")
    results: dict[int, int] = {}

    def render(n: int) -> None:
        for _ in range(100):
            results[n] = len(template.render(HELLO, n=n))

    threads = [threading.Thread(target=render, args=(n,)) for n in (OUTPUT, OUTPUT - 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {OUTPUT: OUTPUT, OUTPUT - 1: OUTPUT - 1}


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ messages[0].content.split('l')|join('L')|upper }}", "HELLO"),
        (
            "{% set ns = namespace(l=[]) %}{% for m in messages %}{% set ns.l = ns.l + [m.role] %}{% endfor %}{{ ns.l }}",
            "['user']",
        ),
        (
            "{% macro tag(name) %}<{{ name }}>{{ caller() }}</{{ name }}>{% endmacro %}{% call tag('a') %}b{% endcall %}",
            "<a>b</a>",
        ),
        ("{{ '%s-%03d' % ('a', 7) }}{{ '{:>4}'.format('b') }}{{ '{x}'.format_map({'x': 1}) }}", "a-007   b1"),
        ("{% filter upper %}a{% endfilter %}{% set x %}b{{ 1 + 1 }}{% endset %}{{ x }}", "Ab2"),
        ("{{ 'a' ~ 1 ~ none }}{{ 7 % 2 }}{{ 2 ** 10 }}{{ 'ab' * 2 }}{{ [1] * 2 }}", "a1None11024abab[1, 1]"),
        ("{{ [3, 1, 2]|sort|map('string')|join(',') }}{{ [{'a': 1}, {'a': 2}]|sum(attribute='a') }}", "1,2,33"),
        ("{{ {'b': 1, 'a': [2]}|dictsort|list }}{{ {'a': 1}|items|list }}", "[('a', [2]), ('b', 1)][('a', 1)]"),
        ("{{ messages|selectattr('role', 'equalto', 'user')|list|length }}{{ [1, 2][::-1] }}", "1[2, 1]"),
        ("{% for a in [[1], [2, [3]]] recursive %}{{ loop(a) if a is iterable else a }}{% endfor %}", "123"),
        ("{{ ('<b>'|e ~ 'x')|length }}{{ ' a '|trim }}{{ 'a-b'|replace('-', '+') }}", "10aa+b"),
        ("{{ {'a': 1}|tojson(indent=2, sort_keys=true, separators=[',', ':']) }}", '{\n  "a":1\n}'),
        ("{{ cycler('a', 'b').next() }}{{ namespace(a=1) }}{{ dict(a=1).get('b', 2) }}", "a<namespace>2"),
    ],
)
def test_what_templates_do_is_unchanged(source: str, text: str) -> None:
    assert ChatTemplate(source).render(HELLO) == text


def test_functions_of_the_caller_are_called() -> None:
    assert ChatTemplate("{{ f(messages[0], 2) }}").render(HELLO, f=lambda m, n: m["content"] * n) == "hellohello"


def test_a_cyclic_message_is_one_line() -> None:
    message: dict[str, object] = {"role": "user"}
    message["content"] = [message]
    with pytest.raises(ModelError, match="nested more than 100 deep"):
        ChatTemplate("{{ [messages] }}").render([message])
