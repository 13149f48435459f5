"""The operators, methods and filters that chat templates may use, each with a check of what it would make."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from types import BuiltinFunctionType, GeneratorType, ModuleType
from typing import Any

from jinja2 import pass_context
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.filters import do_items, make_attrgetter
from jinja2.runtime import Context
from jinja2.sandbox import SandboxedFormatter
from jinja2.tests import TESTS as JINJA_TESTS
from jinja2.utils import Namespace, _PassArg

from camshaft.text.templates.guards import (
    MAX_FIELDS,
    MAX_FORMAT,
    Guard,
    join_guard,
    lines_guard,
    list_guard,
    list_join_guard,
    multiply_guard,
    no_guard,
    number_guard,
    pair_guard,
    power_guard,
    remainder_guard,
    replace_guard,
    round_guard,
    rows_guard,
    width_guard,
)
from camshaft.text.templates.limits import SIZE, Limits, refuse

_WIDE = re.compile(r"\d{6}")

# The operators that are checked beside +, whose code LimitedCodeGenerator writes. The difference of two views of a mapping is a
# set.
OPERATORS: dict[str, Guard] = {"*": multiply_guard, "**": power_guard, "%": remainder_guard, "-": no_guard}


_SEARCHES = "count endswith find index lstrip removeprefix removesuffix rfind rindex rstrip startswith strip partition"
_SEARCHES += " rpartition split rsplit"
_CHANGES = "capitalize casefold lower splitlines swapcase title upper isalnum isalpha isascii isdecimal isdigit"
_CHANGES += " isidentifier islower isnumeric isprintable isspace istitle isupper"
METHODS: dict[type, dict[str, Guard]] = {
    str: {
        **dict.fromkeys(_SEARCHES.split(), pair_guard),
        **dict.fromkeys(_CHANGES.split(), no_guard),
        **dict.fromkeys(("center", "ljust", "rjust", "zfill"), width_guard),
        "expandtabs": lines_guard,
        "replace": replace_guard,
        "join": join_guard,
    },
    dict: dict.fromkeys(("copy", "get", "items", "keys", "values"), no_guard),
    list: dict.fromkeys(("copy", "count", "index"), no_guard),
    tuple: dict.fromkeys(("count", "index"), no_guard),
    range: dict.fromkeys(("count", "index"), no_guard),
    int: {"bit_length": no_guard},
    float: {"is_integer": no_guard},
}


def check_method(limits: Limits, method: Any, given: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
    """Check the call of a method of a text, number or list; returns its arguments, with generators as lists. Functions of the
    caller and macros pass."""
    owner = getattr(method, "__self__", None)
    if isinstance(owner, ModuleType) or (owner is None and not isinstance(method, BuiltinFunctionType)):
        return given
    for kind, table in METHODS.items():
        if isinstance(owner, kind):
            guard = table.get(method.__name__)
            if guard is None:
                break
            if guard is join_guard and len(given) == 1 and not isinstance(given[0], str):
                given = (_listed(limits, given[0]),)
            guard(limits, owner, *given, **named)
            return given
    if type(owner).__module__ == "builtins" or isinstance(owner, type | str):
        refuse(f"the method {method.__name__!r} of {_type_name(owner)} is not available")
    return given


def _type_name(owner: Any) -> str:
    return owner.__name__ if isinstance(owner, type) else type(owner).__name__


def _listed(limits: Limits, items: Iterable[Any]) -> list[Any]:
    if isinstance(items, list):
        return items
    listed = list(items)
    limits.weigh(listed)
    return listed


class LimitedNamespace(Namespace):
    """A namespace that doesn't print its attributes, which may hold it."""

    def __repr__(self) -> str:
        return "<namespace>"


class LimitedFormatter(SandboxedFormatter):
    """str.format with limits on widths and on the result."""

    _total = 0

    def vformat(self, format_string: str, args: Any, kwargs: Any) -> str:
        """Format. Raises LimitError for too many fields."""
        if format_string.count("{") > MAX_FIELDS or len(format_string) > MAX_FORMAT:
            refuse(f"a format of more than {MAX_FIELDS:,} fields or {MAX_FORMAT:,} characters")
        return super().vformat(format_string, args, kwargs)

    def format_field(self, value: Any, format_spec: str) -> Any:
        """Format one field. Raises LimitError for a wide one."""
        if _WIDE.search(format_spec):
            refuse("a field width of more than 100,000 characters")
        text = super().format_field(value, format_spec)
        self._total += len(text)
        if self._total > SIZE:
            refuse(f"a text of more than {SIZE:,} characters")
        return text


