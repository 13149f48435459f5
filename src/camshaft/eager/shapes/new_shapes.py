"""Runs a call of a new shape without the op's shape rule, its builder or a compilation: recorded formulas give its sizes.

A call of some dtypes, numbers of axes and attributes is recorded once (size_formulas.py). Where other sizes make the builder
decide otherwise, that call is prepared as the first was, and recorded beside it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import prod
from typing import Any, NamedTuple

import numpy as np

from camshaft.backends.cpu.device import CpuKernel
from camshaft.eager.numpy_forms import REDUCTIONS
from camshaft.eager.operands import empty
from camshaft.eager.shapes.runners import (
    Chooser,
    HostRunner,
    NoFormula,
    Place,
    Plan,
    Planned,
    Prepared,
    Step,
    kernel_of_form,
)
from camshaft.eager.shapes.size_formulas import Formulas, Recording, number
from camshaft.ops.arguments import Array, Dtype, attribute_key
from camshaft.ops.kernels.launch import operand_part
from camshaft.ops.kernels.run_time_sizes import RunTimeForm, run_time_form

# Recordings of one kind of call; a kind that needs more is not worth another.
MOST_RECORDINGS = 12
MOST_KINDS = 256


class _Launches(NamedTuple):
    """`kernels`: (key, places of arrays) of each; `sizes`: (programs, values) of each, and the bytes of scratch."""

    forms: tuple[RunTimeForm, ...]
    kernels: tuple[tuple[Hashable, tuple[Place, ...]], ...]
    sizes: tuple[tuple[tuple[int, tuple[int, ...]], ...], tuple[int, ...]]


@dataclass(frozen=True)
class Recorded:
    """`formulas(*sizes)`: shapes of results, (programs, values) of each step, bytes of scratch, elements."""

    formulas: Formulas
    steps: tuple[tuple[CpuKernel, tuple[Place, ...]], ...]
    element_ns: float

    def runner(self, sizes: Sequence[int]) -> tuple[tuple[tuple[int, ...], ...], HostRunner] | None:
        """The results' shapes and what computes them; None for sizes that the formulas do not cover."""
        found = self.formulas(*sizes)
        if found is None:
            return None
        shapes, values, scratch_nbytes, elements = found
        steps = [Step(code, places, *own) for (code, places), own in zip(self.steps, values, strict=True)]
        return shapes, HostRunner(tuple(steps), scratch_nbytes, self.element_ns * elements)


def recorded(shapes: Sequence[tuple[int, ...]], plan: Plan, elapsed_ns: float) -> Recorded:
    """Records `plan`, which gets the inputs' shapes. NoFormula where it cannot be."""
    planned, recording = plan(shapes), Recording([size for shape in shapes for size in shape])
    wanted, left = _launches(planned), iter(recording.sizes)
    symbolic_shapes: list[tuple[int, ...]] = [tuple(islice(left, len(shape))) for shape in shapes]
    symbolic = plan(symbolic_shapes)
    found = _launches(symbolic)
    same = found.kernels == wanted.kernels  # notes the values of sizes that are constants of a kernel
    sizes = number((symbolic.shapes, found.sizes))
    if not same or symbolic.choice is not planned.choice or sizes != (planned.shapes, wanted.sizes):
        raise NoFormula
    elements = sum(prod(shape) for shape in (*symbolic_shapes, *symbolic.shapes))
    formulas = recording.function((symbolic.shapes, *found.sizes, elements))
    codes = [kernel_of_form(form, planned.choice) for form in wanted.forms]
    places = [places for _, places in wanted.kernels]
    return Recorded(formulas, tuple(zip(codes, places, strict=True)), elapsed_ns / max(number(elements), 1))


def _launches(planned: Planned) -> _Launches:
    build = planned.build
    forms, kernels = [], []
    for launch in build.launches:
        form = run_time_form(launch, planned.node, build, planned.choice.device)
        if form is None:
            raise NoFormula
        parts = ((o, operand_part(o, planned.node, build)) for o in launch.arrays)
        forms.append(form)
        kernels.append((form.key, tuple((o.kind, o.index, part.offset_nbytes) for o, part in parts)))
    sizes = tuple((form.programs, form.values) for form in forms)
    return _Launches(tuple(forms), tuple(kernels), (sizes, tuple(spec.nbytes for spec in build.scratch)))


class Kind(NamedTuple):
    """Calls of some dtypes, numbers of axes and attributes, with the results' dtypes. `casts`: some inputs are cast to `inputs`;
    `uses`: the number of calls after which a shape's own kernel is chosen, or 0."""

    recordings: list[Recorded]
    inputs: tuple[Dtype, ...]
    computed: tuple[Dtype, ...]
    casts: bool
    uses: int

    def prepared(self, sizes: Sequence[int]) -> Prepared | None:
        """The call for these sizes of the inputs; None where no recording covers them."""
        for recording in self.recordings:
            found = recording.runner(sizes)
            if found is not None:
                shapes, run = found
                return Prepared(run, self.inputs, shapes, self.computed, self.computed, None, self.uses)
        return None


