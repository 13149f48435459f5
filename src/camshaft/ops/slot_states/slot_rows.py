"""slot_rows: the rows of a run that belong to each slot, i32 [slots, 3]: the first, the one after the last, and 1 if the first is
the first of its sequence. The rows of a slot are consecutive. A slot without rows has its first after its last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from camshaft.dtypes import i32
from camshaft.extent import Extent
from camshaft.lang import Array, Tracer, ir, kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import partly_active
from camshaft.ops.gradient import IN_PLACE
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.spec import TensorSpec

MOST_SLOTS = 1 << 20


@kernel
def rows_of_fixed(k: Tracer, positions: Array, slots: Array, out: Array, *, tokens: int) -> None:
    # out[s] = min and max + 1 of the t with slots[t] = s, positions[min] = 0
    _rows(k, positions, slots, out, tokens)


@kernel
def rows_of_active(k: Tracer, positions: Array, slots: Array, out: Array, tokens: ir.Value) -> None:
    # out[s] = min and max + 1 of the active t with slots[t] = s, positions[min] = 0
    _rows(k, positions, slots, out, tokens)


def _rows(k: Tracer, positions: Array, slots: Array, out: Array, tokens: ir.Operand) -> None:
    slot = k.program(0)
    first, end, at_0 = k.accumulator("min", i32), k.accumulator("max", i32), k.accumulator("max", i32)
    for t in k.lanes(tokens):
        row, own = t.to(i32), slots[t] == slot.to(i32)
        first.combine(k.select(own, row, k.const(1 << 30, i32)))
        end.combine(k.select(own, row + 1, k.const(0, i32)))
        at_0.combine(k.select(own & (positions[t] == 0), k.const(1, i32), k.const(0, i32)))
    out[slot, 0] = k.minimum(k.lanes_min(first), tokens.to(i32) if isinstance(tokens, ir.Value) else tokens)
    out[slot, 1] = k.lanes_max(end)
    out[slot, 2] = k.lanes_max(at_0)


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 2, "slot_rows", specs, "positions and slots, i32 [T]")
    for spec, name in zip(specs, ("positions", "slots"), strict=True):
        fits = spec.is_plain and spec.dtype == i32 and len(spec.shape) == 1 and spec.shape == specs[0].shape
        ops.expect(fits and 0 not in spec.bounds, "slot_rows", spec, f"{name} of i32 [T]")
    n = attrs.get("n_slots", 0)
    ops.expect(0 < n <= MOST_SLOTS, "slot_rows", f"n_slots {n}", f"n_slots from 1 to {MOST_SLOTS}")
    return (TensorSpec((n, 3), i32),)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    positions, slots = inputs
    out = np.zeros((attrs["n_slots"], 3), np.int32)
    for slot in range(len(out)):
        own = np.flatnonzero(slots == slot)
        out[slot] = (own[0], own[-1] + 1, (positions[own] == 0).any()) if len(own) else (len(slots), 0, 0)
    return (out,)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    tokens, arrays = node.inputs[0].shape[0], (ops.read(0), ops.read(1), ops.write(0))
    grid = (ops.Cells(node.outputs[0].bounds[0]),)
    if isinstance(tokens, Extent):
        return ops.Build((ops.Launch(rows_of_active, arrays, grid, extents=(tokens,)),))
    return ops.Build((ops.Launch(rows_of_fixed, arrays, grid, {"tokens": tokens}),))


def _samples() -> Iterable[ops.Sample]:
    slots, attrs = np.array([2, 2, 0, 0, 0, 3], np.int32), {"n_slots": 5}
    positions = np.array([7, 8, 0, 1, 2, 15], np.int32)
    yield ops.Sample("6 rows of 3 slots", (positions, slots), attrs)
    long = np.arange(70, dtype=np.int32)
    yield ops.Sample("70 rows of 2 slots", (long % 67, long // 67), {"n_slots": 2})
    yield partly_active(ops.Sample("4 of 6 rows", (positions, slots), attrs), 4)


def _error_samples() -> Iterable[ops.ErrorSample]:
    index = TensorSpec((3,), i32)
    yield ops.ErrorSample((index,), {"n_slots": 1}, "wanted positions and slots")
    yield ops.ErrorSample((index, TensorSpec((4,), i32)), {"n_slots": 1}, "wanted slots of i32")
    yield ops.ErrorSample((index, index), {"n_slots": 0}, "wanted n_slots from 1")


OP = ops.Op(
    name="slot_rows",
    formula="the first row of each slot, the one after its last, and whether the first has position 0",
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("slot_per_program", ops.EVERYWHERE, _build),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={},
    indexes={1: lambda node: node.outputs[0].bounds[0]},
    vjp=IN_PLACE,
    parameters=Parameters("positions slots", (Attribute("n_slots", "int"),)),
)
