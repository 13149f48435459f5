"""CAMSHAFT_VALIDATE: run a plan node by node and compare each result with the op's float64 reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from camshaft.errors import ValidationError
from camshaft.extent import Extent
from camshaft.formats.blocks import BlockFormat
from camshaft.graph.custom import CustomOp
from camshaft.graph.graph import Tensor, root
from camshaft.observe.rows import active_node
from camshaft.ops.spec import TensorSpec
from camshaft.plan.lowering.node_thunks import NodeRange, Piece
from camshaft.plan.runtime.runnable import RunnableSchedule
from camshaft.validation.validate import active_part, by_numbers, error_between, tolerance_of

Array = np.ndarray[Any, Any]
Active = Mapping[Extent, int]


def validated_run(bound: RunnableSchedule, origins: list[NodeRange], first: int, last: int) -> None:
    """Run thunks [first, last), those of the nodes in `origins` one node at a time. Raises ValidationError at the first node
    that differs from its reference, with the largest error. Custom ops have no reference and only run."""
    at = first
    for origin in origins:
        if isinstance(origin.node.op, CustomOp) or origin.first < at or origin.last > last:
            continue
        bound.run(at, origin.first)
        _validated(bound, origin)
        at = origin.last
    bound.run(at, last)


def _validated(bound: RunnableSchedule, origin: NodeRange) -> None:
    node, op, active = origin.node, origin.node.op, bound.active
    now = active_node(node.spec, active)
    if any(0 in spec.bounds for spec in (*now.inputs, *now.outputs)):  # empty: references need not support it
        bound.run(origin.first, origin.last)
        return
    pairs = zip(node.inputs, origin.inputs, strict=True)
    inputs = [_values(bound, tensor, buffer, active) for tensor, buffer in pairs]
    wanted = op.reference(inputs, now.attrs)  # before the run: its thunks may overwrite the inputs
    bound.run(origin.first, origin.last)
    changed = [(t.spec, b) for t, b in zip(node.outputs, origin.outputs, strict=True)]
    changed += [(node.inputs[i].spec, origin.inputs[i]) for i in op.updates]
    for (spec, buffer), want in zip(changed, wanted, strict=True):
        tolerance = tolerance_of(op, spec, want, origin.choice.variant)
        for got, expected in _compared(_bytes(bound, buffer, spec), want, spec, active):
            error = error_between(got, expected, tolerance)
            if not error <= tolerance:
                raise ValidationError(_message(bound, origin, got, expected, error, tolerance))


def _message(
    bound: RunnableSchedule, origin: NodeRange, got: Array, expected: Array, error: float, tolerance: float
) -> str:
    thunks = bound.schedule.thunks[origin.first : origin.last]
    names = ", ".join(repr(thunk.name) for thunk in thunks)
    return (
        f"thunk {names} ({thunks[0].op}/{thunks[0].variant} on {origin.choice.backend}) differs from its reference: error "
        f"{error:.3g}, allowed {tolerance:.3g}; at most {_greatest(got, expected)}"
    )


def _greatest(got: Array, expected: Array) -> str:
    if got.shape != expected.shape:
        return f"shape {list(got.shape)}, wanted {list(expected.shape)}"
    a, b = got.astype(np.float64), expected.astype(np.float64)
    with np.errstate(all="ignore"):
        apart = np.abs(a - b)
        apart = np.where(np.isnan(apart) & ~(np.isnan(a) & np.isnan(b)), np.inf, apart)
    where = np.unravel_index(int(np.nan_to_num(apart, nan=0.0).argmax()), apart.shape)
    return f"{apart[where]:.3g} at {[int(i) for i in where]} (got {got[where]}, wanted {expected[where]:.6g})"


def _bytes(bound: RunnableSchedule, buffer: Piece, spec: TensorSpec) -> Array:
    return bound.bytes_of(buffer.slice(0, spec.nbytes))


def _values(bound: RunnableSchedule, tensor: Tensor, buffer: Piece, active: Active) -> Array:
    """A tensor's active elements as the reference takes them; packed tensors as the numbers that they encode."""
    spec = tensor.spec
    if isinstance(spec.dtype, BlockFormat):
        return _weights(tensor)
    constant = root(tensor).source
    raw = _bytes(bound, buffer, spec) if constant is None else constant.data().reshape(-1).view(np.uint8)[: spec.nbytes]
    if spec.is_plain:
        values = raw.view(spec.parts[0].dtype.numpy).reshape(spec.bounds)
        return active_part(values, spec, active)
    assert spec.layout.numbers is not None
    return active_part(spec.layout.numbers(raw, spec), spec, active)


def _weights(tensor: Tensor) -> Array:
    """Quantized weights decoded from the file's blocks, so that the comparison covers packing too."""
    source, form = root(tensor).source, tensor.spec.dtype
    assert source is not None
    assert isinstance(form, BlockFormat)
    return form.dequantize(source.data().reshape(-1, form.block_nbytes)).reshape(tensor.spec.bounds)


def _compared(raw: Array, want: Array, spec: TensorSpec, active: Active) -> list[tuple[Array, Array]]:
    """Pairs of (result, reference): a plain tensor's active elements, the rows of each part of a packed one, or the numbers
    that it encodes."""
    if spec.is_plain:
        return [(active_part(raw.view(spec.parts[0].dtype.numpy).reshape(spec.bounds), spec, active), want)]
    if by_numbers(spec, want):
        assert spec.layout.numbers is not None
        return [(active_part(spec.layout.numbers(raw, spec), spec, active), want)]
    small = TensorSpec(
        tuple(active.get(d, d.bound) if isinstance(d, Extent) else d for d in spec.shape), spec.dtype, spec.layout
    )
    pairs = []
    for whole, part in zip(spec.parts, small.parts, strict=True):
        got = raw[whole.offset_nbytes : whole.offset_nbytes + whole.nbytes].view(whole.dtype.numpy).reshape(whole.shape)
        expected = (
            want[part.offset_nbytes : part.offset_nbytes + part.nbytes].view(part.dtype.numpy).reshape(part.shape)
        )
        pairs.append((got[: part.shape[0]], expected))
    return pairs
