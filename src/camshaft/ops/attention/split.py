"""Attention for few tokens: programs share out the keys of one token, a second launch merges. A variant of ops/attention.

Lanes are the 16 keys of a cache block for q K and 16 columns of the head for p V, so no sum goes across a vector. All q heads of
a group read each vector of the cache once. The order of every sum follows from shapes alone.
"""

from __future__ import annotations

from camshaft.dtypes import f32, i64
from camshaft.extent import Extent
from camshaft.lang.ir import Value
from camshaft.lang.kernel import kernel
from camshaft.lang.tiles import add_products, first_elements, greater, power_of_two, tile_of
from camshaft.lang.tracer import Array, Tracer
from camshaft.ops import op as ops
from camshaft.ops.attention.paged import Keys
from camshaft.ops.attention.registers import LOG2_E, WIDTH, register_vectors
from camshaft.ops.kv_cache_update import BLOCK_TOKENS
from camshaft.ops.spec import TensorSpec, bound

MAX_TOKENS = 8
KEYS_PER_SPLIT = 256
MAX_SPLITS = 64  # longer caches get longer splits, so that partial results stay small
LOWEST = -3.0e38


def keys_per_split(length_bound: int) -> int:
    """Keys that one program reads: a multiple of 256, so that there are at most 64 splits."""
    return KEYS_PER_SPLIT * -(-length_bound // (KEYS_PER_SPLIT * MAX_SPLITS))


@kernel
def some_keys_per_program(
    k: Tracer,
    q: Array,
    k_cache: Array,
    v_cache: Array,
    positions: Array,
    slots: Array,
    block_table: Array,
    partial: Array,
    extremes: Array,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    keys: int,
    registers: int,
) -> None:
    # over keys base .. base + n: s = scale log2(e) q K, m = max s, p = 2^(s - m); partial = p V, extremes = (m, sum p)
    token, kv_head, split = k.program(0), k.program(1), k.program(2)
    group = heads // kv_heads
    query, scores = k.scratch(f32, group, head_dim), k.scratch(f32, group, keys)
    base, last = split * keys, positions[token].to(i64)
    with k.when(base <= last):
        count = k.minimum(last + 1 - base, keys)
        mine = Keys(k, k_cache, v_cache, block_table, slots[token].to(i64), kv_head, base, count)
        for g in range(group):
            for d in range(0, head_dim, WIDTH):
                column = (kv_head * group + g) * head_dim + d
                k.store_vector(query, k.load_vector(q, token, column, width=WIDTH) * (scale * LOG2_E), g, d)
        for first in range(0, group, WIDTH // 2):
            members = range(first, min(first + WIDTH // 2, group))
            _score(mine, query, scores, members, head_dim, registers)
            for g in members:
                peak, weight = _weigh(mine, scores, g)
                head = kv_head * group + g
                extremes[token, head, split, 0] = peak
                extremes[token, head, split, 1] = weight
            _mix(mine, scores, partial, members, (token, kv_head * group, split), head_dim, registers)


def _score(keys: Keys, query: Array, scores: Array, members: range, head_dim: int, registers: int) -> None:
    """scores[g, key] = query[g] . K[key] for the heads of `members`, several blocks of keys at once."""
    k, at_once = keys.k, 1
    while at_once < 8 and 2 * at_once * len(members) <= registers:
        at_once *= 2
    for first in k.range(0, keys.n_blocks, at_once):
        # past the last block its keys are read again, and masked later
        blocks = [keys.block(k.minimum(first + i, keys.n_blocks - 1)) for i in range(at_once)]
        sums = tile_of(k, len(members), at_once, WIDTH)
        for d in k.range(head_dim):
            add_products(k, sums, [query[g, d] for g in members], [keys.keys(block, d) for block in blocks])
        for g, line in zip(members, sums, strict=True):
            for i, total in enumerate(line):
                k.store_vector(scores, total.value, g, (first + i) * WIDTH)


def _weigh(keys: Keys, scores: Array, g: int) -> tuple[Value, Value]:
    """scores[g] becomes 2^(score - greatest), 0 past the last key. Gives the greatest and the sum."""
    k = keys.k
    peaks = k.var(k.splat(LOWEST, WIDTH))
    for base in k.range(0, keys.n_blocks * WIDTH, WIDTH):
        inside = first_elements(k, keys.count - base, WIDTH)
        score = k.select(inside, k.load_vector(scores, g, base, width=WIDTH), LOWEST)
        k.store_vector(scores, score, g, base)
        peaks.set(greater(k, score, peaks.value))
    peak, weights = k.vector_max(peaks.value), k.var(k.splat(0.0, WIDTH))
    for base in k.range(0, keys.n_blocks * WIDTH, WIDTH):
        power = power_of_two(k, k.load_vector(scores, g, base, width=WIDTH) - peak)
        k.store_vector(scores, power, g, base)
        weights += power
    return peak, k.vector_sum(weights.value)


def _mix(
    keys: Keys,
    scores: Array,
    partial: Array,
    members: range,
    place: tuple[Value, Value, Value],
    head_dim: int,
    registers: int,
) -> None:
    """partial[token, head, split] = sum over keys of scores[g, key] V[key]."""
    k, (token, head, split) = keys.k, place
    step = max(1, registers // len(members))
    for first in range(0, head_dim // WIDTH, step):
        columns = [d * WIDTH for d in range(first, min(first + step, head_dim // WIDTH))]
        sums = tile_of(k, len(members), len(columns), WIDTH)
        for index in k.range(keys.n_blocks):
            block, start = keys.block(index), index * BLOCK_TOKENS
            for j in k.range(keys.in_block(index)):
                values = [keys.values(block, j, d) for d in columns]
                add_products(k, sums, [scores[g, start + j] for g in members], values)
        for g, line in zip(members, sums, strict=True):
            for d, total in zip(columns, line, strict=True):
                k.store_vector(partial, total.value, token, head + g, split, d)


@kernel
def merge_splits(
    k: Tracer, partial: Array, extremes: Array, positions: Array, out: Array, *, head_dim: int, keys: int
) -> None:
    # out = sum_i 2^(m_i - M) partial_i / sum_i 2^(m_i - M) l_i, M = max m_i
    token, head = k.program(0), k.program(1)
    n_splits = positions[token].to(i64) // keys + 1
    peak, weight = k.var(LOWEST), k.var(0.0)
    for split in k.range(n_splits):
        peak.set(greater(k, extremes[token, head, split, 0], peak.value))
    totals = [k.var(k.splat(0.0, WIDTH)) for _ in range(head_dim // WIDTH)]
    for split in k.range(n_splits):
        share = power_of_two(k, extremes[token, head, split, 0] - peak.value)
        weight += share * extremes[token, head, split, 1]
        for v, total in enumerate(totals):
            total += share * k.load_vector(partial, token, head, split, v * WIDTH, width=WIDTH)
    inverse = 1.0 / weight.value
    for v, total in enumerate(totals):
        k.store_vector(out, total.value * inverse, token, head * head_dim + v * WIDTH)


def supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Few tokens, heads of whole vectors, a group that fits the workgroup memory."""
    attrs, tokens = node.attrs, bound(node.inputs[0].shape[0])
    group, keys = attrs["heads"] // attrs["kv_heads"], keys_per_split(bound(attrs["length"]))
    if tokens > MAX_TOKENS:
        return f"takes at most {MAX_TOKENS} tokens: partial results would grow with them; got {tokens}"
    if attrs["head_dim"] % WIDTH:
        return f"takes head_dim a multiple of {WIDTH}, got {attrs['head_dim']}"
    if group * (attrs["head_dim"] + keys) * 4 > 120_000:
        return f"{group} heads of a group with {keys} keys pass the workgroup memory"
    return None


def defaults(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
    """Keys of a program and accumulators of a register tile."""
    return {"keys": keys_per_split(bound(node.attrs["length"])), "registers": register_vectors(target)}


def refusal(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> str | None:
    """Too many splits, or scores that pass the workgroup memory."""
    group, splits = node.attrs["heads"] // node.attrs["kv_heads"], -(-bound(node.attrs["length"]) // values["keys"])
    if splits > MAX_SPLITS:
        return f"{splits} splits; partial results take memory for at most {MAX_SPLITS}"
    if group * (node.attrs["head_dim"] + values["keys"]) * 4 > 120_000:
        return f"{group} heads of a group with {values['keys']} keys pass the workgroup memory"
    return None


def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    """Programs (token, kv head, split), then (token, head)."""
    return build_with(node, target, defaults(node, target))


def build_with(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> ops.Build:
    """As `build`, with a value for each tunable."""
    attrs, tokens = node.attrs, node.inputs[0].shape[0]
    length: int | Extent = attrs["length"]
    keys, head_dim = values["keys"], attrs["head_dim"]
    rows = (bound(tokens), attrs["heads"], -(-bound(length) // keys))
    partial, extremes = TensorSpec((*rows, head_dim), f32), TensorSpec((*rows, 2), f32)
    constants = {name: attrs[name] for name in ("heads", "kv_heads", "head_dim", "scale")}
    first = ops.Launch(
        some_keys_per_program,
        (*(ops.read(i) for i in range(6)), ops.scratch(0, "write"), ops.scratch(1, "write")),
        (ops.Cells(tokens), ops.Cells(attrs["kv_heads"]), ops.Cells(length, per=keys)),
        constants | {"keys": keys, "registers": values["registers"]},
    )
    second = ops.Launch(
        merge_splits,
        (ops.scratch(0, "read"), ops.scratch(1, "read"), ops.read(3), ops.write(0)),
        (ops.Cells(tokens), ops.Cells(attrs["heads"])),
        {"head_dim": head_dim, "keys": keys},
    )
    return ops.Build((first, second), (partial, extremes))


# _score takes up to 8 blocks of 16 keys at once: fewer keys have no room for what it stores.
TUNABLES = ops.Tunables(
    {"keys": (128, 256, 512, 1024, 2048), "registers": (6, 12, 16, 24)}, defaults, build_with, refusal
)
