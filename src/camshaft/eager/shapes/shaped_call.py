"""Call any op on arrays: prepare it once for shapes, dtypes and attributes, check `out`, run it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from camshaft.backends.device import HOST
from camshaft.dtypes import as_dtype
from camshaft.eager.numpy_forms import RETURNED, attributes_of, check_core, form_of
from camshaft.eager.operands import check_cast, empty, give
from camshaft.eager.operands import output as writeable
from camshaft.eager.shapes.runners import Chooser, HostRunner, NoFormula, Planned, Prepared, narrowed, runner
from camshaft.errors import ArrayValueError, ShapeError
from camshaft.ops.arguments import HALVES, Array, Dtype, Operand, attribute_key, common_dtype
from camshaft.ops.op import Attrs, Build, NodeSpec, Op
from camshaft.ops.spec import TensorSpec
from camshaft.selection.choice import Choice
from camshaft.validation.run import refusal_of

# Calls of a shape before its own kernel is compiled.
FIRST_USES = 2


_IN_PLACE = "a contiguous, writeable ndarray"


def call(chooser: Chooser, operands: Sequence[Operand], out: Any, attrs: Mapping[str, Any]) -> Any:
    """Returns the output, a tuple of several, or None for an op that only writes in place."""
    op = chooser.op
    arrays = [_input(op, i, np.asarray(x)) for i, x in enumerate(operands)]
    given = attributes_of(op.name, attrs, arrays[0].ndim if arrays else 0)
    form = form_of(op.name, arrays, given)
    if form is None:
        return _call(chooser, operands, arrays, out, attrs, given)
    given_out = _first(op, out, form.shape)
    if form.ready is None and all(x is y for x, y in zip(arrays, form.arrays, strict=True)):
        return _call(chooser, operands, arrays, out, attrs, given)
    result = form.ready
    if result is None:
        result = np.reshape(_call(chooser, form.arrays, form.arrays, None, attrs, given), form.shape)
    returned = form.returned or result.dtype
    if given_out is not None:
        check_cast(op.name, returned, given_out.dtype)
    return give(result.astype(returned, copy=False), given_out, returned)


def _first(op: Op, out: Any, shape: tuple[int, ...]) -> Array | None:
    """The one output that the caller gave. ArrayValueError or ArrayTypeError where it is not an array of this shape."""
    found = writeable(out[0] if isinstance(out, tuple) and len(out) == 1 else out)
    if found is not None:
        check_core(op.name, found.shape, shape)
    return found


def _call(
    chooser: Chooser, operands: Sequence[Operand], arrays: Sequence[Array], out: Any, attrs: Attrs, given: Attrs
) -> Any:
    op = chooser.op
    key = tuple((a.shape, a.dtype) for a in arrays), attribute_key(given)
    before = chooser.known(key)
    prepared = before or chooser.once(key, lambda: prepare(chooser, arrays, given, first_uses=FIRST_USES))
    if before is not None and before.uses_left:
        left = before.uses_left - 1
        prepared = before._replace(uses_left=left) if left else prepare(chooser, arrays, given)
        chooser.replace(key, prepared)
    inputs = [a if a.dtype == d else a.astype(d) for a, d in zip(arrays, prepared.inputs, strict=True)]
    wanted = _outputs(op, prepared, out)
    results = [
        want if want is not None and _direct(want, dtype, inputs) else empty(op.name, shape, dtype)
        for want, shape, dtype in zip(wanted, prepared.shapes, prepared.computed, strict=True)
    ]
    prepared.run(inputs, results)
    if not prepared.uses_left and (before is not None or not prepared.takes_sizes):
        chooser.remember(operands, attrs, prepared)
    elif before is None and all(x is y for x, y in zip(operands, arrays, strict=True)):
        _record(chooser, operands, attrs, prepared)
    given_back = tuple(give(r, w, d) for r, w, d in zip(results, wanted, prepared.returned, strict=True))
    return given_back[0] if len(given_back) == 1 else given_back or None


def _record(chooser: Chooser, operands: Sequence[Operand], attrs: Attrs, prepared: Prepared) -> None:
    """Has the chooser record a call that no choice by size decided."""
    node = prepared.node
    choice = None if node is None else chooser.choices.only(node)
    if node is None or choice is None:
        return

    def plan(shapes: Sequence[tuple[int, ...]]) -> Planned:
        specs = tuple(replace(spec, shape=shape) for spec, shape in zip(node.inputs, shapes, strict=True))
        there = NodeSpec(specs, choice.op.outputs(specs, node.attrs), node.attrs)
        if prepared.uses_left and choice.op.first_use(there, None) is not choice.variant:
            raise NoFormula
        build = None if choice.variant.supports(there, choice.device) else choice.variant.build(there, choice.device)
        if not isinstance(build, Build):
            raise NoFormula
        return Planned(there, choice, build, tuple(spec.bounds for spec in there.outputs))

    chooser.record(operands, attrs, prepared, plan)


def node_of(op: Op, arrays: Sequence[Array], attrs: Attrs) -> NodeSpec:
    """The op on arrays of these shapes and dtypes. ShapeError as the op has it, or for outputs that are not plain arrays."""
    specs = tuple(TensorSpec(a.shape, as_dtype(a.dtype)) for a in arrays)
    outputs = op.outputs(specs, attrs)
    if not all(spec.is_plain for spec in outputs):
        raise ShapeError(f"{op.name}: gives {outputs[0]}, which is not a plain array; use it in a graph")
    return NodeSpec(specs, outputs, attrs)


def _input(op: Op, index: int, array: Array) -> Array:
    flags = array.flags
    if index not in op.updates:
        usable = flags.c_contiguous and flags.aligned and array.dtype.isnative
        return array if usable else np.array(array, array.dtype.newbyteorder("="), order="C")
    if not flags.c_contiguous or not flags.writeable or not flags.aligned:
        raise ShapeError(f"{op.name}: input {index} is written in place; wanted {_IN_PLACE}")
    return array


def check_updates(op: Op, values: Sequence[Any]) -> None:
    """Raises ShapeError if an input that the op writes in place is not the caller's array."""
    for index in op.updates:
        if index < len(values) and not isinstance(values[index], np.ndarray):
            kind = type(values[index]).__name__
            raise ShapeError(f"{op.name}: input {index} is written in place; got a {kind}, wanted {_IN_PLACE}")


