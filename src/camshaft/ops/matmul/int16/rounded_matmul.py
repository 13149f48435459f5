"""rounded_matmul: matmul of f32 by f16 weights, both of which a kernel may round to int16 (int16_kernels.py).

The int16 have a scale per 64 k of a row or column, from the root of the sum of squares; for normal numbers their squared error is
an eighth of that of rounding to f16. Its own variant uses a CPU's dot product of int16 pairs (vpdpwssd) in the blocks of
blocked.py: a and b are rounded by their own launches, b into transposed panels. The tile has two sums for each product, in i32
and f32: 12 of them fill 24 of 32 registers. Sixteen registers are too few, and without an accumulating instruction (AVX2's
vpmaddwd, NEON's smlal) it takes two instructions, as many as f32's products: other targets multiply in f32, as matmul does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import f16, f32, u32, u64
from camshaft.ops import op as ops
from camshaft.ops.checks import partly_active
from camshaft.ops.matmul import matmul
from camshaft.ops.matmul.blocks import block_sizes, blocked
from camshaft.ops.matmul.int16.kernels import BLOCK, WORDS, multiply_rounded, round_rows, turn_rounded
from camshaft.ops.matmul.shapes import PAIR, WIDTH, Sizes, sizes_of
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.rule import Builder, Match, Rule, Stage, Use, Uses
from camshaft.ops.spec import TensorSpec, bound

# For normal numbers the steps are 1/4100 and 1/8200 of the deviation: step^2 / 12 sums to 6e-9, and chance may double it. A scale
# that is wrong by 0.1 % gives 1e-6.
TOLERANCE = 2e-8
FEATURES = frozenset({"avx512vnni", "avx512vl"})
# Rows and vectors of the register tile.
ROWS, VECTORS = 6, 2
MOST_SUMS = 14
# Blocks of a row of a that a program rounds.
SPAN = 8


def _supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why the variant does not support the node, or None."""
    if not target.features >= FEATURES or target.lanes < WIDTH:
        return "takes CPUs with AVX-512's vpdpwssd and vectors of 16 elements"
    s = sizes_of(node)
    if node.inputs[0].dtype != f32 or node.inputs[1].dtype != f16 or not s.transposed:
        return "takes f32 by f16 as [n, k]"
    return f"a depth of {s.depth}; wanted a multiple of {BLOCK}" if s.depth % BLOCK else None


