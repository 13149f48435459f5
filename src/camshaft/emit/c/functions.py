"""C templates for "expand:NAME" of the instruction table, for scalars and vectors.

A template is the body of `static inline {F} NAME_{s}(...)`: {F} {I} {U} are the type and the signed and unsigned integers of its
size, {s} {i} {u} the suffixes of helper names for these types, {w} the number of elements.
"""

from __future__ import annotations

import re

import numpy as np

from camshaft.dtypes import f32
from camshaft.emit.c.library import Form, Library, Maker, define

_CALLS = re.compile(r"\b(choose|splat|fma|round|sqrt|abs|floor_divide)_\{([siu])\}")
_HOLE = re.compile(r"\{([FIUwsiu])\}")
_BITS = re.compile(r"\bbits_\{([siu])\}_\{([siu])\}")


def number(value: float, form: Form) -> str:
    """A constant of the form's element type, exact."""
    kind = "f" if form.element == f32 else ""
    if value != value:
        return f'__builtin_nan{kind}("")'
    if value in (float("inf"), float("-inf")):
        return f"{'-' if value < 0 else ''}__builtin_inf{kind}()"
    text = str(np.float32(value)) if kind else repr(float(value))
    return text + kind


def _mask(form: Form) -> str:
    return "INT32_MAX" if form.element.nbytes == 4 else "INT64_MAX"


def _abs(form: Form) -> str:
    return f"return bits_{{i}}_{{s}}(bits_{{s}}_{{i}}(x) & {_mask(form)});"


def _extreme(compare: str, join: str, form: Form) -> str:
    if form.element.kind != "f":
        return f"return choose_{{s}}(a {compare} b, a, b);"
    return f"""// of 0 and -0 by their bits; NaN if either is
{{F}} y = choose_{{s}}(a {compare} b, a, b);
y = choose_{{s}}(a == b, bits_{{i}}_{{s}}(bits_{{s}}_{{i}}(a) {join} bits_{{s}}_{{i}}(b)), y);
return choose_{{s}}(a != a, a, y);"""


def _builtin(name: str, form: Form) -> str:
    """Call a compiler built-in: an instruction, or a C library function (sin and cos are accurate to the last place)."""
    call = f"__builtin_{name}{'f' if form.element == f32 else ''}"
    if not form.is_vector:
        return f"return {call}(x);"
    return f"{{F}} y;\nfor (int i = 0; i < {{w}}; i++)\n    y[i] = {call}(x[i]);\nreturn y;"


def _floor_divide(form: Form) -> str:
    if form.is_vector:
        loop = "for (int i = 0; i < {w}; i++)\n    y[i] = a[i] / b[i] - (a[i] % b[i] != 0 && (a[i] ^ b[i]) < 0);"
        return f"{{F}} y;\n{loop}\nreturn y;"
    return "return a / b - (a % b != 0 && (a ^ b) < 0);"


TEMPLATES = {
    "abs": (1, _abs),
    "minimum": (2, lambda form: _extreme("<", "|", form)),
    "maximum": (2, lambda form: _extreme(">", "&", form)),
    "sqrt": (1, lambda form: _builtin("sqrt", form)),
    "floor": (1, lambda form: _builtin("floor", form)),
    "round": (1, lambda form: _builtin("rint", form)),
    "ceil": (1, lambda form: _builtin("ceil", form)),
    "trunc": (1, lambda form: _builtin("trunc", form)),
    "sin": (1, lambda form: _builtin("sin", form)),
    "cos": (1, lambda form: _builtin("cos", form)),
    "rsqrt": (1, lambda form: f"return {number(1.0, form)} / sqrt_{{s}}(x);"),
    "floor_divide": (2, _floor_divide),
    "remainder": (2, lambda form: "return a - floor_divide_{s}(a, b) * b;"),
}


def fill(lib: Library, form: Form, text: str) -> str:
    """A template's text for a form, after the helpers that it calls."""
    forms = {"s": form, "i": form.signed, "u": form.unsigned}
    for match in _CALLS.finditer(text):
        lib.need(match[1], forms[match[2]])
    for match in _BITS.finditer(text):
        lib.convert("bits", forms[match[1]], forms[match[2]])
    names = {key: f.name for key, f in forms.items()} | {"w": str(form.n)}
    types = {"F": form, "I": form.signed, "U": form.unsigned}
    return _HOLE.sub(lambda m: names.get(m[1]) or lib.type_of(types[m[1]]), text)


def written(name: str) -> Maker:
    arity, body = TEMPLATES[name]

    def make(lib: Library, form: Form) -> str:
        filled, typ = fill(lib, form, body(form)), lib.type_of(form)
        operands = ("x",) if arity == 1 else ("a", "b", "c")[:arity]
        return define_text(typ, f"{name}_{form.name}", ", ".join(f"{typ} {o}" for o in operands), filled)

    return make


def define_text(result: str, name: str, parameters: str, body: str) -> str:
    """Indent a helper's text, except for preprocessor lines."""
    return define(result, name, parameters, *body.split("\n")).replace("\n    #", "\n#")
