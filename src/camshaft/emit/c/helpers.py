"""All helpers that C text may call, by name: fused multiply-adds, dot products, byte look-ups, 16-bit floats, atomics, and those
of functions.py and library.py.
"""

from __future__ import annotations

from camshaft.dtypes import f32, i32, u32
from camshaft.emit.c.functions import TEMPLATES, define_text, fill, written
from camshaft.emit.c.library import CONVERSIONS, VECTOR_MAKERS, Form, Library, Maker, define, scalar_type

# Clang before version 16 has no element-wise fma and turns a loop of fmaf into calls. Instead: (bytes of the vector, dtype) ->
# (macro of the machine, built-in).
_OLD_CLANG = {
    (64, "f32"): ("__AVX512F__", "vfmaddps512_mask(a, b, c, 0xffff, 4)"),
    (64, "f64"): ("__AVX512F__", "vfmaddpd512_mask(a, b, c, 0xff, 4)"),
    (32, "f32"): ("__FMA__", "vfmaddps256(a, b, c)"),
    (32, "f64"): ("__FMA__", "vfmaddpd256(a, b, c)"),
    (16, "f32"): ("__FMA__", "vfmaddps(a, b, c)"),
    (16, "f64"): ("__FMA__", "vfmaddpd(a, b, c)"),
}
_WIDEST_NBYTES = 64


def fma(lib: Library, form: Form) -> str:
    """a * b + c, rounded once. (An expression would be rounded twice if the product has other uses.)"""
    typ, name = lib.type_of(form), f"fma_{form.name}"
    parameters = f"{typ} a, {typ} b, {typ} c"
    if not form.is_vector:
        single = form.element == f32
        # without an FMA instruction compute in f64: the product is exact, and so is almost every sum
        other = "return (float)((double)a * b + c);" if single else "return __builtin_fma(a, b, c);"
        plain = f"return __builtin_fma{'f' if single else ''}(a, b, c);"
        return define_text(typ, name, parameters, f"#ifdef CAMSHAFT_FMA\n{plain}\n#else\n{other}\n#endif")
    nbytes = form.n * form.element.nbytes
    body = "#ifdef CAMSHAFT_ELEMENTWISE_FMA\nreturn __builtin_elementwise_fma(a, b, c);\n"
    if nbytes > _WIDEST_NBYTES:
        return define_text(typ, name, parameters, f"{body}#else\n{_halves(lib, 'fma', form, 'abc')}\n#endif")
    if (nbytes, form.element.name) in _OLD_CLANG:
        machine, builtin = _OLD_CLANG[nbytes, form.element.name]
        body += f"#elif defined(__clang__) && defined({machine})\nreturn __builtin_ia32_{builtin};\n"
    one = lib.need("fma", Form(form.dtype, 0))
    loop = f"{typ} y;\nfor (int i = 0; i < {form.n}; i++)\n    y[i] = {one}(a[i], b[i], c[i]);\nreturn y;"
    return define_text(typ, name, parameters, f"{body}#else\n{loop}\n#endif")


