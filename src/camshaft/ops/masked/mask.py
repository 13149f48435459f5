"""attention_mask: which keys each query sees; attention_mask_tiles: which tiles of a mask are fully masked or fully visible."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from camshaft.dtypes import as_dtype, bf16, boolean, f16, f32, i32
from camshaft.ops import op as ops
from camshaft.ops.gradient import FROM_INTEGERS, OF_INTEGERS
from camshaft.ops.masked.decomposition import LOWEST
from camshaft.ops.masked.options import ATTRIBUTES, Options
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.spec import TensorSpec

_MASKS = (boolean, f32, f16, bf16)
_TO = {dtype.name: dtype for dtype in _MASKS}
_RULES = tuple(a for a in ATTRIBUTES if a.name in ("causal", "window", "chunk"))
_MOST = (1 << 31) - 1
ALL_MASKED, MIXED, ALL_OPEN = 0, 1, 2


def _infer_mask(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    name = "attention_mask"
    ops.expect(len(specs) == 2, name, specs, "q_positions, k_positions")
    for spec, what in zip(specs, ("q_positions", "k_positions"), strict=True):
        good = spec.is_plain and spec.dtype == i32 and len(spec.shape) == 1 and 0 not in spec.bounds
        ops.expect(good, name, spec, f"{what} of i32 [n] with no empty axis")
    ops.expect(isinstance(specs[1].shape[0], int), name, specs[1], "k_positions without an Extent")
    Options.of(name, attrs)
    offset, to = attrs.get("offset", 0), attrs.get("to", "bool")
    ops.expect(type(offset) is int, name, f"offset {offset!r}", "an offset that is an integer")
    ops.expect(to in _TO, name, f"to {to!r}", f"to {', '.join(_TO)}")
    return (TensorSpec((specs[0].shape[0], specs[1].shape[0]), _TO[to]),)


def _mask_reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    options = Options.of("attention_mask", attrs)
    p, j = inputs[0].astype(np.int64)[:, None] + attrs.get("offset", 0), inputs[1].astype(np.int64)[None]
    seen = j <= p if options.causal else np.ones((p.shape[0], j.shape[1]), bool)
    if options.window:
        seen = seen & (j > p - options.window) & (j < p + options.window)
    if options.chunk:
        seen = seen & (j // options.chunk == p // options.chunk)
    to = attrs.get("to", "bool")
    return (seen if to == "bool" else np.where(seen, 0.0, -np.inf).astype(_TO[to].numpy),)


def _mask_parts(f: Any, q_positions: Any, k_positions: Any, offset: int = 0, to: str = "bool", **attrs: Any) -> Any:
    options = Options.of("attention_mask", attrs)
    p, j = (q_positions + offset).reshape((q_positions.shape[0], 1)), k_positions
    seen = f.less_equal(j, p) if options.causal else f.equal(f.multiply(f.add(j, p), 0), 0)
    if options.window:
        # differences of positions fit i32; their sums with an unlimited window may not
        window = np.int32(min(options.window, _MOST))
        seen = f.logical_and(seen, f.logical_and(f.less(p - j, window), f.less(j - p, window)))
    if options.chunk:
        chunk = np.int32(min(options.chunk, _MOST))
        seen = f.logical_and(seen, f.equal(f.floor_divide(j, chunk), f.floor_divide(p, chunk)))
    if to == "bool":
        return seen
    made = f.where(seen, np.float32(0), np.float32(-np.inf))
    return made if to == "f32" else f.cast(made, to=to)


def _mask_samples() -> Iterable[ops.Sample]:
    q, k = np.arange(5, 9, dtype=np.int32), np.arange(17, dtype=np.int32)
    yield ops.Sample("causal", (q, k))
    yield ops.Sample("window, chunks, f16", (q, k), {"window": 4, "chunk": 6, "offset": 3, "to": "f16"})
    yield ops.Sample("both sides, f32", (q, k), {"window": 3, "causal": False, "to": "f32"})
    yield ops.Sample("all", (q, k), {"causal": False})
    yield ops.Sample("all by a window", (q, k), {"causal": False, "window": 1 << 31, "chunk": 1 << 40})


def _mask_errors() -> Iterable[ops.ErrorSample]:
    n = TensorSpec((4,), i32)
    yield ops.ErrorSample((n,), {}, "wanted q_positions, k_positions")
    yield ops.ErrorSample((n, TensorSpec((4,), f32)), {}, "wanted k_positions of i32")
    yield ops.ErrorSample((n, n), {"window": -1}, "wanted a window")
    yield ops.ErrorSample((n, n), {"to": "i8"}, "wanted to bool")


def _tile_sizes(attrs: ops.Attrs) -> tuple[int, int]:
    return attrs.get("rows", 32), attrs.get("columns", 32)


def _infer_tiles(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    name = "attention_mask_tiles"
    ops.expect(len(specs) == 1, name, specs, "a mask")
    mask = specs[0]
    good = mask.is_plain and mask.dtype in _MASKS and len(mask.shape) >= 2 and 0 not in mask.bounds
    good = good and all(isinstance(n, int) for n in mask.shape)
    ops.expect(
        good, name, mask, "a mask of bool, f32, f16 or bf16 [..., queries, keys] with no empty axis and no Extent"
    )
    sizes = _tile_sizes(attrs)
    ops.expect(all(type(n) is int and n > 0 for n in sizes), name, sizes, "rows and columns above 0")
    *outer, queries, keys = mask.bounds
    return (TensorSpec((*outer, -(-queries // sizes[0]), -(-keys // sizes[1])), i32),)


def _tiles_reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    mask = inputs[0] if inputs[0].dtype == bool else inputs[0].astype(np.float64)
    seen, opened = (mask, mask) if mask.dtype == bool else (mask > LOWEST, mask == 0)
    rows, columns = _tile_sizes(attrs)
    (tiles,) = _infer_tiles((TensorSpec(mask.shape, as_dtype(inputs[0].dtype)),), attrs)
    out = np.zeros(tiles.bounds, np.int32)
    for i in range(tiles.bounds[-2]):
        for j in range(tiles.bounds[-1]):
            at = ..., slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns)
            out[..., i, j] = seen[at].any((-2, -1)).astype(np.int32) + opened[at].all((-2, -1))
    return (out,)


def _tiles_parts(f: Any, mask: Any, rows: int = 32, columns: int = 32) -> Any:
    if mask.dtype == boolean:
        seen = opened = f.cast(mask, to="i32")
    else:
        wide = f.cast(mask, to="f32") if mask.dtype != f32 else mask
        seen, opened = (f.cast(part, to="i32") for part in (f.less(LOWEST, wide), f.equal(wide, 0.0)))
    return f.add(_by_tile(f, seen, rows, columns, f.max), _by_tile(f, opened, rows, columns, f.min))


def _by_tile(f: Any, x: Any, rows: int, columns: int, reduce: Any) -> Any:
    """Reduces each tile to its maximum or minimum. The last row and column are repeated to fill the last tiles."""
    rows, columns = min(rows, x.shape[-2]), min(columns, x.shape[-1])
    for axis, size in ((-2, rows), (-1, columns)):
        n, at = x.shape[axis], len(x.shape) + axis
        short = -n % size
        if short:
            last = x[(slice(None),) * at + (slice(n - 1, n),)]
            x = f.concat(x, f.broadcast_to(last, shape=(*x.shape[:at], short, *x.shape[at + 1 :])), axis=at)
    *outer, queries, keys = x.shape
    tiles = x.reshape((*outer, queries // rows, rows, keys // columns, columns))
    return reduce(tiles, axes=(len(outer) + 1, len(outer) + 3))


def _tiles_samples() -> Iterable[ops.Sample]:
    p, j = np.arange(37)[:, None], np.arange(70)
    yield ops.Sample("causal", (j <= p,), {"rows": 8, "columns": 16})
    window = np.where((j <= p) & (j > p - 20), 0, -np.inf).astype(np.float32)
    yield ops.Sample("one tile", (j <= p[:5],), {"rows": 1 << 40, "columns": 1000})
    yield ops.Sample("window, f32, heads", (np.stack([window, np.ones_like(window)]),), {"rows": 5, "columns": 7})


def _tiles_errors() -> Iterable[ops.ErrorSample]:
    yield ops.ErrorSample((TensorSpec((4, 4), i32),), {}, "wanted a mask of bool")
    yield ops.ErrorSample((TensorSpec((4, 4), boolean),), {"rows": 0}, "wanted rows and columns above 0")


OPS = {
    "attention_mask": ops.Op(
        name="attention_mask",
        formula="key j <= p, and j > p - window, for positions p = q_positions + offset: true, or 0 and -inf elsewhere",
        parameters=Parameters(
            "q_positions k_positions", (*_RULES, Attribute("offset", "int", 0), Attribute("to", "str", "bool"))
        ),
        infer=_infer_mask,
        reference=_mask_reference,
        samples=_mask_samples,
        error_samples=_mask_errors,
        tolerance={"f32": 0.0, "f16": 0.0, "bf16": 0.0, "bool": 0.0},
        decompose=_mask_parts,
        vjp=FROM_INTEGERS,
    ),
    "attention_mask_tiles": ops.Op(
        name="attention_mask_tiles",
        formula="per tile of a mask: 0 if all is masked, 1 if mixed, 2 if all is open, so that the mask need not be read",
        parameters=Parameters("mask", (Attribute("rows", "int", 32), Attribute("columns", "int", 32))),
        infer=_infer_tiles,
        reference=_tiles_reference,
        samples=_tiles_samples,
        error_samples=_tiles_errors,
        tolerance={"i32": 0.0},
        decompose=_tiles_parts,
        vjp=OF_INTEGERS,
    ),
}
