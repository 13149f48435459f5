"""NVVM: barriers, shuffles, products of matrices and copies in the background by LLVM's intrinsics for NVIDIA GPUs."""

from __future__ import annotations

from camshaft.dtypes import DType, f16
from camshaft.emit.nvptx.simt import WARP, Machine, SimtContext


def _wait_for_all(ctx: SimtContext) -> None:
    name = "llvm.nvvm.barrier.cta.sync.aligned.all"
    ctx.declare(name, f"declare void @{name}(i32) #1")
    ctx.write(f"call void @{name}(i32 0)")


def _shuffled(ctx: SimtContext, word: str, source: str) -> str:
    name = "llvm.nvvm.shfl.sync.idx.i32"
    ctx.declare(name, f"declare i32 @{name}(i32, i32, i32, i32) #1")
    mask = (1 << min(ctx.threads, WARP)) - 1
    return ctx.line(f"call i32 @{name}(i32 {mask}, i32 {word}, i32 {source}, i32 31)")


def _multiplied(ctx: SimtContext, dtype: DType, a: list[str], b: list[str], c: list[str]) -> list[str]:
    halves = dtype == f16  # LLVM takes pairs of f16 as vectors, those of bf16 as words
    name = f"llvm.nvvm.mma.m16n8k16.row.col.{'f32.f32' if halves else 'bf16'}"
    word, four = "<2 x half>" if halves else "i32", "{float, float, float, float}"
    ctx.declare(name, f"declare {four} @{name}({', '.join([word] * 6 + ['float'] * 4)}) #1")
    words = [ctx.line(f"bitcast i32 {x} to <2 x half>") if halves else x for x in (*a, *b)]
    given = ", ".join([*(f"{word} {x}" for x in words), *(f"float {x}" for x in c)])
    return _parts(ctx, four, f"call {four} @{name}({given})", 4)


def _matrices(ctx: SimtContext, pointer: str, count: int, across: bool) -> list[str]:
    name = f"llvm.nvvm.ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if across else ''}.b16.p3"
    words = f"{{{', '.join(['i32'] * count)}}}"
    ctx.declare(name, f"declare {words} @{name}(ptr addrspace(3)) #1")
    at = ctx.line(f"addrspacecast ptr {pointer} to ptr addrspace(3)")
    return _parts(ctx, words, f"call {words} @{name}(ptr addrspace(3) {at})", count)


def _parts(ctx: SimtContext, typ: str, call: str, count: int) -> list[str]:
    found = ctx.line(call)
    return [ctx.line(f"extractvalue {typ} {found}, {i}") for i in range(count)]


def _begin_copy(ctx: SimtContext, to: str, source: str, nbytes: int, present: str) -> None:
    # past the first-level cache where there is the choice: each byte is read once
    name = f"llvm.nvvm.cp.async.{'cg' if nbytes == 16 else 'ca'}.shared.global.{nbytes}.s"
    ctx.declare(name, f"declare void @{name}(ptr addrspace(3), ptr addrspace(1), i32)")
    shared, device = (ctx.line(f"addrspacecast ptr {p} to ptr addrspace({n})") for p, n in ((to, 3), (source, 1)))
    ctx.write(f"call void @{name}(ptr addrspace(3) {shared}, ptr addrspace(1) {device}, i32 {present})")


def _wait_for_copies(ctx: SimtContext) -> None:
    name = "llvm.nvvm.cp.async.wait.all"
    ctx.declare(name, f"declare void @{name}()")
    ctx.write(f"call void @{name}()")


NVVM = Machine(
    wait_for_all=_wait_for_all,
    shuffled=_shuffled,
    multiplied=_multiplied,
    matrices=_matrices,
    begin_copy=_begin_copy,
    wait_for_copies=_wait_for_copies,
)
