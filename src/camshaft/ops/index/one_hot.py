"""one_hot: y[.., c] = 1 where c is the index, else 0. A negative index counts from the end; one out of bounds gives zeros."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import DTYPES, DType, i32, i64
from camshaft.extent import Extent
from camshaft.lang import Array, Constant, Tracer, ir, kernel
from camshaft.ops import op as ops
from camshaft.ops.gradient import FROM_INTEGERS
from camshaft.ops.index.gather import expect_indexes, index_of
from camshaft.ops.kernels import blocks
from camshaft.ops.kernels.bits import as_bits
from camshaft.ops.movement.moved import check_attributes, expect_whole
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.spec import TensorSpec


@kernel
def one_row(k: Tracer, indices: Array, out: Array, *, one: int, columns: int, block: int) -> None:
    # out[i, c] = one where c = indices[i], else 0
    row, first = k.program(0), k.program(1) * block
    index, _ = index_of(k, indices[row], columns)
    dtype = ir.arithmetic_dtype(out.dtype)
    for c in k.lanes(first, k.minimum(first + block, columns)):
        out[row, c] = k.select(c == index, k.const(one, dtype), k.const(0, dtype))


def _dtype(attrs: ops.Attrs) -> DType:
    name = attrs.get("to", "f32")
    ops.expect(name in DTYPES, "one_hot", f"to {name!r}", "the name of a dtype")
    return DTYPES[name]


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 1, "one_hot", specs, "one tensor of indices")
    check_attributes("one_hot", attrs, "num_classes to")
    expect_indexes("one_hot", "indices", specs[0])
    n = expect_whole("one_hot", "num_classes", attrs.get("num_classes"))
    return (TensorSpec((*specs[0].shape, n), _dtype(attrs)),)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    n, indices = attrs["num_classes"], inputs[0].astype(np.int64)
    front = np.where(indices < 0, indices + n, indices)
    return ((front[..., None] == np.arange(n)).astype(_dtype(attrs).numpy),)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    indices, out = node.inputs[0], node.outputs[0]
    count, columns = prod(indices.bounds), out.bounds[-1]
    block = blocks.even_block(columns)
    grid = ops.Cells(indices.shape[0] if len(indices.shape) == 1 else count), ops.Cells(columns, per=block)
    arrays = ops.read(0, shape=(count,)), as_bits(ops.write(0, shape=(count, columns)), out)
    dtype = out.parts[0].dtype
    one = int(np.ones((), dtype.numpy).view(np.uint16)) if arrays[1].dtype is not None else 1
    constants: dict[str, Constant] = {"one": one, "columns": columns, "block": block}
    return ops.Build((ops.Launch(one_row, arrays, grid, constants, sizes=("columns", "block")),))


def _decompose(f: Any, indices: Any, num_classes: int, to: str = "f32") -> Any:
    index = f.cast(indices, to="i64")
    front = f.where(index < 0, index + num_classes, index)
    return f.cast(f.equal(front.reshape((*front.shape, 1)), np.arange(num_classes)), to=to)


def _samples() -> Iterable[ops.Sample]:
    given = np.array([0, -1, 4, 3, 16, -17, 17, -18, 2**31 - 1], np.int32)
    yield ops.Sample("9 of 17", (given,), {"num_classes": 17})
    yield ops.Sample("3x3 of 5", (given.reshape(3, 3).astype(np.int64),), {"num_classes": 5})
    for to in ("f64", "f16", "bf16", "i8", "i64", "bool"):
        yield ops.Sample(f"to {to}", (given,), {"num_classes": 5, "to": to})
    yield ops.Sample("5 of 9", (given,), {"num_classes": 5}, (TensorSpec((Extent("n", 9),), i32),), {Extent("n", 9): 5})


def _error_samples() -> Iterable[ops.ErrorSample]:
    x = TensorSpec((3,), i64)
    yield ops.ErrorSample((x, x), {"num_classes": 3}, "wanted one tensor of indices")
    yield ops.ErrorSample((TensorSpec((3,), DTYPES["f32"]),), {"num_classes": 3}, "wanted indices of i32 or i64")
    yield ops.ErrorSample((x,), {}, "got num_classes None; wanted an integer")
    yield ops.ErrorSample((x,), {"num_classes": 3, "to": "f12"}, "wanted the name of a dtype")


OP = ops.Op(
    name="one_hot",
    formula="y[.., c] = 1 where c = indices[..], else 0",
    parameters=Parameters("indices", (Attribute("num_classes", "int"), Attribute("to", "str", "f32"))),
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("row_blocks", ops.EVERYWHERE, _build),),
    indexes={0: lambda node: node.outputs[0].bounds[-1]},
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 0.0, "f64": 0.0},
    decompose=_decompose,
    vjp=FROM_INTEGERS,
)
