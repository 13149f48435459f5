"""kv_cache_quantize: new tokens' keys and values into a paged cache of blocks of 32 along the head, as Q8_0 or Q4_0.

The arithmetic is GGUF's for these formats; the layout makes a vector of keys contiguous, as in kv_cache_update:
K codes [block, kv_head, head_dim, 16], V codes [block, kv_head, 16, head_dim], f16 scales of either
[block, kv_head, head_dim / 32, 16]. Q4_0 has half as many bytes of codes: byte j of 32 elements has element j in the low half and
element 16 + j in the high half.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from camshaft.dtypes import DType, f16, f32, i8, i32, i64, u8, u32
from camshaft.formats.blocks import BLOCK_FORMATS
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.attention.kv_cache_update import (
    BLOCK_TOKENS,
    cache_op,
    cell_of,
    check_places,
    heads_of,
    new_tokens,
)
from camshaft.ops.checks import partly_active
from camshaft.ops.parameters import HEAD_DIM, KV_HEADS, PLACES, RING, Parameters
from camshaft.ops.spec import TensorSpec

NAME = "kv_cache_quantize"
GROUP = 32  # elements of a head that share a scale
WIDTH = 16
NIBBLE_ZERO = 8
# block format -> dtype of codes, elements per code
FORMATS: dict[str, tuple[DType, int]] = {"Q8_0": (i8, 1), "Q4_0": (u8, 2)}


def cache_specs(name: str, n_blocks: int, kv_heads: int, head_dim: int) -> tuple[TensorSpec, ...]:
    """Returns the specs of K codes, V codes, K scales and V scales of a cache in that format."""
    dtype, per = FORMATS[name]
    stored, scales = head_dim // per, TensorSpec((n_blocks, kv_heads, head_dim // GROUP, BLOCK_TOKENS), f16)
    keys = TensorSpec((n_blocks, kv_heads, stored, BLOCK_TOKENS), dtype)
    return keys, TensorSpec((n_blocks, kv_heads, BLOCK_TOKENS, stored), dtype), scales, scales


def check_quantized(op: str, specs: Sequence[TensorSpec], kv_heads: int, head_dim: int) -> None:
    """Raises ShapeError unless the specs are K codes, V codes, K scales, V scales as above, with equal numbers of blocks."""
    ops.expect(head_dim % GROUP == 0, op, head_dim, f"head_dim a multiple of {GROUP} for a quantized cache")
    keys = specs[0]
    name = next((name for name, (dtype, _) in FORMATS.items() if dtype == keys.dtype), None)
    ops.expect(name is not None and len(keys.shape) == 4, op, keys, "K codes of i8 or u8 [blocks, kv_heads, rows, 16]")
    assert name is not None
    wanted = cache_specs(name, keys.bounds[0], kv_heads, head_dim)
    for spec, one, what in zip(specs, wanted, ("K codes", "V codes", "K scales", "V scales"), strict=True):
        ops.expect(spec == one, op, spec, f"{what} of {one}, a cache of {name}")


@kernel
def one_token_per_program(
    k: Tracer,
    k_codes: Array,
    v_codes: Array,
    k_scales: Array,
    v_scales: Array,
    keys: Array,
    values: Array,
    positions: Array,
    slots: Array,
    block_table: Array,
    *,
    kv_heads: int,
    head_dim: int,
    ring: bool = False,
) -> None:
    # per 32 elements of a head: d = max|x| / 127, q = round(x / d); or d = x / -8 for the x of largest magnitude, q = x / d +
    # 8.5
    token, encode = k.program(0), _q8_0 if k_codes.dtype == i8 else _q4_0
    block, place = cell_of(k, k_codes, (positions, slots, block_table), token, ring)
    stored = k_codes.shape[2]
    column = k.scratch(i32, stored)
    for head in k.range(k.select(block >= 0, k.const(kv_heads, i64), 0)):
        for part in range(head_dim // GROUP):
            for source, scales in ((keys, k_scales), (values, v_scales)):
                start = head * head_dim + part * GROUP
                low, high = (k.load_vector(source, token, start + h, width=WIDTH) for h in (0, WIDTH))
                scale, lines = encode(k, low, high)
                scales[block, head, part, place] = scale
                first = part * len(lines) * WIDTH
                for i, line in enumerate(lines):
                    if scales is k_scales:
                        k.store_vector(column, line, first + i * WIDTH)
                    else:
                        k.store_vector(v_codes, _as(k, line, v_codes), block, head, place, first + i * WIDTH)
        k.barrier()
        for d in k.lanes(stored):
            k.scatter(k_codes, _as(k, column[d], k_codes), block, head, d, place)
        k.barrier()


def _as(k: Tracer, code: Value, codes: Array) -> Value:
    """Converts an i32 to the dtype of the codes."""
    return code if codes.dtype == i8 else k.bitcast(code, u32)


def _inverse(k: Tracer, d: Value) -> Value:
    return k.select(d == 0.0, 0.0, 1.0 / d)


def _q8_0(k: Tracer, low: Value, high: Value) -> tuple[Value, list[Value]]:
    """Returns the scale and two vectors of codes. Ties are rounded away from 0."""
    # magnitudes compare as integers: a NaN is the largest
    sizes = [k.bitcast(x, i32) & 0x7FFFFFFF for x in (low, high)]
    d = k.bitcast(k.vector_max(k.maximum(*sizes)), f32) / 127.0
    inverse, lines = k.splat(_inverse(k, d), WIDTH), []
    for x in (low, high):
        scaled = x * inverse
        size = k.abs(scaled)
        whole = k.floor(size)
        code = (whole + k.floor((size - whole) * 2.0)).to(i32)
        lines.append(k.select(scaled < 0.0, 0 - code, code))
    return d, lines


def _q4_0(k: Tracer, low: Value, high: Value) -> tuple[Value, list[Value]]:
    """Returns the scale and one vector of bytes."""
    bits = [k.bitcast(x, i32) for x in (low, high)]
    sizes = [b & 0x7FFFFFFF for b in bits]
    greatest = k.splat(k.vector_max(k.maximum(*sizes)), WIDTH, i32)
    # the first element of largest magnitude gives the sign: 2 (its index from the end) + (1 if negative), 0 for all others
    ranks = []
    for half, (b, size) in enumerate(zip(bits, sizes, strict=True)):
        place = k.splat(2 * (GROUP - half * WIDTH), WIDTH, i32) - 2 * k.iota(WIDTH, i32)
        ranks.append(k.select(size == greatest, place + ((b >> 31) & 1), k.splat(0, WIDTH, i32)))
    negative = k.vector_max(k.maximum(*ranks)) & 1
    size = k.bitcast(k.element(greatest, 0), f32)
    d = k.select(negative == 1, size, -size) * 0.125
    inverse = k.splat(_inverse(k, d), WIDTH)
    codes = [k.minimum(k.fma(x, inverse, NIBBLE_ZERO + 0.5).to(i32), k.splat(15, WIDTH, i32)) for x in (low, high)]
    return d, [codes[0] | (codes[1] << 4)]


def encode(values: ops.Array, name: str) -> tuple[ops.Array, ops.Array]:
    """Quantizes float32 [..., head_dim] with the formats' encoders. Returns codes (Q8_0: int8 [..., head_dim], Q4_0: uint8
    [..., head_dim / 2]) and f16 scales [..., head_dim / 32]. The scale of a group with a NaN is NaN."""
    block = BLOCK_FORMATS[name]
    groups = values.astype(np.float32).reshape(-1, GROUP)
    good = np.asarray(np.isfinite(groups).all(axis=-1))
    records = block.records(block.quantize(np.where(good[:, None], groups, np.float32(0))))
    codes = records["qs"].reshape(*values.shape[:-1], -1)
    scales = np.where(good, records["d"], np.float16(np.nan)).reshape(*values.shape[:-1], -1)
    return codes, scales


def decode(codes: ops.Array, scales: ops.Array) -> ops.Array:
    """Dequantizes codes and scales from `encode` to float64 [..., head_dim]."""
    if codes.dtype == np.int8:
        wide = codes.astype(np.float64).reshape(*scales.shape, GROUP)
    else:
        pairs = codes.reshape(*scales.shape, GROUP // 2)
        wide = np.concatenate([pairs & 15, pairs >> 4], -1).astype(np.float64) - NIBBLE_ZERO
    return (wide * scales.astype(np.float64)[..., None]).reshape(*scales.shape[:-1], -1)


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 9, NAME, specs, "K and V codes, K and V scales, k, v, positions, slots, block_table")
    kv_heads, head_dim = heads_of(NAME, specs[4:6], attrs)
    check_quantized(NAME, specs[:4], kv_heads, head_dim)
    check_places(NAME, specs[4], *specs[6:])
    return ()


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    caches, (keys, values, positions, slots, table) = [c.copy() for c in inputs[:4]], inputs[4:]
    k_codes, v_codes, k_scales, v_scales = caches
    name = "Q8_0" if k_codes.dtype == np.int8 else "Q4_0"
    shape = attrs["kv_heads"], attrs["head_dim"]
    for k_row, v_row, position, slot in zip(keys, values, positions, slots, strict=True):
        block, place = table[slot, position // BLOCK_TOKENS % table.shape[1]], position % BLOCK_TOKENS
        k_codes[block, :, :, place], k_scales[block, :, :, place] = encode(k_row.reshape(shape), name)
        v_codes[block, :, place], v_scales[block, :, :, place] = encode(v_row.reshape(shape), name)
    return tuple(caches)


def _sample(name: str, form: str, heads: int, head_dim: int, places: Sequence[tuple[int, int]]) -> ops.Sample:
    rng = np.random.default_rng(3)
    caches = [
        rng.integers(0, 100, spec.bounds).astype(spec.parts[0].dtype.numpy)
        for spec in cache_specs(form, 7, heads, head_dim)
    ]
    keys, values, *where = new_tokens(rng, heads, head_dim, places)
    keys[0, :GROUP] = 0
    values[-1, :GROUP] = np.tile([1.0, -1.0], GROUP // 2)  # the first of equal magnitude gives the sign
    return ops.Sample(name, (*caches, keys, values, *where), {"kv_heads": heads, "head_dim": head_dim})


def _samples() -> Iterable[ops.Sample]:
    for form in FORMATS:
        yield _sample(f"one token, {form}", form, 3, 64, [(1, 47)])
        yield _sample(f"a run over two blocks, {form}", form, 1, 96, [(0, p) for p in range(13, 20)])
        yield _sample(f"two sequences in turn, {form}", form, 2, 32, [(0, 15), (1, 0), (0, 16), (1, 1)])
    first = _sample("a ring of 48, Q8_0", "Q8_0", 2, 32, [(1, 47), (0, 50), (1, 101)])
    yield replace(first, attrs={**first.attrs, "ring": True})
    full = _sample("5 of 9 tokens", "Q8_0", 2, 64, [(1, p) for p in range(9)])
    yield partly_active(full, 5, fixed=(0, 1, 2, 3, 8))


def _error_samples() -> Iterable[ops.ErrorSample]:
    caches = cache_specs("Q4_0", 4, 2, 32)
    new, index, table = TensorSpec((3, 64), f32), TensorSpec((3,), i32), TensorSpec((1, 4), i32)
    attrs = {"kv_heads": 2, "head_dim": 32}
    yield ops.ErrorSample((*caches[:2], caches[0], caches[3], new, new, index, index, table), attrs, "wanted K scales")
    yield ops.ErrorSample((*caches, new, index, index, index, table), attrs, "wanted k and v of f32")
    wide = TensorSpec((3, 96), f32)
    yield ops.ErrorSample((*caches, wide, wide, index, index, table), attrs | {"head_dim": 48}, "multiple of 32")
    yield ops.ErrorSample((*caches, new, new, table, index, table), attrs, "wanted positions")
    yield ops.ErrorSample((new, *caches[1:], new, new, index, index, table), attrs, "wanted K codes of i8 or u8")


OP = cache_op(
    4,
    one_token_per_program,
    name=NAME,
    formula="as kv_cache_update, each 32 of a head as d q: Q8_0 or Q4_0",
    parameters=Parameters(f"k_codes v_codes k_scales v_scales k v {PLACES}", (KV_HEADS, HEAD_DIM, RING), results=0),
    infer=_infer,
    reference=_reference,
    samples=_samples,
    error_samples=_error_samples,
    nbytes=lambda node: 1.3 * sum(s.nbytes for s in node.inputs[4:6]),
)