def _halves(lib: Library, function: str, form: Form, operands: str, other: Form | None = None) -> str:
    """Return a body that calls the helper of half the width twice. The first operand has `form`, the others have `other`."""
    half = Form(form.dtype, form.n // 2)
    rest = Form((other or form).dtype, form.n // 2)
    piece, part, part_rest = lib.need(function, half), lib.type_of(half), lib.type_of(rest)
    first, others = operands[0], operands[1:]
    lines = [f"{part} {first}_[2], y_[2];", f"{part_rest} {', '.join(f'{o}_[2]' for o in others)};"]
    lines += [f"memcpy({o}_, &{o}, sizeof {o}_);" for o in operands]
    lines += ["for (int i = 0; i < 2; i++)", f"    y_[i] = {piece}({', '.join(f'{o}_[i]' for o in operands)});"]
    return "\n".join([*lines, f"{lib.type_of(form)} y;", "memcpy(&y, y_, sizeof y);", "return y;"])


def rounded(lib: Library, form: Form) -> str:
    """x, protected from fusion with its users; `zero` is a 0 that is opaque to the compiler.

    GCC's vectorizer drops __builtin_assoc_barrier (seen in 12.2), Clang 14 has its fence on x86 only, and asm or volatile would
    prevent vectorization of the loop. An exclusive or costs as much as an integer addition.
    """
    typ, integer = lib.type_of(form), scalar_type(form.signed.element)
    body = "return bits_{i}_{s}(bits_{s}_{i}(x) ^ zero);"
    return define(typ, f"rounded_{form.name}", f"{typ} x, {integer} zero", fill(lib, form, body))


def dot4(lib: Library, form: Form) -> str:
    """acc + sum over 4 bytes of u8(a) * s8(b): one instruction with VNNI, else byte by byte."""
    typ, words = lib.type_of(form), lib.type_of(form.of(u32))
    name, parameters = f"dot4_{form.name}", f"{typ} acc, {words} a, {words} b"
    if form.n > 16:
        body = _halves(lib, "dot4", form, "cab", form.of(u32))
        return define_text(typ, name, f"{typ} c, {words} a, {words} b", body)
    bytes_ = "\n".join(f"acc += (({typ})(a >> {8 * i}) & 255) * (({typ})(b << {24 - 8 * i}) >> 24);" for i in range(4))
    if form.n not in (4, 8, 16):
        return define_text(typ, name, parameters, f"{bytes_}\nreturn acc;")
    instruction = '__asm__("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(a), "vm"(b));'
    body = f"#ifdef CAMSHAFT_VNNI\n{instruction}\n#else\n{bytes_}\n#endif\nreturn acc;"
    return define_text(typ, name, parameters, body)


def dot2(lib: Library, form: Form) -> str:
    """acc + high(a) high(b), then + low(a) low(b), of the bf16 or the 16-bit integers in words."""
    typ, words = lib.type_of(form), lib.type_of(form.of(u32))
    if form.dtype == i32:
        parts = "(({typ})a >> 16) * (({typ})b >> 16)", "(({typ})(a << 16) >> 16) * (({typ})(b << 16) >> 16)"
        total = f"return acc + {' + '.join(parts).format(typ=typ)};"
        return define_text(typ, f"dot2_{form.name}", f"{typ} acc, {words} a, {words} b", total)
    bits, fma = lib.convert("bits", form.of(u32), form), lib.need("fma", form)
    parts = (f"{bits}(a & 0xffff0000u), {bits}(b & 0xffff0000u)", f"{bits}(a << 16), {bits}(b << 16)")
    body = "\n".join([*(f"acc = {fma}({part}, acc);" for part in parts), "return acc;"])
    return define_text(typ, f"dot2_{form.name}", f"{typ} acc, {words} a, {words} b", body)


def byte_pairs(lib: Library, form: Form) -> str:
    """In each half of a word: acc + the two products u8(a) * s8(b) of its bytes."""
    typ, integer = lib.type_of(form), lib.type_of(form.signed)
    low, high = (f"{_product(integer, i)} + {_product(integer, i + 1)}" for i in (0, 2))
    body = f"const {integer} low = {low}, high = {high};"
    total = f"return ((acc + ({typ})low) & 0xffffu) | ((acc + (({typ})high << 16)) & 0xffff0000u);"
    return define(typ, f"byte_pairs_{form.name}", f"{typ} acc, {typ} a, {typ} b", body, total)


def _product(integer: str, byte: int) -> str:
    return f"({integer})((a >> {8 * byte}) & 255u) * {_signed_byte(integer, 'b', byte)}"


def _signed_byte(integer: str, word: str, byte: int) -> str:
    return f"(({integer})({word} << {24 - 8 * byte}) >> 24)"


def byte_signs(lib: Library, form: Form) -> str:
    """Each byte of a times the sign of the same byte of b."""
    typ, integer = lib.type_of(form), lib.type_of(form.signed)
    lines = [f"{typ} y = a ^ a;", f"{integer} s;"]
    for i in range(4):
        lines.append(f"s = {_signed_byte(integer, 'b', i)};")
        product = f"{_signed_byte(integer, 'a', i)} * ((s >> 31) - (-s >> 31))"
        lines.append(f"y |= (({typ})({product}) & 255u) << {8 * i};")
    return define(typ, f"byte_signs_{form.name}", f"{typ} a, {typ} b", *lines, "return y;")


def byte_lookup(lib: Library, form: Form) -> str:
    """Bytes of the 16 in a, b, c, d by the 4-bit indexes in the bytes of x: masks of an index's bits 2 and 3 choose a word."""
    typ = lib.type_of(form)
    body = f"""{typ} y = x ^ x;
for (int shift = 0; shift < 32; shift += 8) {{
    const {typ} index = x >> shift;
    const {typ} second = -((index >> 2) & 1u), upper = -((index >> 3) & 1u);
    const {typ} low = a ^ ((a ^ b) & second), high = c ^ ((c ^ d) & second);
    y |= (((low ^ ((low ^ high) & upper)) >> ((index & 3u) << 3)) & 255u) << shift;
}}
return y;"""
    return define_text(typ, f"byte_lookup_{form.name}", ", ".join(f"{typ} {name}" for name in "xabcd"), body)


def truncate(lib: Library, form: Form) -> str:
    """f32 to i32, element by element. Saturates; NaN gives 0."""
    body = """const {F} inside = choose_{s}((x > -0x1p31f) & (x < 0x1p31f), x, splat_{s}(0.0f));
{I} y = __builtin_convertvector(inside, {I});
y = choose_{i}(x >= 0x1p31f, splat_{i}(INT32_MAX), y);
return choose_{i}(x <= -0x1p31f, splat_{i}(INT32_MIN), y);"""
    filled = fill(lib, form, body)
    return define_text(lib.type_of(form.signed), f"truncate_{form.name}", f"{lib.type_of(form)} x", filled)


# --- atomics: relaxed; each returns the old element ------------------------------------------------------------------
def _atomic(name: str, new: str) -> Maker:
    """An atomic that __atomic lacks, as a compare-exchange loop."""

    def make(lib: Library, form: Form) -> str:
        typ = lib.type_of(form)
        body = f"""{typ} old, next;
__atomic_load(at, &old, __ATOMIC_RELAXED);
do
    next = {new};
while (!__atomic_compare_exchange(at, &old, &next, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
return old;"""
        return define_text(typ, f"{name}_{form.name}", f"{typ} *at, {typ} x", body)

    return make


def compare_exchange(lib: Library, form: Form) -> str:
    typ = lib.type_of(form)
    body = (
        "__atomic_compare_exchange_n(at, &expected, x, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);",
        "return expected;",
    )
    return define(typ, f"compare_exchange_{form.name}", f"{typ} *at, {typ} expected, {typ} x", *body)


# --- f16 and bf16 by their bits, as in emit/llvm/expanded/expansions.py; `form` is of u32 -------------------------------------
def _short(name: str, widens: bool, body: str) -> Maker:
    def make(lib: Library, form: Form) -> str:
        floats, words = lib.type_of(form.of(f32)), lib.type_of(form)
        result, operand = (floats, words) if widens else (words, floats)
        return define_text(result, f"{name}_{form.name}", f"{operand} x", fill(lib, form.of(f32), body))

    return make


_WIDEN_F16 = """// its 15 low bits as those of an f32, times 2^112, which makes the exponent right and subnormals normal
const {U} low = x & 0x7fffu;
const {U} finite = bits_{s}_{u}(bits_{u}_{s}(low << 13) * 0x1p112f);
return bits_{u}_{s}(choose_{u}(low > 0x7bffu, finite | 0x7f800000u, finite) | ((x & 0x8000u) << 16));"""
_NARROW_F16 = """// below 2^-14 adding 0.5 leaves the rounded result in the low bits; above, the carry rounds
const {U} bits = bits_{s}_{u}(x);
const {U} size = bits & 0x7fffffffu;
const {U} small = bits_{s}_{u}(bits_{u}_{s}(size) + 0.5f) - 0x3f000000u;
const {U} carried = size - 0x37fff001u + ((size >> 13) & 1u);
const {U} finite = choose_{u}(size < 0x38800000u, small, carried >> 13);
const {U} special = choose_{u}(size > 0x7f800000u, splat_{u}(0x7e00u), splat_{u}(0x7c00u));
return choose_{u}(size >= 0x47800000u, special, finite) | ((bits >> 16) & 0x8000u);"""
_NARROW_BF16 = """const {U} bits = bits_{s}_{u}(x);
const {U} rounded = bits + (((bits >> 16) & 1u) + 0x7fffu);
return choose_{u}(x == x, rounded, bits | 0x400000u) >> 16;"""

MAKERS: dict[str, Maker] = {
    **{name: written(name) for name in TEMPLATES},
    **VECTOR_MAKERS,
    "fma": fma,
    "rounded": rounded,
    "dot4": dot4,
    "dot2": dot2,
    "byte_lookup": byte_lookup,
    "byte_pairs": byte_pairs,
    "byte_signs": byte_signs,
    "atomic_add": _atomic("atomic_add", "old + x"),
    "atomic_min": _atomic("atomic_min", "x < old ? x : old"),
    "atomic_max": _atomic("atomic_max", "x > old ? x : old"),
    "compare_exchange": compare_exchange,
    "truncate": truncate,
    "widen_f16": _short("widen_f16", True, _WIDEN_F16),
    "widen_bf16": _short("widen_bf16", True, "return bits_{u}_{s}(x << 16);"),
    "narrow_f16": _short("narrow_f16", False, _NARROW_F16),
    "narrow_bf16": _short("narrow_bf16", False, _NARROW_BF16),
}


def library() -> Library:
    """Return an empty library that can make every helper."""
    return Library(MAKERS, CONVERSIONS)
