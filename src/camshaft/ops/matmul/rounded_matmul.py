"""rounded_matmul: matmul of f32 by f16 weights, both of which a kernel may round to int16 (int16_kernels.py).

The int16 have a scale per 64 k of a row or column, from the root of the sum of squares; for normal numbers their squared error is
an eighth of that of rounding to f16. Targets without products of pairs of 16-bit integers compute matmul in f32.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from camshaft.dtypes import f16, f32
from camshaft.extent import Extent
from camshaft.ops import op as ops
from camshaft.ops.matmul import int16_gemm, matmul
from camshaft.ops.matmul.rounding import F16_RULES
from camshaft.ops.matmul.shapes import infer
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.spec import TensorSpec

# For normal numbers the steps are 1/4100 and 1/8200 of the deviation: step^2 / 12 sums to 6e-9, and chance may double it. A scale
# that is wrong by 0.1 % gives 1e-6.
TOLERANCE = 2e-8
# (m, k, n): sizes around tiles of 6 rows, panels of 32 columns and a program's part of k, and a depth with a partial block
_SHAPES = ((1, 192, 9), (5, 64, 31), (6, 128, 32), (7, 576, 33), (13, 2240, 65), (67, 192, 150), (14, 96, 40))


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 2, "rounded_matmul", specs, "a [.., m, k] and b [.., n, k]")
    dtypes = tuple(spec.dtype for spec in specs)
    ops.expect(dtypes == (f32, f16), "rounded_matmul", specs, "a of f32 and b of f16")
    ops.expect(attrs.get("transpose_b") is True, "rounded_matmul", attrs, "transpose_b True")
    ops.expect("to" not in attrs, "rounded_matmul", f"to {attrs.get('to')!r}", "no `to`: sums stay f32")
    return infer(specs, attrs, "rounded_matmul")


def _samples() -> Iterable[ops.Sample]:
    rng, attrs = np.random.default_rng(7), {"transpose_b": True}

    def draw(m: int, k: int, n: int) -> tuple[ops.Array, ops.Array]:
        a, b = (rng.normal(size=shape) * 2.0 ** rng.integers(-6, 6, (shape[0], 1)) for shape in ((m, k), (n, k)))
        return a.astype(np.float32), b.astype(np.float16)

    for shape in _SHAPES:
        yield ops.Sample("x".join(map(str, shape)), draw(*shape), attrs)
    a, b = draw(35, 128, 33)
    batch = np.stack([a[:7], a[7:14]]), np.stack([b, b[::-1]])
    yield ops.Sample("two products", batch, attrs)
    a[3, :64], a[5, 80], b[4, 64:128] = 0, np.nan, 0
    yield ops.Sample("blocks of 0, and a NaN", (a, b), attrs)
    for bound, active in ((35, 13), (13, 1)):
        rows = Extent("rows", bound)
        specs = TensorSpec((rows, 128), f32), TensorSpec((33, 128), f16)
        yield ops.Sample(f"{active} of {bound} rows", (a[-bound:], b), attrs, specs, {rows: active})


def _error_samples() -> Iterable[ops.ErrorSample]:
    a, b = TensorSpec((2, 32), f32), TensorSpec((9, 32), f16)
    yield ops.ErrorSample((a, b), {}, "transpose_b True")
    yield ops.ErrorSample((a, b), {"transpose_b": True, "to": "f16"}, "no `to`")
    yield ops.ErrorSample((a, TensorSpec((9, 32), f32)), {"transpose_b": True}, "b of f16")
    yield ops.ErrorSample((a, TensorSpec((9, 64), f16)), {"transpose_b": True}, "with k = 32")


OP = replace(
    matmul.OP,
    name="rounded_matmul",
    formula="out[.., i, j] = sum_k a[.., i, k] b[.., j, k], operands in int16 where that is faster",
    parameters=Parameters("a b", (Attribute("transpose_b", "bool"),)),
    infer=_infer,
    variants=(
        *(v for v in matmul.OP.variants if v.name in ("lanes", "tiled", "blocked", "tile")),
        ops.KernelVariant(
            "int16_gemm",
            frozenset({"simd"}),
            int16_gemm.build,
            int16_gemm.supports,
            int16_gemm.cost,
            int16_gemm.TUNABLES,
        ),
    ),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": TOLERANCE},
    decompose=lambda f, a, b, transpose_b: f.matmul(a, b, transpose_b=transpose_b),
    rules=F16_RULES,
)
