"""The SIMT form of a kernel to LLVM IR for NVIDIA GPUs.

A kernel's parameters are the addresses of its arrays, then for each run-time scalar the address of its i64 in the GPU's memory;
a workgroup of `lanes` threads runs the program of its block index, and does nothing where there are fewer programs than blocks.
Pointers are made generic at the entry; LLVM finds their address spaces again, and a test holds it to that.
"""

from __future__ import annotations

from math import prod

from camshaft.dtypes import DType, f16
from camshaft.emit.llvm.module import program_lines, size_lines, total_lines
from camshaft.emit.llvm.values import array_name, memory_dtype
from camshaft.emit.nvptx.collectives import WARP
from camshaft.emit.nvptx.simt import SimtEmitter
from camshaft.emit.nvptx.tiles import native_tiles
from camshaft.emit.target import GpuTarget
from camshaft.lang import ir
from camshaft.lang.expand.functions import expand_functions
from camshaft.lang.simt.form import SimtKernel, to_simt

# Arrays start at multiples of this many bytes: a device's `alignment` is larger.
ARRAY_ALIGNMENT = 16
# Workgroup memory that a kernel may have without asking the driver for more, on every GPU.
MOST_SHARED_NBYTES = 48 * 1024


class NvptxEmitter(SimtEmitter):
    """Barriers and shuffles as NVVM has them."""

    def wait_for_all(self) -> None:
        name = "llvm.nvvm.barrier.cta.sync.aligned.all"
        self.declare(name, f"declare void @{name}(i32) #1")
        self.write(f"call void @{name}(i32 0)")

    def shuffled(self, word: str, source: str) -> str:
        name = "llvm.nvvm.shfl.sync.idx.i32"
        self.declare(name, f"declare i32 @{name}(i32, i32, i32, i32) #1")
        threads = min(self.simt.lanes, WARP)
        return self.line(f"call i32 @{name}(i32 {(1 << threads) - 1}, i32 {word}, i32 {source}, i32 31)")

    def multiplied(self, dtype: DType, a: list[str], b: list[str], c: list[str]) -> list[str]:
        halves = dtype == f16  # LLVM takes pairs of f16 as vectors, those of bf16 as words
        name = f"llvm.nvvm.mma.m16n8k16.row.col.{'f32.f32' if halves else 'bf16'}"
        word, four = "<2 x half>" if halves else "i32", "{float, float, float, float}"
        self.declare(name, f"declare {four} @{name}({', '.join([word] * 6 + ['float'] * 4)}) #1")
        words = [self.line(f"bitcast i32 {x} to <2 x half>") if halves else x for x in (*a, *b)]
        given = ", ".join([*(f"{word} {x}" for x in words), *(f"float {x}" for x in c)])
        return self._parts(four, f"call {four} @{name}({given})", 4)

    def matrices(self, pointer: str, count: int, across: bool) -> list[str]:
        name = f"llvm.nvvm.ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if across else ''}.b16.p3"
        words = f"{{{', '.join(['i32'] * count)}}}"
        self.declare(name, f"declare {words} @{name}(ptr addrspace(3)) #1")
        at = self.line(f"addrspacecast ptr {pointer} to ptr addrspace(3)")
        return self._parts(words, f"call {words} @{name}(ptr addrspace(3) {at})", count)

    def _parts(self, typ: str, call: str, count: int) -> list[str]:
        found = self.line(call)
        return [self.line(f"extractvalue {typ} {found}, {i}") for i in range(count)]

    def begin_copy(self, to: str, source: str, nbytes: int, present: str) -> None:
        # past the first-level cache where there is the choice: each byte is read once
        name = f"llvm.nvvm.cp.async.{'cg' if nbytes == 16 else 'ca'}.shared.global.{nbytes}.s"
        self.declare(name, f"declare void @{name}(ptr addrspace(3), ptr addrspace(1), i32)")
        shared, device = (self.line(f"addrspacecast ptr {p} to ptr addrspace({n})") for p, n in ((to, 3), (source, 1)))
        self.write(f"call void @{name}(ptr addrspace(3) {shared}, ptr addrspace(1) {device}, i32 {present})")

    def wait_for_copies(self) -> None:
        name = "llvm.nvvm.cp.async.wait.all"
        self.declare(name, f"declare void @{name}()")
        self.write(f"call void @{name}()")


