"""The byte dot product in LLVM: by VNNI, by 16-bit products, or by shifts. Used by emit/llvm_math.py."""

from __future__ import annotations

from collections.abc import Callable

from camshaft.emit.llvm_typed import Typed

# the x86 byte dot products: feature -> (words a call takes, intrinsic), widest first
_VNNI = ((16, "llvm.x86.avx512.vpdpbusd.512"), (8, "llvm.x86.avx512.vpdpbusd.256"), (4, "llvm.x86.avx512.vpdpbusd.128"))


def dot4(t: Typed, acc: str, a: str, b: str) -> str:
    """acc + sum over 4 bytes of u8(a) * s8(b): vpdpbusd where there is VNNI, else 16-bit products by pmaddwd, else by shifts."""
    if "avx512vnni" in t.target.features and "avx512vl" in t.target.features and t.n >= 4:
        return _in_pieces(t, 16, (acc, a, b), _vnni_piece)
    if "sse2" in t.target.features and t.n >= 4:
        return _in_pieces(t, 8 if "avx2" in t.target.features else 4, (acc, a, b), _pmaddwd_piece)
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
    name = "llvm.x86.avx2.pmadd.wd" if t.n == 8 else "llvm.x86.sse2.pmadd.wd"
    t.declare(name, f"declare {words} @{name}({shorts}, {shorts})")
    ua, sb = (t.line(f"bitcast {words} {x} to {shorts}") for x in (a, b))
    even_u = t.line(f"and {shorts} {ua}, splat (i16 255)")
    odd_u = t.line(f"lshr {shorts} {ua}, splat (i16 8)")
    even_s = t.line(f"ashr {shorts} {t.line(f'shl {shorts} {sb}, splat (i16 8)')}, splat (i16 8)")
    odd_s = t.line(f"ashr {shorts} {sb}, splat (i16 8)")
    even = t.line(f"call {words} @{name}({shorts} {even_u}, {shorts} {even_s})")
    odd = t.line(f"call {words} @{name}({shorts} {odd_u}, {shorts} {odd_s})")
    return t.op("add", t.op("add", acc, even), odd)
