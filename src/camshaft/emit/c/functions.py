"""The table's "expand:NAME" in C, for scalars and vectors alike: the same polynomials as LLVM's.

A template is the body of `static inline {F} NAME_{s}(...)`: {F} {I} {U} are the type and the integers of its size, {s} {i} {u}
what the helpers' names on them end in, {w} the number of elements.
"""

from __future__ import annotations

import re

import numpy as np

from camshaft.dtypes import f32
from camshaft.emit.c.library import Form, Library, Maker, define
from camshaft.emit.llvm.math.functions import FORMS

_CALLS = re.compile(r"\b(choose|splat|fma|round|sqrt|exp|abs|floor_divide)_\{([siu])\}")
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


def _horner(name: str, x: str, coefficients: tuple[float, ...], form: Form) -> str:
    """A polynomial by Horner's rule, highest power first, a line for each coefficient."""
    lines = [f"{{F}} {name} = splat_{{s}}({number(coefficients[0], form)});"]
    lines += [f"{name} = fma_{{s}}({name}, {x}, splat_{{s}}({number(c, form)}));" for c in coefficients[1:]]
    return "\n".join(lines)


def _exp(form: Form) -> str:
    """x = n ln 2 + r, a polynomial in r, and 2^n in two factors so that subnormal results are right."""
    f = FORMS[form.element.name]
    low, high, shifter = number(f.exp_low, form), number(f.exp_high, form), number(f.shifter, form)
    return f"""// e^x: x = n ln 2 + r, a polynomial in r, and 2^n in two factors so that subnormal results are right
x = choose_{{s}}(x < {low}, splat_{{s}}({low}), x);
x = choose_{{s}}(x > {high}, splat_{{s}}({high}), x);
const {{F}} shifted = fma_{{s}}(x, splat_{{s}}({number(1.4426950408889634, form)}), splat_{{s}}({shifter}));
const {{F}} n = shifted - {shifter};
{{F}} r = fma_{{s}}(n, splat_{{s}}({number(-f.ln2_high, form)}), x);
r = fma_{{s}}(n, splat_{{s}}({number(-f.ln2_low, form)}), r);
{_horner("p", "r", f.exp, form)}
// n is in the low bits
const {{I}} whole = bits_{{s}}_{{i}}(shifted) - bits_{{s}}_{{i}}(splat_{{s}}({shifter}));
const {{I}} half = whole >> 1;
const {{I}} rest = whole - half;
return p * bits_{{i}}_{{s}}((half + {f.bias}) << {f.mantissa_bits}) * bits_{{i}}_{{s}}((rest + {f.bias}) << {f.mantissa_bits});"""


def _log(form: Form) -> str:
    f = FORMS[form.element.name]
    up = f.mantissa_bits + 1

    def number_(value: float) -> str:
        return number(value, form)

    series = _horner("series", "z", tuple(2 / (2 * i + 1) for i in range(f.log_terms, 0, -1)), form)
    as_float = "__builtin_convertvector(k, {F})" if form.is_vector else "({F})k"
    inf, nan, zero = number_(float("inf")), number_(float("nan")), number_(0.0)
    return f"""// ln x: x = 2^k m, m from sqrt(1/2) to sqrt(2); ln m = 2 atanh(s), s = (m - 1) / (m + 1), by its odd series
const {{F}} normal = choose_{{s}}(x < {number_(f.smallest_normal)}, x * {number_(2.0**up)}, x);
const {{I}} bits = bits_{{s}}_{{i}}(normal);
const {{I}} k = (bits - {f.sqrt_half_bits}) >> {f.mantissa_bits};
const {{F}} m = bits_{{i}}_{{s}}(bits - (k << {f.mantissa_bits}));
const {{F}} scaled = choose_{{s}}(x < {number_(f.smallest_normal)}, splat_{{s}}({number_(float(up))}), splat_{{s}}({zero}));
const {{F}} exponent = {as_float} - scaled;
const {{F}} f = m - {number_(1.0)};
const {{F}} s = f / (f + {number_(2.0)});
const {{F}} z = s * s;
{series}
// ln m = f - s (f - z series): keeps the rounding of f out of the small term
const {{F}} tail = s * (f - z * series);
const {{F}} low = fma_{{s}}(exponent, splat_{{s}}({number_(f.ln2_low)}), -tail);
{{F}} y = fma_{{s}}(exponent, splat_{{s}}({number_(f.ln2_high)}), f + low);
y = choose_{{s}}(x == {zero}, splat_{{s}}(-{inf}), y);
y = choose_{{s}}(x == {inf}, x, y);
return choose_{{s}}(x >= {zero}, y, splat_{{s}}({nan}));"""


def _tanh(form: Form) -> str:
    f = FORMS[form.element.name]
    p, ratio = _horner("p", "z", f.tanh_p, form), "p"
    if f.tanh_q:
        p, ratio = "\n".join([p, _horner("q", "z", f.tanh_q, form)]), "(p / q)"
    one = number(1.0, form)
    return f"""// tanh |x| = (1 - u) / (1 + u), u = e^(-2|x|); below 0.625 x + x z P(z) / Q(z), z = x^2
const {{F}} size = abs_{{s}}(x);
const {{F}} u = exp_{{s}}(size * {number(-2.0, form)});
const {{F}} large = ({one} - u) / ({one} + u);
const {{F}} z = x * x;
{p}
const {{F}} y = choose_{{s}}(size < {number(0.625, form)}, fma_{{s}}({ratio} * z, x, x), large);
return bits_{{i}}_{{s}}((bits_{{s}}_{{i}}(y) & {_mask(form)}) | (bits_{{s}}_{{i}}(x) & ~{_mask(form)}));"""


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
    """The compiler's own: an instruction, or a function of the C library, whose erf, sin and cos are right to the last place."""
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
    "exp": (1, _exp),
    "log": (1, _log),
    "tanh": (1, _tanh),
    "abs": (1, _abs),
    "minimum": (2, lambda form: _extreme("<", "|", form)),
    "maximum": (2, lambda form: _extreme(">", "&", form)),
    "sqrt": (1, lambda form: _builtin("sqrt", form)),
    "floor": (1, lambda form: _builtin("floor", form)),
    "round": (1, lambda form: _builtin("rint", form)),
    "ceil": (1, lambda form: _builtin("ceil", form)),
    "trunc": (1, lambda form: _builtin("trunc", form)),
    "erf": (1, lambda form: _builtin("erf", form)),
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
    """Preprocessor lines stay at the margin."""
    return define(result, name, parameters, *body.split("\n")).replace("\n    #", "\n#")
