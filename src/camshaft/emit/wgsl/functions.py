"""Reserved words of WGSL, and helper functions: "expand:NAME" of the instruction table, and conversions.

NaN is tested on bits: WGSL may assume that none occurs. An i64 is an i32 here, and 16-bit floats are f32 rounded to them.
"""

from __future__ import annotations

from camshaft.emit.c_family.text import polynomial
from camshaft.lang.expand.payne_hanek import TWO_OVER_PI
from camshaft.lang.expand.trigonometry import COS, SIN

# 32 bits a word, after a word of zeros
_WORDS = [w >> shift & 0xFFFFFFFF for w in TWO_OVER_PI for shift in (32, 0)][1:9]

HIGH_PRODUCT = """fn high_product(a: u32, b: u32) -> u32 {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let first = (a >> 16u) * (b & 0xffffu);
    let second = (a & 0xffffu) * (b >> 16u);
    let middle = (low >> 16u) + (first & 0xffffu) + (second & 0xffffu);
    return (a >> 16u) * (b >> 16u) + (first >> 16u) + (second >> 16u) + (middle >> 16u);
}"""
# for a finite x: the remainder within a quarter of pi, and the number of quarter turns
CUT = f"""fn cut_f32(x: f32) -> vec2<f32> {{
    let bits = bitcast<u32>(x) & 0x7fffffffu;
    if (bits < 0x3f490fdbu) {{ return vec2<f32>(x, 0.0); }}
    var words = array<u32, 8>({", ".join(f"{w:#x}u" for w in _WORDS)});
    let at = (bits >> 23u) - 120u;
    let shift = at & 31u;
    let first = min(at >> 5u, 4u);
    var digits = array<u32, 3>(0u, 0u, 0u);
    for (var i = 0u; i < 3u; i++) {{
        digits[i] = (words[first + i] << shift) | ((words[first + i + 1u] >> 1u) >> (31u - shift));
    }}
    let m = (bits & 0x7fffffu) | 0x800000u;
    let low = digits[2] * m;
    let middle_part = digits[1] * m;
    let middle = middle_part + high_product(digits[2], m);
    let carry = select(0u, 1u, middle < middle_part);
    let high = digits[0] * m + high_product(digits[1], m) + carry;
    let above = (high >> 29u) & 1u;
    // what is left of a quarter turn as a fraction of 64 bits with a sign
    var part = (high << 2u) | (middle >> 30u);
    var rest = (middle << 2u) | (low >> 30u);
    if (above == 1u) {{
        rest = ~rest + 1u;
        part = ~part + select(0u, 1u, rest == 0u);
    }}
    var scale = 3.657295198e-10; // pi / 2^33
    if (part < 0x10000u) {{
        part = (part << 16u) | (rest >> 16u);
        scale = 5.580589597e-15; // pi / 2^49
    }}
    let size = f32(part) * scale;
    let quarters = (high >> 30u) + above;
    if (bitcast<u32>(x) == bits) {{ return vec2<f32>(select(size, -size, above == 1u), f32(quarters)); }}
    return vec2<f32>(select(-size, size, above == 1u), f32((4u - (quarters & 3u)) & 3u));
}}"""
_OF_TURN = f"""fn of_turn_f32(x: f32, ahead: u32) -> f32 {{
    if ((bitcast<u32>(x) & 0x7fffffffu) >= 0x7f800000u) {{ return not_a_number(); }}
    let cut = cut_f32(x);
    let turns = u32(cut.y) + ahead;
    let z = cut.x * cut.x;
    let sine = fma(cut.x * z, {polynomial("z", SIN["f32"])}, cut.x);
    let cosine = fma(z * z, {polynomial("z", COS["f32"])}, fma(z, -0.5, 1.0));
    let y = select(sine, cosine, (turns & 1u) == 1u);
    return select(y, -y, (turns & 2u) == 2u);
}}"""

