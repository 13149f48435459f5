"""A chosen variant bound to arrays of one shape: called by address on the CPU, with copies on other devices.

Planned and Prepared are calls of one shape; Chooser is the part of ArrayOp that they use.
"""

from __future__ import annotations

import functools
import threading
from array import array
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from camshaft.backends.cpu.device import CpuKernel
from camshaft.backends.device import HOST
from camshaft.dtypes import DType
from camshaft.eager.choices import Choices
from camshaft.eager.native.cpython_abi import data_address
from camshaft.eager.shapes.launches import launch_words, run_launches
from camshaft.lang import Array as KernelArray
from camshaft.lang import Tracer, kernel
from camshaft.ops.arguments import Dtype, Operand
from camshaft.ops.kernels.launch import operand_part, program_count, signature
from camshaft.ops.kernels.run_time_sizes import RunTimeForm, run_time_form
from camshaft.ops.kernels.strides import Iteration
from camshaft.ops.op import Attrs, Build, Cells, HostCall, Launch, NativeCall, NodeSpec, Op, scratch, write
from camshaft.ops.spec import TensorSpec
from camshaft.process import eager_threads
from camshaft.selection.choice import Choice
from camshaft.validation.run import commands_of, compile_launch, extents_of, native_code, updated

Array = np.ndarray[Any, Any]
Runner = Callable[[Sequence[Array], Sequence[Array]], None]
# Work from which the workers are called: waking them and coming back takes 5 to 10 microseconds.
SHARE_NS = 60_000.0
NARROW_BLOCK = 4096
# A kind of tensor, its index, and bytes from its start.
Place: TypeAlias = tuple[str, int, int]
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
    """Returns the variant's cost, but no less than the op's bytes at 20 and its operations at 30 per nanosecond."""
    op = choice.op
    return max(choice.variant.cost(node, choice.device), op.nbytes(node) / 20, op.flops(node) / 30)


class Step(NamedTuple):
    """A launch: `places` are those of its arrays. After them come `words` and the addresses of `sizes`, which the kernel takes at
    run time."""

    code: CpuKernel
    places: tuple[Place, ...]
    programs: int
    sizes: tuple[int, ...] = ()
    words: tuple[int, ...] = ()

    def arguments_after(self) -> tuple[list[int], object]:
        """The arguments after the arrays, and what has the memory that they point to."""
        if not self.sizes:
            return [*self.words], None
        sizes = array("q", self.sizes)
        first = sizes.buffer_info()[0]
        return [*self.words, *range(first, first + 8 * len(sizes), 8)], sizes


@dataclass(frozen=True)
class HostRunner:
    """The launches in order: on this thread, or with the workers where there is enough to do. Scratch is made per call, so that
    threads do not share it; `owner` has what the words point to."""

    steps: tuple[Step, ...]
    scratch_nbytes: tuple[int, ...]
    elapsed_ns: float
    owner: object = None

    @property
    def shared(self) -> bool:
        """Whether the workers do it together."""
        if self.elapsed_ns < SHARE_NS:
            return False
        return any(step.programs > 1 for step in self.steps) and eager_threads() > 1

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        scratch = [_aligned(nbytes) for nbytes in self.scratch_nbytes] if self.scratch_nbytes else ()
        arrays = {"input": inputs, "output": outputs, "scratch": scratch}
        blocks, owners = [], []
        for step in self.steps:
            rest, owner = step.arguments_after()
            places = [data_address(arrays[kind][index]) + offset for kind, index, offset in step.places]
            blocks.append(array("q", places + rest))
            owners.append(owner)
        if self.shared:
            each = zip(self.steps, blocks, strict=True)
            launches = launch_words([(s.code.address, b.buffer_info()[0], s.programs) for s, b in each])
            run_launches(launches.ctypes.data, len(blocks))
            return
        for step, block in zip(self.steps, blocks, strict=True):
            step.code(block.buffer_info()[0], 0, step.programs)


def _host_runner(node: NodeSpec, build: Build, choice: Choice) -> HostRunner:
    steps = tuple(_step(launch, node, build, choice) for launch in build.launches)
    return HostRunner(steps, _scratch_nbytes(build), estimated_ns(node, choice), build)


def _scratch_nbytes(build: Build) -> tuple[int, ...]:
    return tuple(spec.nbytes for spec in build.scratch)


@kernel
def narrow(k: Tracer, x: KernelArray, out: KernelArray, *, n: int) -> None:
    # out[i] = x[i], rounded to out's dtype
    for i in k.elements(n, NARROW_BLOCK):
        out[i] = x[i]


