"""attention: softmax(scale q K^T) V, grouped-query, over a paged cache of keys and values.

A token at position p of slot s attends to keys 0 to p of s, found through block_table[s]; options (masked/options.py) change
that. Tokens of one call may belong to any slots. The cache has the layout of kv_cache_update or, with scales, of
kv_cache_quantize; values may have another head size than keys. The variants are in one_query.py (any target and size), split.py
(few tokens; threads/split.py on GPUs) and tiled.py (prompts; unit_tiles.py and threads/units.py on matrix units), without
options; masked/tiled.py (prompts; unit_tiles.py on AMX), masked/split.py (few tokens) and masked/spans.py take them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite

import numpy as np

from camshaft.dtypes import f16, f32, i32
from camshaft.extent import Extent
from camshaft.ops import op as ops
from camshaft.ops.attention import one_query, split, tiled, unit_tiles
from camshaft.ops.attention.decomposition import decompose
from camshaft.ops.attention.kv_cache_quantize import check_quantized, decode
from camshaft.ops.attention.kv_cache_update import BLOCK_TOKENS, check_cache, check_places, place_limits, typical_places
from camshaft.ops.attention.paged import N_INPUTS, caches, multiply_adds
from camshaft.ops.attention.threads import split as split_threads
from camshaft.ops.attention.threads import units as unit_threads
from camshaft.ops.masked import spans
from camshaft.ops.masked import split as masked_split
from camshaft.ops.masked import tiled as masked_tiled
from camshaft.ops.masked import unit_tiles as masked_unit_tiles
from camshaft.ops.masked.options import PAGED, Options, Sizes
from camshaft.ops.masked.reference import Fetch, attend
from camshaft.ops.masked.samples import option_samples, plain_samples
from camshaft.ops.parameters import PLACES, Attribute, Parameters
from camshaft.ops.rule import Rule, Stage
from camshaft.ops.spec import Dim, TensorSpec, bound

# bf16: weights and values may be rounded to it, and scores to 16 bits.
PRECISION = Attribute("precision", "str", "f32")


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    options = Options.of("attention", attrs)
    names = "q, k_cache, v_cache, positions, slots, block_table; K and V scales where these are quantized; extras"
    n = len(specs) - len(options.extras)
    ops.expect(n in (N_INPUTS, N_INPUTS + 2), "attention", specs, names)
    q, k_cache, v_cache, positions, slots, table, *scales = specs[:n]
    heads, kv_heads, head_dim = (attrs.get(name, 0) for name in ("heads", "kv_heads", "head_dim"))
    good = heads > 0 and kv_heads > 0 and heads % kv_heads == 0
    ops.expect(good, "attention", (heads, kv_heads), "heads a multiple of kv_heads, both above 0")
    good = q.is_plain and q.dtype == f32 and len(q.shape) == 2 and q.shape[1] == heads * head_dim
    ops.expect(good and head_dim > 0, "attention", q, f"q of f32 [T, {heads * head_dim}]")
    v_dim = head_dim
    if scales:
        check_quantized("attention", (k_cache, v_cache, *scales), kv_heads, head_dim)
    else:
        v_dim = check_cache("attention", (k_cache, v_cache), kv_heads, head_dim)
    check_places("attention", q, positions, slots, table)
    precision, scale = attrs.get("precision", PRECISION.default), attrs.get("scale")
    ops.expect(precision in ("f32", "bf16"), "attention", f"precision {precision!r}", "a precision of f32 or bf16")
    ops.expect(isinstance(scale, float) and isfinite(scale), "attention", scale, "a scale that is a finite float")
    check_length("attention", attrs.get("length"), table, options)
    length, capacity = bound(attrs["length"]), table.bounds[1] * BLOCK_TOKENS
    options.check("attention", specs[n:], Sizes(q.shape[0], heads, table.bounds[0], length, capacity))
    sums = (TensorSpec((q.shape[0], heads), f32),) if options.lse else ()
    return (TensorSpec((q.shape[0], heads * v_dim), f32), *sums)


def check_length(op: str, length: object, table: TensorSpec, options: Options) -> None:
    """Raises ShapeError unless a slot of the block table can hold `length` keys."""
    most = (1 << 31) - 1 if options.ring else table.bounds[1] * BLOCK_TOKENS
    good = isinstance(length, (int, Extent)) and 0 < bound(length) <= most
    ops.expect(good, op, length, f"a length (Extent or integer) of at most {most}, the capacity of the block table")


def positions_limit(node: ops.NodeSpec) -> Dim:
    """Returns the limit of positions, `length`: kernels have room for partial results of that many keys. A ring has no largest
    position, nor have tokens whose keys do not follow from it."""
    options = Options.of("attention", node.attrs)
    follow = options.causal and not options.has("lengths") and not options.ring
    return node.attrs.get("length", 0) if follow else (1 << 31) - 1


def _bytes_per_key(node: ops.NodeSpec) -> float:
    """Returns the bytes of a key and a value of every head."""
    return sum(part.nbytes / (part.bounds[0] * BLOCK_TOKENS) for part in caches(node))


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    """softmax(scale q K^T) V, per token and head, over the keys of its own slot that it may see."""
    options = Options.of("attention", attrs)
    n = len(inputs) - len(options.extras)
    q, k_cache, v_cache, positions, slots, table, *scales = inputs[:n]
    if scales:
        k_cache = decode(k_cache.swapaxes(2, 3), scales[0].swapaxes(2, 3)).swapaxes(2, 3)
        v_cache = decode(v_cache, scales[1].swapaxes(2, 3))
    out, sums = attend(
        options,
        q.astype(np.float64).reshape(len(q), attrs["heads"], -1),
        (positions, slots),
        fetch_of(k_cache, v_cache, table),
        dict(zip(options.extras, inputs[n:], strict=True)),
        table.shape[1] * BLOCK_TOKENS,
        v_cache.shape[3],
        attrs["scale"],
    )
    return (out.reshape(len(q), -1), sums) if options.lse else (out.reshape(len(q), -1),)


def fetch_of(k_cache: ops.Array, v_cache: ops.Array, table: ops.Array) -> Fetch:
    """Returns the function that reads keys and values of a slot from a paged cache of numbers."""

    def fetch(slot: int, keys: ops.Array) -> tuple[ops.Array, ops.Array]:
        blocks, places = table[slot, keys // BLOCK_TOKENS % table.shape[1]], keys % BLOCK_TOKENS
        found = k_cache[blocks, :, :, places], v_cache[blocks, :, places]
        k, v = (part.astype(np.float64).swapaxes(0, 1) for part in found)
        return k, v

    return fetch


def _error_samples() -> Iterable[ops.ErrorSample]:
    """Specs and attributes that `infer` rejects."""
    q, index, table = TensorSpec((3, 32), f32), TensorSpec((3,), i32), TensorSpec((1, 4), i32)
    k_cache, v_cache = TensorSpec((4, 2, 8, 16), f16), TensorSpec((4, 2, 16, 8), f16)
    good: dict[str, object] = {"heads": 4, "kv_heads": 2, "head_dim": 8, "scale": 1.0, "length": Extent("length", 64)}
    specs = (q, k_cache, v_cache, index, index, table)
    yield ops.ErrorSample(specs, good | {"heads": 3}, "wanted heads a multiple")
    yield ops.ErrorSample(specs, good | {"scale": float("nan")}, "wanted a scale")
    yield ops.ErrorSample(specs, good | {"length": Extent("length", 65)}, "wanted a length")
    yield ops.ErrorSample((TensorSpec((3, 16), f32), *specs[1:]), good, "wanted q of f32")
    yield ops.ErrorSample((q, v_cache, v_cache, index, index, table), good, "wanted k_cache")
    yield ops.ErrorSample((q, k_cache, v_cache, index, table, table), good, "wanted slots")
    yield ops.ErrorSample(specs[:5], good, "wanted q, k_cache")


OP = ops.Op(
    name="attention",
    formula="softmax(scale q K^T) V over keys 0..position of the token's slot, or those that the options let it see",
    parameters=Parameters(
        f"q k_cache v_cache {PLACES} *scales_and_extras",
        (*PAGED, PRECISION),
        results=None,
    ),
    infer=_infer,
    reference=_reference,
    variants=(
        *(each.VARIANT for each in (tiled, unit_tiles, unit_threads, split, split_threads, one_query)),
        *(each.VARIANT for each in (masked_tiled, masked_unit_tiles, masked_split, spans)),
    ),
    indexes=place_limits(3, cache=1) | {3: positions_limit},
    workload=typical_places(3, cache=1),
    samples=lambda: (*plain_samples(), *option_samples()),
    error_samples=_error_samples,
    tolerance={"f32": 1e-11},
    flops=lambda node: 2.0 * multiply_adds(node),
    nbytes=lambda node: 2.0 * node.inputs[0].nbytes + bound(node.attrs["length"]) * _bytes_per_key(node),
    decompose=decompose,
    rules=(Rule(Stage.TILES, ("attention",), unit_tiles.coarse),),
)
