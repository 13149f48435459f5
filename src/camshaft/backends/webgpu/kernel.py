"""Lower a traced kernel to WGSL, and make its shader modules, layouts and compute pipelines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from camshaft.emit.refusal import refusal
from camshaft.emit.wgsl.layout import FIXED_BINDING, RUN_BINDING, WgslModule, WgslTarget
from camshaft.emit.wgsl.module import emit
from camshaft.errors import BackendError, KernelError
from camshaft.lang import ir
from camshaft.lang.simt.form import SimtKernel, to_simt

if TYPE_CHECKING:
    from camshaft.backends.webgpu.device import WebGpuDevice

_COMPUTE_STAGE = 0x4


@dataclass(frozen=True, eq=False)
class Lowered:
    """A kernel in SIMT form and its WGSL with all arrays writable; or None for both and the reason of the refusal."""

    target: WgslTarget
    simt: SimtKernel | None = None
    module: WgslModule | None = None
    refusal: str | None = None

    def emitted(self, read_only: frozenset[int]) -> WgslModule:
        """Returns the WGSL with these arrays read-only. BackendError for a refused kernel."""
        if self.simt is None or self.module is None:
            raise BackendError(f"a kernel that was refused has no WGSL: {self.refusal}")
        if not read_only:
            return self.module
        names = frozenset(self.simt.arrays[i].name for i in read_only)
        return emit(self.simt, replace(self.target, read_only=names))


def lower(traced: ir.KernelIR, lanes: int, target: WgslTarget, adapter: str) -> Lowered:
    """Lowers a verified kernel for an adapter."""
    reason = refusal(traced, "wgsl")
    if reason is not None:
        return Lowered(target, refusal=reason)
    simt = to_simt(traced, lanes)
    try:
        module = emit(simt, target)
    except KernelError as error:
        return Lowered(target, refusal=str(error))
    missing = ", ".join(sorted(module.requires - target.features))
    if missing:
        return Lowered(target, refusal=f"it needs the feature {missing}, which {adapter} lacks")
    return Lowered(target, simt, module)


@dataclass
class Counts:
    """The number of objects that this process created. `compile` and `bind` create them; a run creates none."""

    modules: int = 0
    pipelines: int = 0
    bind_groups: int = 0
    buffers: int = 0


counts = Counts()


@dataclass(frozen=True)
class Pipeline:
    """A WGPUComputePipeline and the layout of its bind group 0."""

    handle: Any = field(repr=False)
    group_layout: Any = field(repr=False)


@dataclass(frozen=True)
class Entry:
    """A buffer in a bind group layout. `kind`: 'uniform', 'storage' or 'read-only-storage'. `nbytes`: the smallest binding
    size, 0 for none."""

    binding: int
    kind: str
    nbytes: int = 0


Emit: TypeAlias = Callable[[frozenset[int]], WgslModule]


class WebGpuKernel:
    """A kernel's WGSL. `bind` creates its pipelines: one for each set of arrays that are bound read-only."""

    def __init__(self, device: WebGpuDevice, name: str, writable: Iterable[bool], emit: Emit) -> None:
        self.device, self.name, self.writable = device, name, tuple(writable)
        self._emit = emit
        self._made: dict[frozenset[int], tuple[WgslModule, Any]] = {}
        self._pipelines: dict[frozenset[int], Pipeline] = {}

    def module(self, read_only: frozenset[int]) -> WgslModule:
        """Returns the WGSL with these arrays read-only, validated by naga. BackendError with naga's message."""
        return self._module(read_only)[0]

    def pipeline(self, read_only: frozenset[int]) -> Pipeline:
        """Returns the pipeline with these arrays read-only. BackendError with the driver's message."""
        with self.device.lock:
            if read_only not in self._pipelines:
                module, shader = self._module(read_only)
                self._pipelines[read_only] = make_pipeline(self.device, module.entry, shader, _entries(module))
            return self._pipelines[read_only]

    def _module(self, read_only: frozenset[int]) -> tuple[WgslModule, Any]:
        with self.device.lock:
            if read_only not in self._made:
                module = self._emit(read_only)
                self._made[read_only] = module, make_shader(self.device, self.name, module.text)
            return self._made[read_only]


