"""SIMT form to the Metal Shading Language: a dialect of emit/c_family/context.py.

Device pointers have the types of the arrays, so 8 and 16-bit elements are stored natively; a bf16 is its bits. 64-bit arithmetic
is slow on Metal's GPUs: if all i64 values of a kernel are indexes, they are `int`, which suffices as no array has 2^31 elements.
Else they are `long`. The text must be compiled without fast math.
"""

from __future__ import annotations

from math import prod

from camshaft.emit.c_family.statements import write_body
from camshaft.emit.msl.body import context
from camshaft.emit.msl.context import MAX_BUFFERS, MslContext, MslModule, MslTarget
from camshaft.emit.msl.functions import STORAGE
from camshaft.emit.msl.tiles import SIMD_WIDTH, native_tiles
from camshaft.lang import ir, tile_ir, traversal
from camshaft.lang.expand.functions import expand_functions
from camshaft.lang.simt.form import SimtKernel, no_tiles, to_simt


def simt_form(kernel: ir.KernelIR, lanes: int, target: MslTarget) -> SimtKernel:
    """Return the SIMT form that `emit` takes; tiles for SIMD-group matrices stay tiles."""
    has_matrices = target.has_matrices and target.simd_width == SIMD_WIDTH
    return to_simt(kernel, lanes, target.simd_width, native_tiles if has_matrices else no_tiles)


def _tile_nbytes(kernel: SimtKernel) -> int:
    """Bytes through which tiles are stored: 64 floats per SIMD-group."""
    return 8 * kernel.lanes if any(isinstance(item, tile_ir.TileStore) for item in traversal.walk(kernel.body)) else 0


def emit(kernel: SimtKernel, target: MslTarget) -> MslModule:
    """Return the MSL of a kernel. KernelError for what Metal lacks; emit/refusal.py reports it before."""
    return _module(context(expand_functions(kernel, "msl"), target))


def _module(ctx: MslContext) -> MslModule:
    """The whole text."""
    body = write_body(ctx)
    arrays = [_parameter(ctx, i, array) for i, array in enumerate(ctx.kernel.arrays)]
    parameters = [
        *arrays,
        f"constant int* run [[buffer({len(arrays)})]]",
        "uint group [[threadgroup_position_in_grid]]",
        "uint thread_index [[thread_index_in_threadgroup]]",
    ]
    lines = ["#include <metal_stdlib>", "using namespace metal;", ""]
    for text in (*ctx.helper_texts(), *ctx.collectives.values()):
        lines += [text, ""]
    lines += [*ctx.heading(), f"kernel void {ctx.entry}("]
    lines += [f"    {p}{',' if p is not parameters[-1] else ''}" for p in parameters]
    lines += [") {", *(f"    {line}" for line in _prologue(ctx)), *body, "}"]
    return MslModule(
        "\n".join(lines) + "\n",
        ctx.entry,
        ctx.simt.lanes,
        len(arrays),
        len(ctx.kernel.scalars),
        _threadgroup_nbytes(ctx),
    )


def _parameter(ctx: MslContext, index: int, array: ir.Array) -> str:
    access = "" if array.writable else "const "
    return f"device {access}{STORAGE[array.dtype.name]}* {ctx.array_names[array]} [[buffer({index})]]"


def _prologue(ctx: MslContext) -> list[str]:
    """Declare memory, the lane, the run-time scalars and the program's indexes; the last axis runs fastest."""
    lines = [
        f"{space} {STORAGE[a.dtype.name]} {ctx.array_names[a]}[{prod(a.shape)}];"
        for space, arrays in (("threadgroup", ctx.simt.shared), ("thread", ctx.simt.private))
        for a in arrays
    ]
    lines += [f"threadgroup {typed} {name}[{ctx.simt.lanes}];" for typed, name in ctx.rooms.items()]
    if ctx.tile_room is not None:
        lines.append(f"threadgroup float {ctx.tile_room}[{2 * ctx.simt.lanes}];")
    index = ctx.index_type
    lines.append(f"const {index} lane = {index}(thread_index);")
    lines += [f"const {index} {name} = run[{i}];" for i, name in enumerate(ctx.scalar_names)]
    rest, sizes = f"{index}(group)", ctx.grid_sizes()
    for axis in range(len(sizes) - 1, 0, -1):
        size = sizes[axis]
        lines.append(f"const {index} {ctx.program_names[axis]} = {rest} % {size};")
        lines.append(f"const {index} rest{axis} = {rest} / {size};")
        rest = f"rest{axis}"
    if ctx.program_names:
        lines.append(f"const {index} {ctx.program_names[0]} = {rest};")
    return lines


def _threadgroup_nbytes(ctx: MslContext) -> int:
    rooms = sum(8 if "long" in typed else 4 for typed in ctx.rooms) * ctx.simt.lanes
    return rooms + shared_nbytes(ctx.simt) + _tile_nbytes(ctx.simt)


def refusal(kernel: SimtKernel, target: MslTarget) -> str | None:
    """Return None, or the device limit that the kernel exceeds. (emit/refusal.py reports what Metal lacks.)"""
    n_buffers = len(kernel.arrays) + 1
    if n_buffers > MAX_BUFFERS:
        return f"{n_buffers} buffers; Metal binds {MAX_BUFFERS}"
    if kernel.lanes > target.max_threads:
        return f"{kernel.lanes} threads a threadgroup; the device has {target.max_threads}"
    nbytes = shared_nbytes(kernel) + 16 * kernel.lanes + _tile_nbytes(kernel)  # rooms of two types
    if nbytes > target.max_threadgroup_nbytes:
        return f"{nbytes} bytes of threadgroup memory; the device has {target.max_threadgroup_nbytes}"
    return None


def shared_nbytes(kernel: SimtKernel) -> int:
    """Bytes of the workgroup's scratch."""
    return sum(prod(a.shape) * a.dtype.nbytes for a in kernel.shared)
