"""The SIMT form of a kernel to LLVM IR for NVIDIA GPUs.

A kernel's parameters are the addresses of its arrays, then for each run-time scalar the address of its i64 in the GPU's memory.
A workgroup of `lanes` threads runs the program of its block index; blocks past the last program do nothing. Pointers become
generic at the entry; LLVM infers their address spaces again, which a test checks.
"""

from __future__ import annotations

from math import prod

from camshaft.dtypes import f32, i32, u32
from camshaft.emit.llvm import instructions
from camshaft.emit.llvm import module as cpu
from camshaft.emit.llvm.context import Rules
from camshaft.emit.llvm.control import write_block
from camshaft.emit.llvm.values import Rep, array_name, memory_dtype
from camshaft.emit.nvptx import collectives, copies, tiles
from camshaft.emit.nvptx.simt import ARRAY_ALIGNMENT, NVVM, WARP, Machine, SimtContext
from camshaft.emit.nvptx.swizzle import swizzled_arrays
from camshaft.emit.target import CpuTarget, GpuTarget
from camshaft.lang import ir, tile_ir, traversal
from camshaft.lang.expand.functions import expand_functions
from camshaft.lang.simt.form import SimtKernel, to_simt

# Workgroup memory that a kernel may have on every GPU without a special launch attribute.
MOST_SHARED_NBYTES = 48 * 1024


def _bitcast(ctx: SimtContext, value: ir.Value) -> Rep:
    """A bitcast, by the machine if an f32 becomes an integer."""
    (x,) = value.args
    if x.dtype == f32 and value.dtype in (i32, u32):
        return Rep(ctx.machine.bits(ctx, ctx.reps[x].name))
    return instructions.bitcast(ctx, value)


SIMT_RULES: Rules[SimtContext] = Rules(
    {
        **cpu.COMMON_VALUES,
        "lane": lambda ctx, value: Rep("%lane"),
        **collectives.OPS,
        "bitcast": _bitcast,
    },
    {
        **cpu.COMMON_STATEMENTS,
        ir.Barrier: lambda ctx, item: ctx.machine.wait_for_all(ctx),
        tile_ir.TileNew: tiles.new,
        tile_ir.TileMma: tiles.mma,
        tile_ir.TileScale: tiles.scale,
        tile_ir.TileStore: tiles.store,
        tile_ir.AsyncCopy: copies.copy,
        tile_ir.AsyncWait: copies.wait,
    },
)


def simt_form(kernel: ir.KernelIR, lanes: int) -> SimtKernel:
    """Return the SIMT form that `emit` takes; tiles for matrix units and asynchronous copies stay."""
    return to_simt(kernel, lanes, WARP, tiles.UNIT.native_tiles, keep_copies=True)


def shared_nbytes(kernel: SimtKernel) -> int:
    """Bytes of the workgroup's arrays, and if it has collectives of the most that these exchange: 8 bytes per thread."""
    values = (item for item in traversal.walk(kernel.body) if isinstance(item, ir.Value))
    has_collectives = any(value.op in collectives.OPS for value in values)
    arrays = sum(_aligned(prod(a.shape) * memory_dtype(a.dtype).nbytes) for a in kernel.shared)
    return arrays + (8 * kernel.lanes if has_collectives else 0)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ARRAY_ALIGNMENT) * ARRAY_ALIGNMENT


def thread(kernel: SimtKernel, target: CpuTarget, machine: Machine) -> SimtContext:
    """The body of one thread. It uses %lane, %program0.., the arrays' pointers, and %exchange if `exchange_nbytes` is not 0."""
    body = expand_functions(kernel, target.column, target.lacks).body
    swizzled = swizzled_arrays(body, kernel.shared)
    ctx = SimtContext(kernel.name, target, SIMT_RULES, machine=machine, threads=kernel.lanes, swizzled=swizzled)
    ctx.allocas += [f"{cpu.stack_array(array)}, align 16" for array in kernel.private]
    write_block(ctx, body)
    return ctx


def emit(kernel: SimtKernel, target: GpuTarget, symbol: str) -> str:
    """The LLVM module of a kernel: one entry `symbol`."""
    ctx = thread(kernel, target, NVVM)
    lines = [
        f"; {kernel.name}, {kernel.lanes} threads, of {kernel.source_file.rsplit('/', 1)[-1]}",
        'target triple = "nvptx64-nvidia-cuda"',
        *_shared(kernel, ctx, symbol),
        f"define ptx_kernel void @{symbol}({', '.join(_parameters(kernel))}) #0 {{",
        "entry:",
        *[f"  {line}" for line in ctx.allocas],
        *_arguments(kernel, ctx, symbol),
        *_place(kernel),
        *ctx.lines,
        "  br label %nothing",
        "nothing:",
        "  ret void",
        "}",
        "declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()",
        "declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()",
        *sorted(ctx.declarations.values()),
        f'attributes #0 = {{ nounwind "nvvm.reqntid"="{kernel.lanes}" }}',
        "attributes #1 = { convergent nounwind }",
    ]
    return "\n".join(lines) + "\n"


def _shared(kernel: SimtKernel, ctx: SimtContext, symbol: str) -> list[str]:
    sizes = {a.name: prod(a.shape) * memory_dtype(a.dtype).nbytes for a in kernel.shared}
    if ctx.exchange_nbytes:
        sizes[".exchange"] = ctx.exchange_nbytes
    return [
        f"@{symbol}.{name} = internal addrspace(3) global [{nbytes} x i8] undef, align {ARRAY_ALIGNMENT}"
        for name, nbytes in sizes.items()
    ]


def _parameters(kernel: SimtKernel) -> list[str]:
    arrays = [f"ptr addrspace(1) noalias align {ARRAY_ALIGNMENT} %array{i}" for i, _ in enumerate(kernel.arrays)]
    return arrays + [f"ptr addrspace(1) noalias readonly align 8 %where{i}" for i, _ in enumerate(kernel.scalars)]


def _arguments(kernel: SimtKernel, ctx: SimtContext, symbol: str) -> list[str]:
    """Make the arrays generic pointers and load the run-time scalars."""
    lines = [
        f"  {array_name(a.name)} = addrspacecast ptr addrspace(1) %array{i} to ptr" for i, a in enumerate(kernel.arrays)
    ]
    lines += [
        f"  {array_name(a.name)} = addrspacecast ptr addrspace(3) @{symbol}.{a.name} to ptr" for a in kernel.shared
    ]
    if ctx.exchange_nbytes:
        lines.append(f"  %exchange = addrspacecast ptr addrspace(3) @{symbol}..exchange to ptr")
    return lines + [
        f"  %scalar{i} = load i64, ptr addrspace(1) %where{i}, align 8" for i, _ in enumerate(kernel.scalars)
    ]


def _place(kernel: SimtKernel) -> list[str]:
    """%lane and %program0..; blocks past the last program go to %nothing."""
    found, sizes = cpu.size_lines(kernel.grid, kernel.scalars)
    product, total = cpu.total_lines(sizes)
    return [
        "  %thread = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()",
        "  %lane = zext i32 %thread to i64",
        "  %block = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()",
        "  %linear = zext i32 %block to i64",
        *found,
        *product,
        f"  %inside = icmp slt i64 %linear, {total}",
        "  br i1 %inside, label %program, label %nothing",
        "program:",
        *cpu.program_lines(sizes, "%linear"),
    ]
