"""erf, sin and cos in WGSL for f32.

Drivers reassociate and contract, which error-compensated arithmetic does not survive: sin and cos cut x to within a quarter of pi
in whole numbers (Payne and Hanek: the bits of 2 / pi that matter, 96 of them, times x's 24), at any size of x. About 2 ulp.
"""

from __future__ import annotations

from camshaft.emit.c_family.text import polynomial
from camshaft.emit.llvm.math.erf import ERF
from camshaft.emit.llvm.math.payne_hanek import TWO_OVER_PI
from camshaft.emit.llvm.math.trigonometry import COS, SIN

# 32 bits a word, after a word of zeros
_WORDS = [w >> shift & 0xFFFFFFFF for w in TWO_OVER_PI for shift in (32, 0)][1:9]

ERF_F32 = f"""fn erf_f32(x: f32) -> f32 {{
    let size = min(abs(x), {ERF["f32"].most});
    let square = size * size;
    let inner = fma(size, {polynomial("square", ERF["f32"].p)}, size);
    let ratio = (size - 2.0) / (size + 2.0);
    let outer = 1.0 - exp(-square) * {polynomial("ratio", ERF["f32"].q)};
    let y = select(outer, inner, size < 1.0);
    return select(select(y, -y, x < 0.0), x, is_nan(x));
}}"""
HIGH_PRODUCT = """fn high_product(a: u32, b: u32) -> u32 {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let first = (a >> 16u) * (b & 0xffffu);
    let second = (a & 0xffffu) * (b >> 16u);
    let middle = (low >> 16u) + (first & 0xffffu) + (second & 0xffffu);
    return (a >> 16u) * (b >> 16u) + (first >> 16u) + (second >> 16u) + (middle >> 16u);
}"""
# the rest within a quarter of pi, and the number of quarter turns, for a finite x
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
    "erf_f32": ERF_F32,
    "high_product": HIGH_PRODUCT,
    "cut_f32": CUT,
    "of_turn_f32": _OF_TURN,
    "sin_f32": "fn sin_f32(x: f32) -> f32 {\n    return of_turn_f32(x, 0u);\n}",
    "cos_f32": "fn cos_f32(x: f32) -> f32 {\n    return of_turn_f32(x, 1u);\n}",
}
