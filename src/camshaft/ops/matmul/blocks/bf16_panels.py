"""The variant of matmul of bf16 by bf16 on AMX: panels of b stay in the L2 cache. Its kernel is in bf16_panels_kernel.py."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from camshaft.dtypes import DType, bf16, f32, u32
from camshaft.lang.verifier.verify import MAX_SCRATCH_NBYTES
from camshaft.ops import op as ops
from camshaft.ops.matmul.blocks.bf16 import in_words_of
from camshaft.ops.matmul.blocks.bf16_panels_kernel import multiply_panels, slots_of
from camshaft.ops.matmul.blocks.bf16_tiles_kernel import multiply_tiles, multiply_tiles_in_parts, pack_tiles
from camshaft.ops.matmul.blocks.block_sizes import PAST_CACHES_NBYTES
from camshaft.ops.matmul.blocks.unit_panels import SIDE, STEP, WORDS, even_part, without_tiles
from camshaft.ops.matmul.shapes import Sizes, result_of, sizes_of
from camshaft.ops.spec import TensorSpec, bound

# Steps of a part of the depth; panels and rows of a program.
PARTS, PANELS, ROWS = (16, 32, 64, 128, 256, 512), (1, 2, 3, 4, 6, 8, 11, 16, 22, 32), (256, 512, 1024, 2048, 16384)
# Steps of a part by default, and steps times panels of a program: 1 MiB of b, half of the L2 cache.
PART, PANEL_STEPS = 64, 512
# Steps of a block that stays in the first cache while panels pass, where a is packed to tiles first; 0: a is read in place.
BLOCKS, BLOCK = (0, 8, 12, 16, 20, 32, 64), 16
# a is packed if its rows lie a multiple of 2 KiB apart, for so many columns and rows: 2048 cubed is 1.12 times as fast,
# 1024 and 2016 cubed 0.9 times (Emerald Rapids).
ALIASED, TILED_COLUMNS, TILED_ROWS = 1024, 2048, 512
# Multiply-adds from which there are two programs, though each reads all of a.
SHARED_WORK = 4e6


def _supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why the variant does not support the node, or None."""
    if (reason := without_tiles(target)) is not None:
        return reason
    if any(spec.dtype != bf16 for spec in node.inputs):
        return "takes bf16 by bf16"
    s = sizes_of(node)
    if s.depth % STEP:
        return f"a depth of {s.depth}; wanted a multiple of {STEP}"
    return too_few_or_deep(s, result_of(node))


def too_few_or_deep(s: Sizes, result: DType) -> str | None:
    """Returns why panels do not take the rows, or the depth for a result of this dtype; None if they do."""
    if result != f32 and s.depth > STEP * PARTS[-1]:
        return f"a depth of {s.depth} for a result of {result.name}; at most {STEP * PARTS[-1]}"
    return f"a tile of {SIDE} rows for {bound(s.rows)}" if bound(s.rows) < SIDE else None


