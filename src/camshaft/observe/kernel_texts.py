"""The texts of a node's kernels: Kernel IR listing, emitted source and assembly."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from camshaft.backends.cpu.compile import assembly
from camshaft.backends.cuda.kernel import ptx
from camshaft.emit.c import module as c
from camshaft.emit.llvm import module as llvm
from camshaft.emit.msl import module as msl
from camshaft.emit.nvptx import module as nvptx
from camshaft.emit.target import CpuTarget
from camshaft.emit.wgsl import module as wgsl
from camshaft.graph.custom import CustomOp
from camshaft.lang import ir, tile_ir
from camshaft.lang.simt.form import to_simt
from camshaft.ops.kernels.launch import Signature, signature
from camshaft.ops.op import HostCall, Launch, NativeCall
from camshaft.plan.lowering.node_thunks import NodeRange
from camshaft.store.files import digest_of


def listing(kernel: ir.KernelIR) -> str:
    """List a kernel: arrays, scalars, grid and body. Values are numbered; each line ends with its source line number."""
    lister = _Lister()
    lines = [f"kernel {kernel.name}  # {kernel.source_file}"]
    for array in (*kernel.arrays, *kernel.scratch):
        word = "scratch" if array.scratch else "out" if array.writable else "in"
        lines.append(f"  {word} {array.name}: {array.dtype}{list(array.shape)}")
    lines += [f"  scalar {name}" for name in kernel.scalars]
    lines += [f"  grid {axis}: {_grid(dim)}" for axis, dim in enumerate(kernel.grid)]
    return "\n".join([*lines, *lister.block(kernel.body, 1)]) + "\n"


def _grid(dim: ir.GridDim) -> str:
    return str(dim.size) if dim.scalar is None else f"ceil({dim.scalar} / {dim.divisor})"


class _Lister:
    """Numbers values, variables and tiles in order of appearance."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._named: list[object] = []  # keeps the objects alive, so that ids stay unique

    def name(self, thing: object, letter: str = "v") -> str:
        if id(thing) not in self._names:
            self._names[id(thing)] = f"{letter}{len(self._names)}"
            self._named.append(thing)
        return self._names[id(thing)]

    def block(self, block: ir.Block, depth: int) -> Iterator[str]:
        pad = "  " * depth
        for item in block.statements:
            text = self.value(item) if isinstance(item, ir.Value) else self.statement(item)
            yield f"{pad}{text}  # line {item.line}"
            body = getattr(item, "body", None)
            if body is not None:
                yield from self.block(body, depth + 1)

    def value(self, v: ir.Value) -> str:
        width = f"x{v.width}" if v.width else ""
        args = [self.name(a) for a in v.args] + ([] if v.attr is None else [self.attribute(v.attr)])
        return f"{self.name(v)}: {v.dtype}{width} = {v.op}({', '.join(args)})"

    def attribute(self, attr: Any) -> str:
        if isinstance(attr, (tuple, list)):
            return "(" + ", ".join(self.attribute(a) for a in attr) + ")"
        if isinstance(attr, ir.Array):
            return attr.name
        if isinstance(attr, (ir.Var, tile_ir.Tile)):
            return self.name(attr, "m")
        return self.name(attr) if isinstance(attr, ir.Value) else str(attr)

    def statement(self, s: ir.Statement) -> str:
        return _STATEMENTS[type(s)](self, s)

    def at(self, array: ir.Array, indices: tuple[ir.Value, ...]) -> str:
        return f"{array.name}[{', '.join(self.name(i) for i in indices)}]"

    def maybe(self, word: str, value: ir.Value | None) -> str:
        return "" if value is None else f" {word} {self.name(value)}"


def _copy(t: _Lister, s: Any) -> str:
    ends = t.maybe("rows", s.rows) + t.maybe("columns", s.columns)
    return f"copy {s.destination.name} = {t.at(s.source, s.indices)}{ends}"


def _tile_new(t: _Lister, s: Any) -> str:
    words = f" of {s.tile.dtype} by words" if s.tile.is_words else ""
    start = "0" if s.array is None else t.at(s.array, s.indices)
    return f"tile {t.name(s.tile, 'm')} = {start} [{s.tile.rows}, {s.tile.columns}]{words}"


def _tile_store(t: _Lister, s: Any) -> str:
    ends = t.maybe("rows", s.rows) + t.maybe("columns", s.columns)
    then = "" if s.then is None else f", then {t.statement(s.then)}"
    return f"{t.at(s.array, s.indices)} = {t.name(s.tile, 'm')}{ends}{then}"


def _mma(t: _Lister, s: Any) -> str:
    operands = f"{t.at(s.a, s.a_at)}, {t.at(s.b, s.b_at)}"
    return f"mma {t.name(s.tile, 'm')} += {operands} depth {s.depth}{' transposed' if s.transposed else ''}"


