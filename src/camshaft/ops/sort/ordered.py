"""argsort, sort and top_k along an axis: one table, over the kernels of ops/sort/radix.py.

Stable: equal elements stay in order, -0 equals 0. NaN is the greatest, as in NumPy and torch: last of an ascending order, first
of a descending one. Attributes: `axis` (-1 by default), `descending`; top_k has `k` and `largest` instead. `to`: the dtype of
indexes, i32 or i64 as NumPy's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import DTYPES, DType, as_dtype, bf16, boolean, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from camshaft.extent import Extent
from camshaft.lang import Constant
from camshaft.ops import op as ops
from camshaft.ops.checks import NUMBERS, same_dtype
from camshaft.ops.gradient import OF_INTEGERS, zeros
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.scan.scan import axis_of, expect_attributes, layout_of
from camshaft.ops.sort import radix, ranks
from camshaft.ops.sort.keys import as_bits, keys_of
from camshaft.ops.spec import Dim, TensorSpec, bound

AXIS = Attribute("axis", "int", -1)
TO = Attribute("to", "str", "i32")
DESCENDING = Attribute("descending", "bool", False)
# Digits of 8 bits for one worker a row; on GPUs digits of 4 bits for 64 workers, whose counts fit workgroup memory.
CPU, GPU = (8, 1), (4, 64)
ON_CPU = frozenset({"scalar", "simd", "c"})
MOST = 1 << 30
# Columns of a block that a search for a few elements lists or not, and the most blocks of a row.
FEW_BLOCK, MOST_BLOCKS = 64, 4096


@dataclass(frozen=True)
class Ordered:
    """`gives`: its results, of 'values' and 'places'. `selects`: whether it has `k` and `largest` instead of `descending`."""

    name: str
    text: str
    gives: tuple[str, ...]
    selects: bool = False

    @property
    def parameters(self) -> Parameters:
        """The attributes, by what it gives."""
        own = (Attribute("k", "int"), AXIS, Attribute("largest", "bool", True)) if self.selects else (AXIS, DESCENDING)
        return Parameters("x", (*own, TO) if "places" in self.gives else own, results=len(self.gives))

    def descending(self, attrs: ops.Attrs) -> bool:
        """Whether the greatest come first."""
        return bool(attrs.get("largest", True) if self.selects else attrs.get("descending", False))

    def count(self, attrs: ops.Attrs, dim: int) -> int:
        """Elements of a result's row."""
        return int(attrs["k"]) if self.selects else dim


def index_dtype(op: str, attrs: ops.Attrs) -> DType:
    """The dtype of indexes that `to` names. ShapeError for others than i32 and i64."""
    to = attrs.get("to", i32.name)
    ops.expect(to in (i32.name, i64.name), op, f"to {to!r}", "to i32 or i64")
    return DTYPES[to]


def _infer(row: Ordered, specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 1, row.name, specs, "one tensor x")
    expect_attributes(row.name, attrs, row.parameters)
    dtype, x = same_dtype(row.name, specs, NUMBERS), specs[0]
    axis = axis_of(row.name, x, attrs)
    dim = x.bounds[axis]
    ops.expect(dim <= MOST, row.name, x, f"at most {MOST} elements along axis {axis}")
    if row.selects:
        k = attrs.get("k")
        fits = isinstance(k, int) and not isinstance(k, bool) and 1 <= k <= dim
        ops.expect(fits, row.name, f"k {k!r} of {x}", f"k from 1 to {dim}, the size of axis {axis}")
    shape: tuple[Dim, ...] = (*x.shape[:axis], row.count(attrs, dim), *x.shape[axis + 1 :])
    made = {"values": dtype, "places": index_dtype(row.name, attrs) if "places" in row.gives else i32}
    return tuple(TensorSpec(shape, made[name]) for name in row.gives)


def order_of(x: ops.Array, axis: int, descending: bool) -> ops.Array:
    """The stable order along an axis, by NumPy; NaN first if descending."""
    if not descending:
        return np.argsort(x.astype(np.float64) if x.dtype.kind == "V" else x, axis, kind="stable")
    flipped = np.argsort(np.flip(x.astype(np.float64) if x.dtype.kind == "V" else x, axis), axis, kind="stable")
    found: ops.Array = x.shape[axis] - 1 - np.flip(flipped, axis)
    return found


