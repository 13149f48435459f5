"""Helper functions of MSL text: "expand:NAME" of the instruction table, and conversions."""

from __future__ import annotations

import numpy as np

from camshaft.dtypes import DTYPES, DType

# Metal's element types. A bf16 is its bits: bfloat came with Metal 3.1, and not every device has it.
STORAGE = {
    "f16": "half", "bf16": "ushort", "f32": "float", "i8": "char", "u8": "uchar", "i16": "short", "u16": "ushort",
    "i32": "int", "u32": "uint", "i64": "long", "u64": "ulong", "bool": "bool",
}  # fmt: skip

_WORDS = """
alignas alignof and asm auto bool break case catch char class const constexpr continue decltype default delete do double else
enum explicit export extern false float for friend goto if inline int long mutable namespace new noexcept not nullptr operator
or private protected public register return short signed sizeof static struct switch template this throw true try typedef
typename union unsigned using virtual void volatile while xor kernel device constant thread threadgroup fragment vertex half
bfloat uchar ushort uint ulong metal precise fast as_type abs fabs min max clamp fma exp log tanh sqrt rsqrt floor rint round
select isnan isinf fmin fmax pow sin cos ceil trunc INFINITY NAN simd_shuffle simd_shuffle_xor simd_broadcast mem_flags atomic run
lane thread_index group main rest uint2 uint3 float2 float4 size_t step dot cross length distance
"""
RESERVED = frozenset(_WORDS.split())

_FLOOR_DIVIDE = """\
template <typename T> inline T floor_divide(T a, T b) {
    const T quotient = a / b;
    return a % b != 0 && (a ^ b) < 0 ? quotient - 1 : quotient;
}"""
_REMAINDER = """\
template <typename T> inline T remainder_of(T a, T b) {
    const T rest = a % b;
    return rest != 0 && (rest ^ b) < 0 ? rest + b : rest;
}"""
# fmin and fmax lose a NaN
_MINIMUM = """\
inline float minimum_f32(float a, float b) {
    return isnan(a) ? a : isnan(b) ? b : fmin(a, b);
}"""
_MAXIMUM = """\
inline float maximum_f32(float a, float b) {
    return isnan(a) ? a : isnan(b) ? b : fmax(a, b);
}"""
# beyond 15 it is 1 to the last bit, and some Metal versions overflow on the way there
_TANH = """\
inline float tanh_f32(float x) {
    return fabs(x) < 15.0f ? precise::tanh(x) : isnan(x) ? x : x < 0.0f ? -1.0f : 1.0f;
}"""
_DOT4 = """\
inline int dot4_i32(int acc, uint a, uint b) {
    acc += int(a & 255u) * (int(b << 24) >> 24);
    acc += int((a >> 8) & 255u) * (int(b << 16) >> 24);
    acc += int((a >> 16) & 255u) * (int(b << 8) >> 24);
    return acc + int(a >> 24) * (int(b) >> 24);
}"""
_BYTE_LOOKUP = """\
inline uint byte_lookup_u32(uint x, uint a, uint b, uint c, uint d) {
    uint y = 0u;
    for (uint shift = 0u; shift < 32u; shift += 8u) {
        const uint index = x >> shift;
        const uint low = (index & 4u) != 0u ? b : a, high = (index & 4u) != 0u ? d : c;
        y |= ((((index & 8u) != 0u ? high : low) >> ((index & 3u) << 3)) & 255u) << shift;
    }
    return y;
}"""
_BF16_TO_F32 = """\
inline float bf16_to_f32(ushort bits) {
    return as_type<float>(uint(bits) << 16);
}"""
_F32_TO_BF16 = """\
inline ushort f32_to_bf16(float x) {
    const uint bits = as_type<uint>(x);
    return ushort((isnan(x) ? bits | 0x400000u : bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}"""
_CAST_BF16 = """\
inline float cast_f32_bf16(float x) {
    return bf16_to_f32(f32_to_bf16(x));
}"""


def integer_literal(value: int, dtype: DType) -> str:
    """An integer constant. The minimum of a signed type is not a literal in C."""
    if dtype.nbytes < 4:
        return f"{STORAGE[dtype.name]}({value})"
    suffix = {"i32": "", "u32": "u", "i64": "L", "u64": "UL"}[dtype.name]
    if dtype.kind == "i" and value == np.iinfo(dtype.numpy).min:
        return f"({value + 1}{suffix} - 1)"
    return f"{value}{suffix}"


def _saturating(dtype: DType) -> str:
    """f32 to an integer: truncates and saturates; NaN gives 0."""
    info, name = np.iinfo(dtype.numpy), STORAGE[dtype.name]
    low, high = integer_literal(int(info.min), dtype), integer_literal(int(info.max), dtype)
    return (
        f"inline {name} cast_f32_{dtype.name}(float x) {{\n"
        f"    return isnan(x) ? {name}(0) : x >= {float(int(info.max) + 1):.1f}f ? {high} :"
        f" x <= {float(info.min):.1f}f ? {low} : {name}(x);\n}}"
    )


# P: a pointer to an atomic in device or threadgroup memory. The weak form may fail spuriously.
_ATOMIC_ADD = """\
template <typename P> inline float atomic_add_f32(P at, float x) {
    uint old = atomic_load_explicit(at, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(at, &old, as_type<uint>(as_type<float>(old) + x), memory_order_relaxed,
                                                  memory_order_relaxed)) {
    }
    return as_type<float>(old);
}"""
_COMPARE_EXCHANGE = """\
template <typename P, typename T> inline T compare_exchange(P at, T expected, T value) {
    T old = expected;
    while (!atomic_compare_exchange_weak_explicit(at, &old, value, memory_order_relaxed, memory_order_relaxed) &&
           old == expected) {
    }
    return old;
}"""


FUNCTIONS: dict[str, str] = {
    "atomic_add_f32": _ATOMIC_ADD,
    "compare_exchange": _COMPARE_EXCHANGE,
    "floor_divide": _FLOOR_DIVIDE,
    "remainder_of": _REMAINDER,
    "minimum_f32": _MINIMUM,
    "maximum_f32": _MAXIMUM,
    "tanh_f32": _TANH,
    "dot4_i32": _DOT4,
    "byte_lookup_u32": _BYTE_LOOKUP,
    "bf16_to_f32": _BF16_TO_F32,
    "f32_to_bf16": _F32_TO_BF16,
    "cast_f32_bf16": _CAST_BF16,
    "cast_f32_bool": "inline bool cast_f32_bool(float x) {\n    return x != 0.0f;\n}",
    "cast_f32_f16": "inline half cast_f32_f16(float x) {\n    return half(x);\n}",
    **{f"cast_f32_{d.name}": _saturating(d) for d in DTYPES.values() if d.is_integer},
}