def _defaults(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
    """Returns the cost model's choice, as in blocked.py, with another tile."""
    s = sizes_of(node).in_words
    values = block_sizes.values_of(s, target)
    sizes = {name: values[name] for name in ("part", "block", "group")}
    return {"rows": min(ROWS, bound(s.rows)), "vectors": VECTORS, **sizes}


def _refusal(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> str | None:
    """Returns why the values do not fit, or None: sums exceed the registers, or too many rows of a tile."""
    sums, rows = values["rows"] * values["vectors"], bound(sizes_of(node).rows)
    if sums > MOST_SUMS:
        return f"{sums} sums of two kinds exceed the registers"
    return f"a tile of {values['rows']} rows for {rows}" if values["rows"] > rows else None


def _build(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> ops.Build:
    """Builds three launches: one rounds a, one rounds and packs b, one multiplies."""
    s, width = sizes_of(node).in_words, values["vectors"] * WIDTH
    rows, blocks, panels = s.a_matrices * bound(s.rows), s.depth * PAIR // BLOCK, -(-s.columns // width) * s.b_matrices
    forms = (rows, s.depth), (rows, blocks), (panels, s.depth, width), (panels, blocks, width)
    scratch = tuple(TensorSpec(shape, dtype) for shape, dtype in zip(forms, (u32, f32, u32, f32), strict=True))
    return ops.Build((_round_a(s, blocks), _round_b(s, values["vectors"], blocks), _multiply(s, values)), scratch)


def _round_a(s: Sizes, blocks: int) -> ops.Launch:
    return ops.Launch(
        round_rows,
        (
            ops.read(0, shape=(s.a_matrices * bound(s.rows), s.depth * PAIR)),
            ops.scratch(0, "write"),
            ops.scratch(1, "write"),
        ),
        (ops.Cells(s.a_matrices), ops.Cells(s.rows), ops.Cells(blocks, SPAN)),
        {"rows": bound(s.rows), "blocks": blocks, "span": SPAN},
    )


def _round_b(s: Sizes, vectors: int, blocks: int) -> ops.Launch:
    panels = -(-s.columns // (vectors * WIDTH))
    shape = (s.b_matrices * panels, s.depth, vectors * WIDTH // 2)
    packed = ops.Operand("scratch", 2, shape=shape, access="write", dtype=u64)
    return ops.Launch(
        turn_rounded,
        (ops.read(1, shape=(s.b_shape[0], s.depth * PAIR)), packed, ops.scratch(3, "write")),
        (ops.Cells(s.b_matrices), ops.Cells(panels), ops.Cells(blocks)),
        {"columns": s.columns, "vectors": vectors, "blocks": blocks},
    )


def _multiply(s: Sizes, values: ops.Values) -> ops.Launch:
    made = blocked.multiply_launch(
        s, {**values, "copied": 0, "packed": 1}, ops.scratch(0, "read"), ops.scratch(2, "read"), f32
    )
    arrays = *(ops.scratch(i, "read") for i in range(4)), made.arrays[-1]
    constants = {name: value for name, value in made.constants.items() if name not in ("copied", "paired_part")}
    # equal parts in full blocks
    constants["part"] = -(-s.depth // (-(-s.depth // values["part"]) * WORDS)) * WORDS
    return replace(made, kernel=multiply_rounded, arrays=arrays, constants=constants)


_TUNABLES = ops.Tunables(
    {
        "rows": (1, 2, 3, 4, 5, 6, 7, 8, 12, 14),
        "vectors": (1, 2, 3),
        **{name: blocked.TUNABLES.values[name] for name in ("part", "block", "group")},
    },
    _defaults,
    _build,
    _refusal,
)


def _cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """Measured on Zen 4: 6 multiply-adds per lane and nanosecond, rounding a 0.3 ns per element, b 0.35."""
    s = sizes_of(node)
    width = VECTORS * WIDTH
    rounding = 0.3 * s.a_matrices * bound(s.rows) * s.depth + 0.35 * prod(s.b_shape)
    return s.in_panels(width) / (6 * target.lanes) + rounding + 300.0


INT16 = ops.KernelVariant("int16_gemm", frozenset({"simd"}), _TUNABLES.build_default, _supports, _cost, _TUNABLES)


# (m, k, n): sizes around tiles of 6 rows, panels of 32 columns and a program's part of k, and a depth with a partial block
_SHAPES = ((1, 192, 9), (5, 64, 31), (6, 128, 32), (7, 576, 33), (13, 2240, 65), (67, 192, 150), (14, 96, 40))


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 2, "rounded_matmul", specs, "a [.., m, k] and b [.., n, k]")
    dtypes = tuple(spec.dtype for spec in specs)
    ops.expect(dtypes == (f32, f16), "rounded_matmul", specs, "a of f32 and b of f16")
    ops.expect(attrs.get("transpose_b") is True, "rounded_matmul", attrs, "transpose_b True")
    ops.expect("to" not in attrs, "rounded_matmul", f"to {attrs.get('to')!r}", "no `to`: sums stay f32")
    return matmul.infer(specs, attrs, "rounded_matmul")


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
    for most, active in ((35, 13), (13, 1)):
        full = ops.Sample(f"{active} of {most} rows", (a[-most:], b), attrs)
        yield partly_active(full, active, fixed=(1,), extent="rows")


def _error_samples() -> Iterable[ops.ErrorSample]:
    a, b = TensorSpec((2, 32), f32), TensorSpec((9, 32), f16)
    yield ops.ErrorSample((a, b), {}, "transpose_b True")
    yield ops.ErrorSample((a, b), {"transpose_b": True, "to": "f16"}, "no `to`")
    yield ops.ErrorSample((a, TensorSpec((9, 32), f32)), {"transpose_b": True}, "b of f16")
    yield ops.ErrorSample((a, TensorSpec((9, 64), f16)), {"transpose_b": True}, "with k = 32")


def _integer_product(use: Use, uses: Uses) -> Match | None:
    """Replaces matmul(x, w f16) by rounded_matmul(x, w)."""
    if not matmul.is_linear(use, f16) or "to" in use.attrs:
        return None

    def build(new: Builder) -> Mapping[Any, Any]:
        made = new.apply("rounded_matmul", use.inputs, use.attrs, use.name)
        return dict(zip(use.outputs, made, strict=True))

    return Match(build)


OP = replace(
    matmul.OP,
    name="rounded_matmul",
    formula="out[.., i, j] = sum_k a[.., i, k] b[.., j, k], operands in int16 where that is faster",
    parameters=Parameters("a b", (Attribute("transpose_b", "bool"),)),
    infer=_infer,
    variants=(
        *(v for v in matmul.OP.variants if v.name in ("lanes", "tiled", "blocked", "tile")),
        INT16,
    ),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": TOLERANCE},
    decompose=lambda f, a, b, transpose_b: f.matmul(a, b, transpose_b=transpose_b),
    rules=(Rule(Stage.ROUND, ("matmul",), _integer_product),),
)
