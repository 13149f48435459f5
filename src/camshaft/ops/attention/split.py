"""The variant of attention for few tokens: the keys of a token are split among programs, and a second launch merges.

The kernels are in split_kernels.py; this file chooses the size of a split for a machine.
"""

from __future__ import annotations

from dataclasses import asdict, replace

from camshaft.dtypes import f32
from camshaft.extent import Extent
from camshaft.ops import op as ops
from camshaft.ops.attention.kv_cache_update import BLOCK_TOKENS
from camshaft.ops.attention.paged import caches, is_quantized, multiply_adds, reads, register_vectors, without_options
from camshaft.ops.attention.split_kernels import MOST_MEMBERS, Shape, merge_splits, some_keys_per_program
from camshaft.ops.attention.tiled_steps import divisors
from camshaft.ops.kernels.launch import has_threads
from camshaft.ops.spec import TensorSpec, bound

MAX_TOKENS = 16
MAX_SPLITS = 64  # longer caches get longer splits, so that partial results stay small
STEP = 128  # a split's keys are a multiple of this: on a GPU 8 blocks are scored at once
MAX_SCRATCH_NBYTES = 120_000
# Bytes of keys and values per program on a CPU: enough for prefetching, and few enough that every worker has some.
SPLIT_NBYTES = 192 << 10
# Prefetch distance: hardware prefetching stops at page ends. One core of Emerald Rapids with 9/3 heads of 64 and 4096 keys takes
# 350 us instead of 470 with f16, 195 instead of 300 with q8_0, 150 instead of 200 with q4_0; of 4, 8 and 16 KB, 8 is the best.
AHEAD_NBYTES = 8192
CHAINS = 4  # a multiply-add has a latency of 4 cycles, and 1 or 2 start per cycle
RATE = 40.0  # multiply-adds per ns, measured on one core of a Zen 4 server (its peak is 59)


def keys_per_split(length_bound: int, wanted: int) -> int:
    """Returns the keys of one program: `wanted`, or more to have at most 64 splits; a multiple of 128."""
    return STEP * max(1, wanted // STEP, -(-length_bound // (STEP * MAX_SPLITS)))


def _shape_of(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> Shape:
    """Returns a program's sizes, with as many q heads of a group together as fit, or one if none do."""
    group = node.attrs["heads"] // node.attrs["kv_heads"]
    found = [replace(_shape(node, target, values, parts), parts=parts) for parts in divisors(group)]
    return next((shape for shape in found if shape.scratch_nbytes <= MAX_SCRATCH_NBYTES), found[-1])


def _shape(node: ops.NodeSpec, target: ops.Target, values: ops.Values, parts: int) -> Shape:
    """Returns the sizes for a group in parts. CPU: as many kv heads as fit, block by block. GPU: one head, 8 blocks at once."""
    attrs, keys, registers = node.attrs, values["keys"], values["registers"]
    sizes = attrs["heads"], attrs["kv_heads"] * parts, attrs["head_dim"], keys
    v_dim = node.outputs[0].bounds[1] // attrs["heads"]
    tiles = max(1, registers // min(sizes[0] // sizes[1], MOST_MEMBERS))
    if has_threads(target):
        return Shape(
            *sizes, 1, max(n for n in (1, 2, 4, 8) if n <= tiles), 1, keys // BLOCK_TOKENS, registers, 0, v_dim
        )
    chains = min(tiles, CHAINS, sizes[2])
    if is_quantized(node):
        chains = 1 << (chains.bit_length() - 1)
    one = Shape(*sizes, 1, 1, chains, 1, registers, AHEAD_NBYTES, v_dim)
    fits = [n for n in range(1, sizes[1] + 1) if sizes[1] % n == 0 and n * one.scratch_nbytes <= MAX_SCRATCH_NBYTES]
    return replace(one, together=max(fits, default=1) if parts == 1 else 1)


def _supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why the variant does not support the node, or None for few tokens and a group that fits the workgroup memory."""
    return few_tokens(node) or _refusal(node, target, _defaults(node, target))


def few_tokens(node: ops.NodeSpec) -> str | None:
    """Returns why a node is not causal attention of at most MAX_TOKENS tokens without options, or None."""
    if (reason := without_options(node)) is not None:
        return reason
    tokens = bound(node.inputs[0].shape[0])
    return f"takes at most {MAX_TOKENS} tokens; got {tokens}" if tokens > MAX_TOKENS else None


def _defaults(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
    return _values(node, target, bound(node.attrs["length"]))


def _values(node: ops.NodeSpec, target: ops.Target, n_keys: int) -> ops.Values:
    """Returns the default keys of a program and accumulators of a register tile, for tokens that see `n_keys` keys."""
    key_nbytes = sum(part.nbytes // (part.bounds[0] * BLOCK_TOKENS) for part in caches(node))
    wanted = 2 * STEP if has_threads(target) else min(4 * STEP, SPLIT_NBYTES // key_nbytes)
    return {"keys": keys_per_split(n_keys, wanted), "registers": register_vectors(target)}


def shape_for(node: ops.NodeSpec, target: ops.Target, n_keys: int) -> Shape:
    """Returns a program's default sizes for tokens that see `n_keys` keys."""
    return _shape_of(node, target, _values(node, target, n_keys))


def _refusal(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> str | None:
    """Returns why the values do not fit, or None: too many splits, or scores larger than the workgroup memory."""
    splits = -(-bound(node.attrs["length"]) // values["keys"])
    if splits > MAX_SPLITS:
        return f"{splits} splits; partial results take memory for at most {MAX_SPLITS}"
    return refusal_of(_shape_of(node, target, values))


def refusal_of(shape: Shape) -> str | None:
    """Returns why a program does not fit the workgroup memory, or None."""
    if shape.scratch_nbytes > MAX_SCRATCH_NBYTES:
        return f"{shape.group} heads of a group with {shape.keys} keys exceed the workgroup memory"
    return None


def _build(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> ops.Build:
    """Builds a launch with programs (token, kv heads, split), then one with programs (token, head)."""
    attrs, tokens, shape = node.attrs, node.inputs[0].shape[0], _shape_of(node, target, values)
    length: int | Extent = attrs["length"]
    rows = (bound(tokens), shape.heads, -(-bound(length) // shape.keys))
    partial, extremes = TensorSpec((*rows, shape.padded), f32), TensorSpec((*rows, 2), f32)
    first = ops.Launch(
        some_keys_per_program,
        (*reads(node), ops.scratch(0, "write"), ops.scratch(1, "write")),
        (ops.Cells(tokens), ops.Cells(shape.kv_heads // shape.together), ops.Cells(length, per=shape.keys)),
        {"scale": attrs["scale"], **asdict(shape)},
    )
    second = ops.Launch(
        merge_splits,
        (ops.scratch(0, "read"), ops.scratch(1, "read"), ops.read(3), ops.write(0)),
        (ops.Cells(tokens), ops.Cells(shape.heads)),
        {"head_dim": shape.head_dim, "keys": shape.keys},
    )
    return ops.Build((first, second), (partial, extremes))


def _cost(node: ops.NodeSpec, target: ops.Target) -> float:
    return multiply_adds(node) / RATE


_TUNABLES = ops.Tunables(
    {"keys": (128, 256, 384, 512, 1024, 2048), "registers": (6, 12, 16, 24)}, _defaults, _build, _refusal
)
VARIANT = ops.KernelVariant("split_keys", ops.VECTORS, _TUNABLES.build_default, _supports, _cost, _TUNABLES)
