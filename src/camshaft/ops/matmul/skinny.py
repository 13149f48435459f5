"""The variant of matmul that is bound by reading one operand, once and in order: a few rows times b, or a times one column.

b as [k, n] is read a few rows at a time over many columns, whose sums stay in the L1 cache. Reading narrow panels in pieces one
row apart took twice as long. A column uses the kernel of gemv.py.
"""

from __future__ import annotations

from dataclasses import replace

from camshaft.dtypes import f32
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.matmul import gemv
from camshaft.ops.matmul.lanes import Axes, matrix_of
from camshaft.ops.matmul.shapes import Sizes, only_floats, sizes_of
from camshaft.ops.spec import bound

BACKENDS = frozenset({"simd", "c"})
MOST_ROWS = 4
# Rows of b at a time, or of the long operand; 4 read 4096 x 4096 a quarter slower, 16 too.
DEEP = 8
# Columns of a program. More columns read b faster (1024 of 4096 are a fifth slower than all), but two programs are needed.
GROUPS, PROGRAMS = (64, 128, 256, 512, 1024, 2048, 4096), 2


@kernel
def stream_rows(
    k: Tracer, a: Array, b: Array, out: Array, *, rows: int, columns: int, depth: int, group: int, deep: int, batch: Axes,
    a_steps: Axes, b_steps: Axes,
) -> None:  # fmt: skip
    # out[i, j] = sum_k a[i, k] b[k, j]: all rows i, `group` columns, `deep` rows of b at a time; the sums are kept in out,
    # or in scratch where out has a shorter dtype
    index, first = k.program(0), k.program(1) * group
    last = k.minimum(first + group, columns)
    a_row, b_row = matrix_of(index, batch, a_steps) * rows, matrix_of(index, batch, b_steps) * depth
    sums = None if out.dtype == f32 or depth <= deep else k.scratch(f32, rows, group)
    last_start = (depth - 1) // deep * deep
    between = last_start if sums is not None or last_start + deep > depth else depth

    def add(start: Value | int, n: int, fresh: bool, final: bool) -> None:
        factors = [[a[a_row + i, start + e] for e in range(n)] for i in range(rows)]
        for c in k.lanes(first, last):
            weights = [b[b_row + start + e, c] for e in range(n)]
            for i, line in enumerate(factors):
                into, at = (out, (index * rows + i, c)) if sums is None else (sums, (i, c - first))
                total = k.const(0.0, f32) if fresh else into[at]
                for x, w in zip(line, weights, strict=True):
                    total = k.fma(x, w, total)
                if final:
                    out[index * rows + i, c] = total
                else:
                    into[at] = total

    add(0, min(deep, depth), True, depth <= deep)
    for d in k.range(deep, between, deep):
        add(d, deep, False, False)
    if deep <= between < depth:
        add(between, depth - between, False, True)


def _swapped(s: Sizes) -> Sizes:
    """Returns the sizes with a as the long operand [n, k] and b, a column, as the only row."""
    return replace(
        s, rows=1, columns=bound(s.rows), transposed=True, a_steps=s.b_steps, b_steps=s.a_steps,
        a_matrices=s.b_matrices, b_matrices=s.a_matrices,
    )  # fmt: skip


def supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why the variant does not support the node, or None for a few rows and b as [k, n], or for one column."""
    s = sizes_of(node)
    if s.extents:
        return "the rows are an Extent"
    if s.columns == 1:
        return only_floats(node)
    if s.transposed:
        return "b as [n, k] of several rows"
    if bound(s.rows) > MOST_ROWS:
        return f"at most {MOST_ROWS} rows, or one column; got {bound(s.rows)} rows and {s.columns} columns"
    return only_floats(node)


def defaults(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
    """Returns the cost model's choice. `group`: columns of a program, or rows of the long operand; `deep`: rows of b per step."""
    s = sizes_of(node)
    group = max((n for n in GROUPS if n * PROGRAMS <= s.columns), default=GROUPS[0])
    return {"group": group, "deep": DEEP}


def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    """Builds one launch."""
    return build_with(node, target, defaults(node, target))


def build_with(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> ops.Build:
    """Like `build`, with a value for each tunable."""
    s = sizes_of(node)
    if s.columns == 1:
        return _one_column(_swapped(s), target)
    rows = bound(s.rows)
    arrays = (
        ops.read(0, shape=(s.a_matrices * rows, s.depth)),
        ops.read(1, shape=s.b_shape),
        ops.write(0, shape=(s.matrices * rows, s.columns)),
    )
    sizes = {"rows": rows, "columns": s.columns, "depth": s.depth, "group": values["group"], "deep": values["deep"]}
    grid = (ops.Cells(s.matrices), ops.Cells(s.columns, values["group"]))
    return ops.Build((ops.Launch(stream_rows, arrays, grid, {**sizes, **s.constants()}),))


def _one_column(s: Sizes, target: ops.Target) -> ops.Build:
    arrays = (
        ops.read(1, shape=(s.a_matrices, s.depth)),
        ops.read(0, shape=(s.b_matrices * s.columns, s.depth)),
        ops.write(0, shape=(s.matrices, s.columns)),
    )
    return ops.Build((gemv.launch(s, target, arrays, gemv.ROWS),))


TUNABLES = ops.Tunables({"group": GROUPS, "deep": (1, 2, 4, 8, 16)}, defaults, build_with)


def cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """Measured on Zen 4: the long operand at 30 bytes per nanosecond, 2 multiply-adds per lane and nanosecond in caches."""
    s = sizes_of(node)
    return max(sum(spec.nbytes for spec in node.inputs) / 30, s.multiply_adds / (2 * target.lanes)) + 50.0