class Kinds:
    """The kinds of calls that an op has recorded."""

    def __init__(self) -> None:
        self._kinds: dict[Hashable, Kind] = {}

    def call(self, chooser: Chooser, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        """The result, or None for a call that is of no recorded kind, or not of plain arrays with elements."""
        sizes: list[int] = []
        for x in inputs:
            if type(x) is not np.ndarray:
                return None
            sizes += x.shape
        key = _key(inputs, attrs)
        if 0 in sizes or (attrs and not _is_key(key)):
            return None
        contiguous = all((f := x.flags).c_contiguous and f.aligned for x in inputs)
        if not contiguous and chooser.n_inputs:
            return _as_before(chooser, inputs, attrs)
        kind = self._kinds.get(key)
        if kind is None or (not contiguous and chooser.op.name in REDUCTIONS):
            return None
        arrays = [x if (f := x.flags).c_contiguous and f.aligned else np.array(x, order="C") for x in inputs]
        # A shape's own kernel is chosen by shaped_call.py, after the first calls, which it counts under this key.
        whole: Hashable = (tuple((a.shape, a.dtype) for a in arrays), ()) if kind.uses else (key, tuple(sizes))
        before = chooser.known(whole)
        prepared = before or kind.prepared(sizes)
        if prepared is None or (before is not None and kind.uses):
            return None
        if kind.casts:
            arrays = [a.astype(d, copy=False) for a, d in zip(arrays, kind.inputs, strict=True)]
        results = [
            empty(chooser.op.name, shape, dtype) for shape, dtype in zip(prepared.shapes, kind.computed, strict=True)
        ]
        prepared.run(arrays, results)
        if before is None:
            chooser.once(whole, lambda: prepared)
        elif contiguous:
            chooser.remember(inputs, attrs, prepared)
        given = tuple(made if made.ndim else made[()] for made in results)
        return given if len(given) > 1 else given[0]

    def record(
        self, chooser: Chooser, operands: Sequence[Any], attrs: Mapping[str, Any], prepared: Prepared, plan: Plan
    ) -> None:
        """Records a call that has just been prepared, unless its kind has recordings enough or cannot be recorded."""
        run = prepared.run
        if not isinstance(run, HostRunner) or prepared.computed != prepared.returned:
            return
        key = _key(operands, attrs)
        if not _is_key(key) or (attrs and prepared.uses_left):
            return
        kind = self._kinds.get(key)
        if not prepared.uses_left:
            chooser.once((key, tuple(size for x in operands for size in x.shape)), lambda: prepared)
        if kind is None:
            if len(self._kinds) >= MOST_KINDS:
                return
            casts = any(x.dtype != d for x, d in zip(operands, prepared.inputs, strict=True))
            kind = self._kinds.setdefault(key, Kind([], prepared.inputs, prepared.computed, casts, prepared.uses_left))
        if len(kind.recordings) < MOST_RECORDINGS:
            try:
                kind.recordings.append(recorded([x.shape for x in operands], plan, run.elapsed_ns))
            except Exception:  # a builder may take nothing but numbers; its calls are prepared one by one
                kind.recordings.extend([_NEVER] * MOST_RECORDINGS)


def strides_key(inputs: Sequence[Array], attrs: Mapping[str, Any]) -> Hashable:
    """A key for an elementwise call: with the strides of its inputs."""
    return tuple((x.shape, x.strides, x.dtype) for x in inputs), attribute_key(attrs)


def _as_before(chooser: Chooser, inputs: Sequence[Array], attrs: Mapping[str, Any]) -> Any:
    """The result of an elementwise call with the sizes and strides of an earlier one; None where there was none."""
    prepared = chooser.known(strides_key(inputs, attrs))
    if prepared is None or not all(x.flags.aligned for x in inputs):
        return None
    result = empty(chooser.op.name, prepared.shapes[0], prepared.computed[0])
    prepared.run(inputs, [result])
    return result


def _key(inputs: Sequence[Array], attrs: Mapping[str, Any]) -> Hashable:
    return (*[(x.dtype, x.ndim) for x in inputs], *attribute_key(attrs))


def _is_key(key: Hashable) -> bool:
    """Whether no attribute is without a hash, as a list is, which is converted or refused elsewhere."""
    try:
        hash(key)
    except TypeError:
        return False
    return True


_NEVER = Recorded(lambda *sizes: None, (), 0.0)
