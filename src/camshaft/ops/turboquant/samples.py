"""Samples of turboquant_attention: those of attention with the cache in codes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from camshaft.dtypes import as_dtype, f32
from camshaft.ops import op as ops
from camshaft.ops.masked.samples import sample, with_options
from camshaft.ops.spec import TensorSpec
from camshaft.ops.turboquant.codes import encode
from camshaft.ops.turboquant.lloyd_max import centroids


def _sample(name: str, places: Sequence[tuple[int, int]], bits: tuple[int, int], **sizes: Any) -> ops.Sample:
    """A sample of attention with the cache in codes of `bits` (K, V); 0 for K: f16. Unused rows are 0."""
    plain = sample(name, places, dtype=f32, **sizes)
    q, k_cache, v_cache, *where = plain.inputs
    k_cache, v_cache = np.nan_to_num(k_cache), np.nan_to_num(v_cache)
    rng = np.random.default_rng(61)
    signs = rng.choice(np.array([-1, 1], np.float32), v_cache.shape[3])
    tables = [centroids(n or 1).astype(np.float32) for n in bits]
    v_codes, v_norms = encode(v_cache, signs, tables[1])
    parts = [v_norms[..., None].astype(np.float32), tables[1], signs]
    keys = k_cache.astype(np.float16)
    if bits[0]:
        keys, k_norms = encode(k_cache.swapaxes(2, 3), signs, tables[0])
        keys = np.ascontiguousarray(keys.swapaxes(2, 3))
        parts = [k_norms[:, :, None].astype(np.float32), parts[0], *tables, signs]
    arrays = (q, keys, v_codes, *where, *parts)
    assert plain.specs is not None
    specs = (plain.specs[0], *(TensorSpec(a.shape, as_dtype(a.dtype)) for a in arrays[1:3]), *plain.specs[3:6])
    specs += tuple(TensorSpec(a.shape, f32) for a in parts)
    return ops.Sample(name, arrays, plain.attrs, specs, plain.extents)


def samples() -> Iterable[ops.Sample]:
    two = [(0, 40), (1, 3)]
    yield _sample("one key, 6 bits", [(0, 0)], (6, 6), heads=(1, 1), head_dim=8)
    many = _sample("4 bits, 18 tokens, sinks", [(0, p) for p in range(20, 38)], (4, 4), heads=(4, 2), head_dim=16)
    yield with_options(many, {"sinks": np.array([0.5, -1, 2, 0], np.float32)}, lse=True)
    yield _sample("5 and 8 bits, far", [(0, 300)], (5, 8), heads=(2, 1), head_dim=32)
    yield with_options(_sample("hybrid, window", two, (0, 4), heads=(4, 2), head_dim=16), {}, window=12)


def error_samples() -> Iterable[ops.ErrorSample]:
    given = _sample("", [(0, 3)], (4, 4), heads=(4, 2), head_dim=16)
    assert given.specs is not None
    specs, attrs = given.specs, given.attrs
    yield ops.ErrorSample(specs[:-1], attrs, "wanted q, k_cache")
    yield ops.ErrorSample(specs, {**attrs, "scale": None}, "wanted a scale")
    yield ops.ErrorSample((*specs[:8], TensorSpec((32,), f32), *specs[9:]), attrs, "wanted k_cache")
    yield ops.ErrorSample((*specs[:7], specs[6], *specs[8:]), attrs, "wanted V norms")
    yield ops.ErrorSample((*specs[:10], TensorSpec((8,), f32)), attrs, "signs of f32")
