"""Kernel IR to LLVM IR text for a CPU, at any lane width.

A varying value is a vector of `lanes` elements, a uniform one a scalar. A lanes loop becomes an unmasked main loop, then its body
again under a mask. A kernel becomes `void NAME(ptr args, i64 first, i64 last)`, which runs programs first..last of the grid.
`args` has the arrays' addresses, then for each run-time scalar the address of its i64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from camshaft.emit.llvm import control, instructions, lanes, memory, packing
from camshaft.emit.llvm.context import Context, Rules
from camshaft.emit.llvm.matrix_units import statements as matrix_units
from camshaft.emit.llvm.values import Rep, array_name, integer, iota, memory_dtype, scalar_type
from camshaft.emit.target import CpuTarget
from camshaft.lang import ir, tile_ir
from camshaft.lang.expand.functions import expand_functions
from camshaft.lang.expand.tiles import expand_tiles
from camshaft.lang.instructions import INSTRUCTIONS
from camshaft.lang.simt.form import SimtKernel
from camshaft.lang.uniformity import varying

# Values that are lowered alike for a vector of lanes and for a GPU thread.
COMMON_VALUES: dict[str, Callable[[Context, ir.Value], Rep]] = {
    **dict.fromkeys(INSTRUCTIONS, instructions.instruction),
    **dict.fromkeys(("add", "subtract", "multiply"), instructions.arithmetic),
    **dict.fromkeys(("floor_divide", "remainder"), instructions.division),
    "select": instructions.select,
    "cast": instructions.cast,
    "bitcast": instructions.bitcast,
    "const": instructions.const,
    "program": lambda ctx, value: Rep(f"%program{value.attr}"),
    "scalar": lambda ctx, value: Rep(f"%scalar{value.attr}"),
    "load": memory.load,
    "var_get": instructions.var_get,
    "atomic": lanes.atomic,
}
COMMON_STATEMENTS: dict[type[ir.Statement], Callable[[Context, Any], None]] = {
    ir.VarNew: control.var_new,
    ir.VarSet: control.var_set,
    ir.Store: memory.store,
    ir.Range: control.range_loop,
    ir.When: control.when,
}
CPU_RULES: Rules[Context] = Rules(
    {
        **COMMON_VALUES,
        "lane": instructions.lane,
        "lane_count": lambda ctx, value: integer(ctx.lanes),
        "subgroup_lanes": lambda ctx, value: integer(ctx.lanes),
        "reduce": lanes.reduce,
        "subgroup_reduce": lanes.reduce,
        "scan": lanes.scan,
        "shuffle": lanes.shuffle,
        "splat": instructions.splat,
        "iota": lambda ctx, value: Rep(iota(value.width, value.dtype), value.width),
        "element": instructions.element,
        "vector_sum": lanes.vector_reduce,
        "vector_max": lanes.vector_reduce,
        "pack": packing.pack,
        "partition": packing.partition,
        "reverse": packing.reverse,
        "permute": packing.permute,
        "count": packing.count,
    },
    {
        **COMMON_STATEMENTS,
        ir.Lanes: control.lanes_loop,
        ir.Barrier: control.barrier,
        ir.Prefetch: memory.prefetch,
        tile_ir.TileNew: matrix_units.new,
        tile_ir.TileMma: matrix_units.mma,
        tile_ir.TileStore: matrix_units.store,
    },
)


def stack_array(array: ir.Array) -> str:
    """The instruction that allocates an array on the stack."""
    return f"{array_name(array.name)} = alloca [{prod(array.shape)} x {scalar_type(memory_dtype(array.dtype))}]"


def size_lines(grid: Sequence[ir.GridDim], scalars: Sequence[str]) -> tuple[list[str], list[str]]:
    """The instructions that find the axes' sizes (i64) from %scalar0.., and the sizes' names or numbers."""
    lines: list[str] = []
    sizes = []
    for axis, dim in enumerate(grid):
        if dim.scalar is None:
            sizes.append(str(dim.size))
            continue
        source = f"%scalar{scalars.index(dim.scalar)}"
        lines += [
            f"  %up{axis} = add nsw i64 {source}, {dim.divisor - 1}",
            f"  %size{axis} = udiv i64 %up{axis}, {dim.divisor}",
        ]
        sizes.append(f"%size{axis}")
    return lines, sizes


def program_lines(sizes: Sequence[str], linear: str) -> list[str]:
    """Instructions that compute %program0.. from the program number `linear` (i64). The last axis varies fastest."""
    lines, rest = [], linear
    for axis in range(len(sizes) - 1, 0, -1):
        lines += [
            f"  %program{axis} = urem i64 {rest}, {sizes[axis]}",
            f"  %rest{axis} = udiv i64 {rest}, {sizes[axis]}",
        ]
        rest = f"%rest{axis}"
    return [*lines, f"  %program0 = add i64 {rest}, 0"]


def total_lines(sizes: Sequence[str]) -> tuple[list[str], str]:
    """The instructions that multiply the sizes, and the name of the number of programs."""
    lines, total = [], sizes[0]
    for axis, size in enumerate(sizes[1:], 1):
        lines.append(f"  %total{axis} = mul nuw nsw i64 {total}, {size}")
        total = f"%total{axis}"
    return lines, total


def emit(kernel: ir.KernelIR, target: CpuTarget, symbol: str) -> str:
    """Return the LLVM module of a kernel: one exported function `symbol`."""
    kernel = expand_tiles(kernel, target.lanes, keep=matrix_units.native_tiles(kernel, target))
    kernel = expand_functions(kernel, target.column, target.lacks)
    ctx = Context(kernel.name, target, CPU_RULES, *varying(kernel))
    ctx.allocas += [f"{stack_array(array)}, align 64" for array in kernel.scratch]
    control.write_block(ctx, kernel.body)
    arrays = [f"ptr noalias {array_name(array.name)}" for array in kernel.arrays]
    scalars = [f"i64 %scalar{i}" for i in range(len(kernel.scalars))]
    programs = [f"i64 %program{i}" for i in range(len(kernel.grid))]
    lines = [
        # inlined before all other passes, so that they do not optimize the body twice
        f"define internal void @program({', '.join(arrays + scalars + programs)}) alwaysinline #0 {{",
        "entry:",
        *[f"  {line}" for line in ctx.allocas],
        *ctx.lines,
        "  ret void",
        "}",
        *_entry(kernel, symbol, ctx.fences),
        *sorted(ctx.declarations.values()),
        *(("declare void @llvm.x86.sse.sfence()", "!0 = !{i32 1}") if ctx.fences else ()),
        f'attributes #0 = {{ nounwind "prefer-vector-width"="{target.vector_bits}" '
        f'"min-legal-vector-width"="{target.vector_bits}" }}',
    ]
    return "\n".join(lines) + "\n"


def argument_lines(kernel: ir.KernelIR | SimtKernel) -> list[str]:
    """Instructions that load the arrays' pointers and the run-time scalars from the argument block %args."""
    lines, n = [], len(kernel.arrays)
    for i, array in enumerate(kernel.arrays):
        lines += [
            f"  %at{i} = getelementptr i64, ptr %args, i64 {i}",
            f"  {array_name(array.name)} = load ptr, ptr %at{i}",
        ]
    for i, _ in enumerate(kernel.scalars):
        lines += [
            f"  %at{n + i} = getelementptr i64, ptr %args, i64 {n + i}",
            f"  %where{i} = load ptr, ptr %at{n + i}",
            f"  %scalar{i} = load i64, ptr %where{i}",
        ]
    return lines