MATHEMATICS: dict[str, str] = {
    "high_product": HIGH_PRODUCT,
    "cut_f32": CUT,
    "of_turn_f32": _OF_TURN,
    "sin_f32": "fn sin_f32(x: f32) -> f32 {\n    return of_turn_f32(x, 0u);\n}",
    "cos_f32": "fn cos_f32(x: f32) -> f32 {\n    return of_turn_f32(x, 1u);\n}",
}


_KEYWORDS = """
alias break case const const_assert continue continuing default diagnostic discard else enable false fn for if let loop override
requires return struct switch true var while NULL Self abstract active alignas alignof as asm asm_fragment async attribute auto
await become cast catch class co_await co_return co_yield coherent column_major common compile compile_fragment concept const_cast
consteval constexpr constinit crate debugger decltype delete demote demote_to_helper do dynamic_cast enum explicit export extends
extern external fallthrough filter final finally friend from fxgroup get goto groupshared highp impl implements import inline
instanceof interface layout lowp macro macro_rules match mediump meta mod module move mut mutable namespace new nil noexcept
noinline nointerpolation non_coherent noncoherent noperspective null nullptr of operator package packoffset partial pass patch
pixelfragment precise precision premerge priv protected pub public readonly ref regardless register reinterpret_cast require
resource restrict self set shared sizeof smooth snorm static static_assert static_cast std subroutine super target template this
thread_local throw trait try type typedef typeid typename typeof union unless unorm unsafe unsized use using varying virtual
volatile wgsl where with writeonly yield
"""
# Types and functions that the text uses: a local variable of that name would hide them.
_BUILTINS = """
i32 u32 f32 f16 bool vec2 vec3 vec4 array atomic ptr bitcast select min max clamp abs sqrt inverseSqrt floor round exp log tanh
fma sin cos ceil trunc extractBits unpack2x16float pack2x16float dot4I8Packed dot4U8Packed workgroupBarrier storageBarrier
workgroupUniformLoad atomicLoad atomicStore atomicAnd atomicOr atomicXor atomicAdd atomicMin atomicMax atomicExchange
atomicCompareExchangeWeak subgroupAdd subgroupShuffle subgroupBroadcast
"""
# Names in the text of emit/wgsl/module.py.
_FRAME = "run fixed lane group groups thread program total"

RESERVED = frozenset((_KEYWORDS + _BUILTINS + _FRAME).split())


def _extreme(name: str, function: str) -> str:
    return f"""fn {name}_f32(a: f32, b: f32) -> f32 {{
    let least = select({function}(a, b), b, is_nan(b));
    return select(least, a, is_nan(a));
}}"""


def _saturated(to: str, low: str, high: str, type_: str, least: str, most: str) -> str:
    """f32 to an integer of `to`: by value from `low` to `high`, saturated outside; NaN gives 0."""
    suffix = "u" if type_ == "u32" else ""
    return f"""fn cast_f32_{to}(x: f32) -> {type_} {{
    let inside = {type_}(clamp(x, {low}, {high}));
    let held = select(select(inside, {most}{suffix}, x > {high}), {least}{suffix}, x < {low});
    return select(held, 0{suffix}, is_nan(x));
}}"""