_STATEMENTS: dict[type[ir.Statement], Callable[[_Lister, Any], str]] = {
    ir.VarNew: lambda t, s: f"var {t.name(s.var, 'm')} = {t.name(s.var.init)}",
    ir.VarSet: lambda t, s: f"{t.name(s.var, 'm')} = {t.name(s.value)}",
    ir.Store: lambda t, s: f"{t.at(s.array, s.indices)} = {t.name(s.value)}{t.maybe('count', s.count)}",
    ir.Lanes: lambda t, s: f"lanes {t.name(s.index)} in {t.name(s.start)}..{t.name(s.stop)}:",
    ir.Range: lambda t, s: f"range {t.name(s.index)} in {t.name(s.start)}..{t.name(s.stop)} step {s.step}:",
    ir.When: lambda t, s: f"when {t.name(s.condition)}:",
    ir.Barrier: lambda t, s: "barrier",
    ir.Prefetch: lambda t, s: f"prefetch {t.at(s.array, s.indices)}",
    tile_ir.TileNew: _tile_new,
    tile_ir.TileMma: _mma,
    tile_ir.TileScale: lambda t, s: f"{t.name(s.tile, 'm')} *= {t.name(s.factor)}",
    tile_ir.TileStore: _tile_store,
    tile_ir.AsyncCopy: _copy,
    tile_ir.AsyncWait: lambda t, s: (
        f"wait for groups of copies but the last {s.ahead}" if s.ahead else "wait for copies"
    ),
}


SYMBOL = "kernel"  # name of the entry function in the texts
_CPU = ("simd", "scalar", "blas")


@dataclass(frozen=True)
class Dialect:
    """The source form of a backend's kernels: file suffix, and emitter (traced kernel, device, lanes) -> text."""

    suffix: str
    emit: Callable[[ir.KernelIR, Any, int], str]


def _llvm(kernel: ir.KernelIR, device: Any, lanes: int) -> str:
    return llvm.emit(kernel, CpuTarget(device.architecture, lanes, device.features), SYMBOL)


def _msl(kernel: ir.KernelIR, device: Any, lanes: int) -> str:
    return msl.emit(msl.simt_form(kernel, lanes, device.target), device.target).text


def _ptx(kernel: ir.KernelIR, device: Any, lanes: int) -> str:
    return ptx(nvptx.emit(nvptx.simt_form(kernel, lanes), device.target, SYMBOL), device.target)


_NULL_SUFFIXES = {"llvm": "ll", "wgsl": "wgsl", "msl": "metal", "ptx": "ptx", "c": "c"}
_DIALECTS = {
    "simd": Dialect("ll", _llvm),
    "scalar": Dialect("ll", _llvm),
    "c": Dialect("c", lambda kernel, device, lanes: c.emit(kernel, SYMBOL)),
    "webgpu": Dialect("wgsl", lambda kernel, device, lanes: wgsl.emit(to_simt(kernel, lanes), device.target).text),
    "cuda": Dialect("ptx", _ptx),
    "metal": Dialect("metal", _msl),
}


def _dialect(device: Any) -> Dialect:
    if device.backend == "null":
        return Dialect(
            _NULL_SUFFIXES[device.dialect.name], lambda kernel, device, lanes: device.dialect.emit(kernel, lanes)
        )
    return _DIALECTS[device.backend]


@dataclass(frozen=True)
class KernelTexts:
    """The texts of one launch's kernel. `stem` is the file name: op, variant, kernel, and a digest of the kernel's key."""

    stem: str
    launch: Launch | NativeCall
    params: Signature
    device: Any

    @property
    def suffix(self) -> str:
        """The suffix of the source file: ll, c, wgsl, ptx or metal."""
        return "ll" if isinstance(self.launch, NativeCall) else _dialect(self.device).suffix

    @property
    def vectorize(self) -> bool:
        """Whether LLVM's vectorizers are on."""
        return not isinstance(self.launch, NativeCall) and self.device.backend != "scalar"

    @cached_property
    def traced(self) -> ir.KernelIR | None:
        """The Kernel IR, or None for native code such as a BLAS call."""
        if isinstance(self.launch, NativeCall):
            return None
        return self.params.request(self.launch).trace()

    @cached_property
    def source(self) -> str:
        """The source emitted for the device."""
        if isinstance(self.launch, NativeCall):
            return self.launch.llvm_ir(SYMBOL)
        assert self.traced is not None
        return _dialect(self.device).emit(self.traced, self.device, _lanes(self.launch, self.device))

    def files(self) -> dict[str, str]:
        """Texts by file name: source, IR if any, and assembly for CPU kernels."""
        texts = {f"{self.stem}.{self.suffix}": self.source}
        if self.traced is not None:
            texts[f"{self.stem}.ir"] = listing(self.traced)
        if self.device.backend in _CPU:
            texts[f"{self.stem}.s"] = assembly(self.source, vectorize=self.vectorize)
        return texts


def _lanes(launch: Launch, device: Any) -> int:
    return 1 if device.backend == "scalar" else int(launch.lanes or device.lanes)


def kernel_texts(origin: NodeRange) -> list[KernelTexts]:
    """The texts of a node's launches in thunk order; empty for host calls and custom ops."""
    choice, node = origin.choice, origin.node
    if isinstance(choice.op, CustomOp):
        return []
    build = choice.variant.build(node.spec, choice.device)
    if isinstance(build, HostCall):
        return []
    texts = []
    for launch in build.launches:
        params = signature(launch, node.spec, build)
        digest = digest_of(_identity(launch, params), choice.device.name)[:12]
        stem = re.sub(r"[^\w.-]", "_", f"{choice.op.name}.{choice.variant.name}.{launch.name}.{digest}")
        texts.append(KernelTexts(stem, launch, params, choice.device))
    return texts


def _identity(launch: Launch | NativeCall, params: Signature) -> str:
    if isinstance(launch, NativeCall):
        return digest_of(launch.name, launch.digest, repr(params))
    return digest_of(params.request(launch).key(), launch.lanes)
