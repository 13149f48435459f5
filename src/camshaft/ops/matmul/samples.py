"""Samples of matmul: sizes around the widths of vectors, tiles and blocks, each dtype, special values."""

from __future__ import annotations

from collections.abc import Iterable

import ml_dtypes
import numpy as np

from camshaft.dtypes import f32, f64, i32
from camshaft.extent import Extent
from camshaft.ops import op as ops
from camshaft.ops.checks import partly_active
from camshaft.ops.spec import TensorSpec

# (a's batch, m, k, n, b's batch): sizes around the vector width 16, the GEMV's 8 and 32 rows, tiles of 6 and 12 rows
_SHAPES = (
    ((), 1, 1, 1, ()),
    ((), 1, 17, 33, ()),
    ((), 2, 15, 16, ()),
    ((), 4, 5, 31, ()),
    ((), 5, 16, 17, ()),
    ((), 8, 20, 49, ()),
    ((), 9, 20, 15, ()),
    ((), 13, 7, 32, ()),
    ((), 12, 64, 65, ()),
    ((), 1, 530, 131, ()),
    ((), 25, 33, 300, ()),
    ((), 33, 34, 35, ()),
    ((), 67, 21, 150, ()),
    ((), 7, 1024, 70, ()),
    ((), 14, 530, 129, ()),
    ((2,), 15, 515, 130, (2,)),
    ((2, 1), 3, 9, 18, (2, 3)),
    ((3,), 7, 4, 5, ()),
    ((2, 1), 5, 6, 1, (3,)),
    ((), 14, 4, 16, (2, 2)),
)

# (m, k, n, b as [n, k], result) for matrix units and bf16 dot products: full tiles of 32, and partial ones. Validation for a plan
# takes every third sample: each variant needs one of these that it supports, in f32 and rounded (SKINNY: a few rows times
# [k, n]), and BF16_DOT one for each layout of b.
_BF16 = (
    (32, 64, 32, False, "f32"),
    (37, 44, 33, False, "bf16"),
    (37, 44, 1030, False, "f32"),
    (32, 64, 32, True, "bf16"),
    (10, 1034, 70, False, "f32"),
    (10, 1034, 70, False, "bf16"),
    (37, 44, 33, False, "f32"),
    (32, 196, 17, False, "bf16"),
    (37, 44, 33, True, "bf16"),
    (10, 1034, 70, True, "f32"),
    (3, 6, 18, True, "f32"),
    (3, 20, 130, False, "bf16"),
)

# Name, shapes and attributes of products that bf16x3 may stand for: a depth of whole steps and not, both layouts of b, a batch.
_PRECISE: tuple[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, object]], ...] = (
    ("bf16x3 37x70x45", (37, 70), (70, 45), {}),
    ("bf16x3 70x64x33 transposed to bf16", (70, 64), (33, 64), {"transpose_b": True, "to": "bf16"}),
    ("bf16x3 2 of 33x21x64 transposed", (2, 33, 21), (64, 21), {"transpose_b": True}),
    ("bf16x3 2 of 32x2100x40", (32, 2100), (2, 2100, 40), {}),
)


def samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(2)

    def draw(*shape: int) -> ops.Array:
        return rng.normal(size=shape).astype(np.float32)

    for a_batch, m, k, n, b_batch in _SHAPES:
        a, b, name = draw(*a_batch, m, k), draw(*b_batch, k, n), f"{a_batch}{m}x{k}x{n}{b_batch}"
        yield ops.Sample(name, (a, b))
        transposed = np.ascontiguousarray(np.swapaxes(b, -1, -2))
        yield ops.Sample(f"{name} transposed", (a, transposed), {"transpose_b": True})
    a, b = draw(6, 20), draw(33, 20)
    for first, second in ((np.float16, np.float16), (np.float32, ml_dtypes.bfloat16), (ml_dtypes.bfloat16, np.float32)):
        pair, name = (a.astype(first), b.astype(second)), f"{np.dtype(first)} x {np.dtype(second)}"
        yield ops.Sample(name, pair, {"transpose_b": True})
        yield ops.Sample(f"{name}, one row", (pair[0][:1], np.ascontiguousarray(pair[1].T)))
    for m, k, n, as_rows, result in _BF16:
        left, right = (draw(*shape).astype(ml_dtypes.bfloat16) for shape in ((m, k), (k, n)))
        b, attrs = (right.T.copy(), {"transpose_b": True}) if as_rows else (right, {})
        name = f"bf16 {m}x{k}x{n}{' transposed' if as_rows else ''}{f' to {result}' if result != 'f32' else ''}"
        yield ops.Sample(name, (left, b), attrs | ({"to": result} if result != "f32" else {}))
    for name, of_a, of_b, more in _PRECISE:
        yield ops.Sample(name, (draw(*of_a), draw(*of_b)), {"precision": "bf16x3"} | more)
    halves = draw(5, 1034).astype(np.float16), draw(1034, 35).astype(np.float16)
    yield ops.Sample("f16 5x1034x35 to f16", halves, {"to": "f16"})
    yield from _other_samples(rng)
    yield from _special_samples(draw(35, 18), abs(draw(19, 18)) + 1, draw(18, 19))


