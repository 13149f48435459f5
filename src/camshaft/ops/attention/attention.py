"""attention: softmax(scale q K^T) V, causal, grouped-query, over a paged cache of keys and values.

A token at position p of slot s attends to keys 0 to p of s, found through block_table[s]; tokens of one call may belong to any
slots. Three variants: one_query.py (any target and size), split.py (few tokens), tiled.py (prompts). The cache's layout is that
of kv_cache_update, or, with scales, of kv_cache_quantize.
"""

from __future__ import annotations

from math import isfinite

from camshaft.dtypes import f32
from camshaft.extent import Extent
from camshaft.ops import op as ops
from camshaft.ops.attention import one_query, split, tiled
from camshaft.ops.attention.decomposition import decompose
from camshaft.ops.attention.kv_cache_quantize import check_quantized
from camshaft.ops.attention.kv_cache_update import BLOCK_TOKENS, check_cache, check_places, place_limits, typical_places
from camshaft.ops.attention.paged import N_INPUTS, caches
from camshaft.ops.attention.reference import error_samples, reference, samples
from camshaft.ops.parameters import HEAD_DIM, HEADS, KV_HEADS, PLACES, Attribute, Parameters
from camshaft.ops.spec import TensorSpec, bound

# multiply-adds per ns, measured on one core of a Zen 4 server (its peak is 59)
_SCALAR_RATE, _SPLIT_RATE, _TILED_RATE = 5.0, 40.0, 47.0


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    names = "q, k_cache, v_cache, positions, slots, block_table; K and V scales where these are quantized"
    ops.expect(len(specs) in (N_INPUTS, N_INPUTS + 2), "attention", specs, names)
    q, k_cache, v_cache, positions, slots, table, *scales = specs
    heads, kv_heads, head_dim = (attrs.get(name, 0) for name in ("heads", "kv_heads", "head_dim"))
    good = heads > 0 and kv_heads > 0 and heads % kv_heads == 0
    ops.expect(good, "attention", (heads, kv_heads), "heads a multiple of kv_heads, both above 0")
    good = q.is_plain and q.dtype == f32 and len(q.shape) == 2 and q.shape[1] == heads * head_dim
    ops.expect(good and head_dim > 0, "attention", q, f"q of f32 [T, {heads * head_dim}]")
    if scales:
        check_quantized("attention", (k_cache, v_cache, *scales), kv_heads, head_dim)
    else:
        check_cache("attention", (k_cache, v_cache), kv_heads, head_dim)
    check_places("attention", q, positions, slots, table)
    scale, length = attrs.get("scale"), attrs.get("length")
    ops.expect(isinstance(scale, float) and isfinite(scale), "attention", scale, "a scale that is a finite float")
    most = table.bounds[1] * BLOCK_TOKENS
    good = isinstance(length, (int, Extent)) and 0 < bound(length) <= most
    ops.expect(
        good, "attention", length, f"a length (Extent or integer) of at most {most}, the capacity of the block table"
    )
    return (q,)


def _pairs(node: ops.NodeSpec) -> float:
    """Returns the (token, key) pairs at the bounds, without the masked half of the square of new tokens."""
    tokens, length = node.inputs[0].bounds[0], bound(node.attrs["length"])
    return tokens * max(1.0, length - min(tokens, length) / 2)


def _products(node: ops.NodeSpec) -> float:
    """Returns the multiply-adds of q K and p V."""
    return 2.0 * _pairs(node) * float(node.attrs["heads"] * node.attrs["head_dim"])


def _bytes_per_key(node: ops.NodeSpec) -> float:
    """Returns the bytes of a key and a value of every head."""
    return sum(part.nbytes / (part.bounds[0] * BLOCK_TOKENS) for part in caches(node))


def _tiled_cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """Estimates the cost of full register tiles. A single tile of few tokens leaves workers idle; split_keys does not."""
    shape, tokens = tiled.shape_of(node, target), node.inputs[0].bounds[0]
    rows = min(tokens, shape.tile_tokens) * shape.group
    padding = shape.padded_rows(rows) / rows
    idle = 2.0 if tokens <= split.MAX_TOKENS else 1.0
    return _products(node) / _TILED_RATE * padding * idle


_VECTORS, _ALL = ops.VECTORS, ops.EVERYWHERE

OP = ops.Op(
    name="attention",
    formula="softmax(scale q K^T) V over keys 0..position of the token's slot",
    parameters=Parameters(
        f"q k_cache v_cache {PLACES} *scales",
        (HEADS, KV_HEADS, HEAD_DIM, Attribute("scale", "float"), Attribute("length", "int | Extent")),
    ),
    infer=_infer,
    reference=reference,
    variants=(
        ops.KernelVariant("tiled", _VECTORS, tiled.build, tiled.supports, _tiled_cost, tiled.TUNABLES),
        ops.KernelVariant(
            "split_keys",
            _VECTORS,
            split.build,
            split.supports,
            lambda node, target: _products(node) / _SPLIT_RATE,
            split.TUNABLES,
        ),
        ops.KernelVariant(
            "one_query_per_program",
            _ALL,
            one_query.build,
            cost=lambda node, target: _products(node) / _SCALAR_RATE,
        ),
    ),
    indexes=place_limits(3, cache=1),
    workload=typical_places(3, cache=1),
    samples=samples,
    error_samples=error_samples,
    tolerance={"f32": 1e-11},
    flops=lambda node: 2.0 * _products(node),
    nbytes=lambda node: 2.0 * node.inputs[0].nbytes + bound(node.attrs["length"]) * _bytes_per_key(node),
    decompose=decompose,
)
