"""What one instruction becomes where LLVM has no single one: exp, log, tanh, casts, the byte dot product. Used by emit/llvm.py.

Each expansion takes a Typed writer and operand names, all of one LLVM type, and gives the result's name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from camshaft.dtypes import DType, f32
from camshaft.emit.llvm_values import literal, vector_type
from camshaft.emit.target import CpuTarget


@dataclass(frozen=True)
class Typed:
    """Writes instructions on values of `n` elements of `dtype` (n 0: scalar)."""

    line: Callable[[str], str]
    declare: Callable[[str, str], None]
    dtype: DType
    n: int
    target: CpuTarget

    def type_of(self, dtype: DType | None = None) -> str:
        return vector_type(dtype or self.dtype, self.n)

    def const(self, value: float, dtype: DType | None = None) -> str:
        """A constant operand of this width."""
        chosen = dtype or self.dtype
        text = literal(value, chosen)
        return f"splat ({vector_type(chosen, 0)} {text})" if self.n > 1 else text

    def op(self, opcode: str, *names: str) -> str:
        return self.line(f"{opcode} {self.type_of()} {', '.join(names)}")

    def call(self, intrinsic: str, *names: str) -> str:
        """An overloaded intrinsic whose operands and result all have this type."""
        suffix = (f"v{self.n}" if self.n > 1 else "") + self.dtype.name.replace("u", "i")
        result, name = self.type_of(), f"{intrinsic}.{suffix}"
        self.declare(name, f"declare {result} @{name}({', '.join([result] * len(names))})")
        return self.line(f"call {result} @{name}({', '.join(f'{result} {n}' for n in names)})")

    def select(self, condition: str, a: str, b: str) -> str:
        mask = f"<{self.n} x i1>" if self.n > 1 else "i1"
        return self.line(f"select {mask} {condition}, {self.type_of()} {a}, {self.type_of()} {b}")


def integers(t: Typed) -> Typed:
    """The same width of 32-bit integers."""
    from camshaft.dtypes import i32

    return Typed(t.line, t.declare, i32, t.n, t.target)


def _polynomial(t: Typed, x: str, coefficients: tuple[float, ...]) -> str:
    """Horner's rule, highest power first."""
    result = t.const(coefficients[0])
    for c in coefficients[1:]:
        result = t.call("llvm.fma", result, x, t.const(c))
    return result


def _power_of_two(t: Typed, exponent: str) -> str:
    """2 ** exponent for i32 exponents from -126 to 127, by the float's bits."""
    ints = integers(t)
    biased = ints.op("add", exponent, ints.const(127))
    return t.line(f"bitcast {ints.type_of()} {ints.op('shl', biased, ints.const(23))} to {t.type_of()}")


def exp(t: Typed, x: str) -> str:
    """e^x: x = n ln 2 + r, a polynomial of degree 7 in r (Taylor), and 2^n in two factors so that subnormal results are right."""
    ints = integers(t)
    low, high = t.const(-104.0), t.const(89.0)
    clamped = t.select(t.line(f"fcmp olt {t.type_of()} {x}, {low}"), low, x)
    clamped = t.select(t.line(f"fcmp ogt {t.type_of()} {clamped}, {high}"), high, clamped)
    n = t.call("llvm.roundeven", t.op("fmul", clamped, t.const(1.4426950408889634)))
    r = t.call("llvm.fma", n, t.const(-0.693145751953125), clamped)
    r = t.call("llvm.fma", n, t.const(-1.42860682030941723212e-6), r)
    p = _polynomial(t, r, (1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 0.5, 1.0, 1.0))
    safe = t.select(t.line(f"fcmp ord {t.type_of()} {n}, {n}"), n, t.const(0.0))
    whole = t.line(f"fptosi {t.type_of()} {safe} to {ints.type_of()}")
    half = ints.op("ashr", whole, ints.const(1))
    scaled = t.op("fmul", p, _power_of_two(t, half))
    return t.op("fmul", scaled, _power_of_two(t, ints.op("sub", whole, half)))


