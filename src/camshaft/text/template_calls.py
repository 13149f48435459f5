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

from camshaft.text.template_limits import INTEGER_BITS, ITEMS, SIZE, Limits, refuse

MAX_WIDTH = 100_000  # of a field that is padded
_MAX_FIELDS, _MAX_FORMAT = 10_000, 1_000_000  # fields and characters of a format
_MAX_ATTRIBUTE = 60  # characters of an attribute such as a.b.c, which is looked up for every item of a list
_MAX_PRODUCT = 1 << 30  # characters of a text times those of what is searched in it: some searches are quadratic
_WIDE = re.compile(r"\d{6}")
_STARRED = re.compile(r"%(\([^)]*\))?[-+ #0\d]*\.?\*")
_WIDE_CONVERSION = re.compile(r"[%.)#0\- +]\d{6}")

Guard = Callable[..., None]


def multiply_guard(limits: Limits, a: Any, b: Any) -> None:
    """Check a * b."""
    if isinstance(a, int) and isinstance(b, int):
        if a.bit_length() + b.bit_length() > INTEGER_BITS:
            refuse(f"an integer of more than {INTEGER_BITS:,} bits")
        return
    sequence, times = (b, a) if isinstance(a, int) else (a, b)
    if isinstance(times, int) and isinstance(sequence, str | bytes | list | tuple):
        weight = max(limits.weigh(sequence), len(sequence)) * times
        if weight > SIZE:
            refuse(f"a text or list of {weight:.4g} characters; at most {SIZE:,} are allowed")


def power_guard(limits: Limits, a: Any, b: Any) -> None:
    """Check a ** b."""
    if isinstance(a, int) and isinstance(b, int) and abs(a) > 1 and a.bit_length() * b > INTEGER_BITS:
        refuse(f"an integer of more than {INTEGER_BITS:,} bits")


def remainder_guard(limits: Limits, a: Any, b: Any) -> None:
    """Check a % b, where a may be a format."""
    if not isinstance(a, str):
        return
    if _STARRED.search(a) or ("%" in a and _WIDE_CONVERSION.search(a)):
        refuse("a field width of more than 100,000 characters")
    n_fields = a.count("%")
    if n_fields > _MAX_FIELDS or n_fields * limits.weigh(b) > 4 * SIZE:
        refuse(f"a text of more than {SIZE:,} characters")


def _pair_guard(limits: Limits, text: Any, *given: Any, **named: Any) -> None:
    """Check a method that searches its arguments in a text."""
    for other in (*given, *named.values()) if given or named else ():
        if isinstance(text, str) and isinstance(other, str) and len(text) * len(other) > _MAX_PRODUCT:
            refuse("a search for a long text in a long text")


def _replace_guard(limits: Limits, text: Any, old: Any = "", new: Any = "", *given: Any, **named: Any) -> None:
    text, old, new = str(text), str(old), str(new)
    _pair_guard(limits, text, old)
    if len(new) > len(old) and text.count(old) * len(new) + len(text) > 4 * SIZE:
        refuse(f"a text of more than {SIZE:,} characters")


def _width_guard(limits: Limits, text: Any, *given: Any, **named: Any) -> None:
    for width in (*given, *named.values()):
        if isinstance(width, int) and abs(width) > MAX_WIDTH:
            refuse(f"a width of more than {MAX_WIDTH:,} characters")


def _lines_guard(limits: Limits, text: Any, *given: Any, **named: Any) -> None:
    _width_guard(limits, text, *given, **named)
    widths = [len(w) if isinstance(w, str) else int(w) for w in (*given, *named.values()) if isinstance(w, str | int)]
    if (len(str(text)) + 1) * max([4, *widths]) > 64 * SIZE:
        refuse(f"a text of more than {SIZE:,} characters")


def _list_guard(limits: Limits, value: Any, *given: Any, **named: Any) -> None:
    if hasattr(value, "__len__") and len(value) > ITEMS:
        refuse(f"a list of {len(value):,} items; at most {ITEMS:,} are allowed")
    for other in (*given, *named.values()) if given or named else ():
        if isinstance(other, str) and len(other) > _MAX_ATTRIBUTE:
            refuse(f"an argument of more than {_MAX_ATTRIBUTE} characters")


