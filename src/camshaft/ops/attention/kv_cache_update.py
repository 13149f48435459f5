"""kv_cache_update: writes the keys and values of new tokens into the paged cache, in place.

K has the layout [block, kv_head, head_dim, 16], so that a vector of keys is contiguous, V [block, kv_head, 16, v_dim]. A block
has 16 tokens of one sequence: the token at position p of slot s has index p % 16 in block block_table[s, p // 16], with `ring` in
block block_table[s, (p // 16) % max_blocks]. Caches of floats take f32, caches of bytes (codes of turboquant_encode) bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from camshaft.dtypes import DType, bf16, f16, f32, i32, i64, u8
from camshaft.lang import Array, Kernel, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import partly_active
from camshaft.ops.gradient import IN_PLACE
from camshaft.ops.parameters import HEAD_DIM, KV_HEADS, PLACES, RING, Parameters
from camshaft.ops.spec import Dim, TensorSpec

BLOCK_TOKENS = 16


@kernel
def one_token_per_program(
    k: Tracer,
    k_cache: Array,
    v_cache: Array,
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
    # K[block, h, d, place] = k[t, h, d]; V[block, h, place, d] = v[t, h, d]
    token, v_dim = k.program(0), int(v_cache.shape[3])
    block, place = cell_of(k, k_cache, (positions, slots, block_table), token, ring)
    for head in k.range(k.select(block >= 0, k.const(kv_heads, i64), 0)):
        for d in k.lanes(head_dim):
            k.scatter(k_cache, keys[token, head * head_dim + d], block, head, d, place)
            if v_dim == head_dim:
                v_cache[block, head, place, d] = values[token, head * head_dim + d]
        if v_dim != head_dim:
            for d in k.lanes(v_dim):
                v_cache[block, head, place, d] = values[token, head * v_dim + d]


def cell_of(
    k: Tracer, cache: Array, where: tuple[Array, Array, Array], token: Value, ring: bool
) -> tuple[Value, Value]:
    """Returns the cache's block of a new token, as block_of, and the place in it. `where`: positions, slots and the block table;
    of a `ring` the slot's blocks are used in turn."""
    positions, slots, table = where
    position = positions[token].to(i64)
    index = position // BLOCK_TOKENS % int(table.shape[1]) if ring else position // BLOCK_TOKENS
    return block_of(k, cache, slots[token], index, position, table), position % BLOCK_TOKENS


def block_of(k: Tracer, cache: Array, slot: Value, index: Value, position: Value, table: Array) -> Value:
    """Returns the cache's block at table[slot, index], or -1 where the position, slot or block is out of bounds: positions that
    a graph computes are not checked before the kernel runs."""
    slots, blocks = (int(n) for n in table.shape)
    inside = (position >= 0) & (index < blocks) & (slot >= 0) & (slot < slots)
    block = table[k.select(inside, slot, 0), k.select(inside, index, 0)].to(i64)
    return k.select(inside & (block >= 0) & (block < int(cache.shape[0])), block, -1)


def check_cache(
    op: str, specs: Sequence[TensorSpec], kv_heads: int, head_dim: int, dtypes: tuple[DType, ...] = (f16, bf16, f32)
) -> int:
    """Returns the head size of values. ShapeError unless the specs are k_cache and v_cache in the layout above, of one dtype
    where both are floats."""
    k_cache, v_cache = specs
    n_blocks = k_cache.shape[0] if len(k_cache.shape) == 4 else "n_blocks"
    v_dim = next((d for d in v_cache.shape[3:4] if isinstance(d, int)), head_dim)
    both_floats = u8 not in (k_cache.dtype, v_cache.dtype)
    names = " or ".join(", ".join(d.name for d in dtypes).rsplit(", ", 1))
    for spec, shape, name in (
        (k_cache, (n_blocks, kv_heads, head_dim, BLOCK_TOKENS), "k_cache"),
        (v_cache, (n_blocks, kv_heads, BLOCK_TOKENS, v_dim), "v_cache"),
    ):
        wanted = f"{name} of {names} [{', '.join(map(str, shape))}], like the other cache"
        fits = spec.is_plain and spec.dtype in dtypes and (spec.dtype == k_cache.dtype or not both_floats)
        ops.expect(fits and spec.shape == shape and 0 not in spec.bounds, op, spec, wanted)
    return v_dim


def place_limits(first: int, cache: int) -> dict[int, Callable[[ops.NodeSpec], Dim]]:
    """Returns the index limits of positions, slots and block table, which are inputs `first` to `first` + 2. `cache` is the
    index of the input k_cache. A ring has no largest position."""
    return {
        first: lambda node: (
            (1 << 31) - 1 if node.attrs.get("ring") else node.inputs[first + 2].bounds[1] * BLOCK_TOKENS
        ),
        first + 1: lambda node: node.inputs[first + 2].bounds[0],
        first + 2: lambda node: node.inputs[cache].bounds[0],
    }