def _entries(module: WgslModule) -> list[Entry]:
    fixed = [Entry(RUN_BINDING, "read-only-storage"), Entry(FIXED_BINDING, "uniform", 4 * module.n_fixed)]
    return fixed + [Entry(b.binding, "read-only-storage" if b.read_only else "storage") for b in module.bindings]


def make_shader(device: WebGpuDevice, name: str, text: str) -> Any:
    """Creates a WGPUShaderModule. BackendError with naga's message and the WGSL line."""
    n = device.native
    source = n.struct("WGPUShaderSourceWGSL", chain={"sType": n.lib.WGPUSType_ShaderSourceWGSL}, code=text)
    chained = n.ffi.cast("WGPUChainedStruct *", source.pointer)
    descriptor = n.struct("WGPUShaderModuleDescriptor", nextInChain=chained, label=name)
    made = n.lib.wgpuDeviceCreateShaderModule(device.handle, descriptor.pointer)
    device.faults.check(f"kernel {name} is not WGSL that compiles")
    counts.modules += 1
    return made


def make_pipeline(device: WebGpuDevice, entry: str, shader: Any, entries: Iterable[Entry]) -> Pipeline:
    """Creates the pipeline of the function `entry` and the layout of its bind group. BackendError from the device."""
    n = device.native
    kinds = {
        "uniform": n.lib.WGPUBufferBindingType_Uniform,
        "storage": n.lib.WGPUBufferBindingType_Storage,
        "read-only-storage": n.lib.WGPUBufferBindingType_ReadOnlyStorage,
    }
    rows = [
        {
            "binding": e.binding,
            "visibility": _COMPUTE_STAGE,
            "buffer": {"type": kinds[e.kind], "minBindingSize": e.nbytes},
        }
        for e in entries
    ]
    table = n.array("WGPUBindGroupLayoutEntry", rows)
    descriptor = n.struct("WGPUBindGroupLayoutDescriptor", entryCount=len(rows), entries=table)
    group = n.lib.wgpuDeviceCreateBindGroupLayout(device.handle, descriptor.pointer)
    groups = n.ffi.new("WGPUBindGroupLayout[]", [group])
    layout_of = n.struct("WGPUPipelineLayoutDescriptor", bindGroupLayoutCount=1, bindGroupLayouts=groups)
    layout = n.lib.wgpuDeviceCreatePipelineLayout(device.handle, layout_of.pointer)
    stage = {"module": shader, "entryPoint": entry}
    pipeline_of = n.struct("WGPUComputePipelineDescriptor", label=entry, layout=layout, compute=stage)
    made = n.lib.wgpuDeviceCreateComputePipeline(device.handle, pipeline_of.pointer)
    n.lib.wgpuPipelineLayoutRelease(layout)
    device.faults.check(f"kernel {entry} makes no pipeline")
    counts.pipelines += 1
    return Pipeline(made, group)


def make_group(device: WebGpuDevice, layout: Any, entries: Iterable[tuple[int, Any, int, int]]) -> Any:
    """Creates a WGPUBindGroup from (binding, buffer, offset, size in bytes) entries. BackendError from the device."""
    n = device.native
    rows = [{"binding": b, "buffer": buffer, "offset": offset, "size": size} for b, buffer, offset, size in entries]
    table = n.array("WGPUBindGroupEntry", rows)
    descriptor = n.struct("WGPUBindGroupDescriptor", layout=layout, entryCount=len(rows), entries=table)
    made = n.lib.wgpuDeviceCreateBindGroup(device.handle, descriptor.pointer)
    device.faults.check("binding a launch's arrays")
    counts.bind_groups += 1
    return made
