"""erf in Kernel IR for f32 and f64: two polynomials, chosen by |x|.

Accuracy is stated in lang/instructions.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from camshaft.lang import ir
from camshaft.lang.expand.expander import Expander
from camshaft.lang.expand.exponential import with_sign


@dataclass(frozen=True)
class ErfForm:
    """erf x = x + x P(x^2) for |x| < 1; else 1 - e^(-x^2) Q((x - 2) / (x + 2)), with x clamped to `most`, where the result is 1.

    P and Q are interpolated at Chebyshev nodes, highest power first; Q approximates e^(x^2) erfc x.
    """

    most: float
    p: tuple[float, ...]
    q: tuple[float, ...]


ERF = {
    "f32": ErfForm(
        most=4.0,
        p=(
            7.8758750626854883e-05, -8.0166415871658695e-04, 5.1890874234339740e-03, -2.6854212010626412e-02,
            1.1283594715160218e-01, -3.7612626666720331e-01, 1.2837916584835095e-01,
        ),
        q=(
            -8.3797543870231346e-04, 6.8111401310856346e-03, 3.7323717589395444e-03, -7.8968306127934728e-02,
            2.4165820152556020e-01, -4.2718598976848670e-01, 2.5539567631050574e-01,
        ),
    ),
    "f64": ErfForm(
        most=6.0,
        p=(
            5.9571761477489114e-11, -1.1372848856791674e-09, 1.4659775274047436e-08, -1.6350312701054695e-07,
            1.6461000484121368e-06, -1.4925595266831182e-05, 1.2055331111642711e-04, -8.5483269808337899e-04,
            5.2239776248180145e-03, -2.6866170645076793e-02, 1.1283791670954879e-01, -3.7612638903183748e-01,
            1.2837916709551258e-01,
        ),
        q=(
            3.9170592999253885e-06, 1.8201431959750091e-06, -1.4067532694582058e-05, -2.7647305443610054e-05,
            2.7543128185666717e-05, 1.7436697233246863e-04, 4.3554202452705895e-05, -9.8197732081310227e-04,
            -8.4714319807604236e-04, 6.9974617477535736e-03, 3.7328924034922398e-03, -7.8978581015852535e-02,
            2.4165819424246986e-01, -4.2718584741395789e-01, 2.5539567631050575e-01,
        ),
    ),
}  # fmt: skip


def erf(k: Expander, x: ir.Value) -> ir.Value:
    """erf x; NaN stays NaN."""
    form, size = ERF[x.dtype.name], k.abs(x)
    size = k.select(size > form.most, form.most, size)
    square = size * size
    inner = k.fma(size, k.polynomial(square, form.p), size)
    ratio = (size - 2.0) / (size + 2.0)
    outer = 1.0 - k.exp(-square) * k.polynomial(ratio, form.q)
    return with_sign(k, k.select(size < 1.0, inner, outer), x)
