"""searchsorted: where elements would be inserted into a sorted row, so that it stays sorted.

`a` is one sorted vector, or has v's leading axes and a sorted row for each row of v. side "left": before equal elements, "right":
after them. NaN is the largest, as in NumPy. The result is from 0 to the row's size, whatever `a` has. `to`: i32, or i64 as
NumPy's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import log2, prod

import numpy as np

from camshaft.dtypes import DTYPES, DType, as_dtype, bf16, boolean, f16, f32, f64, i8, i32, i64, u32, u64
from camshaft.extent import Extent
from camshaft.lang import Array, Constant, Tracer, kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import NUMBERS, same_dtype
from camshaft.ops.gradient import OF_INTEGERS
from camshaft.ops.kernels import blocks
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.scan.definition import expect_attributes
from camshaft.ops.sort.definition import TO, index_dtype
from camshaft.ops.sort.keys import as_bits, keys_of
from camshaft.ops.sort.samples import draw, odd_rows
from camshaft.ops.spec import TensorSpec, bound

PARAMETERS = Parameters("a v", (Attribute("side", "str", "left"), TO))


@kernel
def search_rows(
    k: Tracer, a: Array, v: Array, out: Array, *, dtype: str, right: bool, shared: bool, n: int, inner: int, columns: int,
    block: int,
) -> None:  # fmt: skip
    # out[r, c] = the number of i with a[r, i] < v[r, c], or <= if right, by halves
    row, first, keys = k.program(0) * inner + k.program(1), k.program(2) * block, keys_of(dtype, False, True)
    for c in k.lanes(first, k.minimum(first + block, columns)):
        wanted, found = keys.key(k, v[row, c]), k.const(0, i32)
        for bit in reversed(range(n.bit_length())):
            trial = found + (1 << bit)
            there = keys.key(k, k.gather(a, 0 if shared else row, k.minimum(trial, n).to(i64) - 1))
            before = there <= wanted if right else there < wanted
            found = k.select((trial <= n) & before, trial, found)
        out[row, c] = found.to(out.dtype)


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 2, "searchsorted", specs, "a [n] or [.., n], and v [..]")
    expect_attributes("searchsorted", attrs, PARAMETERS)
    same_dtype("searchsorted", specs, NUMBERS)
    a, v = specs
    side = attrs.get("side", "left")
    ops.expect(side in ("left", "right"), "searchsorted", f"side {side!r}", "side 'left' or 'right'")
    fits = len(a.shape) >= 1 and isinstance(a.shape[-1], int) and 0 not in a.bounds
    ops.expect(fits and a.bounds[-1] < 1 << 30, "searchsorted", a, "a of no empty axis, the last without an Extent")
    fits = len(a.shape) == 1 or (len(a.shape) == len(v.shape) and a.shape[:-1] == v.shape[:-1])
    ops.expect(fits, "searchsorted", specs, "a of one axis, or of v's leading axes")
    fixed = not any(isinstance(d, Extent) for d in v.shape[1:]) and not (
        len(v.shape) == len(a.shape) > 1 and isinstance(v.shape[-1], Extent)
    )
    ops.expect(
        fixed and 0 not in v.bounds, "searchsorted", v, "v of no empty axis, and an Extent only as its first axis"
    )
    return (TensorSpec(v.shape, index_dtype("searchsorted", attrs)),)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    a, v = (x.astype(np.float64) if as_dtype(x.dtype).is_float else x for x in inputs)
    side, dtype = attrs.get("side", "left"), DTYPES[attrs.get("to", "i32")].numpy
    if a.ndim == 1:
        return (np.asarray(np.searchsorted(a, v, side)).astype(dtype),)
    rows = zip(a.reshape(-1, a.shape[-1]), v.reshape(-1, v.shape[-1]), strict=True)
    return (np.stack([np.searchsorted(r, w, side) for r, w in rows]).reshape(v.shape).astype(dtype),)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    a, v = node.inputs
    n, batched = a.bounds[-1], len(a.shape) > 1
    outer = v.shape[0] if v.shape and isinstance(v.shape[0], Extent) else 1
    columns = v.bounds[-1] if batched else prod(v.bounds) // bound(outer)
    rows = prod(v.bounds) // columns
    block = blocks.even_block(columns)
    constants: dict[str, Constant] = {
        "dtype": as_dtype(a.dtype).name, "right": node.attrs.get("side", "left") == "right", "shared": not batched,
        "n": n, "inner": rows // bound(outer), "columns": columns, "block": block,
    }  # fmt: skip
    arrays = (
        as_bits(ops.read(0, shape=(rows if batched else 1, n)), a),
        as_bits(ops.read(1, shape=(rows, columns)), v),
        ops.write(0, shape=(rows, columns)),
    )
    grid = ops.Cells(outer), ops.Cells(rows // bound(outer)), ops.Cells(columns, per=block)
    sizes = ("inner", "columns", "block")
    return ops.Build((ops.Launch(search_rows, arrays, grid, constants, sizes=sizes),))


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(14)

    def pair(dtype: DType, n: int, shape: tuple[int, ...]) -> tuple[ops.Array, ops.Array]:
        return np.sort(draw(rng, dtype, (n,))), draw(rng, dtype, shape)

    for n, shape in ((1, (3,)), (15, (1,)), (16, (17,)), (33, (2, 3, 5)), (1000, (16,))):
        yield ops.Sample(f"{shape} in {n}", pair(f32, n, shape))
        yield ops.Sample(f"{shape} in {n}, right", pair(f32, n, shape), {"side": "right"})
    for dtype in (f64, f16, bf16, i8, i32, i64, u32, u64):
        yield ops.Sample(dtype.name, pair(dtype, 41, (37,)), {"side": "right"})
    yield ops.Sample("to i64", pair(f32, 16, (17,)), {"to": "i64"})
    yield ops.Sample("rows", (np.sort(draw(rng, f32, (2, 3, 33)), -1), draw(rng, f32, (2, 3, 5))))
    odd = odd_rows(rng)
    yield ops.Sample("NaN, infinities and zeros", (np.sort(odd, -1), np.roll(odd, 3, -1)), {"side": "right"})
    rows = Extent("rows", 16)
    a, v = pair(f32, 33, (16, 3))
    yield ops.Sample("7 of 16", (a, v), {}, (TensorSpec((33,), f32), TensorSpec((rows, 3), f32)), {rows: 7})


def _error_samples() -> Iterable[ops.ErrorSample]:
    a, v = TensorSpec((8,), f32), TensorSpec((2, 3), f32)
    yield ops.ErrorSample((a,), {}, "wanted a")
    yield ops.ErrorSample((a, TensorSpec((2,), i32)), {}, "wanted operands of one dtype")
    yield ops.ErrorSample((TensorSpec((8,), boolean),) * 2, {}, "wanted tensors of")
    yield ops.ErrorSample((a, v), {"side": "middle"}, "wanted side 'left' or 'right'")
    yield ops.ErrorSample((TensorSpec((3, 8), f32), v), {}, "wanted a of one axis, or of v's leading axes")
    yield ops.ErrorSample((TensorSpec((0,), f32), v), {}, "wanted a of no empty axis")
    yield ops.ErrorSample((a, v), {"to": "u8"}, "wanted to i32 or i64")


OP = ops.Op(
    name="searchsorted",
    vjp=OF_INTEGERS,
    formula="y = the number of i with a[i] < v, or a[i] <= v if side is right",
    parameters=PARAMETERS,
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("halves", ops.EVERYWHERE, _build),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={},
    flops=lambda node: 8.0 * prod(node.inputs[1].bounds) * (1 + log2(node.inputs[0].bounds[-1])),
)
