"""A chosen variant bound to arrays of one shape: called by address on the CPU, with copies on other devices."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from camshaft.backends.cpu.device import CpuKernel
from camshaft.backends.device import HOST
from camshaft.dtypes import DType
from camshaft.eager.launches import launch_words, run_launches, several_workers
from camshaft.lang import Array as KernelArray
from camshaft.lang import Tracer, kernel
from camshaft.ops.kernels.launch import operand_part, program_count, signature
from camshaft.ops.kernels.run_time_sizes import RunTimeForm, run_time_form
from camshaft.ops.kernels.strides import Iteration
from camshaft.ops.op import Build, Cells, HostCall, Launch, NativeCall, NodeSpec, scratch, write
from camshaft.ops.spec import TensorSpec
from camshaft.selection.select import Choice
from camshaft.validation.run import commands_of, compile_launch, extents_of, native_code, updated

Array = np.ndarray[Any, Any]
Runner = Callable[[Sequence[Array], Sequence[Array]], None]
# Work from which the workers are called: waking them and coming back takes 5 to 10 microseconds.
SHARE_NS = 60_000.0
NARROW_BLOCK = 4096
Sizes = np.ndarray[Any, np.dtype[np.int64]]
# Kernels that take sizes at run time, by device and RunTimeForm.key.
_kernels: dict[Hashable, CpuKernel] = {}


def runner(node: NodeSpec, choice: Choice) -> Runner:
    """run(inputs, outputs) on contiguous arrays of the node's shapes; an input that the op updates is written."""
    build = choice.variant.build(node, choice.device)
    if isinstance(build, HostCall):
        return functools.partial(build.function, node)
    if choice.device.space != HOST:
        return _device_runner(node, build, choice)
    return _host_runner(node, build, choice)


def _device_runner(node: NodeSpec, build: Build, choice: Choice) -> Runner:
    """Arrays in, the launches, results out; the memory there is the runner's own, and calls take turns."""
    device, lock, extents = choice.device, threading.Lock(), extents_of(build, node)
    named = {"input": node.inputs, "output": node.outputs, "scratch": build.scratch}
    specs = {(kind, i): spec for kind, tensors in named.items() for i, spec in enumerate(tensors)}
    there = {key: device.allocate(spec.nbytes) for key, spec in specs.items()}
    bound = device.bind(commands_of(node, build, device, there, extents, 0), len(extents))
    changed = updated(build)

    def run(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        with lock:
            for i, array in enumerate(inputs):
                there["input", i].write(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
            bound.submit([e.bound for e in extents])
            bound.wait()
            back = [("output", i, a) for i, a in enumerate(outputs)] + [("input", i, inputs[i]) for i in changed]
            for kind, i, array in back:
                array.reshape(-1).view(np.uint8)[:] = there[kind, i].read(0, array.nbytes)

    return run


def estimated_ns(node: NodeSpec, choice: Choice) -> float:
    """What the variant's cost says, at least the op's bytes at 20 and its operations at 30 a nanosecond."""
    op = choice.op
    return max(choice.variant.cost(node, choice.device), op.nbytes(node) / 20, op.flops(node) / 30)


@dataclass(frozen=True)
class Step:
    """A launch: `places` are (kind of tensor, its index, offset in bytes) of its arrays; `words` the arguments after them, which
    are addresses in `sizes` where the kernel takes sizes at run time."""

    code: CpuKernel
    places: tuple[tuple[str, int, int], ...]
    words: tuple[int, ...]
    programs: int
    sizes: Sizes | None = None


@dataclass(frozen=True)
class HostRunner:
    """The launches in order: on this thread, or with the workers where there is enough to do. Scratch is made per call, so that
    threads do not share it; `build` owns what the words point to."""

    steps: tuple[Step, ...]
    build: Build
    elapsed_ns: float

    @property
    def shared(self) -> bool:
        """Whether the workers do it together."""
        several = any(step.programs > 1 for step in self.steps)
        return several and self.elapsed_ns >= SHARE_NS and several_workers()

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        scratch_arrays = [_aligned(spec.nbytes) for spec in self.build.scratch]
        named = {"input": inputs, "output": outputs, "scratch": scratch_arrays}
        starts = {kind: [a.ctypes.data for a in arrays] for kind, arrays in named.items()}
        blocks = [
            np.array([*(starts[kind][index] + offset for kind, index, offset in s.places), *s.words], np.int64)
            for s in self.steps
        ]
        pairs = list(zip(self.steps, blocks, strict=True))
        if self.shared:
            launches = launch_words([(s.code.address, b.ctypes.data, s.programs) for s, b in pairs])
            run_launches(launches.ctypes.data, len(pairs))
            return
        for step, block in pairs:
            step.code(block.ctypes.data, 0, step.programs)


def _host_runner(node: NodeSpec, build: Build, choice: Choice) -> HostRunner:
    steps = tuple(_step(launch, node, build, choice) for launch in build.launches)
    return HostRunner(steps, build, estimated_ns(node, choice))


@kernel
def narrow(k: Tracer, x: KernelArray, out: KernelArray, *, n: int) -> None:
    # out[i] = x[i], rounded to out's dtype
    for i in k.elements(n, NARROW_BLOCK):
        out[i] = x[i]


def narrowed(run: HostRunner, node: NodeSpec, choice: Choice, dtype: DType) -> HostRunner:
    """The same with its one result rounded to another dtype, by one launch more: the result before is scratch."""
    wide, build = node.outputs[0], run.build
    n, at = prod(wide.bounds), len(build.scratch)
    launch = Launch(
        narrow, (scratch(at, "read", (n,)), write(0, shape=(n,))), (Cells(n, NARROW_BLOCK),), {"n": n}, sizes=("n",)
    )
    whole = Build((*build.launches, launch), (*build.scratch, wide))
    narrow_node = replace(node, outputs=(TensorSpec(wide.shape, dtype),))
    moved = [
        replace(
            step, places=tuple(("scratch", at, o) if kind == "output" else (kind, i, o) for kind, i, o in step.places)
        )
        for step in run.steps
    ]
    return replace(run, steps=(*moved, _step(launch, narrow_node, whole, choice)), build=whole)


def _aligned(nbytes: int) -> Array:
    raw = np.empty(nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes]


def _step(launch: Launch | NativeCall, node: NodeSpec, build: Build, choice: Choice) -> Step:
    places = tuple((o.kind, o.index, operand_part(o, node, build).offset_nbytes) for o in launch.arrays)
    form = run_time_form(launch, node, build, choice.device)
    if form is not None:
        sizes = np.array(form.values, np.int64)
        first = sizes.ctypes.data
        return Step(_kernel(form, choice), places, tuple(range(first, first + sizes.nbytes, 8)), form.programs, sizes)
    words = (launch.words.ctypes.data,) if isinstance(launch, NativeCall) else ()
    code = native_code(compile_launch(launch, signature(launch, node, build), choice.device))
    return Step(code, places, words, program_count(launch, {}))


def strided_runner(launch: Launch, node: NodeSpec, over: Iteration, choice: Choice, elapsed_ns: float) -> HostRunner:
    """An elementwise launch for this iteration instead of its own."""
    constants = {**launch.constants, **over.constants}
    build = Build((replace(launch, constants=constants, grid=over.grid, extents=()),))
    return HostRunner((_step(build.launches[0], node, build, choice),), build, elapsed_ns)


def _kernel(form: RunTimeForm, choice: Choice) -> CpuKernel:
    key = choice.backend, form.key
    found = _kernels.get(key)
    if found is None:
        found = _kernels[key] = native_code(form.compile(choice.device))
    return found