def _entry(kernel: ir.KernelIR, symbol: str, fences: bool) -> list[str]:
    """The exported function: it unpacks the argument block and loops over the programs. The last grid axis varies fastest. With
    nontemporal stores, a fence precedes the return."""
    arguments = [f"ptr {array_name(array.name)}" for array in kernel.arrays]
    arguments += [f"i64 %scalar{i}" for i in range(len(kernel.scalars))]
    arguments += [f"i64 %program{i}" for i in range(len(kernel.grid))]
    found, sizes = size_lines(kernel.grid, kernel.scalars)
    return [
        f"define void @{symbol}(ptr %args, i64 %first, i64 %last) #0 {{",
        "entry:",
        *argument_lines(kernel),
        *found,
        "  %any = icmp slt i64 %first, %last",
        "  br i1 %any, label %loop, label %done",
        "loop:",
        "  %linear = phi i64 [ %first, %entry ], [ %next, %loop ]",
        *program_lines(sizes, "%linear"),
        f"  call void @program({', '.join(arguments)})",
        "  %next = add nsw i64 %linear, 1",
        "  %more = icmp slt i64 %next, %last",
        "  br i1 %more, label %loop, label %done",
        "done:",
        *(["  call void @llvm.x86.sse.sfence()"] if fences else []),
        "  ret void",
        "}",
    ]
