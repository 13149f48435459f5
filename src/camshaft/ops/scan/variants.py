"""Variants of scans: a program for each part of a long row, or for a whole row."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from camshaft.dtypes import DType, as_dtype, f64
from camshaft.lang import Constant, Kernel
from camshaft.ops import op as ops
from camshaft.ops.kernels import blocks
from camshaft.ops.kernels.launch import plan_workers
from camshaft.ops.scan import kernels, quads, row_scan
from camshaft.ops.scan.definition import Scan, axis_of, layout_of
from camshaft.ops.spec import TensorSpec, bound

# Elements of a row that a program scans, and columns of a block.
PART, COLUMNS = 16384, 512
# Elements of whole rows that a program scans one after the other, where groups of several rows are interleaved.
FEW = 4096
# Workers where their number is not known.
MANY = 64
_SIZES = ("inner", "dim", "per", "parts", "columns", "rows")


def _build(row: Scan, node: ops.NodeSpec, target: ops.Target, whole: bool = False) -> ops.Build:
    """`whole`: rows of several parts are scanned by one program each."""
    x, out = node.inputs[0], node.outputs[0]
    outer, inner, dim, columns = layout_of(x, axis_of(row.name, x, node.attrs))
    wide = row.accumulates_in(as_dtype(x.dtype), as_dtype(out.dtype), target.backend)
    rows, reverse = bound(outer) * inner, bool(node.attrs.get("reverse"))
    constants: dict[str, Constant] = {
        "kind": row.kind,
        "dtype": wide.name,
        "reverse": reverse,
        "inner": inner,
        "dim": dim,
    }
    grid = ops.Cells(outer), ops.Cells(inner)
    if columns > 1:
        arrays = ops.read(0, shape=(rows, dim, columns)), ops.write(0, shape=(rows, dim, columns))
        constants |= {"columns": columns, "block": COLUMNS}
        return _one(kernels.into_columns, arrays, (*grid, ops.Cells(columns, per=COLUMNS)), constants)
    read, write = ops.read(0, shape=(rows, dim)), ops.write(0, shape=(rows, dim))
    if row.kind == "product":
        return _one(kernels.in_order, (read, write), grid, constants)
    lanes, named = _lanes_of(row, as_dtype(x.dtype), wide, dim, target)
    constants |= named
    streams = {"streams": lanes > 1 and blocks.streams(node, target)}
    per = FEW // dim if inner == 1 and isinstance(outer, int) and named["form"] == kernels.PAIRS and not whole else 1
    if per > 1 and dim % (quads.EACH * lanes) == 0:
        arrays = ops.read(0, shape=(1, rows * dim)), ops.write(0, shape=(1, rows * dim))
        named = {name: constants[name] for name in ("kind", "dtype", "reverse", "dim", "lanes")}
        given = {**named, **streams, "rows": rows, "per": per}
        return _one(kernels.rows_at_once, arrays, (ops.Cells(rows, per=per),), given, lanes)
    if dim <= PART and not whole:
        return _one(kernels.along_rows, (read, write), grid, {**constants, **streams}, lanes)
    parts = -(-dim // PART)
    constants["per"] = PART
    if whole:
        given = {**constants, **streams, "parts": parts}
        return _one(kernels.part_by_part, (read, write), grid, given, lanes)
    by_part, between = (*grid, ops.Cells(parts)), (rows, parts)
    first = _launch(kernels.part_totals, (read, ops.scratch(0, "write", between)), by_part, constants, lanes)
    reads = read, ops.scratch(0, "read", between)
    given = {**constants, **streams, "parts": parts}
    second = _launch(kernels.parts_of_rows, (*reads, write), by_part, given, lanes)
    return ops.Build((first, second), (TensorSpec(between, wide),))


def _lanes_of(row: Scan, given: DType, wide: DType, dim: int, target: ops.Target) -> tuple[int, dict[str, Constant]]:
    """The lanes of scans along rows, and constants: the lanes, how many elements each adds in order, and the form of sums."""
    group = quads.EACH * target.lanes
    if target.backend == "simd" and given.is_float and given != f64:
        if (dim >= 2 * group or dim == group) and has_fast_moves_in_blocks(target):
            return target.lanes, {"lanes": target.lanes, "share": 1, "form": kernels.PAIRS}
        if row.kind == "sum":
            lanes = quads.width_for(dim, target.lanes)
            return lanes, {"lanes": lanes, "share": 1, "form": kernels.QUADS}
    share = row_scan.share_of(row.kind, given, wide, target.lanes) if target.backend == "simd" else 1
    lanes = 1 if target.backend in ("scalar", "c") else row_scan.width_of(wide) * share
    return lanes, {"lanes": lanes, "share": share, "form": kernels.STEPS}


def has_fast_moves_in_blocks(target: ops.Target) -> bool:
    """Whether the CPU moves values within blocks of 128 bits faster than between them: AMD's with AVX-512. A Zen 4 has three
    pipes for those, two for these."""
    return {"sse4a", "avx512f"} <= target.features


def _cost(row: Scan, node: ops.NodeSpec, whole: bool) -> float:
    """ns, shared by the workers that get a program: rows of several parts are read twice, those of one program once."""
    x = node.inputs[0]
    outer, inner, dim, columns = layout_of(x, axis_of(row.name, x, node.attrs))
    parts = -(-dim // PART)
    programs = bound(outer) * inner * (1 if whole else parts) * -(-columns // COLUMNS)
    each = 0.5 if whole else 0.6 if parts > 1 else 0.45
    return prod(x.bounds) * each / min(plan_workers() or MANY, programs)


def _refusal(row: Scan, node: ops.NodeSpec) -> str | None:
    *_, columns = layout_of(node.inputs[0], axis_of(row.name, node.inputs[0], node.attrs))
    return "wanted the last axis" if columns > 1 else None


def variants(row: Scan) -> tuple[ops.KernelVariant, ...]:
    """Long rows by a program for each part, or by one that takes the parts in turn, with the same bits; but f64 sums after NaN of
    both signs may have either."""
    by_parts = ops.KernelVariant(
        "scans", ops.EVERYWHERE, lambda n, t: _build(row, n, t), cost=lambda n, t: _cost(row, n, whole=False)
    )
    if row.kind == "product":
        return (by_parts,)
    whole = ops.KernelVariant(
        "whole_rows",
        frozenset({"simd"}),
        lambda n, t: _build(row, n, t, whole=True),
        lambda n, t: _refusal(row, n),
        lambda n, t: _cost(row, n, whole=True),
    )
    return by_parts, whole


def _launch(
    kernel: Kernel, arrays: tuple[ops.Operand, ...], grid: tuple[ops.Cells, ...], constants: Mapping[str, Constant],
    lanes: int | None = None,
) -> ops.Launch:  # fmt: skip
    # whether a row is whole cache lines decides how it is stored, if it is stored past the caches
    sizes = () if constants.get("streams") else tuple(name for name in _SIZES if name in constants)
    return ops.Launch(kernel, arrays, grid, constants, lanes=lanes, sizes=sizes)


def _one(*launch: Any) -> ops.Build:
    return ops.Build((_launch(*launch),))
