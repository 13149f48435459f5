"""rounded_matmul in int16, with a CPU's dot product of int16 pairs (vpdpwssd): blocks as in blocked.py.

a and b are rounded by their own launches (int16_kernels.py), b into transposed panels. The tile has two sums for each
product, in i32 and f32: 12 of them fill 24 of 32 registers. Sixteen registers are too few, and without an accumulating
instruction (AVX2's vpmaddwd, NEON's smlal) it takes two instructions, as many as f32's products: other targets multiply in f32.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from camshaft.dtypes import f16, f32, u32, u64
from camshaft.ops import op as ops
from camshaft.ops.matmul import blocked
from camshaft.ops.matmul.blocked_kernel import WIDTH
from camshaft.ops.matmul.int16_kernels import BLOCK, WORDS, multiply_rounded, round_rows, turn_rounded
from camshaft.ops.matmul.shapes import Sizes, sizes_of
from camshaft.ops.spec import TensorSpec, bound

PAIR = 2
FEATURES = frozenset({"avx512vnni", "avx512vl"})
# Rows and vectors of the register tile.
ROWS, VECTORS = 6, 2
MOST_SUMS = 14
# Blocks of a row of a that a program rounds.
SPAN = 8


def supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why the variant does not support the node, or None."""
    if not target.features >= FEATURES or target.lanes < WIDTH:
        return "takes CPUs with AVX-512's vpdpwssd and vectors of 16 elements"
    s = sizes_of(node)
    if node.inputs[0].dtype != f32 or node.inputs[1].dtype != f16 or not s.transposed:
        return "takes f32 by f16 as [n, k]"
    return f"a depth of {s.depth}; wanted a multiple of {BLOCK}" if s.depth % BLOCK else None


def defaults(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
    """Returns the cost model's choice, as in blocked.py, with another tile."""
    s = _in_words(node)
    values = blocked.values_of(s, target)
    blocking = {name: values[name] for name in ("part", "block", "group")}
    return {"rows": min(ROWS, bound(s.rows)), "vectors": VECTORS, **blocking}


def _in_words(node: ops.NodeSpec) -> Sizes:
    """Returns the sizes with the depth in words."""
    s = sizes_of(node)
    return replace(s, depth=s.depth // PAIR)


def refusal(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> str | None:
    """Returns why the values do not fit, or None: sums exceed the registers, or too many rows of a tile."""
    sums, rows = values["rows"] * values["vectors"], bound(sizes_of(node).rows)
    if sums > MOST_SUMS:
        return f"{sums} sums of two kinds exceed the registers"
    return f"a tile of {values['rows']} rows for {rows}" if values["rows"] > rows else None


def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    """Builds three launches: one rounds a, one rounds and packs b, one multiplies."""
    return build_with(node, target, defaults(node, target))


def build_with(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> ops.Build:
    """Like `build`, with a value for each tunable."""
    s, width = _in_words(node), values["vectors"] * WIDTH
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


TUNABLES = ops.Tunables(
    {
        "rows": (1, 2, 3, 4, 5, 6, 7, 8, 12, 14),
        "vectors": (1, 2, 3),
        **{name: blocked.TUNABLES.values[name] for name in ("part", "block", "group")},
    },
    defaults,
    build_with,
    refusal,
)


def cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """Measured on Zen 4: 6 multiply-adds per lane and nanosecond, rounding a 0.3 ns per element, b 0.35."""
    s = sizes_of(node)
    width = VECTORS * WIDTH
    work = float(s.matrices) * bound(s.rows) * s.depth * -(-s.columns // width) * width
    rounding = 0.3 * s.a_matrices * bound(s.rows) * s.depth + 0.35 * prod(s.b_shape)
    return work / (6 * target.lanes) + rounding + 300.0
