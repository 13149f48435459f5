"""Samples of attention: plain ones around every tile, and those of the options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from camshaft.dtypes import DType, as_dtype, bf16, f16, f32, i32
from camshaft.extent import Extent
from camshaft.ops import op as ops
from camshaft.ops.attention.kv_cache_quantize import FORMATS, encode
from camshaft.ops.attention.kv_cache_update import BLOCK_TOKENS
from camshaft.ops.spec import TensorSpec


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
    """Returns a sample with tokens at `places` (slot, position), and each slot's cache filled up to its largest position.

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


def plain_samples() -> Iterable[ops.Sample]:
    """Sizes around every tile: 16 keys of a block, 32 and 64 of a tile, 256 of a split; rows of a tile and of a register
    block."""
    smol = partial(sample, heads=(9, 3), head_dim=64)
    yield sample("first token", [(0, 0)], heads=(1, 1), head_dim=16)
    for position in (15, 16, 17, 63, 64, 255, 256, 300):
        yield smol(f"one token at {position}", [(0, position)])
    yield smol("8 tokens from 250", [(0, p) for p in range(250, 258)])
    yield sample("17 tokens", [(0, p) for p in range(17)], heads=(2, 1), head_dim=16)  # the smallest of `tiled`
    yield smol("33 tokens", [(0, p) for p in range(33)])
    yield smol("70 tokens, 41 active", [(0, p) for p in range(70)], active={"tokens": 41})
    yield smol("6 tokens, 3 active", [(0, p) for p in range(30, 36)], active={"tokens": 3})
    yield smol("70 tokens from 100", [(0, p) for p in range(100, 170)], loudness=5.0)
    yield sample("14/2 heads of 80, f32", [(0, p) for p in range(50, 67)], heads=(14, 2), head_dim=80, dtype=f32)
    yield sample("8/1 heads of 96, bf16", [(0, p) for p in range(60, 69)], heads=(8, 1), head_dim=96, dtype=bf16)
    yield sample("4/4 heads of 128", [(0, p) for p in range(35)], heads=(4, 4), head_dim=128)
    yield sample("2/1 heads of 256", [(0, p) for p in range(28, 40)], heads=(2, 1), head_dim=256)
    for places in ([(0, 20)], [(0, p) for p in range(15, 18)]):  # heads of a group that do not fit one program
        yield sample(f"48/1 heads of 320, {len(places)} tokens", places, heads=(48, 1), head_dim=320)
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
    yield from map(_coarse, _many_tokens())


