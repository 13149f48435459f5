"""turboquant_attention: attention over a paged cache of TurboQuant codes, with the values' rotation undone in the merge.

The cache has the layout of kv_cache_update with the bytes of turboquant_encode as a head's numbers: K codes u8
[blocks, kv_heads, bytes, 16], V codes u8 [blocks, kv_heads, 16, bytes], norms f32 [blocks, kv_heads, 1, 16] and
[blocks, kv_heads, 16, 1]. A query is rotated as the keys are, so that products with rotated keys are those with the keys. After
the block table come K norms, V norms, the centroids of K and of V, which may have other bits, and the signs [head_dim]. With K of
f16, bf16 or f32 (hybrid) these are V norms, V centroids and signs [v_dim] alone. The options are those of attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from camshaft.dtypes import as_dtype, bf16, f16, f32, u8
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.attention.attention import check_length, fetch_of, positions_limit
from camshaft.ops.attention.kv_cache_update import BLOCK_TOKENS, check_cache, check_places, place_limits, typical_places
from camshaft.ops.masked.kernels import attend_part, merged, store_sums
from camshaft.ops.masked.options import PAGED, Options, Sizes
from camshaft.ops.masked.reference import attend
from camshaft.ops.masked.spans import length_of, pairs_of, scratch_of, spans_of
from camshaft.ops.parameters import PLACES, Parameters
from camshaft.ops.spec import TensorSpec, bound
from camshaft.ops.turboquant.codes import bits_of, code, decode
from camshaft.ops.turboquant.hadamard import check_signs, is_power_of_two, transform, transformed
from camshaft.ops.turboquant.samples import error_samples, samples

NAME = "turboquant_attention"
N_PLACES = 6  # q, K, V, positions, slots, block_table
RATE = 1.5  # multiply-adds per ns of one core of a Zen 4 server, about


@dataclass(frozen=True)
class Codes:
    """The codec of masked/kernels.py for TurboQuant codes of keys and values, or of values alone."""

    keys: Array
    values: Array
    key_norms: Array | None
    value_norms: Array
    key_table: Array | None
    value_table: Array
    signs: Array

    def start(self, k: Tracer, query: Array) -> None:
        """Rotates the query where keys are rotated."""
        if self.key_norms is None:
            return
        dim = int(query.shape[0])
        for d in k.lanes(dim):
            query[d] = query[d] * self.signs[d] * (1.0 / dim)  # 1 / sqrt(d) of the rotation and of the keys
        k.barrier()
        transform(k, query, dim)

    def key(self, k: Tracer, at: tuple[Value, Value], d: Value, j: Value) -> Value:
        """Loads component d of keys j, with lanes over j."""
        if self.key_table is None or self.key_norms is None:
            return self.keys[*at, d, j]
        bits, last = int(self.key_table.shape[0]).bit_length() - 1, int(self.keys.shape[2]) - 1
        first = d * bits
        low, high = (self.keys[*at, b, j] for b in (first // 8, k.minimum(first // 8 + 1, last)))
        return k.gather(self.key_table, code(k, low, high, first % 8, bits)) * self.key_norms[*at, 0, j]

    def value(self, k: Tracer, at: tuple[Value, Value], j: Value, d: Value) -> Value:
        """Loads columns d of key j's rotated value times sqrt(d), with lanes over d."""
        bits, last = int(self.value_table.shape[0]).bit_length() - 1, int(self.values.shape[3]) - 1
        first = d * bits
        low, high = (k.gather(self.values, *at, j, b) for b in (first // 8, k.minimum(first // 8 + 1, last)))
        return k.gather(self.value_table, code(k, low, high, first % 8, bits)) * self.value_norms[*at, j, 0]


def _parts(keys: Any, rest: Sequence[Any]) -> tuple[Any, Any, Any, Any, Any, tuple[Any, ...]]:
    """The norms and centroids of K and V, the signs, and what follows them; no K norms and centroids in a hybrid cache."""
    if as_dtype(keys.dtype) != u8:
        v_norms, v_table, signs, *others = rest
        return None, v_norms, None, v_table, signs, tuple(others)
    k_norms, v_norms, k_table, v_table, signs, *others = rest
    return k_norms, v_norms, k_table, v_table, signs, tuple(others)


@kernel
def span_of_codes_per_program(
    k: Tracer, *arguments: Any, scale: float, heads: int, kv_heads: int, keys: int, **constants: Any
) -> None:
    # partial = sum of e^(s - m) y, extremes = (m, sum of e^(s - m)) over a span of a token's keys, y the rotated values
    q, k_cache, v_cache, positions, slots, table, *rest = arguments
    k_norms, v_norms, k_table, v_table, signs, others = _parts(k_cache, rest)
    codec = Codes(k_cache, v_cache, k_norms, v_norms, k_table, v_table, signs)
    n = len(constants["extras"])
    places = (q, positions, slots, table)
    attend_part(k, codec, places, others[:n], others[n : n + 2], scale, heads, kv_heads, keys, constants)


@kernel
def merge_and_undo(
    k: Tracer, partial: Array, extremes: Array, signs: Array, *arguments: Any, sinks: bool, lse: bool
) -> None:
    # out = s (H sum e^(m_i - M) partial_i) / (d sum e^(m_i - M) l_i): merge, inverse transform and signs in one
    given, out, *others = arguments if sinks else (None, *arguments)
    v_dim = int(partial.shape[3])
    total = k.scratch(f32, v_dim)
    peak, weight = merged(k, partial, extremes, given, total)
    k.barrier()
    transform(k, total, v_dim)
    for d in k.lanes(v_dim):
        out[k.program(0), k.program(1) * v_dim + d] = total[d] * signs[d] * (1.0 / v_dim)
    if lse:
        store_sums(k, others[0], peak, weight)


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    options = Options.of(NAME, attrs)
    n = len(specs) - len(options.extras)
    wanted = "q, k_cache, v_cache, positions, slots, block_table, norms, centroids, signs; extras"
    ops.expect(n > N_PLACES and n == N_PLACES + (5 if specs[1].dtype == u8 else 3), NAME, specs, wanted)
    q, k_cache, v_cache, positions, slots, table = specs[:N_PLACES]
    k_norms, v_norms, k_table, v_table, signs, extras = _parts(k_cache, specs[N_PLACES:])
    heads, kv_heads, head_dim = (attrs.get(name, 0) for name in ("heads", "kv_heads", "head_dim"))
    good = heads > 0 and kv_heads > 0 and heads % kv_heads == 0 and head_dim > 0
    ops.expect(good, NAME, (heads, kv_heads, head_dim), "heads a multiple of kv_heads, both and head_dim above 0")
    good = q.is_plain and q.dtype == f32 and len(q.shape) == 2 and q.shape[1] == heads * head_dim
    ops.expect(good, NAME, q, f"q of f32 [T, {heads * head_dim}]")
    v_bits = bits_of(NAME, v_table)
    v_bytes = v_cache.bounds[3] if len(v_cache.shape) == 4 else 0
    v_dim = v_bytes * 8 // v_bits
    if k_norms is not None:
        good = is_power_of_two(head_dim) and head_dim >= 8
        ops.expect(good, NAME, head_dim, "head_dim a power of two of at least 8 for rotated keys")
        check_cache(NAME, (k_cache, v_cache), kv_heads, head_dim * bits_of(NAME, k_table) // 8, (u8,))
        ops.expect(v_dim == head_dim, NAME, v_cache, f"v_cache of {head_dim * v_bits // 8} bytes a head, as keys have")
    else:
        ops.expect(v_cache.dtype == u8, NAME, v_cache, "v_cache of u8")
        check_cache(NAME, (k_cache, v_cache), kv_heads, head_dim, (u8, f16, bf16, f32))
    good = is_power_of_two(v_dim) and v_dim >= 8 and v_dim * v_bits == v_bytes * 8
    ops.expect(good, NAME, v_cache, f"v_cache of d {v_bits} / 8 bytes a head, d a power of two of at least 8")
    check_signs(NAME, (signs,), v_dim)
    n_blocks = k_cache.bounds[0]
    for spec, shape, name in (
        (k_norms, (n_blocks, kv_heads, 1, BLOCK_TOKENS), "K norms"),
        (v_norms, (n_blocks, kv_heads, BLOCK_TOKENS, 1), "V norms"),
    ):
        ops.expect(spec is None or spec == TensorSpec(shape, f32), NAME, spec, f"{name} of f32 {list(shape)}")
    check_places(NAME, q, positions, slots, table)
    scale = attrs.get("scale")
    ops.expect(isinstance(scale, float) and isfinite(scale), NAME, scale, "a scale that is a finite float")
    check_length(NAME, attrs.get("length"), table, options)
    length, capacity = bound(attrs["length"]), table.bounds[1] * BLOCK_TOKENS
    options.check(NAME, extras, Sizes(q.shape[0], heads, table.bounds[0], length, capacity))
    sums = (TensorSpec((q.shape[0], heads), f32),) if options.lse else ()
    return (TensorSpec((q.shape[0], heads * v_dim), f32), *sums)


def _numbers(codes: ops.Array, norms: ops.Array, table: ops.Array, signs: ops.Array) -> ops.Array:
    """Codes [.., keys, bytes] and norms [.., keys] as numbers, undone."""
    return transformed(decode(codes, norms, table)) * signs


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    options = Options.of(NAME, attrs)
    q, k_cache, v_cache, positions, slots, table = inputs[:N_PLACES]
    k_norms, v_norms, k_table, v_table, signs, extras = _parts(k_cache, inputs[N_PLACES:])
    if k_norms is not None:
        k_cache = _numbers(k_cache.swapaxes(2, 3), k_norms[:, :, 0], k_table, signs).swapaxes(2, 3)
    v_cache = _numbers(v_cache, v_norms[..., 0], v_table, signs)
    out, sums = attend(
        options,
        q.astype(np.float64).reshape(len(q), attrs["heads"], -1),
        (positions, slots),
        fetch_of(k_cache, v_cache, table),
        dict(zip(options.extras, extras, strict=True)),
        table.shape[1] * BLOCK_TOKENS,
        v_cache.shape[3],
        attrs["scale"],
    )
    return (out.reshape(len(q), -1), sums) if options.lse else (out.reshape(len(q), -1),)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    attrs, tokens = node.attrs, node.inputs[0].shape[0]
    options, heads = Options.of(NAME, attrs), attrs["heads"]
    keys, spans = spans_of(bound(tokens), options.span(length_of(node, 5)))
    v_dim = node.outputs[0].bounds[1] // heads
    n = len(node.inputs) - len(options.extras)
    first = ops.Launch(
        span_of_codes_per_program,
        (*(ops.read(i) for i in range(len(node.inputs))), ops.scratch(0, "write"), ops.scratch(1, "write")),
        (ops.Cells(tokens), ops.Cells(heads), ops.Cells(spans)),
        {"scale": attrs["scale"], "heads": heads, "kv_heads": attrs["kv_heads"], "keys": keys, **options.constants()},
    )
    sinks = [ops.read(n + i) for i, name in enumerate(options.extras) if name == "sinks"]
    writes = [ops.write(i) for i in range(len(node.outputs))]
    second = ops.Launch(
        merge_and_undo,
        (ops.scratch(0, "read"), ops.scratch(1, "read"), ops.read(n - 1), *sinks, *writes),
        (ops.Cells(tokens), ops.Cells(heads)),
        {"sinks": bool(sinks), "lse": options.lse},
    )
    return ops.Build((first, second), scratch_of(node, heads, v_dim, spans))


def _cost(node: ops.NodeSpec, target: ops.Target) -> float:
    return pairs_of(node) * (node.inputs[0].bounds[1] + node.outputs[0].bounds[1]) / RATE


def _decompose(
    f: Any, q: Any, k_cache: Any, v_cache: Any, positions: Any, slots: Any, table: Any, *rest: Any, **attrs: Any
) -> Any:
    k_norms, v_norms, k_table, v_table, signs, extras = _parts(k_cache, rest)
    keys = k_cache
    if k_norms is not None:
        rows = f.transpose(k_cache, axes=(0, 1, 3, 2))
        keys = f.transpose(
            f.turboquant_decode(rows, k_norms.reshape(rows.shape[:3]), k_table, signs), axes=(0, 1, 3, 2)
        )
    values = f.turboquant_decode(v_cache, v_norms.reshape(v_cache.shape[:3]), v_table, signs)
    keys = f.cast(keys, to="f32") if keys.dtype != f32 else keys
    return f.attention(q, keys, values, positions, slots, table, *extras, **attrs)


OP = ops.Op(
    name=NAME,
    formula="softmax(scale q K^T) V over a paged cache of TurboQuant codes of K and V, or of V",
    parameters=Parameters(
        f"q k_cache v_cache {PLACES} *norms_centroids_signs_extras",
        PAGED,
        results=None,
    ),
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("span_of_codes_per_program", ops.EVERYWHERE, _build, cost=_cost),),
    indexes=place_limits(3, cache=1) | {3: positions_limit},
    workload=typical_places(3, cache=1),
    samples=samples,
    error_samples=error_samples,
    tolerance={"f32": 1e-11},
    flops=lambda node: 2.0 * pairs_of(node) * (node.inputs[0].bounds[1] + node.outputs[0].bounds[1]),
    decompose=_decompose,
)