def values_for(s: Sizes, result: DType) -> dict[str, int]:
    """Returns the cost model's choice: the whole depth if it is no more than PART, and as many panels as fit, evenly."""
    steps = s.depth // STEP
    part = PART if steps > PART and result == f32 else next(p for p in PARTS if p >= steps)
    most = max(n for n in PANELS if n * even_part(steps, part) <= PANEL_STEPS)
    panels = -(-s.columns // SIDE)
    groups = -(-panels // most)
    if groups * s.matrices == 1 and s.multiply_adds >= SHARED_WORK:
        groups = 2
    return {"part": part, "panels": min(next(n for n in PANELS if n * groups >= panels), most), "rows": ROWS[-1]}


def _defaults(s: Sizes, result: DType) -> dict[str, int]:
    """Returns the cost model's choice: tiles of a where its rows share sets of the first cache and packing them pays."""
    is_tiled = s.depth % ALIASED == 0 and s.columns >= TILED_COLUMNS and bound(s.rows) >= TILED_ROWS
    return {**values_for(s, f32 if is_tiled else result), "block": BLOCK if is_tiled else 0}


def refusal_of(s: Sizes, result: DType, values: ops.Values) -> str | None:
    """Returns why a program's panels are no scratch, or why its sums cannot wait; None if they do."""
    steps, panels = s.depth // STEP, values["panels"]
    part = even_part(steps, values["part"])
    if part < steps and result != f32 and not values.get("block"):
        return f"parts of {part} steps of {steps}: {result.name} holds no sums"
    nbytes = 4 * SIDE * (panels * part * WORDS + (panels if values.get("block") else slots_of(result)) * SIDE)
    return f"{nbytes} bytes of scratch; at most {MAX_SCRATCH_NBYTES}" if nbytes > MAX_SCRATCH_NBYTES else None


def launch_of(s: Sizes, values: ops.Values, a: ops.Operand, b: ops.Operand) -> ops.Launch:
    """Returns a launch with a program per matrix, block of rows and some panels of columns. `s`: sizes in words; a and b as
    `in_words_of` has them."""
    panels, part = values["panels"], even_part(s.depth // WORDS, values["part"])
    tokens = min(-(-bound(s.rows) // SIDE) * SIDE, values["rows"])
    return ops.Launch(
        multiply_panels,
        (a, b, s.out),
        (ops.Cells(s.matrices), ops.Cells(s.rows, tokens), ops.Cells(s.columns, SIDE * panels)),
        {"tokens": tokens, "part": part, "panels": panels, **s.constants()},
        s.extents,
    )


def tiled_build(s: Sizes, values: ops.Values, a: ops.Operand, b: ops.Operand, result: DType) -> ops.Build:
    """Returns a launch that packs a to tiles, and one that multiplies them. Arguments are those of `launch_of`."""
    rows, steps = bound(s.rows), s.depth // WORDS
    tiles = TensorSpec((s.a_matrices * -(-rows // SIDE), steps, SIDE, WORDS), u32)
    partial = TensorSpec((s.matrices * rows, s.columns), f32)
    grid = ops.Cells(s.a_matrices), ops.Cells(s.rows, SIDE)
    sizes = {"rows": rows, "steps": steps, "streamed": tiles.nbytes >= PAST_CACHES_NBYTES}
    pack = ops.Launch(pack_tiles, (a, ops.scratch(0, "write")), grid, sizes, s.extents)
    product = launch_of(s, values, ops.scratch(0, "read"), b)
    part = even_part(steps, values["part"])
    # 2048 cubed is 1.08 times as fast. Parts of the depth read the result again: 4096 cubed is 1.07 times as fast without.
    streamed = result == f32 and part == steps and partial.nbytes >= PAST_CACHES_NBYTES
    constants = {**product.constants, "block": even_part(part, values["block"]), "streamed": streamed}
    if part == steps or result == f32:
        return ops.Build((pack, replace(product, kernel=multiply_tiles, constants=constants)), (tiles,))
    tiled, b, out = product.arrays
    arrays = tiled, b, ops.scratch(1, "update"), out
    product = replace(product, kernel=multiply_tiles_in_parts, arrays=arrays, constants=constants)
    return ops.Build((pack, product), (tiles, partial))


def _build(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> ops.Build:
    s = sizes_of(node).in_words
    if values["block"]:
        return tiled_build(s, values, *in_words_of(s), result_of(node))
    return ops.Build((launch_of(s, values, *in_words_of(s)),))


def cost_of(s: Sizes) -> float:
    """Measured on Emerald Rapids: 800 multiply-adds per ns, 0.17 ns per element of b and 0.06 of the result."""
    rows = -(-bound(s.rows) // SIDE) * SIDE
    return s.in_panels(SIDE) * rows / bound(s.rows) / 800.0 + 0.17 * prod(s.b_shape) + 0.06 * rows * s.columns + 100.0


_TUNABLES = ops.Tunables(
    {"part": PARTS, "panels": PANELS, "rows": ROWS, "block": BLOCKS},
    lambda node, target: _defaults(sizes_of(node), result_of(node)),
    _build,
    lambda node, target, values: refusal_of(sizes_of(node), result_of(node), values),
)
UNIT_PANELS = ops.KernelVariant(
    "unit_panels",
    frozenset({"simd"}),
    _TUNABLES.build_default,
    _supports,
    lambda node, target: cost_of(sizes_of(node)),
    _TUNABLES,
)