def narrowed(run: HostRunner, node: NodeSpec, choice: Choice, dtype: DType) -> HostRunner:
    """The host runner of a node with its one result rounded to another dtype, by one launch more; before, it is scratch."""
    wide, n, at = node.outputs[0], prod(node.outputs[0].bounds), len(run.scratch_nbytes)
    launch = Launch(
        narrow, (scratch(at, "read", (n,)), write(0, shape=(n,))), (Cells(n, NARROW_BLOCK),), {"n": n}, sizes=("n",)
    )
    whole = Build((launch,), (*[wide] * at, wide))
    narrow_node = replace(node, outputs=(TensorSpec(wide.shape, dtype),))
    moved = [
        step._replace(
            places=tuple(("scratch", at, o) if kind == "output" else (kind, i, o) for kind, i, o in step.places)
        )
        for step in run.steps
    ]
    last = _step(launch, narrow_node, whole, choice)
    return replace(run, steps=(*moved, last), scratch_nbytes=(*run.scratch_nbytes, wide.nbytes))


def _aligned(nbytes: int) -> Array:
    raw = np.empty(nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes]


def _step(launch: Launch | NativeCall, node: NodeSpec, build: Build, choice: Choice) -> Step:
    places = tuple((o.kind, o.index, operand_part(o, node, build).offset_nbytes) for o in launch.arrays)
    form = run_time_form(launch, node, build, choice.device)
    if form is not None:
        return Step(kernel_of_form(form, choice), places, form.programs, form.values)
    words = (launch.words.ctypes.data,) if isinstance(launch, NativeCall) else ()
    code = native_code(compile_launch(launch, signature(launch, node, build), choice.device))
    return Step(code, places, program_count(launch, {}), (), words)


def strided_build(launch: Launch, over: Iteration) -> Build:
    """An elementwise launch for this iteration instead of its own."""
    constants = {**launch.constants, **over.constants}
    return Build((replace(launch, constants=constants, grid=over.grid, extents=()),))


def strided_runner(launch: Launch, node: NodeSpec, over: Iteration, choice: Choice, elapsed_ns: float) -> HostRunner:
    """Returns the runner of `strided_build`."""
    build = strided_build(launch, over)
    return HostRunner((_step(build.launches[0], node, build, choice),), (), elapsed_ns, build)


def kernel_of_form(form: RunTimeForm, choice: Choice) -> CpuKernel:
    """The kernel that takes sizes at run time, compiled once."""
    key = choice.backend, form.key
    found = _kernels.get(key)
    if found is None:
        found = _kernels[key] = native_code(form.compile(choice.device))
    return found


class NoFormula(Exception):
    """The call runs something other than kernels with run-time sizes."""


class Chooser(Protocol):
    """The part of ArrayOp that a call uses."""

    op: Op
    choices: Choices
    n_inputs: int  # of an elementwise op; 0 for others

    def known(self, key: Hashable) -> Prepared | None: ...
    def once(self, key: Hashable, make: Callable[[], Prepared]) -> Prepared: ...
    def remember(self, operands: Sequence[Operand], attrs: Attrs, prepared: Prepared) -> None: ...
    def record(self, operands: Sequence[Operand], attrs: Attrs, prepared: Prepared, plan: Plan) -> None: ...
    def replace(self, key: Hashable, prepared: Prepared) -> None: ...


class Planned(NamedTuple):
    """A call before compilation: the node, its variant's launches and the results' shapes."""

    node: NodeSpec
    choice: Choice
    build: Build
    shapes: tuple[tuple[int, ...], ...]


Plan: TypeAlias = Callable[[Sequence[tuple[int, ...]]], Planned]


class Prepared(NamedTuple):
    """A compiled call. Inputs are cast to `inputs`, results from `computed` to `returned`."""

    run: Runner
    inputs: tuple[Dtype, ...]
    shapes: tuple[tuple[int, ...], ...]
    computed: tuple[Dtype, ...]
    returned: tuple[Dtype, ...]
    node: NodeSpec | None = None  # what it runs, if it is a single node
    # Above 0: that many calls run another variant; then the call is prepared with the chosen one.
    uses_left: int = 0

    @property
    def takes_sizes(self) -> bool:
        """Whether a call of another shape compiles nothing; many are made once."""
        return isinstance(self.run, HostRunner) and any(step.sizes for step in self.run.steps)
