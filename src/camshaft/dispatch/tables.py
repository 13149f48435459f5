"""DispatchTable: every op as a plain attribute that works on arrays: table().matmul(a, b). Top of dispatch/."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from camshaft import ops
from camshaft.backends.cpu.device import CpuKernel
from camshaft.backends.device import HOST
from camshaft.dispatch.override import check_override, get_backend_override
from camshaft.dispatch.run import commands_of, compile_launch, extents_of, native_code, updated
from camshaft.dispatch.select import Choice, select
from camshaft.dtypes import as_dtype
from camshaft.errors import ShapeError
from camshaft.ops.launch import operand_part, program_count, signature
from camshaft.ops.op import Build, HostCall, Launch, NativeCall, NodeSpec, Op
from camshaft.ops.spec import TensorSpec

Array = np.ndarray[Any, Any]
Runner = Callable[[Sequence[Array], Sequence[Array]], None]


class ArrayOp:
    """An op on arrays under one override. Calls are compiled once per shapes, dtypes and attributes."""

    def __init__(self, op: Op, override: str | None) -> None:
        self.op, self.override = op, override
        self.__name__, self.__doc__ = op.name, f"{op.formula} on arrays; attributes by keyword."
        self._calls: dict[Any, tuple[NodeSpec, Runner]] = {}

    def __repr__(self) -> str:
        return f"<{self.op.name} on {self.override or 'the best backend'}>"

    def __call__(self, *inputs: Any, **attrs: Any) -> Any:
        """The output, a tuple of them, or None for an op that only writes in place. ShapeError as the op's shape rule has it."""
        arrays = [self._array(i, value) for i, value in enumerate(inputs)]
        key = (tuple((a.shape, a.dtype) for a in arrays), tuple(sorted(attrs.items())))
        found = self._calls.get(key)
        if found is None:
            found = self._calls[key] = self._compile(arrays, attrs)
        node, run = found
        outputs = [np.empty(spec.bounds, spec.parts[0].dtype.numpy) for spec in node.outputs]
        run(arrays, outputs)
        return outputs[0] if len(outputs) == 1 else tuple(outputs) or None

    def choice(self, *inputs: Any, **attrs: Any) -> Choice:
        """Which variant such a call runs, and why."""
        return select(self.op, self._node([np.asarray(value) for value in inputs], attrs), self.override)

    def _array(self, index: int, value: Any) -> Array:
        array: Array = np.asarray(value)
        if index not in self.op.updates:
            return array if array.flags.c_contiguous else array.copy()
        if not isinstance(value, np.ndarray) or not array.flags.c_contiguous or not array.flags.writeable:
            wanted = "a contiguous, writeable ndarray"
            raise ShapeError(f"{self.op.name}: input {index} is written in place; wanted {wanted}")
        return array

    def _node(self, arrays: Sequence[Array], attrs: dict[str, Any]) -> NodeSpec:
        specs = tuple(TensorSpec(a.shape, as_dtype(a.dtype)) for a in arrays)
        outputs = self.op.infer(specs, attrs)
        if not all(spec.is_plain for spec in outputs):
            raise ShapeError(f"{self.op.name}: gives {outputs[0]}, which is no plain array; use it in a graph")
        return NodeSpec(specs, outputs, attrs)

    def _compile(self, arrays: Sequence[Array], attrs: dict[str, Any]) -> tuple[NodeSpec, Runner]:
        node = self._node(arrays, attrs)
        choice = select(self.op, node, self.override)
        build = choice.variant.build(node, choice.device)
        if isinstance(build, HostCall):
            return node, functools.partial(build.function, node)
        return node, _runner(node, build, choice)


def _runner(node: NodeSpec, build: Build, choice: Choice) -> Runner:
    return _host_runner(node, build, choice) if choice.device.space == HOST else _device_runner(node, build, choice)


def _device_runner(node: NodeSpec, build: Build, choice: Choice) -> Runner:
    """Arrays in, the launches, results out; the memory there is the call's own, and calls take turns."""
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


def _host_runner(node: NodeSpec, build: Build, choice: Choice) -> Runner:
    """Runs the launches in order on this thread; scratch is made per call, so that threads do not share it."""
    steps = [_step(launch, node, build, choice) for launch in build.launches]

    def run(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        scratch = [_aligned(spec.nbytes) for spec in build.scratch]
        starts = {
            "input": [a.ctypes.data for a in inputs],
            "output": [a.ctypes.data for a in outputs],
            "scratch": [a.ctypes.data for a in scratch],
        }
        for code, places, words, programs in steps:
            addresses = [starts[kind][index] + offset for kind, index, offset in places]
            args = np.array([*addresses, *words], np.int64)
            code(args.ctypes.data, 0, programs)

    return run


def _aligned(nbytes: int) -> Array:
    raw = np.empty(nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes]


_Step = tuple[CpuKernel, list[tuple[str, int, int]], list[int], int]


def _step(launch: Launch | NativeCall, node: NodeSpec, build: Build, choice: Choice) -> _Step:
    places: list[tuple[str, int, int]] = [
        (o.kind, o.index, operand_part(o, node, build).offset_nbytes) for o in launch.arrays
    ]
    words = [launch.words.ctypes.data] if isinstance(launch, NativeCall) else []
    code = native_code(compile_launch(launch, signature(launch, node, build), choice.device))
    return code, places, words, program_count(launch, {})


class DispatchTable:
    """Frozen: the ops under one override, as attributes. A table once held never changes."""

    override: str | None
    ops: tuple[str, ...]

    def __init__(self, override: str | None) -> None:
        made = {op.name: ArrayOp(op, override) for op in ops.all_ops() if ops.variants_of(op)}
        vars(self).update(made, override=override, ops=tuple(made))

    def __getattr__(self, name: str) -> ArrayOp:
        raise AttributeError(f"the dispatch table has no op {name!r}; it has {', '.join(vars(self).get('ops', ()))}")

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a dispatch table is frozen: {name} cannot be set")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a dispatch table is frozen: {name} cannot be deleted")

    def __repr__(self) -> str:
        return f"<DispatchTable of {len(self.ops)} ops on {self.override or 'the best backends'}>"


@functools.cache
def _table(override: str | None) -> DispatchTable:
    return DispatchTable(override)


def table(override: str | None = None) -> DispatchTable:
    """The table of a backend, or, without a name, of the override that holds here (see get_backend_override)."""
    return _table(get_backend_override() if override is None else check_override(override))