def _rows_guard(limits: Limits, value: Any, *given: Any, **named: Any) -> None:
    _list_guard(limits, value)
    _width_guard(limits, value, *given, **named)


def _join_guard(limits: Limits, separator: Any, items: Any) -> None:
    if (limits.weigh(items) if not isinstance(items, str) else len(items)) + len(separator) * len(items) > 4 * SIZE:
        refuse(f"a text of more than {SIZE:,} characters")


def _list_join_guard(limits: Limits, value: Any, d: Any = "", attribute: Any = None) -> None:
    _list_guard(limits, value, *(() if attribute is None else (str(attribute),)))


def _number_guard(limits: Limits, value: Any, *given: Any, **named: Any) -> None:
    for number in (value, *given, *named.values()):
        if isinstance(number, str) and len(number) > 1000:
            refuse("a number of more than 1,000 digits")


def _round_guard(limits: Limits, value: Any, precision: Any = 0, method: Any = "common") -> None:
    if isinstance(precision, int) and abs(precision) > 300:
        refuse("a precision of more than 300 digits")


def _free(limits: Limits, *given: Any, **named: Any) -> None:
    """The guard of what makes nothing large."""


# The operators that are checked beside +, whose code LimitedCodeGenerator writes. The difference of two views of a mapping is a
# set.
OPERATORS: dict[str, Guard] = {"*": multiply_guard, "**": power_guard, "%": remainder_guard, "-": _free}


_SEARCHES = "count endswith find index lstrip removeprefix removesuffix rfind rindex rstrip startswith strip partition"
_SEARCHES += " rpartition split rsplit"
_CHANGES = "capitalize casefold lower splitlines swapcase title upper isalnum isalpha isascii isdecimal isdigit"
_CHANGES += " isidentifier islower isnumeric isprintable isspace istitle isupper"
METHODS: dict[type, dict[str, Guard]] = {
    str: {
        **dict.fromkeys(_SEARCHES.split(), _pair_guard),
        **dict.fromkeys(_CHANGES.split(), _free),
        **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _width_guard),
        "expandtabs": _lines_guard,
        "replace": _replace_guard,
        "join": _join_guard,
    },
    dict: dict.fromkeys(("copy", "get", "items", "keys", "values"), _free),
    list: dict.fromkeys(("copy", "count", "index"), _free),
    tuple: dict.fromkeys(("count", "index"), _free),
    range: dict.fromkeys(("count", "index"), _free),
    int: {"bit_length": _free},
    float: {"is_integer": _free},
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
            if guard is _join_guard and len(given) == 1 and not isinstance(given[0], str):
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
        if format_string.count("{") > _MAX_FIELDS or len(format_string) > _MAX_FORMAT:
            refuse(f"a format of more than {_MAX_FIELDS:,} fields or {_MAX_FORMAT:,} characters")
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
    _join_guard(_limits(context), str(d), items)
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
    **dict.fromkeys(_FREE_FILTERS.split(), _free),
    **dict.fromkeys(_LIST_FILTERS.split(), _list_guard),
    "batch": _rows_guard,
    "slice": _rows_guard,
    "join": _list_join_guard,
    "center": _width_guard,
    "indent": _lines_guard,
    "truncate": _pair_guard,
    "trim": _pair_guard,
    "replace": _replace_guard,
    "int": _number_guard,
    "float": _number_guard,
    "filesizeformat": _number_guard,
    "round": _round_guard,
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

    wrapper = checked if kind is not None else plain if guard is _free else guarded
    return functools.update_wrapper(wrapper, function, updated=())


def _counted(limits: Limits, result: Any) -> Any:
    """A generator with a check of the clock at each item; other results as they are."""
    return map(limits.item, result) if isinstance(result, GeneratorType) else result


def filters() -> dict[str, Any]:
    """The filters by name."""
    return {name: limited(_OWN.get(name) or JINJA_FILTERS[name], guard) for name, guard in FILTERS.items()}


def tests() -> dict[str, Any]:
    """The tests by name."""
    return {**JINJA_TESTS} | {name: limited(JINJA_TESTS[name], _free) for name in _COMPARISONS.split()}