def typical_places(first: int, cache: int) -> Callable[[ops.NodeSpec], dict[int, ops.Array]]:
    """Returns positions, slots and block table for measurements, as inputs `first` to `first` + 2: consecutive tokens of
    slot 0, up to the middle of the context if they fit, and a table with every block once."""

    def places(node: ops.NodeSpec) -> dict[int, ops.Array]:
        tokens, (n_slots, blocks) = node.inputs[first].bounds[0], node.inputs[first + 2].bounds
        start = max(0, blocks * BLOCK_TOKENS // 2 - tokens)
        table = np.arange(n_slots * blocks, dtype=np.int32).reshape(n_slots, blocks) % node.inputs[cache].bounds[0]
        positions = np.minimum(start + np.arange(tokens, dtype=np.int32), blocks * BLOCK_TOKENS - 1)
        return {first: positions, first + 1: np.zeros(tokens, np.int32), first + 2: table}

    return places


def check_places(op: str, tokens: TensorSpec, positions: TensorSpec, slots: TensorSpec, table: TensorSpec) -> None:
    """Raises ShapeError unless positions and slots are i32 [T] and the block table is i32 [n_slots, max_blocks]."""
    rows = tokens.shape[0]
    for spec, name in ((positions, "positions"), (slots, "slots")):
        ops.expect(spec.is_plain and spec.dtype == i32 and spec.shape == (rows,), op, spec, f"{name} of i32 [{rows}]")
    good = table.is_plain and table.dtype == i32 and len(table.shape) == 2
    ops.expect(good, op, table, "block_table of i32 [n_slots, max_blocks]")


def heads_of(op: str, keys_and_values: Sequence[TensorSpec], attrs: ops.Attrs) -> tuple[int, int]:
    """Returns (kv_heads, head_dim). ShapeError unless both are above 0 and k and v are f32 [T, kv_heads * head_dim]."""
    kv_heads, head_dim = attrs.get("kv_heads", 0), attrs.get("head_dim", 0)
    ops.expect(kv_heads > 0 and head_dim > 0, op, (kv_heads, head_dim), "kv_heads and head_dim above 0")
    for spec in keys_and_values:
        good = spec.is_plain and spec.dtype == f32 and spec.shape == (keys_and_values[0].shape[0], kv_heads * head_dim)
        ops.expect(good, op, spec, f"k and v of f32 [T, {kv_heads * head_dim}]")
    return kv_heads, head_dim


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    name = "kv_cache_update"
    ops.expect(len(specs) == 7, name, specs, "k_cache, v_cache, k, v, positions, slots, block_table")
    kv_heads, head_dim = attrs.get("kv_heads", 0), attrs.get("head_dim", 0)
    ops.expect(kv_heads > 0 and head_dim > 0, name, (kv_heads, head_dim), "kv_heads and head_dim above 0")
    v_dim = check_cache(name, specs[:2], kv_heads, head_dim, (f16, bf16, f32, u8))
    for cache, new, size in zip(specs[:2], specs[2:4], (head_dim, v_dim), strict=True):
        wanted = TensorSpec(
            (specs[2].shape[0] if specs[2].shape else 1, kv_heads * size), u8 if cache.dtype == u8 else f32
        )
        ops.expect(new == wanted, name, new, f"k and v of {wanted.dtype} [T, {kv_heads * size}]")
    check_places(name, specs[2], *specs[4:])
    return ()


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    k_cache, v_cache, keys, values, positions, slots, table = inputs
    k_cache, v_cache = k_cache.copy(), v_cache.copy()
    for k_row, v_row, position, slot in zip(keys, values, positions, slots, strict=True):
        block, place = table[slot, position // BLOCK_TOKENS % table.shape[1]], position % BLOCK_TOKENS
        heads = attrs["kv_heads"]
        k_cache[block, :, :, place] = k_row.reshape(heads, -1).astype(k_cache.dtype)
        v_cache[block, :, place] = v_row.reshape(heads, -1).astype(v_cache.dtype)
    return k_cache, v_cache


def cache_op(n_caches: int, kernel: Kernel, **fields: Any) -> ops.Op:
    """Returns an op that writes new tokens into its first `n_caches` inputs. `kernel` takes a token per program; k, v,
    positions, slots and the block table follow the caches. `fields` are the other fields of Op."""
    reads = range(n_caches, n_caches + 5)

    def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
        arrays = (*(ops.update(i) for i in range(n_caches)), *(ops.read(i) for i in reads))
        constants = {name: node.attrs[name] for name in ("kv_heads", "head_dim")}
        if node.attrs.get("ring"):
            constants["ring"] = True
        return ops.Build((ops.Launch(kernel, arrays, (ops.Cells(node.inputs[n_caches].shape[0]),), constants),))

    return ops.Op(
        variants=(ops.KernelVariant(kernel.name, ops.EVERYWHERE, build),),
        indexes=place_limits(n_caches + 2, cache=0),
        workload=typical_places(n_caches + 2, cache=0),
        tolerance={},
        updates=tuple(range(n_caches)),
        vjp=IN_PLACE,
        **fields,
    )


def new_tokens(
    rng: np.random.Generator, heads: int, head_dim: int, places: Sequence[tuple[int, int]]
) -> tuple[ops.Array, ...]:
    """Returns k, v, positions, slots and block table of a sample with tokens at `places` (slot, position): two slots of three
    blocks each, in mixed order, in a cache of 7 blocks."""
    keys, values = (rng.normal(size=(len(places), heads * head_dim)).astype(np.float32) for _ in range(2))
    where = np.array(places, np.int32)
    return keys, values, where[:, 1].copy(), where[:, 0].copy(), np.array([[4, 0, 6], [1, 5, 2]], np.int32)


def _sample(name: str, dtype: DType, heads: int, head_dim: int, places: Sequence[tuple[int, int]]) -> ops.Sample:
    rng = np.random.default_rng(3)
    shape = (7, heads, head_dim, BLOCK_TOKENS)
    k_cache, v_cache = rng.normal(size=shape), rng.normal(size=shape).transpose(0, 1, 3, 2)
    caches = [np.ascontiguousarray(c).astype(dtype.numpy) for c in (k_cache, v_cache)]
    arrays = (*caches, *new_tokens(rng, heads, head_dim, places))
    return ops.Sample(name, arrays, {"kv_heads": heads, "head_dim": head_dim})


def _samples() -> Iterable[ops.Sample]:
    yield _sample("one token, f16", f16, 3, 64, [(1, 47)])
    yield _sample("a run over two blocks, bf16", bf16, 1, 17, [(0, p) for p in range(13, 20)])
    yield _sample("two sequences in turn, f32", f32, 2, 15, [(0, 15), (1, 0), (0, 16), (1, 1)])
    first = _sample("a ring of 48, f16", f16, 1, 20, [(1, 47), (0, 50), (1, 101)])
    yield replace(first, attrs={**first.attrs, "ring": True})
    k_cache, v_cache, *others = _sample("other values", f16, 2, 18, [(1, 47), (0, 3)]).inputs
    others[1] = np.ascontiguousarray(others[1].reshape(2, 2, 18)[:, :, :10].reshape(2, 20))
    yield ops.Sample("values of 10", (k_cache, v_cache[..., :10].copy(), *others), {"kv_heads": 2, "head_dim": 18})
    codes = np.arange(7 * 2 * 18 * 16).reshape(k_cache.shape).astype(np.uint8)
    others[0] = np.arange(72).astype(np.uint8).reshape(2, 36)
    yield ops.Sample("codes of K", (codes, v_cache[..., :10].copy(), *others), {"kv_heads": 2, "head_dim": 18})
    full = _sample("5 of 9 tokens, odd head", f16, 2, 33, [(1, p) for p in range(9)])
    yield partly_active(full, 5, fixed=(0, 1, 6))


def _error_samples() -> Iterable[ops.ErrorSample]:
    k_cache, v_cache = TensorSpec((4, 2, 8, 16), f16), TensorSpec((4, 2, 16, 8), f16)
    new, index, table = TensorSpec((3, 16), f32), TensorSpec((3,), i32), TensorSpec((1, 4), i32)
    attrs = {"kv_heads": 2, "head_dim": 8}
    yield ops.ErrorSample((k_cache, k_cache, new, new, index, index, table), attrs, "wanted v_cache")
    yield ops.ErrorSample((k_cache, v_cache, new, index, index, index, table), attrs, "wanted k and v of f32")
    yield ops.ErrorSample((k_cache, v_cache, new, new, table, index, table), attrs, "wanted positions")
    yield ops.ErrorSample((k_cache, v_cache, new, new, index, index, index), attrs, "wanted block_table")
    yield ops.ErrorSample((k_cache, v_cache, new, new, index, index, table), {}, "wanted kv_heads")


OP = cache_op(
    2,
    one_token_per_program,
    name="kv_cache_update",
    formula="K[table[s, p // 16], :, :, p % 16] = k; V[table[s, p // 16], :, p % 16] = v",
    parameters=Parameters(f"k_cache v_cache k v {PLACES}", (KV_HEADS, HEAD_DIM, RING), results=0),
    infer=_infer,
    reference=_reference,
    samples=_samples,
    error_samples=_error_samples,
    nbytes=lambda node: 1.5 * sum(s.nbytes for s in node.inputs[2:4]),
)
