"""attention_gradient: the gradients of scaled_dot_product_attention by q, k and v, from the log-sum-exp that it kept.

P = exp(scale q K^T - lse) where a key is seen; dS = P (dy V^T - delta); dq = scale dS K, dk = scale dS^T Q, dv = P^T dy, summed
over the heads of a group. delta[row] = sum(dy y) - dlse. The kernel computes P by tiles and keeps none of it, so its memory grows
with the length alone. It takes causal attention, windows, chunks and a boolean mask; the rule of scaled_dot_product_attention
makes gradients with a soft cap, sinks and slopes by parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite, prod
from typing import Any

import numpy as np

from camshaft.dtypes import boolean, f32
from camshaft.lang import Constant
from camshaft.ops import op as ops
from camshaft.ops.attention.paged import register_vectors
from camshaft.ops.kernels.blocks import sum_of_group
from camshaft.ops.kernels.launch import has_threads
from camshaft.ops.masked.decomposition import LOWEST
from camshaft.ops.masked.gradient import products
from camshaft.ops.masked.gradient.kernels import one_head_per_program
from camshaft.ops.masked.options import Options
from camshaft.ops.movement.transpose import TILE, tiles
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.spec import TensorSpec

NAME = "attention_gradient"
ATTRIBUTES = (
    Attribute("causal", "bool", False),
    Attribute("window", "int", 0),
    Attribute("chunk", "int", 0),
    Attribute("offset", "int", 0),
    Attribute("scale", "float", 1.0),
)
SUM_BLOCK = 4096  # elements that a program adds up over the heads of a group
RATE = 15.0  # multiply-adds per ns of one core of a Zen 3 server, about
GPU_RATE = 1000.0  # of the products on a GPU; `tiles` has 120 on an H200


def visible(options: Options, queries: int, keys: int, offset: int) -> np.ndarray[Any, Any]:
    """Which keys each query sees, without the mask: [queries, keys]."""
    at, key = np.arange(offset, offset + queries)[:, None], np.arange(keys)
    seen = np.ones((queries, keys), np.bool_)
    if options.causal:
        seen &= key <= at
    if options.window:
        seen &= (key > at - options.window) & (options.causal | (key < at + options.window))
    if options.chunk:
        seen &= key // options.chunk == at // options.chunk
    return seen


def _options(attrs: ops.Attrs) -> Options:
    found = {name: attrs.get(name, 0) for name in ("window", "chunk")}
    return Options.of(NAME, {"causal": attrs.get("causal", False), **found})


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) in (6, 7), NAME, specs, "q, k, v, dy, lse, delta and at most a mask")
    _options(attrs)
    scale, offset = attrs.get("scale", 1.0), attrs.get("offset", 0)
    ops.expect(isinstance(scale, (int, float)) and isfinite(scale), NAME, f"scale {scale!r}", "a finite scale")
    ops.expect(type(offset) is int and offset >= 0, NAME, f"offset {offset!r}", "an offset of at least 0")
    for spec, rank in zip(specs, (4, 4, 4, 4, 3, 3), strict=False):
        good = spec.is_plain and spec.dtype == f32 and len(spec.shape) == rank and 0 not in spec.bounds
        good = good and all(isinstance(n, int) for n in spec.shape)
        ops.expect(good, NAME, spec, f"f32 of {rank} axes, none of them empty or an Extent")
    q, k, v, dy, *rows = (spec.bounds for spec in specs[:6])
    (batch, heads, queries, size), (kv_heads, keys) = q, k[1:3]
    ops.expect(heads % kv_heads == 0, NAME, (heads, kv_heads), "heads of q a multiple of those of k")
    wanted = (batch, kv_heads, keys, size), (batch, kv_heads, keys, v[3]), (batch, heads, queries, v[3]), q[:3], q[:3]
    for found, shape, name in zip((k, v, dy, *rows), wanted, ("k", "v", "dy", "lse", "delta"), strict=True):
        ops.expect(found == shape, NAME, str(list(found)), f"{name} of {list(shape)}")
    for mask in specs[6:]:
        good = mask.is_plain and mask.dtype == boolean and len(mask.shape) == 4 and mask.bounds[3] == keys
        good = good and all(n in (1, most) for n, most in zip(mask.bounds[:3], q, strict=False))
        ops.expect(good, NAME, mask, f"a boolean mask that broadcasts to {[*q[:3], keys]} with all keys")
    return specs[:3]


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    q, k, v, dy, lse, delta = (x.astype(np.float64) for x in inputs[:6])
    group, scale = q.shape[1] // k.shape[1], attrs.get("scale", 1.0)
    wide_k, wide_v = (x.repeat(group, 1) for x in (k, v))
    seen = visible(_options(attrs), q.shape[2], k.shape[2], attrs.get("offset", 0))
    seen = seen & inputs[6] if len(inputs) > 6 else seen
    with np.errstate(all="ignore"):
        p = np.where(seen, np.exp(scale * (q @ wide_k.swapaxes(2, 3)) - lse[..., None]), 0)
    ds = scale * p * (dy @ wide_v.swapaxes(2, 3) - delta[..., None])

    def of_group(x: ops.Array) -> ops.Array:
        made: ops.Array = x.reshape(*k.shape[:2], group, *x.shape[2:]).sum(2)
        return made

    return ds @ wide_k, of_group(ds.swapaxes(2, 3) @ q), of_group(p.swapaxes(2, 3) @ dy)


def _decompose(
    f: Any, q: Any, k: Any, v: Any, dy: Any, lse: Any, delta: Any, *mask: Any, scale: float = 1.0, offset: int = 0,
    **attrs: Any,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """The heads of a group of k are rows of one matrix. A row that sees no key has the log-sum-exp of 0 in place of -infinity."""
    (batch, heads, queries, _), (kv_heads, keys) = q.shape, k.shape[1:3]
    shape, column = (batch, heads, queries, keys), (batch, heads, queries, 1)

    def rows(x: Any) -> Any:
        return x.reshape((batch, kv_heads, -1, x.shape[3]))

    def transposed(x: Any) -> Any:
        return f.transpose(x, axes=(0, 1, 3, 2))

    seen = visible(_options(attrs), queries, keys, offset)
    seen = f.logical_and(seen, *mask) if mask else seen
    least = f.where(f.less(lse, LOWEST), 0, lse).reshape(column)
    scores = f.matmul(rows(q), rows(k), transpose_b=True).reshape(shape) * scale
    p = f.exp(f.where(seen, scores - least, LOWEST))
    of_scores = f.matmul(rows(dy), rows(v), transpose_b=True).reshape(shape) - delta.reshape(column)
    of_scores, weights = rows(p * of_scores * scale), rows(p)
    of_q, of_k = f.matmul(of_scores, rows(k)).reshape(q.shape), f.matmul(transposed(of_scores), rows(q))
    return of_q, of_k, f.matmul(transposed(weights), rows(dy))


def _given(attrs: ops.Attrs) -> dict[str, Constant]:
    """The attributes as constants of a kernel."""
    options = _options(attrs)
    given: dict[str, Constant] = {name: getattr(options, name) for name in ("causal", "window", "chunk")}
    return given | {"offset": attrs.get("offset", 0), "scale": float(attrs.get("scale", 1.0))}


def _tile(target: ops.Target) -> dict[str, int]:
    """Rows and columns of a tile, and the rows and vectors of a register block, which divide them."""
    if has_threads(target):
        return {"rows": 16, "columns": 16, "block": 4, "vectors": 1}
    return {"rows": 48, "columns": 48, "block": 6, "vectors": 3 if register_vectors(target) > 6 else 1}


def _transposed(index: int, matrices: int, rows: int, columns: int, pitch: int) -> ops.Launch:
    """Transposes the matrices [rows, columns] of input `index` into scratch, whose rows have `pitch` elements."""
    n = matrices * columns
    arrays = ops.read(index, shape=(n * rows,)), ops.scratch(index - 1, "write", shape=(n * pitch,))
    given: dict[str, Constant] = {
        "sizes": (matrices,),
        "x_steps": (rows * columns,),
        "out_steps": (columns * pitch,),
        "rows": rows,
        "columns": columns,
        "x_row": columns,
        "out_column": pitch,
        "dtype": "f32",
    }
    grid = ops.Cells(matrices), ops.Cells(rows, TILE), ops.Cells(columns, TILE)
    return ops.Launch(tiles, arrays, grid, given, sizes=tuple(name for name in given if name != "dtype"))


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    """Turns K and V, then one program per head of queries, then the sums over the heads of a group."""
    (batch, heads, queries, size), (_, kv_heads, keys, v_size) = node.inputs[0].bounds, node.inputs[2].bounds
    tile, group, attrs = _tile(target), heads // kv_heads, node.attrs
    pitch = -(-keys // tile["columns"]) * tile["columns"]
    n, n_kv = batch * heads, batch * kv_heads
    sizes = {1: size, 2: v_size}
    scratch = [TensorSpec((n_kv, sizes[i], pitch), f32) for i in sizes]
    turns = [_transposed(i, n_kv, keys, sizes[i], pitch) for i in sizes]
    parts = [ops.write(i, shape=(n, keys, sizes[i])) for i in sizes]
    if group > 1:
        parts = [ops.scratch(1 + i, "write", shape=(n, keys, sizes[i])) for i in sizes]
        scratch += [TensorSpec((n, keys, sizes[i]), f32) for i in sizes]
    arrays = (
        ops.read(0, shape=(n, queries, size)),
        ops.read(1, shape=(n_kv, keys, size)),
        ops.scratch(0, "read"),
        ops.scratch(1, "read"),
        ops.read(3, shape=(n, queries, v_size)),
        *(ops.read(i, shape=(n, queries)) for i in (4, 5)),
        *(ops.read(i) for i in range(6, len(node.inputs))),
        ops.write(0, shape=(n, queries, size)),
        *parts,
    )
    given = _given(attrs) | {"heads": heads, "group": group, "masked": len(node.inputs) > 6, **tile}
    launches = [*turns, ops.Launch(one_head_per_program, arrays, (ops.Cells(n),), given)]
    for i in sizes if group > 1 else ():
        row = keys * sizes[i]
        pair = ops.scratch(1 + i, "read", shape=(n, row)), ops.write(i, shape=(n_kv, row))
        grid = ops.Cells(n_kv), ops.Cells(row, per=SUM_BLOCK)
        launches.append(ops.Launch(sum_of_group, pair, grid, {"group": group, "n": row, "block": SUM_BLOCK}))
    return ops.Build(tuple(launches), tuple(scratch))


def _multiply_adds(node: ops.NodeSpec) -> float:
    """The multiply-adds of the products at the bounds; of the square that causal attention sees half."""
    (*_, queries, size), (*_, keys, v_size) = node.inputs[0].bounds, node.inputs[2].bounds
    pairs = prod(node.inputs[0].bounds[:2]) * queries * keys * (0.5 if node.attrs.get("causal") else 1.0)
    return pairs * float(3 * size + 2 * v_size)


def _sample(name: str, sizes: tuple[int, ...], mask: Any = None, **attrs: Any) -> ops.Sample:
    """A sample with `sizes` batch, heads, kv_heads, queries, keys, size, v_size, whose log-sum-exp is that of its scores."""
    rng = np.random.default_rng(41)
    batch, heads, kv_heads, queries, keys, size, v_size = sizes
    shapes = (heads, queries, size), (kv_heads, keys, size), (kv_heads, keys, v_size), (heads, queries, v_size)
    q, k, v, dy = (rng.normal(size=(batch, *shape)).astype(np.float32) for shape in shapes)
    seen = visible(_options(attrs), queries, keys, attrs.get("offset", 0)) & (True if mask is None else mask)
    scores = attrs["scale"] * (q @ k.repeat(heads // kv_heads, 1).swapaxes(2, 3)).astype(np.float64)
    with np.errstate(divide="ignore"):
        sums = np.log(np.where(seen, np.exp(scores), 0).sum(-1)).astype(np.float32)
    delta = rng.normal(size=sums.shape).astype(np.float32)
    return ops.Sample(name, (q, k, v, dy, sums, delta, *(() if mask is None else (mask,))), attrs)


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(42)
    mask = rng.random((2, 1, 5, 19)) < 0.5
    mask[1, :, 2] = False
    yield _sample("causal", (1, 2, 1, 20, 20, 16, 16), causal=True, scale=0.25)
    yield _sample("cross, a row of none", (2, 4, 2, 5, 19, 8, 12), mask, scale=0.5)
    yield _sample("several tiles", (1, 1, 1, 99, 99, 20, 20), causal=True, scale=0.2)
    yield _sample("window, offset", (1, 2, 2, 7, 63, 17, 8), causal=True, window=50, offset=56, scale=0.3)
    yield _sample("both sides, chunks", (1, 1, 1, 50, 50, 8, 8), window=9, chunk=20, scale=0.3)


def _error_samples() -> Iterable[ops.ErrorSample]:
    q, k, row = TensorSpec((2, 4, 5, 8), f32), TensorSpec((2, 2, 7, 8), f32), TensorSpec((2, 4, 5), f32)
    yield ops.ErrorSample((q, k, k, q, row), {}, "wanted q, k, v, dy, lse")
    yield ops.ErrorSample((q, k, k, q, row, q), {}, "wanted f32 of 3 axes")
    yield ops.ErrorSample((q, k, k, k, row, row), {}, "wanted dy of")
    yield ops.ErrorSample((q, k, k, q, row, row, TensorSpec((2, 4, 5, 7), f32)), {}, "wanted a boolean mask")
    yield ops.ErrorSample((q, k, k, q, row, row), {"offset": -1}, "wanted an offset")
    yield ops.ErrorSample((q, k, k, q, row, row), {"scale": float("inf")}, "wanted a finite scale")


OP = ops.Op(
    name=NAME,
    formula="P = exp(scale q K^T - lse), dS = scale P (dy V^T - delta); dq = dS K, dk = dS^T q, dv = P^T dy",
    parameters=Parameters("q k v dy lse delta *mask", ATTRIBUTES, results=3),
    infer=_infer,
    reference=_reference,
    variants=(
        ops.KernelVariant("tiles", ops.EVERYWHERE, _build, cost=lambda node, target: _multiply_adds(node) / RATE),
        ops.KernelVariant(
            "products",
            ops.GPUS,
            lambda node, target: products.build(node, target, _given(node.attrs)),
            products.supports,
            lambda node, target: _multiply_adds(node) / GPU_RATE,
        ),
    ),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 1e-11},
    flops=lambda node: 2.0 * _multiply_adds(node),
    decompose=_decompose,
)