def _reference(row: Ordered, inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    (x,) = inputs
    axis = attrs.get("axis", -1) % x.ndim
    wide = x.astype(np.float64) if as_dtype(x.dtype).is_float else x
    order = np.take(order_of(wide, axis, row.descending(attrs)), range(row.count(attrs, x.shape[axis])), axis)
    made = {"values": np.take_along_axis(x, order, axis), "places": order.astype(DTYPES[attrs.get("to", "i32")].numpy)}
    return tuple(made[name] for name in row.gives)


def _build(row: Ordered, node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    x = node.inputs[0]
    dtype, axis = as_dtype(x.dtype), axis_of(row.name, x, node.attrs)
    outer, inner, dim, columns = layout_of(x, axis)
    rows, count = bound(outer) * inner, row.count(node.attrs, dim)
    bits, workers = CPU if target.backend in ON_CPU else GPU
    bits = min(bits, dtype.bits)
    constants: dict[str, Constant] = {
        "dtype": dtype.name,
        "descending": row.descending(node.attrs),
        "inner": inner,
        "dim": dim,
        "columns": columns,
        "bits": bits,
        "passes": dtype.bits // bits,
        "workers": workers,
    }
    halves = (rows * columns, 2, dim)
    keys = TensorSpec(halves, keys_of(dtype.name, False, False).word)
    trailing = (columns,) if columns > 1 else ()
    reads = as_bits(ops.read(0, shape=(rows, dim, *trailing)), x), ops.scratch(0, "update", halves)
    writes = [ops.write(i, shape=(rows, count, *trailing)) for i in range(len(row.gives))]
    writes = [as_bits(w, x) if name == "values" else w for w, name in zip(writes, row.gives, strict=True)]
    grid = ops.Cells(outer), ops.Cells(inner), ops.Cells(columns)
    lanes, sizes = (1 if target.backend in ON_CPU else workers), ("inner", "dim", "count")
    if row.gives == ("values",):
        launch = ops.Launch(radix.sort_values, (*reads, *writes), grid, constants, lanes=lanes, sizes=sizes)
        return ops.Build((launch,), (keys,))
    arrays = (*reads, ops.scratch(1, "update", halves), *writes)
    launch = ops.Launch(
        radix.sort_places, arrays, grid, {**constants, "count": count, "outputs": len(writes)}, lanes=lanes, sizes=sizes
    )
    return ops.Build((launch,), (keys, TensorSpec(halves, i32)))


_CASES: tuple[tuple[tuple[int, ...], int], ...] = (
    ((1,), 0),
    ((3, 15), -1),
    ((2, 16), -1),
    ((2, 3, 33), 2),
    ((2, 70, 3), 1),
    ((300, 2), 0),
)
_DTYPES = (f64, f16, bf16, i8, i16, i32, i64, u8, u16, u32, u64)


def draw(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> ops.Array:
    """Numbers of which some are equal; any integers."""
    if dtype.is_float:
        return np.round(rng.normal(size=shape) * 8).astype(dtype.numpy)
    info = np.iinfo(dtype.numpy)
    return rng.integers(info.min, info.max, shape, dtype.numpy, endpoint=True)


def odd_rows(rng: np.random.Generator) -> ops.Array:
    """Rows of NaN, infinities, zeros of both signs and subnormals."""
    odd = rng.normal(size=(5, 37)).astype(np.float32)
    odd[0, ::3], odd[1, ::2], odd[2, 1:20:4] = np.nan, -np.inf, np.inf
    odd[3] = np.where(rng.random(37) < 0.5, -0.0, 0.0)
    odd[4, :9] = np.array([1e-45, -1e-45, 0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 3.4e38], np.float32)
    return odd


def _samples(row: Ordered) -> Iterable[ops.Sample]:
    rng = np.random.default_rng(len(row.name))

    def attrs_of(shape: tuple[int, ...], axis: int, turn: int) -> dict[str, Any]:
        if row.selects:
            return {"k": (shape[axis] + 1) // 2 if turn % 2 else shape[axis], "axis": axis, "largest": turn % 3 != 1}
        return {"axis": axis, "descending": turn % 2 == 1}

    for turn, (shape, axis) in enumerate(_CASES):
        yield ops.Sample(f"{shape} along {axis}", (draw(rng, f32, shape),), attrs_of(shape, axis, turn))
    for turn, dtype in enumerate(_DTYPES):
        yield ops.Sample(dtype.name, (draw(rng, dtype, (2, 41)),), attrs_of((2, 41), -1, turn))
    for turn in range(2):
        yield ops.Sample(f"NaN, infinities and zeros {turn}", (odd_rows(rng),), attrs_of((5, 37), 1, turn))
    if "places" in row.gives:
        yield ops.Sample("to i64", (draw(rng, f32, (2, 41)),), {**attrs_of((2, 41), -1, 1), "to": "i64"})
    if row.selects:
        yield ops.Sample("5 of 1100", (rng.normal(size=(2, 1100)).astype(np.float32),), {"k": 5})
        yield ops.Sample("9 of 700 and ties", (draw(rng, i16, (2, 700)) % 5,), {"k": 9})
    rows, x = Extent("rows", 16), draw(rng, f32, (16, 33))
    yield ops.Sample("7 of 16", (x,), attrs_of((16, 33), 1, 1), (TensorSpec((rows, 33), f32),), {rows: 7})


def _error_samples(row: Ordered) -> Iterable[ops.ErrorSample]:
    x, attrs = TensorSpec((2, 8), f32), {"k": 3} if row.selects else {}
    yield ops.ErrorSample((x, x), attrs, "wanted one tensor x")
    yield ops.ErrorSample((TensorSpec((8,), boolean),), attrs, "wanted tensors of")
    yield ops.ErrorSample((x,), {**attrs, "axis": 2}, "wanted an axis from -2 to 1")
    yield ops.ErrorSample((x,), {**attrs, "stable": True}, "wanted")
    yield ops.ErrorSample((TensorSpec((2, 0), f32),), attrs, "wanted no empty axis")
    if "places" in row.gives:
        yield ops.ErrorSample((x,), {**attrs, "to": "u8"}, "wanted to i32 or i64")
    if row.selects:
        yield ops.ErrorSample((x,), {"k": 9}, "wanted k from 1 to 8, the size of axis 1")
        yield ops.ErrorSample((x,), {"k": 3, "axis": 0}, "wanted k from 1 to 2, the size of axis 0")
        yield ops.ErrorSample((x,), {}, "wanted k from 1")


def _cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """Nanoseconds: 2 for each element and pass, and 500 for a row's counts."""
    x = node.inputs[0]
    rows = prod(node.outputs[0].bounds) / node.outputs[0].bounds[-1]
    return 500.0 * rows + 2.0 * prod(x.bounds) * as_dtype(x.dtype).bits / CPU[0]


def _counting(
    row: Ordered, node: ops.NodeSpec, target: ops.Target
) -> tuple[dict[str, Constant], tuple[ops.Operand, ...], Any]:
    """Constants, arrays and grid of the kernels that count, for the last axis."""
    x = node.inputs[0]
    outer, inner, dim, _ = layout_of(x, axis_of(row.name, x, node.attrs))
    rows, count = bound(outer) * inner, row.count(node.attrs, dim)
    writes = [ops.write(i, shape=(rows, count)) for i in range(len(row.gives))]
    arrays = [as_bits(ops.read(0, shape=(rows, dim)), x)]
    arrays += [as_bits(w, x) if name == "values" else w for w, name in zip(writes, row.gives, strict=True)]
    constants: dict[str, Constant] = {
        "dtype": as_dtype(x.dtype).name, "descending": row.descending(node.attrs), "gives": " ".join(row.gives),
        "inner": inner, "dim": dim, "count": count, "outputs": len(writes),
    }  # fmt: skip
    return constants, tuple(arrays), (ops.Cells(outer), ops.Cells(inner))


def _refusal(row: Ordered, node: ops.NodeSpec, most: int, size: str) -> str | None:
    *_, dim, columns = layout_of(node.inputs[0], axis_of(row.name, node.inputs[0], node.attrs))
    counted = dim if size == "elements" else row.count(node.attrs, dim)
    if columns > 1:
        return "wanted the last axis"
    return None if counted <= most else f"{counted} {size}; wanted at most {most}"


def _ranks(row: Ordered) -> ops.KernelVariant:
    """Counts the elements before each: n^2 comparisons, on targets of several lanes."""

    def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
        constants, arrays, grid = _counting(row, node, target)
        return ops.Build((ops.Launch(ranks.rank_row, arrays, grid, constants, sizes=("inner",)),))

    def cost(node: ops.NodeSpec, target: ops.Target) -> float:
        x = node.inputs[0]
        return prod(x.bounds) * (1.0 + x.bounds[-1] * as_dtype(x.dtype).bits / 32 * 2.0 / target.lanes)

    def supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
        return _refusal(row, node, ranks.MOST, "elements")

    return ops.KernelVariant("ranks", ops.VECTORS - {"c"}, build, supports, cost)


def _few(row: Ordered) -> ops.KernelVariant:
    """Searches only the blocks that may have one of the first."""

    def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
        constants, arrays, grid = _counting(row, node, target)
        block = FEW_BLOCK
        while -(-node.inputs[0].bounds[-1] // block) > MOST_BLOCKS:
            block *= 2
        return ops.Build((ops.Launch(ranks.few_of_row, arrays, grid, {**constants, "block": block}, sizes=("inner",)),))

    def cost(node: ops.NodeSpec, target: ops.Target) -> float:
        n, count = node.inputs[0].bounds[-1], node.outputs[0].bounds[-1]
        listed = min(n, count * FEW_BLOCK)
        each_row = 700.0 + n * 4.0 / target.lanes + 5.0 * listed + 2.0 * count * count / target.lanes
        return prod(node.inputs[0].bounds) / n * each_row

    def supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
        return _refusal(row, node, ranks.MOST, "of k")

    return ops.KernelVariant("few", ON_CPU, build, supports, cost)


def _sort_vjp(f: Any, dy: Any, y: Any, x: Any, axis: int = -1, descending: bool = False) -> Any:
    return f.scatter_add(zeros(f, x), f.argsort(x, axis=axis, descending=descending), dy, axis=axis)


def _top_k_vjp(f: Any, dys: Any, ys: Any, x: Any, axis: int = -1, **others: Any) -> Any:
    return f.scatter_add(zeros(f, x), ys[1], dys[0], axis=axis)


_VJPS: dict[str, Callable[..., Any] | ops.NoGradient] = {"argsort": OF_INTEGERS, "sort": _sort_vjp, "top_k": _top_k_vjp}


def _op(row: Ordered, decompose: Any = None) -> ops.Op:
    return ops.Op(
        name=row.name,
        formula=row.text,
        parameters=row.parameters,
        infer=lambda specs, attrs: _infer(row, specs, attrs),
        reference=lambda inputs, attrs: _reference(row, inputs, attrs),
        variants=(
            ops.KernelVariant("radix", ops.EVERYWHERE, lambda node, target: _build(row, node, target), cost=_cost),
            _ranks(row),
            *((_few(row),) if row.selects else ()),
        ),
        samples=lambda: _samples(row),
        error_samples=lambda: _error_samples(row),
        tolerance={"f32": 0.0, "f64": 0.0, "f16": 0.0, "bf16": 0.0},
        flops=lambda node: float(prod(node.inputs[0].bounds)),
        decompose=decompose,
        vjp=_VJPS[row.name],
    )


def _sort(f: Any, x: Any, axis: int = -1, descending: bool = False) -> Any:
    return f.take_along_axis(x, f.argsort(x, axis=axis, descending=descending), axis=axis)


def _top_k(f: Any, x: Any, k: int, axis: int = -1, largest: bool = True, to: str = "i32") -> Any:
    first = (slice(None),) * (axis % x.ndim)
    order = f.argsort(x, axis=axis, descending=largest, to=to)[*first, :k]
    return f.take_along_axis(x, order, axis=axis), order


ROWS = (
    Ordered("argsort", "y[i] = the index of the element that i others precede; stable, NaN greatest", ("places",)),
    Ordered("sort", "y[i] = the element that i others precede; NaN greatest", ("values",)),
    Ordered(
        "top_k",
        "y, i = the k greatest (least) elements and their indexes; ties to the smaller index, NaN greatest",
        ("values", "places"),
        True,
    ),
)
_DECOMPOSED = {"sort": None, "top_k": None}
OPS = {row.name: _op(row, _DECOMPOSED.get(row.name)) for row in ROWS}
