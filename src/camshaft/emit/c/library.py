"""Library: the C helpers that a kernel's text needs, callees first. Helpers for vectors and conversions.

A value of width n is a vector of GCC and Clang (f32x16). Operators work on it element by element, and comparisons give integer
masks of 0 and -1. A boolean vector is such a mask of i32, for operands of any dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from camshaft.dtypes import DType, bf16, boolean, f16, f32, i32, i64, u8, u16, u32, u64
from camshaft.lang.targets import VALUES

_SIGNED = {4: i32, 8: i64}
_UNSIGNED = {4: u32, 8: u64}


def value_dtype(dtype: DType) -> DType:
    """Return the dtype of a value in C: f16 and bf16 values are f32 rounded to 16 bits."""
    return f32 if dtype in (f16, bf16) else dtype


def memory_dtype(dtype: DType) -> DType:
    """Return the dtype of an array's elements in memory: u8 for booleans, the bits of f16 and bf16."""
    if dtype in (f16, bf16):
        return u16
    return u8 if dtype == boolean else dtype


def scalar_type(dtype: DType) -> str:
    """The C type of one value."""
    cell = VALUES["c"][dtype.name]
    assert isinstance(cell, str)
    return cell


@dataclass(frozen=True)
class Form:
    """A dtype at a width (0 or 1: a scalar)."""

    dtype: DType
    n: int

    @property
    def is_vector(self) -> bool:
        return self.n > 1

    @property
    def element(self) -> DType:
        """The dtype of its elements in C."""
        plain = value_dtype(self.dtype)
        return i32 if plain == boolean and self.is_vector else plain

    @property
    def name(self) -> str:
        """f32 or f32x16: the suffix of helper names, and a vector's type."""
        return f"{self.element.name}x{self.n}" if self.is_vector else self.element.name

    @property
    def signed(self) -> Form:
        """The signed integer form of the same size, which vector comparisons yield."""
        return Form(_SIGNED[self.element.nbytes], self.n)

    @property
    def unsigned(self) -> Form:
        return Form(_UNSIGNED[self.element.nbytes], self.n)

    def of(self, dtype: DType) -> Form:
        """Another dtype at the same width."""
        return Form(dtype, self.n)


Maker = Callable[["Library", Form], str]
ConversionMaker = Callable[["Library", Form, Form], str]


@dataclass
class Library:
    """`types` and `functions`: the texts needed so far, by name. `makers` and `conversions` write the helpers."""

    makers: dict[str, Maker]
    conversions: dict[str, ConversionMaker]
    types: dict[str, str] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)

    def type_of(self, form: Form) -> str:
        """The C type of a form."""
        if not form.is_vector:
            return scalar_type(form.element)
        nbytes = form.n * form.element.nbytes
        self.types[form.name] = (
            f"typedef {scalar_type(form.element)} {form.name} __attribute__((vector_size({nbytes})));"
        )
        return form.name

    def need(self, function: str, form: Form) -> str:
        """Add a helper for values of one form to `functions` and return its name."""
        name = f"{function}_{form.name}"
        if name not in self.functions:
            self.functions[name] = self.makers[function](self, form)
        return name

    def convert(self, function: str, source: Form, to: Form) -> str:
        """Add a conversion helper between two forms and return its name."""
        name = f"{function}_{source.name}_{to.name}"
        if name not in self.functions:
            self.functions[name] = self.conversions[function](self, source, to)
        return name

    def text(self) -> list[str]:
        """Return the types, then the functions, callees first."""
        return [*sorted(self.types.values(), key=len), *self.functions.values()]


def define(result: str, name: str, parameters: str, *body: str) -> str:
    """A helper's text."""
    return "\n".join([f"static inline {result} {name}({parameters})", "{", *(f"    {line}" for line in body), "}"])


# --- vectors -------------------------------------------------------------------------------------------------------------
def splat(lib: Library, form: Form) -> str:
    typ = lib.type_of(form)
    body = f"return x - ({typ}){{0}};" if form.is_vector else "return x;"
    return define(typ, f"splat_{form.name}", f"{scalar_type(form.element)} x", body)


def choose(lib: Library, form: Form) -> str:
    """a where the mask is set, else b; mask and values have elements of equal size."""
    typ = lib.type_of(form)
    if not form.is_vector:
        return define(typ, f"choose_{form.name}", f"_Bool c, {typ} a, {typ} b", "return c ? a : b;")
    mask = lib.type_of(form.signed)
    body = f"return ({typ})((c & ({mask})a) | (~c & ({mask})b));"
    return define(typ, f"choose_{form.name}", f"{mask} c, {typ} a, {typ} b", body)


