"""matmul of bf16 by bf16 with a CPU's dot product of bf16 pairs (vdpbf16ps, bfdot), in the blocks of blocked.py.

Depth is counted in 32-bit words of two k. Products are exact; those of a pair are added in order, each sum rounded once, with
subnormal numbers as 0 (k.dot2; NEON's bfdot has its own order and rounding).
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from camshaft.dtypes import bf16, u16, u32
from camshaft.ops import op as ops
from camshaft.ops.matmul import blocked
from camshaft.ops.matmul.blocked_kernel import WIDTH
from camshaft.ops.matmul.shapes import Sizes, result_of, sizes_of
from camshaft.ops.spec import bound

PAIR = 2
FEATURES = (frozenset({"avx512bf16", "avx512vl"}), frozenset({"neon", "bf16"}))
# The rows and elements of b from which pairing b's rows once costs less than pairing them for each tile of rows.
PACKED_ROWS, PACKED_SIZE = 48, 10_000
# With so many rows and at least so many columns, a program takes all rows and pairs its panels itself, so that b is read
# once and not written: 64 x 1024 x 4096 takes 3.55 ms, 4.16 ms with b packed first. Three row tiles pair as fast as they read.
PACK_INSIDE_ROWS, PACK_INSIDE_COLUMNS = range(19, 97), 1024


def _in_words(node: ops.NodeSpec) -> Sizes:
    """Returns the sizes with the depth in words."""
    s = sizes_of(node)
    return replace(s, depth=s.depth // PAIR)


def supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why the variant does not support the node, or None."""
    if not any(features <= target.features for features in FEATURES):
        return "takes CPUs that multiply pairs of bf16: AVX-512's vdpbf16ps, NEON's bfdot"
    if any(spec.dtype != bf16 for spec in node.inputs):
        return "takes bf16 by bf16"
    depth = sizes_of(node).depth
    return f"a depth of {depth}; wanted an even one" if depth % PAIR else None


def defaults(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
    """Returns the cost model's choice, as in blocked.py."""
    s = _in_words(node)
    values, rows = blocked.values_of(s, target), bound(s.rows)
    if not s.transposed and rows in PACK_INSIDE_ROWS and s.columns >= PACK_INSIDE_COLUMNS:
        block = next(n for n in blocked.BLOCKS if n >= rows + values["rows"])
        group = max((n for n in blocked.GROUPS if n * blocked.PROGRAMS <= s.columns), default=blocked.GROUPS[0])
        return {**values, "packed": blocked.PACKED_INSIDE, "block": block, "group": group}
    packed = s.transposed or (rows >= PACKED_ROWS and PAIR * prod(s.b_shape) >= PACKED_SIZE)
    return {**values, "packed": blocked.PACKED if packed else blocked.IN_PLACE}


def refusal(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> str | None:
    """Like `refusal` in blocked.py, but a is never copied."""
    return "pairs of a are read where they lie" if values["copied"] else blocked.refusal(node, target, values)


def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    """Builds one launch, after a launch that packs b if several row tiles read it or if it is [n, k]."""
    return build_with(node, target, defaults(node, target))


def build_with(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> ops.Build:
    """Like `build`, with a value for each tunable."""
    s = _in_words(node)
    a = ops.Operand("input", 0, shape=(s.a_matrices * bound(s.rows), s.depth), dtype=u32)
    if s.transposed:
        b = ops.Operand("input", 1, shape=s.b_shape, dtype=u32)
    else:
        b = ops.Operand("input", 1, shape=(s.b_matrices * s.depth * PAIR, s.columns), dtype=u16)
    return blocked.build_of(s, values, a, b, u32, result_of(node))


FIXED = {"copied": (0,), "packed": (blocked.IN_PLACE, blocked.PACKED, blocked.PACKED_INSIDE)}
TUNABLES = ops.Tunables(
    {name: found for name, found in blocked.TUNABLES.values.items() if name not in FIXED} | FIXED,
    defaults,
    build_with,
    refusal,
)


def cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """Measured on Zen 4: 6 multiply-adds per lane and nanosecond, packing b 0.15 ns per element (0.3 if b is [n, k])."""
    s, values = sizes_of(node), defaults(node, target)
    width = values["vectors"] * WIDTH
    work = float(s.matrices) * bound(s.rows) * s.depth * -(-s.columns // width) * width
    packing = (0.3 if s.transposed else 0.15) * prod(s.b_shape) * (values["packed"] == blocked.PACKED)
    return max(work / (6 * target.lanes), sum(spec.nbytes for spec in node.inputs) / 20) + packing + 100.0