def _other_samples(rng: np.random.Generator) -> Iterable[ops.Sample]:
    """Samples of f64 and i32 (which wraps), and of vectors instead of matrices."""
    shapes = (((3, 2, 9), (9, 33)), ((17, 5), (5,)), ((9,), (2, 9, 17)))
    for dtype in (np.float64, np.int32):
        for a, b in shapes:
            pair = tuple((1e6 * rng.normal(size=shape)).astype(dtype) for shape in (a, b))
            yield ops.Sample(f"{a} x {b} of {np.dtype(dtype)}", pair)
        yield ops.Sample(
            f"transposed, of {np.dtype(dtype)}", (pair[1][0].T.copy(), pair[1][1].T.copy()), {"transpose_b": True}
        )
    for integer in (np.int64, np.uint64):
        whole = np.iinfo(integer)
        pair = tuple(rng.integers(whole.min, whole.max, s, integer, endpoint=True) for s in ((3, 9), (9, 18)))
        yield ops.Sample(f"3x9x18 of {np.dtype(integer)}", pair)
        yield ops.Sample(f"of {np.dtype(integer)}, transposed", (pair[0], pair[1].T.copy()), {"transpose_b": True})
    for a, b in (*shapes, ((7,), (7,))):
        yield ops.Sample(f"{a} x {b}", tuple(rng.normal(size=shape).astype(np.float32) for shape in (a, b)))
    yield ops.Sample(
        "(33,) x (5, 33)^T",
        (*(rng.normal(size=s).astype(np.float32) for s in ((33,), (5, 33))),),
        {"transpose_b": True},
    )


def _special_samples(a: ops.Array, weights: ops.Array, b: ops.Array) -> Iterable[ops.Sample]:
    odd = a[:9].copy()
    odd[1, 3], odd[2, 17], odd[6, 0] = np.nan, np.inf, -np.inf
    yield ops.Sample("NaN and infinities", (odd, weights), {"transpose_b": True})
    yield ops.Sample("NaN and infinities, one row", (odd[6:7], weights), {"transpose_b": True})
    for most, active in ((13, 5), (35, 13), (13, 1), (4, 3)):
        name = f"{active} of {most} rows"
        full = (
            ops.Sample(name, (a[:most], weights), {"transpose_b": True}),
            ops.Sample(f"{name}, b [k, n]", (a[:most], b)),
        )
        yield from (partly_active(sample, active, fixed=(1,), extent="rows") for sample in full)


def error_samples() -> Iterable[ops.ErrorSample]:
    a, rows = TensorSpec((2, 8), f32), Extent("rows", 4)
    yield ops.ErrorSample((a, TensorSpec((9, 3), f32)), {}, "with k = 8")
    yield ops.ErrorSample((a, TensorSpec((8, 3), f32)), {"transpose_b": True}, "wanted b .*n, k")
    yield ops.ErrorSample((a, TensorSpec((8, 3), i32)), {}, "wanted f32, f16 or bf16")
    yield ops.ErrorSample((TensorSpec((), f32), TensorSpec((8, 3), f32)), {}, "wanted f32, f16 or bf16")
    yield ops.ErrorSample((TensorSpec((2, 2, 8), f32), TensorSpec((3, 8, 3), f32)), {}, "that broadcast")
    yield ops.ErrorSample((a, TensorSpec((8, rows), f32)), {}, "an Extent only as the rows of a")
    yield ops.ErrorSample((TensorSpec((2, 0), f32), TensorSpec((0, 3), f32)), {}, "no empty axis")
    yield ops.ErrorSample((a,), {}, "wanted a ")
    wide = TensorSpec((2, 8), f64), TensorSpec((8, 3), f64)
    yield ops.ErrorSample((a, TensorSpec((8, 3), f32)), {"precision": "bf16"}, "wanted a precision of f32 or bf16x3")
    yield ops.ErrorSample(wide, {"precision": "bf16x3"}, "wanted f32 by f32 for precision bf16x3")
    yield ops.ErrorSample((a, TensorSpec((8, 3), f32)), {"to": "i8"}, "wanted to f32, f16 or bf16")
    yield ops.ErrorSample((TensorSpec((2, 8), i32), TensorSpec((8, 3), i32)), {"to": "f16"}, "no `to` beside i32")