def load(lib: Library, form: Form) -> str:
    typ, element = lib.type_of(form), scalar_type(form.element)
    body = (f"{typ} v;", "memcpy(&v, at, sizeof v);", "return v;")
    return define(typ, f"load_{form.name}", f"const {element} *at", *body)


def load_first(lib: Library, form: Form) -> str:
    """The first `count` elements, the rest 0."""
    typ, element = lib.type_of(form), scalar_type(form.element)
    whole = lib.need("load", form)
    body = (
        f"if (count >= {form.n})",
        f"    return {whole}(at);",
        f"{typ} v = {{0}};",
        "if (count > 0)",
        "    memcpy(&v, at, (size_t)count * sizeof *at);",
        "return v;",
    )
    return define(typ, f"load_first_{form.name}", f"const {element} *at, int64_t count", *body)


def store(lib: Library, form: Form) -> str:
    typ, element = lib.type_of(form), scalar_type(form.element)
    return define("void", f"store_{form.name}", f"{element} *at, {typ} v", "memcpy(at, &v, sizeof v);")


def store_first(lib: Library, form: Form) -> str:
    typ, element = lib.type_of(form), scalar_type(form.element)
    body = (
        f"if (count >= {form.n})",
        "    memcpy(at, &v, sizeof v);",
        "else if (count > 0)",
        "    memcpy(at, &v, (size_t)count * sizeof *at);",
    )
    return define("void", f"store_first_{form.name}", f"{element} *at, {typ} v, int64_t count", *body)


def halving(name: str, combine: Callable[[Library, Form], str]) -> Maker:
    """Reduce a vector to one element by halving: first half with second half. `combine` is a template of {0} and {1}."""

    def make(lib: Library, form: Form) -> str:
        typ, element = lib.type_of(form), scalar_type(form.element)
        half = Form(form.dtype, form.n // 2)
        both = combine(lib, half)
        if not half.is_vector:
            return define(element, f"{name}_{form.name}", f"{typ} v", f"return {both.format('v[0]', 'v[1]')};")
        rest, part = lib.need(name, half), lib.type_of(half)
        body = (
            f"{part} low, high;",
            "memcpy(&low, &v, sizeof low);",
            "memcpy(&high, (const char *)&v + sizeof low, sizeof high);",
            f"return {rest}({both.format('low', 'high')});",
        )
        return define(element, f"{name}_{form.name}", f"{typ} v", *body)

    return make


# --- conversions -----------------------------------------------------------------------------------------------------------
def bits_of(lib: Library, source: Form, to: Form) -> str:
    """The same bits as another type of that size."""
    result, typ = lib.type_of(to), lib.type_of(source)
    body = (f"{result} y;", "memcpy(&y, &x, sizeof y);", "return y;")
    return define(result, f"bits_{source.name}_{to.name}", f"{typ} x", *body)


def to_integer(lib: Library, source: Form, to: Form) -> str:
    """Truncates and saturates; NaN gives 0."""
    name, result, typ = f"to_{source.name}_{to.name}", lib.type_of(to), lib.type_of(source)
    if source.is_vector:
        one = lib.convert("to", Form(source.dtype, 0), Form(to.dtype, 0))
        loop = (f"for (int i = 0; i < {source.n}; i++)", f"    y[i] = {one}(x[i]);")
        return define(result, name, f"{typ} x", f"{result} y;", *loop, "return y;")
    bits = to.element.bits - (to.element.kind == "i")
    low = f"-0x1p{bits}" if to.element.kind == "i" else "0.0"
    suffix = "f" if source.element == f32 else ""
    prefix = f"{'U' if to.element.kind == 'u' else ''}INT{to.element.bits}_"
    smallest = f"{prefix}MIN" if to.element.kind == "i" else "0"
    body = (
        "if (x != x)",
        "    return 0;",
        f"if (x <= {low}{suffix})",
        f"    return {smallest};",
        f"return x >= 0x1p{bits}{suffix} ? {prefix}MAX : ({result})x;",
    )
    return define(result, name, f"{typ} x", *body)


VECTOR_MAKERS: dict[str, Maker] = {
    "splat": splat,
    "choose": choose,
    "load": load,
    "load_first": load_first,
    "store": store,
    "store_first": store_first,
    "sum": halving("sum", lambda lib, half: "{0} + {1}"),
    "max": halving("max", lambda lib, half: f"{lib.need('maximum', half)}({{0}}, {{1}})"),
}
CONVERSIONS: dict[str, ConversionMaker] = {"bits": bits_of, "to": to_integer}