@pass_context
def _join(context: Context, value: Any, d: Any = "", attribute: Any = None) -> str:
    items = list(value) if attribute is None else list(map(make_attrgetter(context.environment, attribute), value))
    join_guard(_limits(context), str(d), items)
    return str(JINJA_FILTERS["join"](context.eval_ctx, items, d))


@pass_context
def _sum(context: Context, iterable: Any, attribute: Any = None, start: Any = 0) -> Any:
    """The sum of numbers: that of lists takes quadratic time."""
    items = iterable if attribute is None else map(make_attrgetter(context.environment, attribute), iterable)
    total = start
    for item in items:
        if not isinstance(item, int | float) or not isinstance(total, int | float):
            raise TypeError(f"sum of {type(item).__name__} is not available; wanted numbers")
        total += item
    return total


@pass_context
def _tojson(
    context: Context,
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    limits = _limits(context)
    limits.weigh(value)
    if len(indent if isinstance(indent, str) else " " * min(indent or 0, 17)) > 16:
        refuse("an indentation of more than 16 characters")
    if separators is not None and sum(map(len, separators)) > 16:
        refuse("separators of more than 16 characters")
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    if indent is None:
        return encoder.encode(value)
    return "".join(map(limits.text, encoder.iterencode(value)))


def _limits(context: Context) -> Limits:
    limits: Limits = context.limits  # type: ignore[attr-defined]
    return limits


_FREE_FILTERS = (
    "abs attr capitalize count d default dictsort e escape first items last length lower random reverse safe"
)
_FREE_FILTERS += " string title tojson upper"
_LIST_FILTERS = "groupby list map max min reject rejectattr select selectattr sort sum unique"
# Filter -> the check of its arguments. Others, such as pprint and urlize, no chat template uses.
FILTERS: dict[str, Guard] = {
    **dict.fromkeys(_FREE_FILTERS.split(), no_guard),
    **dict.fromkeys(_LIST_FILTERS.split(), list_guard),
    "batch": rows_guard,
    "slice": rows_guard,
    "join": list_join_guard,
    "center": width_guard,
    "indent": lines_guard,
    "truncate": pair_guard,
    "trim": pair_guard,
    "replace": replace_guard,
    "int": number_guard,
    "float": number_guard,
    "filesizeformat": number_guard,
    "round": round_guard,
    "format": lambda limits, a, *given, **named: remainder_guard(limits, str(a), named or given),
}
_OWN = {"join": _join, "sum": _sum, "tojson": _tojson, "items": do_items}
# Tests that compare, which may take long; the others look at one value.
_COMPARISONS = "in == eq equalto != ne > gt greaterthan ge >= < lt lessthan <= le lower upper"


# What Jinja passes first to a function that is marked so.
_FIRST: dict[_PassArg | None, Callable[[Context], tuple[Any, ...]]] = {
    None: lambda context: (),
    _PassArg.context: lambda context: (context,),
    _PassArg.eval_context: lambda context: (context.eval_ctx,),
    _PassArg.environment: lambda context: (context.environment,),
}


def limited(function: Any, guard: Guard) -> Callable[..., Any]:
    """A filter or test that checks its arguments and its result."""

    kind = _PassArg.from_obj(function)
    first = _FIRST[kind]

    @pass_context
    def plain(context: Any, *given: Any, **named: Any) -> Any:
        return context.limits.made(function(*given, **named))

    @pass_context
    def guarded(context: Any, *given: Any, **named: Any) -> Any:
        guard(context.limits, *given, **named)
        return context.limits.made(_counted(context.limits, function(*given, **named)))

    @pass_context
    def checked(context: Any, *given: Any, **named: Any) -> Any:
        guard(context.limits, *given, **named)
        return context.limits.made(_counted(context.limits, function(*first(context), *given, **named)))

    wrapper = checked if kind is not None else plain if guard is no_guard else guarded
    return functools.update_wrapper(wrapper, function, updated=())


def _counted(limits: Limits, result: Any) -> Any:
    """A generator with a check of the clock at each item; other results as they are."""
    return map(limits.item, result) if isinstance(result, GeneratorType) else result


def filters() -> dict[str, Any]:
    """The filters by name."""
    return {name: limited(_OWN.get(name) or JINJA_FILTERS[name], guard) for name, guard in FILTERS.items()}


def tests() -> dict[str, Any]:
    """The tests by name."""
    return {**JINJA_TESTS} | {name: limited(JINJA_TESTS[name], no_guard) for name in _COMPARISONS.split()}
