"""The variant of matmul of bf16 by bf16 on AMX: panels of b stay in the L2 cache. Its kernel is in bf16_panels_kernel.py."""

from __future__ import annotations

from math import prod

from camshaft.dtypes import bf16, f32
from camshaft.lang.verifier.verify import MAX_SCRATCH_NBYTES
from camshaft.ops import op as ops
from camshaft.ops.matmul.blocks.bf16 import in_words_of
from camshaft.ops.matmul.blocks.bf16_panels_kernel import multiply_panels
from camshaft.ops.matmul.blocks.unit_panels import SIDE, STEP, WORDS, even_part, without_tiles
from camshaft.ops.matmul.shapes import result_of, sizes_of
from camshaft.ops.spec import bound

# Steps of a part of the depth; panels and rows of a program.
PARTS, PANELS, ROWS = (16, 32, 64, 128, 256, 512), (1, 2, 3, 4, 6, 8, 11, 16, 22, 32), (256, 512, 1024, 2048, 16384)
# Steps of a part by default, and steps times panels of a program: 1 MiB of b, half of the L2 cache.
PART, PANEL_STEPS = 64, 512
# Multiply-adds from which there are two programs, though each reads all of a.
SHARED_WORK = 4e6


def _steps(node: ops.NodeSpec) -> int:
    """Returns the steps of the depth."""
    return sizes_of(node).depth // STEP


def _supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why the variant does not support the node, or None."""
    if (reason := without_tiles(target)) is not None:
        return reason
    if any(spec.dtype != bf16 for spec in node.inputs):
        return "takes bf16 by bf16"
    s = sizes_of(node)
    if s.depth % STEP:
        return f"a depth of {s.depth}; wanted a multiple of {STEP}"
    if result_of(node) != f32 and _steps(node) > PARTS[-1]:
        return f"a depth of {s.depth} for a result of {result_of(node).name}; at most {STEP * PARTS[-1]}"
    return f"a tile of {SIDE} rows for {bound(s.rows)}" if bound(s.rows) < SIDE else None


def _defaults(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
    """Returns the cost model's choice: the whole depth if it is no more than PART, and as many panels as fit, evenly."""
    s, steps = sizes_of(node), _steps(node)
    part = PART if steps > PART and result_of(node) == f32 else next(p for p in PARTS if p >= steps)
    most = max(n for n in PANELS if n * even_part(steps, part) <= PANEL_STEPS)
    panels = -(-s.columns // SIDE)
    groups = -(-panels // most)
    if groups * s.matrices == 1 and s.multiply_adds >= SHARED_WORK:
        groups = 2
    return {"part": part, "panels": min(next(n for n in PANELS if n * groups >= panels), most), "rows": ROWS[-1]}


def _refusal(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> str | None:
    """Returns why a program's panels are no scratch, or why its sums cannot wait; None if they do."""
    steps, panels = _steps(node), values["panels"]
    part = even_part(steps, values["part"])
    if part < steps and result_of(node) != f32:
        return f"parts of {part} steps of {steps}: {result_of(node).name} holds no sums"
    nbytes = 4 * SIDE * (panels * part * WORDS + SIDE)
    return f"{nbytes} bytes of scratch; at most {MAX_SCRATCH_NBYTES}" if nbytes > MAX_SCRATCH_NBYTES else None


def _build(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> ops.Build:
    """Builds a launch with a program per matrix, block of rows and some panels of columns."""
    s, panels, part = sizes_of(node).in_words, values["panels"], even_part(_steps(node), values["part"])
    tokens = min(-(-bound(s.rows) // SIDE) * SIDE, values["rows"])
    launch = ops.Launch(
        multiply_panels,
        (*in_words_of(s), s.out),
        (ops.Cells(s.matrices), ops.Cells(s.rows, tokens), ops.Cells(s.columns, SIDE * panels)),
        {"tokens": tokens, "part": part, "panels": panels, **s.constants()},
        s.extents,
    )
    return ops.Build((launch,))


def _cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """Measured on Emerald Rapids: 800 multiply-adds per ns, 0.17 ns per element of b and 0.06 of the result."""
    s = sizes_of(node)
    rows = -(-bound(s.rows) // SIDE) * SIDE
    return s.in_panels(SIDE) * rows / bound(s.rows) / 800.0 + 0.17 * prod(s.b_shape) + 0.06 * rows * s.columns + 100.0


_TUNABLES = ops.Tunables({"part": PARTS, "panels": PANELS, "rows": ROWS}, _defaults, _build, _refusal)
UNIT_PANELS = ops.KernelVariant(
    "unit_panels", frozenset({"simd"}), _TUNABLES.build_default, _supports, _cost, _TUNABLES
)
