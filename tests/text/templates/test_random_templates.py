"""Random chat templates end in text or one ModelError of one line."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from camshaft.errors import ModelError
from camshaft.text.chat import ChatTemplate
from camshaft.text.templates import limits as template_limits
from camshaft.text.templates.calls import METHODS as METHODS_OF
from camshaft.text.templates.calls import filters
from camshaft.text.templates.limits import OUTPUT

HELLO = [{"role": "user", "content": "hello"}]
VALUES = st.sampled_from(
    [
        *(
            "messages",
            "ns.x",
            "ns.y",
            "m",
            "'a'",
            "''",
            "'%s'",
            "'{0}'",
            "' a\n'",
            "0",
            "-1",
            "3",
            "70000",
            "10**9",
            "1.5",
        ),
        *(
            "none",
            "true",
            "range(9)",
            "range(99999)",
            "[]",
            "{}",
            "loop.index",
            "f",
            "f(3)",
            "'☃'",
            "9999999999999999999",
        ),
    ]
)
FILTERS = [*filters(), "nothing", "pprint"]
METHODS = [*METHODS_OF[str], *METHODS_OF[dict], "format", "encode", "append", "nothing"]


def _wider(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    arguments = st.lists(inner, max_size=2).map(", ".join)
    return st.one_of(
        st.tuples(
            inner, st.sampled_from(["+", "-", "*", "/", "//", "%", "**", "~", "==", "<", "in", "and"]), inner
        ).map(lambda t: f"({' '.join(t)})"),
        st.tuples(inner, st.sampled_from(FILTERS), arguments).map(lambda t: f"({t[0]})|{t[1]}({t[2]})"),
        st.tuples(inner, st.sampled_from(METHODS), arguments).map(lambda t: f"({t[0]}).{t[1]}({t[2]})"),
        st.tuples(inner, inner).map(lambda t: f"({t[0]})[{t[1]}]"),
        st.tuples(inner, inner).map(lambda t: f"({t[0]})[{t[1]}:]"),
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        st.tuples(inner, inner).map(lambda t: f"{{{t[0]}: {t[1]}}}"),
        inner.map(lambda x: f"f({x})"),
        inner.map(lambda x: f"namespace(a={x})"),
    )


EXPRESSIONS = st.recursive(VALUES, _wider, max_leaves=12)


def _bodies(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    body = st.lists(inner, max_size=3).map("".join)
    return st.one_of(
        st.tuples(EXPRESSIONS, body).map(lambda t: f"{{% for m in {t[0]} %}}{t[1]}{{% endfor %}}"),
        st.tuples(EXPRESSIONS, body).map(lambda t: f"{{% if {t[0]} %}}{t[1]}{{% endif %}}"),
        body.map(lambda b: f"{{% set ns.x %}}{b}{{% endset %}}"),
        body.map(lambda b: f"{{% macro f(x) %}}{b}{{% endmacro %}}"),
        body.map(lambda b: f"{{% filter upper %}}{b}{{% endfilter %}}"),
        body.map(lambda b: f"{{% call f(1) %}}{b}{{% endcall %}}"),
    )


STATEMENTS = st.recursive(
    st.one_of(
        EXPRESSIONS.map(lambda e: f"{{{{ {e} }}}}"),
        EXPRESSIONS.map(lambda e: f"{{% set ns.x = {e} %}}"),
        EXPRESSIONS.map(lambda e: f"{{% set ns.y = {e} %}}"),
        st.sampled_from(["text", "{% break %}", "{{", "%}", "{#", "\0", "{% raw %}"]),
    ),
    _bodies,
    max_leaves=10,
)
TEMPLATES = st.lists(STATEMENTS, max_size=6).map(
    lambda parts: "{% set ns = namespace(x='aaaa', y=[1]) %}{% macro f(x) %}{{ x }}{% endmacro %}" + "".join(parts)
)


def ends_well(source: str) -> None:
    try:
        text = ChatTemplate(source).render(HELLO)
    except ModelError as error:
        text = str(error)
        assert "\n" not in text
    assert len(text) <= OUTPUT


@settings(max_examples=25, deadline=None)
@given(source=TEMPLATES)
def test_a_random_template_ends_in_text_or_one_line(source: str) -> None:
    ends_well(source)


@pytest.mark.soak
def test_random_templates_end_within_3_seconds_and_a_gigabyte() -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, before[1]))

    @settings(max_examples=4_000, deadline=None, database=None)
    @given(source=TEMPLATES)
    def search(source: str) -> None:
        started = template_limits.cpu_clock()
        ends_well(source)
        assert template_limits.cpu_clock() - started < 3

    try:
        search()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 1 << 20  # KiB