def simt_form(kernel: ir.KernelIR, lanes: int) -> SimtKernel:
    """The SIMT form that `emit` takes: what matrix units do stays a tile, and copies in the background stay such."""
    return to_simt(kernel, lanes, WARP, native_tiles, keep_copies=True)


def shared_nbytes(kernel: SimtKernel) -> int:
    """Bytes of the workgroup's arrays, without what collectives pass values in."""
    return sum(_aligned(prod(a.shape) * memory_dtype(a.dtype).nbytes) for a in kernel.shared)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ARRAY_ALIGNMENT) * ARRAY_ALIGNMENT


def emit(kernel: SimtKernel, target: GpuTarget, symbol: str) -> str:
    """The LLVM module of a kernel: one entry `symbol`."""
    kernel = expand_functions(kernel, target.column)
    body = NvptxEmitter(kernel, target)
    body.emit()
    lines = [
        f"; {kernel.name}, {kernel.lanes} threads, of {kernel.source_file.rsplit('/', 1)[-1]}",
        'target triple = "nvptx64-nvidia-cuda"',
        *_shared(kernel, body, symbol),
        f"define ptx_kernel void @{symbol}({', '.join(_parameters(kernel))}) #0 {{",
        "entry:",
        *[f"  {line}" for line in body.allocas],
        *_arguments(kernel, body, symbol),
        *_place(kernel),
        *body.lines,
        "  br label %nothing",
        "nothing:",
        "  ret void",
        "}",
        "declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()",
        "declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()",
        *sorted(body.declarations.values()),
        f'attributes #0 = {{ nounwind "nvvm.reqntid"="{kernel.lanes}" }}',
        "attributes #1 = { convergent nounwind }",
    ]
    return "\n".join(lines) + "\n"


def _shared(kernel: SimtKernel, body: SimtEmitter, symbol: str) -> list[str]:
    sizes = {a.name: prod(a.shape) * memory_dtype(a.dtype).nbytes for a in kernel.shared}
    if body.exchange_nbytes:
        sizes[".exchange"] = body.exchange_nbytes
    return [
        f"@{symbol}.{name} = internal addrspace(3) global [{nbytes} x i8] undef, align {ARRAY_ALIGNMENT}"
        for name, nbytes in sizes.items()
    ]


def _parameters(kernel: SimtKernel) -> list[str]:
    arrays = [f"ptr addrspace(1) noalias align {ARRAY_ALIGNMENT} %array{i}" for i, _ in enumerate(kernel.arrays)]
    return arrays + [f"ptr addrspace(1) noalias readonly align 8 %where{i}" for i, _ in enumerate(kernel.scalars)]


def _arguments(kernel: SimtKernel, body: SimtEmitter, symbol: str) -> list[str]:
    """Arrays as generic pointers, run-time scalars by value."""
    lines = [
        f"  {array_name(a.name)} = addrspacecast ptr addrspace(1) %array{i} to ptr" for i, a in enumerate(kernel.arrays)
    ]
    lines += [
        f"  {array_name(a.name)} = addrspacecast ptr addrspace(3) @{symbol}.{a.name} to ptr" for a in kernel.shared
    ]
    if body.exchange_nbytes:
        lines.append(f"  %exchange = addrspacecast ptr addrspace(3) @{symbol}..exchange to ptr")
    return lines + [
        f"  %scalar{i} = load i64, ptr addrspace(1) %where{i}, align 8" for i, _ in enumerate(kernel.scalars)
    ]


def _place(kernel: SimtKernel) -> list[str]:
    """%lane and %program0..; blocks past the last program go to %nothing."""
    found, sizes = size_lines(kernel.grid, kernel.scalars)
    product, total = total_lines(sizes)
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
        *program_lines(sizes, "%linear"),
    ]
