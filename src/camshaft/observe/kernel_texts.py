"""The texts of a node's kernels: IR, emitted source, assembly. For CAMSHAFT_DUMP, CAMSHAFT_DEBUG and CAMSHAFT_OVERRIDE."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from camshaft.backends.cpu.compile import assembly
from camshaft.backends.cuda.ptx import ptx
from camshaft.emit.c import module as c
from camshaft.emit.llvm import module as llvm
from camshaft.emit.msl import module as msl
from camshaft.emit.nvptx import module as nvptx
from camshaft.emit.target import CpuTarget
from camshaft.emit.wgsl import module as wgsl
from camshaft.graph.custom import CustomOp
from camshaft.lang import ir
from camshaft.lang.kernel import constants_key
from camshaft.lang.simt.form import to_simt
from camshaft.observe.listing import listing
from camshaft.ops.kernels.launch import Signature, signature
from camshaft.ops.op import HostCall, Launch, NativeCall
from camshaft.plan.lowering.node_range import Origin

SYMBOL = "kernel"  # the entry's name in texts
_CPU = ("simd", "scalar", "blas")


@dataclass(frozen=True)
class Dialect:
    """How a backend's kernels are written: a file's suffix, and the emitter (traced kernel, device, lanes) -> text."""

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
    """One launch's kernel in words. `stem` names its files: op, variant, kernel, and a digest of all that it is made for."""

    stem: str
    launch: Launch | NativeCall
    made: Signature
    device: Any

    @property
    def suffix(self) -> str:
        """Of the file of `source`: ll, c, wgsl, ptx or metal."""
        return "ll" if isinstance(self.launch, NativeCall) else _dialect(self.device).suffix

    @property
    def vectorize(self) -> bool:
        """Whether LLVM's vectorizers are on for it."""
        return not isinstance(self.launch, NativeCall) and self.device.backend != "scalar"

    @cached_property
    def traced(self) -> ir.KernelIR | None:
        """The Kernel IR; None of code that is no kernel of ours."""
        if isinstance(self.launch, NativeCall):
            return None
        return self.launch.kernel.trace(self.made.arrays, self.made.scalar_names, self.launch.constants, self.made.grid)

    @cached_property
    def source(self) -> str:
        """What was emitted for the device."""
        if isinstance(self.launch, NativeCall):
            return self.launch.llvm_ir(SYMBOL)
        assert self.traced is not None
        return _dialect(self.device).emit(self.traced, self.device, _lanes(self.launch, self.device))

    def files(self) -> dict[str, str]:
        """Texts by file name: source, IR where there is one, assembly where LLVM makes it for this CPU."""
        found = {f"{self.stem}.{self.suffix}": self.source}
        if self.traced is not None:
            found[f"{self.stem}.ir"] = listing(self.traced)
        if self.device.backend in _CPU:
            found[f"{self.stem}.s"] = assembly(self.source, vectorize=self.vectorize)
        return found


def _lanes(launch: Launch, device: Any) -> int:
    return 1 if device.backend == "scalar" else int(launch.lanes or device.lanes)


def kernel_texts(origin: Origin) -> list[KernelTexts]:
    """The texts of a node's launches, in the order of its thunks; none where Python or a caller's code computes it."""
    choice, node = origin.choice, origin.node
    if isinstance(choice.op, CustomOp):
        return []
    build = choice.variant.build(node.spec, choice.device)
    if isinstance(build, HostCall):
        return []
    found = []
    for launch in build.launches:
        made = signature(launch, node.spec, build)
        whole = f"{_identity(launch)}|{made.arrays!r}|{made.scalar_names!r}|{made.grid!r}|{choice.device.name}"
        digest = hashlib.sha256(whole.encode()).hexdigest()[:12]
        stem = re.sub(r"[^\w.-]", "_", f"{choice.op.name}.{choice.variant.name}.{launch.name}.{digest}")
        found.append(KernelTexts(stem, launch, made, choice.device))
    return found


def _identity(launch: Launch | NativeCall) -> str:
    if isinstance(launch, NativeCall):
        return f"{launch.name}|{launch.digest}"
    return f"{launch.kernel.name}|{launch.kernel.digest()}|{constants_key(launch.constants)}|{launch.lanes}"