FUNCTIONS: dict[str, str] = {
    "is_nan": """fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}""",
    "infinity": """fn infinity() -> f32 {
    return bitcast<f32>(fixed[0].x);
}""",
    "not_a_number": """fn not_a_number() -> f32 {
    return bitcast<f32>(fixed[0].y);
}""",
    "minimum_f32": _extreme("minimum", "min"),
    "maximum_f32": _extreme("maximum", "max"),
    # beyond 10 the result is 1 in f32, and a driver's e^2x may overflow to NaN
    "tanh_f32": """fn tanh_f32(x: f32) -> f32 {
    return select(tanh(clamp(x, -10.0, 10.0)), x, is_nan(x));
}""",
    **MATHEMATICS,
    "isnan_f32": "fn isnan_f32(x: f32) -> bool {\n    return is_nan(x);\n}",
    # rounds towards minus infinity, as Python does
    "floor_divide_i32": """fn floor_divide_i32(a: i32, b: i32) -> i32 {
    let quotient = a / b;
    return select(quotient, quotient - 1, (quotient * b != a) && ((a ^ b) < 0));
}""",
    "remainder_i32": """fn remainder_i32(a: i32, b: i32) -> i32 {
    let rest = a % b;
    return select(rest, rest + b, (rest != 0) && ((a ^ b) < 0));
}""",
    # bytes of a unsigned, of b signed
    "dot4_i32": """fn dot4_i32(sum: i32, a: u32, b: u32) -> i32 {
    let s = bitcast<i32>(b);
    let low = i32(a & 255u) * extractBits(s, 0u, 8u) + i32((a >> 8u) & 255u) * extractBits(s, 8u, 8u);
    return sum + low + i32((a >> 16u) & 255u) * extractBits(s, 16u, 8u) + i32(a >> 24u) * extractBits(s, 24u, 8u);
}""",
    # byte i & 15 of the 16 in a, b, c, d for each byte i
    "byte_lookup_u32": """fn byte_lookup_u32(x: u32, a: u32, b: u32, c: u32, d: u32) -> u32 {
    var y = 0u;
    for (var at = 0u; at < 32u; at += 8u) {
        let index = x >> at;
        let second = (index & 4u) != 0u;
        let word = select(select(a, b, second), select(c, d, second), (index & 8u) != 0u);
        y |= ((word >> ((index & 3u) << 3u)) & 255u) << at;
    }
    return y;
}""",
    # u s = (u - 128) s + 128 s, and u - 128 in a signed byte is u with its top bit flipped
    "dot4_packed_i32": """fn dot4_packed_i32(sum: i32, a: u32, b: u32) -> i32 {
    return sum + dot4I8Packed(a ^ 0x80808080u, b) + 128 * dot4I8Packed(0x01010101u, b);
}""",
    "f16_bits": """fn f16_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let sign = (bits >> 16u) & 0x8000u;
    let size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) { return sign | 0x7e00u; }
    if (size >= 0x47800000u) { return sign | 0x7c00u; }
    // below 2^-14 adding 0.5 leaves the rounded result in the low bits; above, the carry rounds
    if (size < 0x38800000u) { return sign | (bitcast<u32>(bitcast<f32>(size) + 0.5) - 0x3f000000u); }
    return sign | ((size - 0x37fff001u + ((size >> 13u) & 1u)) >> 13u);
}""",
    "bf16_bits": """fn bf16_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let rounded = bits + 0x7fffu + ((bits >> 16u) & 1u);
    return select(rounded, bits | 0x400000u, is_nan(x)) >> 16u;
}""",
    "cast_f32_f16": """fn cast_f32_f16(x: f32) -> f32 {
    return unpack2x16float(f16_bits(x)).x;
}""",
    "cast_f32_bf16": """fn cast_f32_bf16(x: f32) -> f32 {
    return bitcast<f32>(bf16_bits(x) << 16u);
}""",
    "cast_f32_i32": _saturated("i32", "-2147483648.0", "2147483520.0", "i32", "-2147483648", "2147483647"),
    "cast_f32_u32": _saturated("u32", "0.0", "4294967040.0", "u32", "0", "4294967295"),
    "cast_f32_i8": _saturated("i8", "-128.0", "127.0", "i32", "-128", "127"),
    "cast_f32_u8": _saturated("u8", "0.0", "255.0", "u32", "0", "255"),
    "cast_f32_i16": _saturated("i16", "-32768.0", "32767.0", "i32", "-32768", "32767"),
    "cast_f32_u16": _saturated("u16", "0.0", "65535.0", "u32", "0", "65535"),
}