def log(t: Typed, x: str) -> str:
    """ln x: x = 2^k m with m from sqrt(1/2) to sqrt(2); ln m = 2 atanh(s), s = (m - 1) / (m + 1), odd series to s^9."""
    ints = integers(t)
    tiny = t.line(f"fcmp olt {t.type_of()} {x}, {t.const(1.1754943508222875e-38)}")
    normal = t.select(tiny, t.op("fmul", x, t.const(2.0**24)), x)
    bits = t.line(f"bitcast {t.type_of()} {normal} to {ints.type_of()}")
    # subtracting sqrt(1/2)'s bits puts the exponent's step where the mantissa passes it
    shifted = ints.op("sub", bits, ints.const(0x3F3504F3))
    k = ints.op("ashr", shifted, ints.const(23))
    mantissa_bits = ints.op("sub", bits, ints.op("shl", k, ints.const(23)))
    m = t.line(f"bitcast {ints.type_of()} {mantissa_bits} to {t.type_of()}")
    exponent = t.line(f"sitofp {ints.type_of()} {k} to {t.type_of()}")
    exponent = t.op("fsub", exponent, t.select(tiny, t.const(24.0), t.const(0.0)))
    f = t.op("fsub", m, t.const(1.0))
    s = t.op("fdiv", f, t.op("fadd", f, t.const(2.0)))
    z = t.op("fmul", s, s)
    series = _polynomial(t, z, (2 / 11, 2 / 9, 2 / 7, 2 / 5, 2 / 3))
    # ln m = f - s (f - z series): keeps the rounding of f out of the small term
    tail = t.op("fmul", s, t.op("fsub", f, t.op("fmul", z, series)))
    low = t.call("llvm.fma", exponent, t.const(1.42860682030941723212e-6), t.op("fsub", t.const(0.0), tail))
    result = t.call("llvm.fma", exponent, t.const(0.693145751953125), t.op("fadd", f, low))
    zero = t.line(f"fcmp oeq {t.type_of()} {x}, {t.const(0.0)}")
    result = t.select(zero, t.const(float("-inf")), result)
    infinite = t.line(f"fcmp oeq {t.type_of()} {x}, {t.const(float('inf'))}")
    result = t.select(infinite, x, result)
    invalid = t.line(f"fcmp ult {t.type_of()} {x}, {t.const(0.0)}")
    return t.select(invalid, t.const(float("nan")), result)


def tanh(t: Typed, x: str) -> str:
    """tanh |x| = (1 - u) / (1 + u), u = e^(-2|x|); below 0.625 the odd series x + x z p(z), z = x^2 (Cephes' minimax)."""
    magnitude = t.call("llvm.fabs", x)
    u = exp(t, t.op("fmul", magnitude, t.const(-2.0)))
    large = t.op("fdiv", t.op("fsub", t.const(1.0), u), t.op("fadd", t.const(1.0), u))
    large = t.call("llvm.copysign", large, x)
    z = t.op("fmul", x, x)
    p = _polynomial(t, z, (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1))
    small = t.call("llvm.fma", t.op("fmul", p, z), x, x)
    return t.select(t.line(f"fcmp olt {t.type_of()} {magnitude}, {t.const(0.625)}"), small, large)


def rsqrt(t: Typed, x: str) -> str:
    return t.op("fdiv", t.const(1.0), t.call("llvm.sqrt", x))


def negate(t: Typed, x: str) -> str:
    return t.op("sub", t.const(0), x)


def floor_divide(t: Typed, a: str, b: str) -> str:
    """Rounds towards minus infinity, as Python does."""
    quotient = t.op("sdiv", a, b)
    return t.select(_inexact_and_opposite(t, a, b), t.op("sub", quotient, t.const(1)), quotient)


def remainder(t: Typed, a: str, b: str) -> str:
    """Takes the sign of b, as Python's does."""
    rest = t.op("srem", a, b)
    return t.select(_inexact_and_opposite(t, a, b), t.op("add", rest, b), rest)


def _inexact_and_opposite(t: Typed, a: str, b: str) -> str:
    rest, mask = t.op("srem", a, b), f"<{t.n} x i1>" if t.n > 1 else "i1"
    opposite = t.line(f"icmp slt {t.type_of()} {t.op('xor', a, b)}, {t.const(0)}")
    inexact = t.line(f"icmp ne {t.type_of()} {rest}, {t.const(0)}")
    return t.line(f"and {mask} {opposite}, {inexact}")


# the x86 byte dot products: feature -> (words a call takes, intrinsic), widest first
_VNNI = ((16, "llvm.x86.avx512.vpdpbusd.512"), (8, "llvm.x86.avx512.vpdpbusd.256"), (4, "llvm.x86.avx512.vpdpbusd.128"))


def dot4(t: Typed, acc: str, a: str, b: str) -> str:
    """acc + sum over 4 bytes of u8(a) * s8(b): vpdpbusd where there is VNNI, else 16-bit products by pmaddwd, else by shifts."""
    if "avx512vnni" in t.target.features and "avx512vl" in t.target.features and t.n in (4, 8, 16, 32):
        return _in_pieces(t, 16, (acc, a, b), _vnni_piece)
    if "avx2" in t.target.features and t.n in (8, 16, 32):
        return _in_pieces(t, 8, (acc, a, b), _pmaddwd_piece)
    result = acc
    for byte in range(4):
        u = t.op("and", t.op("lshr", a, t.const(8 * byte)), t.const(255))
        s = t.op("ashr", t.op("shl", b, t.const(24 - 8 * byte)), t.const(24))
        result = t.op("add", result, t.op("mul", u, s))
    return result