def prepare(chooser: Chooser, arrays: Sequence[Array], attrs: Attrs, first_uses: int = 0) -> Prepared:
    """Chooses and compiles. Where the op takes no f16 or bf16, they are computed in f32 and results rounded back. `first_uses`:
    for that many calls a variant with the same bits may run that compiles nothing for this shape."""
    op = chooser.op
    op.parameters.check(op.name, attrs)
    try:
        node, returned = node_of(op, arrays, attrs), None
    except ShapeError:
        wide = [a.astype(np.float32) if a.dtype in HALVES else a for a in arrays]
        if op.updates or all(a.dtype == w.dtype for a, w in zip(arrays, wide, strict=True)):
            raise
        node = node_of(op, wide, attrs)
        returned = common_dtype([a.dtype for a in arrays if a.dtype.kind in "fV"])
    if form_of(op.name, arrays, attrs) is not None and {a.dtype for a in arrays} < set(HALVES):
        returned = arrays[0].dtype  # NumPy's functions keep the operands' dtype
    dtypes = tuple(spec.parts[0].dtype.numpy for spec in node.outputs)
    back = tuple(d if returned is None or d != np.float32 else returned for d in dtypes)
    if "to" not in attrs:
        back = (RETURNED.get(op.name, back[0]), *back[1:]) if back else back
    shapes = tuple(spec.bounds for spec in node.outputs)
    inputs = tuple(spec.parts[0].dtype.numpy for spec in node.inputs)
    first = chooser.choices.first_use(node) if first_uses and back == dtypes else None
    choice = first or chooser.choices.select(node)
    short = _rounding(node, choice, back)
    if short is not None:
        node, dtypes = short, back
    if first is None and first_uses:
        first = chooser.choices.first_use(node, choice)
    run = runner(node, first or choice)
    if len(dtypes) == 1 and back != dtypes and isinstance(run, HostRunner):
        run = narrowed(run, node, choice, as_dtype(back[0]))
        return Prepared(run, inputs, shapes, back, back, None, 0 if first is None else first_uses)
    return Prepared(run, inputs, shapes, dtypes, back, node, 0 if first is None else first_uses)


def _rounding(node: NodeSpec, choice: Choice, returned: tuple[Dtype, ...]) -> NodeSpec | None:
    """The node with the attribute `to`, so that its kernels convert their one result as they store it (ops/checks.py); None
    where the op or the chosen variant does not, or nothing is to convert."""
    own = [spec.parts[0].dtype.numpy for spec in node.outputs]
    if len(returned) != 1 or list(returned) == own or choice.device.space != HOST:
        return None
    attrs = {**node.attrs, "to": as_dtype(returned[0]).name}
    outputs = choice.op.outputs(node.inputs, attrs) if choice.op.accepts(node.inputs, attrs) else ()
    if [spec.parts[0].dtype.numpy for spec in outputs] != list(returned):
        return None
    short = NodeSpec(node.inputs, outputs, attrs)
    refused = choice.variant.supports(short, choice.device) or refusal_of(choice.variant, short, choice.device)
    return short if refused is None else None


def _outputs(op: Op, prepared: Prepared, out: Any) -> list[Array | None]:
    """Returns the caller's `out` for each output. Raises ArrayValueError or ArrayTypeError for a mismatch."""
    count = len(prepared.shapes)
    if out is None:
        return [None] * count
    given = out if isinstance(out, tuple) else (out,)
    if len(given) != count:
        raise ArrayValueError(f"The 'out' tuple must have exactly one entry per {op.name} output")
    found = [writeable(x) for x in given]
    for want, shape, dtype in zip(found, prepared.shapes, prepared.returned, strict=True):
        if want is None:
            continue
        check_core(op.name, want.shape, shape)
        check_cast(op.name, dtype, want.dtype)
    return found


def _direct(out: Array, dtype: Dtype, inputs: Sequence[Array]) -> bool:
    """Whether kernels may write to it directly: contiguous, aligned, of their dtype, overlapping no input."""
    fits = out.dtype == dtype and out.dtype.isnative and out.flags.c_contiguous and out.flags.aligned
    return fits and not any(np.may_share_memory(out, x) for x in inputs)


class EachLength:
    """An elementwise op on a device that has no kernel for every length: one is compiled for each."""

    code: Mapping[int, object] = {0: None}

    def __init__(self, chooser: Chooser, dtypes: tuple[Dtype, ...], attrs: Attrs) -> None:
        self._chooser, self._attrs = chooser, attrs
        node = node_of(chooser.op, [np.empty(1, d) for d in dtypes], attrs)
        self.output = node.outputs[0].parts[0].dtype

    def __call__(self, inputs: Sequence[Array], output: Array, singles: int) -> None:
        """Flat arrays of one length."""
        key = tuple((a.shape, a.dtype) for a in inputs), attribute_key(self._attrs)
        self._chooser.once(key, lambda: prepare(self._chooser, inputs, self._attrs)).run(inputs, [output])
