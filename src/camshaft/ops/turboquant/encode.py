"""turboquant_encode: rows as packed codes of their rotated unit vectors, and their norms (codes.py)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import sqrt
from typing import Any

import numpy as np

from camshaft.dtypes import f32, i32, u8, u32
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.parameters import Parameters
from camshaft.ops.spec import TensorSpec
from camshaft.ops.turboquant.codes import GROUP, bits_of, encode, rows_as_matrix, rows_samples, wrong_tables
from camshaft.ops.turboquant.hadamard import check_signs, rows_of, transform

ENCODE = "turboquant_encode"


def nearest(k: Tracer, table: Array, x: Value) -> Value:
    """Returns the index of the centroid nearest to x, of two as near the lower."""
    n = int(table.shape[0])
    found, step = k.const(0, i32), n // 2
    while step:
        middle = (k.gather(table, found + (step - 1)) + k.gather(table, found + step)) * 0.5
        found = found + k.select(x > middle, k.const(step, i32), k.const(0, i32))
        step //= 2
    return found


@kernel
def encode_row(
    k: Tracer, x: Array, signs: Array, table: Array, packed: Array, norms: Array, *rest: Any, bits: int
) -> None:
    # y = H (s x) / sqrt(d); norm = |y|; code = nearest centroid of y sqrt(d) / norm
    row, dim = k.program(0), int(x.shape[1])
    buffer, found = k.scratch(f32, dim), k.scratch(i32, dim)
    for c in k.lanes(dim):
        buffer[c] = x[row, c] * signs[c]
    k.barrier()
    transform(k, buffer, dim)
    squares = k.accumulator("sum")
    for c in k.lanes(dim):
        squares += buffer[c] * buffer[c]
    size = k.sqrt(k.lanes_sum(squares))  # sqrt(d) times the norm
    norms[row] = size * (1.0 / sqrt(dim))
    inverse = sqrt(dim) / k.select(size == 0.0, 1.0, size)
    for c in k.lanes(dim):
        found[c] = nearest(k, table, buffer[c] * inverse)
    k.barrier()
    for b in k.lanes(int(packed.shape[1])):
        packed[row, b] = k.bitcast(_byte(k, found, b, bits), u32)


def _byte(k: Tracer, found: Array, b: Value, bits: int) -> Value:
    """Returns byte b of the codes."""
    first, total = (b * 8) // bits, k.const(0, i32)
    for i in range(-(-8 // bits) + (8 % bits != 0)):
        at = first + i
        place = (at * bits - b * 8).to(i32)
        value = k.gather(found, k.minimum(at, int(found.shape[0]) - 1))
        up, down = k.maximum(place, 0), k.maximum(-place, 0)
        moved = (value << k.minimum(up, 8)) >> down
        total = total | k.select(place < 8, moved, k.const(0, i32))
    return total & 255


def _infer_encode(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 3, ENCODE, specs, "x, signs, centroids")
    x, signs, table = specs
    d, bits = rows_of(ENCODE, x), bits_of(ENCODE, table)
    ops.expect(x.dtype == f32 and d >= 8, ENCODE, x, "x of f32 [.., d], d at least 8")
    check_signs(ENCODE, (signs,), d)
    return (TensorSpec((*x.shape[:-1], d * bits // 8), u8), TensorSpec(x.shape[:-1], f32))


def _encode_reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    return encode(*inputs)


def _build_encode(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    x, bits = node.inputs[0], bits_of(ENCODE, node.inputs[2])
    flat, cells = rows_as_matrix(x, x.bounds[-1])
    writes = ops.write(0, shape=(flat[0], node.outputs[0].bounds[-1])), ops.write(1, shape=(flat[0],))
    arrays = ops.read(0, shape=flat), ops.read(1), ops.read(2), *writes
    return ops.Build((ops.Launch(encode_row, arrays, (cells,), {"bits": bits}),))


def _encode_parts(f: Any, x: Any, signs: Any, table: Any) -> Any:
    d, bits = x.shape[-1], table.shape[0].bit_length() - 1
    y = f.hadamard(x, signs)
    norms = f.sqrt(f.sum(y * y, axes=-1, keepdims=True))
    unit = y * (sqrt(d) / f.where(f.equal(norms, 0.0), 1.0, norms))
    middles = (table[1:] + table[:-1]) * 0.5
    above = f.less(middles, unit.reshape((*x.shape, 1)))
    found = f.sum(f.cast(above, to="i32"), axes=-1).reshape((*x.shape[:-1], d // GROUP, GROUP))
    made = (
        f.concat(*(_byte_of_group(f, found, b, bits) for b in range(bits)), axis=len(x.shape))
        if bits > 1
        else (_byte_of_group(f, found, 0, bits))
    )
    packed = f.cast(made, to="u8").reshape((*x.shape[:-1], d * bits // 8))
    return packed, norms.reshape(tuple(x.shape[:-1]))


def _byte_of_group(f: Any, found: Any, b: int, bits: int) -> Any:
    """Byte b of each group of 8 codes: the sum of the parts of codes that are in its bits."""
    total = None
    for i in range(GROUP):
        place = i * bits - 8 * b
        if -bits < place < 8:
            one = found[..., i : i + 1]
            part = one * np.int32(1 << place) if place >= 0 else f.floor_divide(one, np.int32(1 << -place))
            part = f.remainder(part, np.int32(256))
            total = part if total is None else total + part
    return total


def _error_samples() -> Iterable[ops.ErrorSample]:
    x, signs, table = TensorSpec((2, 16), f32), TensorSpec((16,), f32), TensorSpec((16,), f32)
    for specs, match in wrong_tables(x, signs):
        yield ops.ErrorSample(specs, {}, match)
    yield ops.ErrorSample((TensorSpec((2, 12), f32), signs, table), {}, "d a power of two")
    yield ops.ErrorSample((TensorSpec((2, 4), f32), TensorSpec((4,), f32), table), {}, "d at least 8")
    yield ops.ErrorSample((x, TensorSpec((8,), f32), table), {}, "signs of f32")


OP = ops.Op(
    name=ENCODE,
    formula="codes of the centroids nearest to H (s x) / |x|, packed, and the norms |x|, of rows of x",
    parameters=Parameters("x signs centroids", results=2),
    infer=_infer_encode,
    reference=_encode_reference,
    variants=(ops.KernelVariant("encode_row", ops.EVERYWHERE, _build_encode),),
    samples=rows_samples,
    error_samples=_error_samples,
    tolerance={"u8": 0.0, "f32": 1e-12},
    decompose=_encode_parts,
)