def _in_pieces(t: Typed, widest: int, names: tuple[str, ...], piece: Callable[..., str]) -> str:
    """Splits vectors wider than an instruction takes, applies it to each part, and joins the results."""
    if t.n <= widest:
        return piece(t, *names)
    half = Typed(t.line, t.declare, t.dtype, t.n // 2, t.target)
    halves = []
    for start in (0, half.n):
        indices = ", ".join(f"i32 {start + i}" for i in range(half.n))
        parts = [
            t.line(f"shufflevector {t.type_of()} {n}, {t.type_of()} poison, <{half.n} x i32> <{indices}>")
            for n in names
        ]
        halves.append(_in_pieces(half, widest, tuple(parts), piece))
    order = ", ".join(f"i32 {i}" for i in range(t.n))
    pair = f"{half.type_of()} {halves[0]}, {half.type_of()} {halves[1]}"
    return t.line(f"shufflevector {pair}, <{t.n} x i32> <{order}>")


def _vnni_piece(t: Typed, acc: str, a: str, b: str) -> str:
    intrinsic = dict(_VNNI)[t.n]
    words, octets = t.type_of(), f"<{4 * t.n} x i8>"
    self_type = f"{words} @{intrinsic}"
    t.declare(intrinsic, f"declare {self_type}({words}, {octets}, {octets})")
    a_bytes = t.line(f"bitcast {words} {a} to {octets}")
    b_bytes = t.line(f"bitcast {words} {b} to {octets}")
    return t.line(f"call {self_type}({words} {acc}, {octets} {a_bytes}, {octets} {b_bytes})")


def _pmaddwd_piece(t: Typed, acc: str, a: str, b: str) -> str:
    words, shorts = t.type_of(), f"<{2 * t.n} x i16>"
    name = "llvm.x86.avx2.pmadd.wd"
    t.declare(name, f"declare {words} @{name}({shorts}, {shorts})")
    ua, sb = (t.line(f"bitcast {words} {x} to {shorts}") for x in (a, b))
    even_u = t.line(f"and {shorts} {ua}, splat (i16 255)")
    odd_u = t.line(f"lshr {shorts} {ua}, splat (i16 8)")
    even_s = t.line(f"ashr {shorts} {t.line(f'shl {shorts} {sb}, splat (i16 8)')}, splat (i16 8)")
    odd_s = t.line(f"ashr {shorts} {sb}, splat (i16 8)")
    even = t.line(f"call {words} @{name}({shorts} {even_u}, {shorts} {even_s})")
    odd = t.line(f"call {words} @{name}({shorts} {odd_u}, {shorts} {odd_s})")
    return t.op("add", t.op("add", acc, even), odd)


EXPANSIONS: dict[str, Callable[..., str]] = {
    "exp": exp,
    "log": log,
    "tanh": tanh,
    "rsqrt": rsqrt,
    "negate": negate,
    "floor_divide": floor_divide,
    "remainder": remainder,
    "dot4": dot4,
}


def cast(t: Typed, x: str, to: DType) -> str:
    """Conversion by value from t.dtype to `to`; floats to integers truncate and saturate (NaN to 0)."""
    if t.dtype == to:
        return x
    source, result = t.type_of(), t.type_of(to)
    if t.dtype.is_float and to.is_float:
        if t.dtype.nbytes == to.nbytes:
            return cast(Typed(t.line, t.declare, f32, t.n, t.target), cast(t, x, f32), to)
        return t.line(f"{'fpext' if to.nbytes > t.dtype.nbytes else 'fptrunc'} {source} {x} to {result}")
    if t.dtype.is_float:
        return _saturate(t, x, to)
    if to.is_float:
        return t.line(f"{'sitofp' if t.dtype.kind == 'i' else 'uitofp'} {source} {x} to {result}")
    if to.kind == "b":
        return t.line(f"icmp ne {source} {x}, {t.const(0)}")
    if to.bits == t.dtype.bits and t.dtype.kind != "b":
        return x
    if t.dtype.kind != "b" and to.bits < t.dtype.bits:
        return t.line(f"trunc {source} {x} to {result}")
    return t.line(f"{'sext' if t.dtype.kind == 'i' else 'zext'} {source} {x} to {result}")


def _saturate(t: Typed, x: str, to: DType) -> str:
    name = "llvm.fptosi.sat" if to.kind == "i" else "llvm.fptoui.sat"
    prefix = f"v{t.n}" if t.n > 1 else ""
    full = f"{name}.{prefix}i{to.bits}.{prefix}{t.dtype.name}"
    t.declare(full, f"declare {t.type_of(to)} @{full}({t.type_of()})")
    return t.line(f"call {t.type_of(to)} @{full}({t.type_of()} {x})")
