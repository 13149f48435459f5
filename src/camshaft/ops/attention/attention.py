"""attention: softmax(scale q K^T) V, causal, grouped-query, over a paged cache of keys and values.

A token at position p of slot s attends to keys 0 to p of s, found through block_table[s]. Tokens of one call may belong to any
slots. The cache has the layout of kv_cache_update or, with scales, of kv_cache_quantize. The variants are in one_query.py (any
target and size), split.py (few tokens) and tiled.py (prompts).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import isfinite

import numpy as np

from camshaft.dtypes import DType, as_dtype, bf16, f16, f32, i32
from camshaft.extent import Extent
from camshaft.ops import op as ops
from camshaft.ops.attention import one_query, split, tiled
from camshaft.ops.attention.decomposition import decompose
from camshaft.ops.attention.kv_cache_quantize import FORMATS, check_quantized, decode, encode
from camshaft.ops.attention.kv_cache_update import BLOCK_TOKENS, check_cache, check_places, place_limits, typical_places
from camshaft.ops.attention.paged import N_INPUTS, caches, multiply_adds
from camshaft.ops.parameters import HEAD_DIM, HEADS, KV_HEADS, PLACES, Attribute, Parameters
from camshaft.ops.spec import TensorSpec, bound


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


def _bytes_per_key(node: ops.NodeSpec) -> float:
    """Returns the bytes of a key and a value of every head."""
    return sum(part.nbytes / (part.bounds[0] * BLOCK_TOKENS) for part in caches(node))


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    """softmax(scale q K^T) V, per token and head, over keys 0 to the token's position of its own slot."""
    q, k_cache, v_cache, positions, slots, table, *scales = inputs
    if scales:
        k_cache = decode(k_cache.swapaxes(2, 3), scales[0].swapaxes(2, 3)).swapaxes(2, 3)
        v_cache = decode(v_cache, scales[1].swapaxes(2, 3))
    kv_heads, head_dim = attrs["kv_heads"], attrs["head_dim"]
    out = np.zeros((len(q), kv_heads, attrs["heads"] // kv_heads, head_dim))
    for row, (position, slot) in enumerate(zip(positions, slots, strict=True)):
        n_keys = int(position) + 1
        blocks = table[slot, : -(-n_keys // BLOCK_TOKENS)]
        keys = k_cache[blocks].astype(np.float64).transpose(1, 0, 3, 2).reshape(kv_heads, -1, head_dim)[:, :n_keys]
        values = v_cache[blocks].astype(np.float64).transpose(1, 0, 2, 3).reshape(kv_heads, -1, head_dim)[:, :n_keys]
        queries = q[row].astype(np.float64).reshape(kv_heads, -1, head_dim)
        scores = attrs["scale"] * np.einsum("hgd,hkd->hgk", queries, keys)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out[row] = np.einsum("hgk,hkd->hgd", weights / weights.sum(-1, keepdims=True), values)
    return (out.reshape(q.shape),)


def _cached(
    rng: np.random.Generator, lengths: Sequence[int], dtype: DType, kv_heads: int, head_dim: int
) -> tuple[ops.Array, ops.Array, ops.Array]:
    """Returns K cache, V cache and block table of sequences of these lengths, in shuffled blocks. Unused rows are NaN."""
    max_blocks = -(-max(lengths) // BLOCK_TOKENS)
    n_blocks = len(lengths) * max_blocks + 1
    k_cache = np.full((n_blocks, kv_heads, head_dim, BLOCK_TOKENS), np.nan, np.float32)
    v_cache = np.full((n_blocks, kv_heads, BLOCK_TOKENS, head_dim), np.nan, np.float32)
    order = rng.permutation(n_blocks)[: len(lengths) * max_blocks]
    table = order.reshape(len(lengths), max_blocks).astype(np.int32)
    for slot, length in enumerate(lengths):
        for position in range(length):
            block, place = table[slot, position // BLOCK_TOKENS], position % BLOCK_TOKENS
            k_cache[block, :, :, place] = rng.normal(size=(kv_heads, head_dim))
            v_cache[block, :, place] = rng.normal(size=(kv_heads, head_dim))
    return k_cache.astype(dtype.numpy), v_cache.astype(dtype.numpy), table


def _quantized(
    k_cache: ops.Array, v_cache: ops.Array, form: str
) -> tuple[tuple[ops.Array, ...], tuple[ops.Array, ...]]:
    """Returns the codes of K and V, and their scales. The scales of unused rows are NaN."""
    k_codes, k_scales = encode(k_cache.swapaxes(2, 3), form)
    v_codes, v_scales = encode(v_cache, form)
    parts = (k_codes.swapaxes(2, 3), v_codes), (k_scales.swapaxes(2, 3), v_scales.swapaxes(2, 3))
    codes, scales = ((np.ascontiguousarray(first), np.ascontiguousarray(second)) for first, second in parts)
    return codes, scales


def sample(
    name: str,
    places: Sequence[tuple[int, int]],
    *,
    heads: tuple[int, int],
    head_dim: int,
    dtype: DType = f16,
    form: str | None = None,
    active: Mapping[str, int] | None = None,
    loudness: float = 1.0,
) -> ops.Sample:
    """Returns a sample with tokens at `places` (slot, position), and each slot's cache filled up to its greatest position.

    `heads` is (q heads, kv heads). `form` is the cache's block format, if quantized. `active` gives the active values of the
    Extents "tokens" and "length"; without it the number of tokens is fixed.
    """
    rng = np.random.default_rng(11)
    where = np.array(places, np.int32)
    n_slots = int(where[:, 0].max()) + 1
    lengths = [int(where[where[:, 0] == slot, 1].max(initial=0)) + 1 for slot in range(n_slots)]
    k_cache, v_cache, table = _cached(rng, lengths, dtype if form is None else f32, heads[1], head_dim)
    caches, scales = ((k_cache, v_cache), ()) if form is None else _quantized(k_cache, v_cache, form)
    q = (loudness * rng.normal(size=(len(places), heads[0] * head_dim))).astype(np.float32)
    inputs = (q, *caches, where[:, 1].copy(), where[:, 0].copy(), table, *scales)
    tokens, length = Extent("tokens", len(places)), Extent("length", table.shape[1] * BLOCK_TOKENS)
    n_tokens = tokens if active else len(places)
    specs = (
        TensorSpec((n_tokens, q.shape[1]), f32),
        *(TensorSpec(cache.shape, as_dtype(cache.dtype)) for cache in caches),
        TensorSpec((n_tokens,), i32),
        TensorSpec((n_tokens,), i32),
        TensorSpec(table.shape, i32),
        *(TensorSpec(part.shape, f16) for part in scales),
    )
    chosen = active or {}
    shown = int(where[: chosen.get("tokens", len(places)), 1].max()) + 1
    extents = {length: chosen.get("length", shown)} | ({tokens: chosen["tokens"]} if active else {})
    attrs = {
        "heads": heads[0],
        "kv_heads": heads[1],
        "head_dim": head_dim,
        "scale": head_dim**-0.5,
        "length": length,
    }
    return ops.Sample(name, inputs, attrs, specs, extents)


def _samples() -> Iterable[ops.Sample]:
    """Sizes around every tile: 16 keys of a block, 32 and 64 of a tile, 256 of a split; rows of a tile and of a register
    block."""
    smol = partial(sample, heads=(9, 3), head_dim=64)
    yield sample("first token", [(0, 0)], heads=(1, 1), head_dim=16)
    for position in (15, 16, 17, 63, 64, 255, 256, 300):
        yield smol(f"one token at {position}", [(0, position)])
    yield smol("8 tokens from 250", [(0, p) for p in range(250, 258)])
    yield smol("33 tokens", [(0, p) for p in range(33)])
    yield smol("70 tokens, 41 active", [(0, p) for p in range(70)], active={"tokens": 41})
    yield smol("6 tokens, 3 active", [(0, p) for p in range(30, 36)], active={"tokens": 3})
    yield smol("70 tokens from 100", [(0, p) for p in range(100, 170)], loudness=5.0)
    yield sample("14/2 heads of 80, f32", [(0, p) for p in range(50, 67)], heads=(14, 2), head_dim=80, dtype=f32)
    yield sample("8/1 heads of 96, bf16", [(0, p) for p in range(60, 69)], heads=(8, 1), head_dim=96, dtype=bf16)
    yield sample("4/4 heads of 128", [(0, p) for p in range(35)], heads=(4, 4), head_dim=128)
    yield sample("2/1 heads of 256", [(0, p) for p in range(28, 40)], heads=(2, 1), head_dim=256)
    yield sample("12/1 heads of 32", [(0, p) for p in (0, 31, 15)], heads=(12, 1), head_dim=32)
    yield sample("3/3 heads of 20", [(0, p) for p in range(14, 21)], heads=(3, 3), head_dim=20, dtype=f32)
    yield sample("4/2 heads of 24, 33 tokens", [(0, p) for p in range(33)], heads=(4, 2), head_dim=24)
    yield sample("7/1 heads of 72, one token", [(0, 290)], heads=(7, 1), head_dim=72, dtype=bf16)
    turns = [(i % 2, 7 + i // 2 if i % 2 else 40 + i // 2) for i in range(19)]
    yield smol("two sequences in turn", turns)
    for form in FORMATS:
        yield smol(f"one token at 290, {form}", [(0, 290)], form=form)
        yield smol(f"33 tokens from 70, {form}", [(0, p) for p in range(70, 103)], form=form)
        yield sample(f"7/1 heads of 96, {form}", [(0, p) for p in range(40, 59)], heads=(7, 1), head_dim=96, form=form)
        yield smol(f"a batch of 3, {form}", [(s, 23 * s + 14) for s in range(3)], form=form)
    joined = [(0, p) for p in range(10)] + [(1, p) for p in range(80, 95)] + [(2, 3)]
    yield smol("three sequences in a row", joined, dtype=bf16)
    yield smol("a batch of 13, one token each", [(s, 23 * s + 14) for s in range(13)])


def _error_samples() -> Iterable[ops.ErrorSample]:
    """Specs and attributes that `infer` refuses."""
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
    formula="softmax(scale q K^T) V over keys 0..position of the token's slot",
    parameters=Parameters(
        f"q k_cache v_cache {PLACES} *scales",
        (HEADS, KV_HEADS, HEAD_DIM, Attribute("scale", "float"), Attribute("length", "int | Extent")),
    ),
    infer=_infer,
    reference=_reference,
    variants=(tiled.VARIANT, split.VARIANT, one_query.VARIANT),
    indexes=place_limits(3, cache=1),
    workload=typical_places(3, cache=1),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 1e-11},
    flops=lambda node: 2.0 * multiply_adds(node),
    nbytes=lambda node: 2.0 * node.inputs[0].nbytes + bound(node.attrs["length"]) * _bytes_per_key(node),
    decompose=decompose,
)