def _many_tokens() -> Iterable[ops.Sample]:
    """Samples with sizes around tiles of 32 rows and 32 keys, and around the keys of a program, 512."""
    smol = partial(sample, heads=(9, 3), head_dim=64)
    yield sample("17 tokens", [(0, p) for p in range(17)], heads=(2, 1), head_dim=16)
    yield smol("70 tokens, 41 active", [(0, p) for p in range(70)], active={"tokens": 41})
    yield smol("65 tokens from 500", [(0, p) for p in range(500, 565)], loudness=5.0)
    yield sample("4/4 heads of 128, bf16", [(0, p) for p in range(35)], heads=(4, 4), head_dim=128, dtype=bf16)
    yield sample("4/2 heads of 24, 33 tokens", [(0, p) for p in range(33)], heads=(4, 2), head_dim=24)
    yield smol("two sequences in turn", [(i % 2, 7 + i // 2 if i % 2 else 40 + i // 2) for i in range(19)])


def _coarse(given: ops.Sample) -> ops.Sample:
    return replace(given, name=f"{given.name}, precision bf16", attrs={**given.attrs, "precision": "bf16"})


def _tiles_with_options(rng: np.random.Generator) -> Iterable[ops.Sample]:
    """Samples with options around tiles of 32 rows and pairs of groups of 64 keys."""

    def floats(*shape: int) -> ops.Array:
        return rng.normal(size=shape).astype(np.float32)

    def many(heads: tuple[int, int], start: int = 100) -> ops.Sample:
        places = [(0, p) for p in range(start, start + 60)] + [(1, p) for p in range(9)]
        return sample("", places, heads=heads, head_dim=40)

    few = sample("", [(0, p) for p in range(17)], heads=(2, 1), head_dim=16)
    mask = rng.random((2, 4, 69, 160)) < 0.4
    mask[0, :, 4] = False
    slopes, lengths = np.exp2(-np.arange(1, 5, dtype=np.float32)), np.array([160, 9], np.int32)
    for text, given, extras, attrs in (
        ("window of 9, 17 tokens", few, {}, {"window": 9}),
        ("window of tiles", many((4, 2)), {}, {"window": 70}),
        ("window of less than a tile, sinks, sum", many((4, 1)), {"sinks": floats(4)}, {"window": 21, "lse": True}),
        ("soft cap of tiles", many((2, 2), 30), {}, {"cap": 1.5}),
        ("boolean mask of tiles, a row of none", many((4, 2)), {"mask": mask}, {"lse": True}),
        ("ALiBi, bidirectional tiles", many((4, 2)), {"slopes": slopes, "lengths": lengths}, {"causal": False}),
        ("chunks of tiles", many((2, 1)), {}, {"chunk": 48}),
    ):
        yield replace(with_options(given, extras, **attrs), name=text)


def with_options(given: ops.Sample, extras: Mapping[str, ops.Array], **attrs: Any) -> ops.Sample:
    """Returns a sample with options and additional inputs."""
    assert given.specs is not None
    specs = (*given.specs, *(TensorSpec(a.shape, as_dtype(a.dtype)) for a in extras.values()))
    named = {"extras": " ".join(extras)} if extras else {}
    return replace(
        given, inputs=(*given.inputs, *extras.values()), specs=specs, attrs={**given.attrs, **attrs, **named}
    )


def _other_values(given: ops.Sample, v_dim: int) -> ops.Sample:
    """Returns a sample whose values have fewer columns."""
    assert given.specs is not None
    inputs, specs = list(given.inputs), list(given.specs)
    inputs[2] = np.ascontiguousarray(inputs[2][..., :v_dim])
    specs[2] = TensorSpec(inputs[2].shape, as_dtype(inputs[2].dtype))
    return replace(given, inputs=tuple(inputs), specs=tuple(specs))


def in_ring(given: ops.Sample, start: int, **attrs: Any) -> ops.Sample:
    """Returns a sample whose positions are `start` later, in a cache that is a ring."""
    inputs = list(given.inputs)
    inputs[3] = inputs[3] + np.int32(start)
    inputs[1], inputs[2] = (np.nan_to_num(x.astype(np.float32), nan=0.5).astype(x.dtype) for x in inputs[1:3])
    length = Extent("length", (1 << 31) - 1)
    extents = {length: int(inputs[3].max()) + 1}
    return with_options(
        replace(given, inputs=tuple(inputs), extents=extents, attrs={**given.attrs, "length": length}),
        {},
        ring=True,
        **attrs,
    )


def option_samples() -> Iterable[ops.Sample]:
    """Each option alone and with others, in calls of few tokens and of many."""
    rng = np.random.default_rng(21)
    few = partial(sample, "few", [(0, p) for p in range(17, 20)], heads=(4, 2), head_dim=20, dtype=f32)
    many = partial(sample, "many", [(0, p) for p in range(30, 48)] + [(1, 3)], heads=(3, 1), head_dim=16)
    far = partial(sample, "far", [(0, 300), (0, 301), (1, 40)], heads=(2, 2), head_dim=24)

    def floats(*shape: int) -> ops.Array:
        return rng.normal(size=shape).astype(np.float32)

    def named(text: str, made: ops.Sample) -> ops.Sample:
        return replace(made, name=text)

    yield named("window", with_options(many(), {}, window=7))
    least = sample("least", [(0, p) for p in range(17)], heads=(2, 1), head_dim=16)
    yield named("window, 17 tokens", with_options(least, {}, window=7))
    for text, given in (("3 tokens", few()), ("far", far())):
        sinks = {"sinks": floats(given.attrs["heads"])}
        yield named(f"window, sinks, sum, {text}", with_options(given, sinks, window=5, lse=True))
    slopes = np.exp2(-np.arange(1, 4, dtype=np.float32))
    lengths = np.array([48, 4], np.int32)
    yield named("soft cap, ALiBi", with_options(many(), {"slopes": slopes}, cap=1.5))
    both = {"slopes": slopes, "lengths": lengths}
    yield named("ALiBi, bidirectional window", with_options(many(), both, causal=False, window=20))
    yield named("chunks", with_options(many(), {}, chunk=16, window=9))
    yield named("bidirectional window", with_options(many(), {"lengths": lengths}, causal=False, window=4))
    prefix = np.array([41, 2], np.int32)
    yield named("prefix", with_options(many(), {"prefix": prefix}, window=6, lse=True))
    mask = rng.random((2, 3, 19, 48)) < 0.4
    mask[0, :, 4] = False
    yield named("boolean mask, a row of none", with_options(many(), {"mask": mask}, lse=True))
    added = floats(1, 1, 1, 48)
    added[..., 5] = -np.inf
    yield named("additive mask", with_options(many(), {"mask": added, "lengths": lengths}, causal=False))
    mask = floats(1, 4, 3, 32).astype(f16.numpy)
    yield named("values of 10, f16 mask", with_options(_other_values(few(), 10), {"mask": mask}))
    yield named("values of 32 of 40, MLA", _other_values(sample("", [(0, 33)], heads=(4, 1), head_dim=40), 32))
    yield from map(_coarse, _tiles_with_options(rng))
    yield named("a ring", in_ring(many(), 100, window=16))
    turns = sample("turns", [(0, 60), (1, 20)], heads=(2, 1), head_dim=32, form="Q8_0")
    yield named("Q8_0, window", with_options(turns, {}, window=20))
    turns = sample("turns", [(0, 60), (1, 20)], heads=(2, 1), head_dim=32, form="Q4_0", active={"tokens": 1})
    yield named("Q4_0, sinks, 1 active", with_options(turns, {"sinks": floats(2)}))
