"""The variant of attention for few tokens on GPUs: a workgroup's threads share a split of a token's keys, then splits are merged.

The kernels are in split_kernels.py and merge.py. Up to four q heads of a group share a program, and with it what it reads of
the cache. Each token is computed by itself.
"""

from __future__ import annotations

from dataclasses import asdict

from camshaft.dtypes import f32
from camshaft.ops import op as ops
from camshaft.ops.attention import split
from camshaft.ops.attention.paged import is_quantized, reads
from camshaft.ops.attention.threads.merge import merge_by_columns
from camshaft.ops.attention.threads.split_kernels import TILE, Shape, tiles_of_keys_per_program
from camshaft.ops.kernels.launch import without_threads, workgroup_nbytes
from camshaft.ops.spec import TensorSpec, bound

# Of a workgroup: 4 threads a key, 2 for heads of up to 64 columns, 1 where neither divides a head.
THREADS = (256, 128, 64)
MOST_MEMBERS = 4  # q heads of a program; with 8, ptxas spills registers
# split_keys took 64 us a launch on an H200, with 9/3 heads of 64 and 250 keys: 3 workgroups of 16 threads, which wait for
# hundreds of loads in turn. Here a thread waits for a position, a block's number, and keys with values.
SPEEDUP = 16.0


def _shape(node: ops.NodeSpec) -> Shape:
    """Returns a program's sizes: as many slices as divide a head, and the q heads of a group in even parts."""
    heads, kv_heads, head_dim = (node.attrs[name] for name in ("heads", "kv_heads", "head_dim"))
    most = THREADS[head_dim <= TILE]
    threads = next(n for n in THREADS if n <= most and head_dim % (n // TILE) == 0)
    keys = TILE * max(1, -(-bound(node.attrs["length"]) // (TILE * split.MAX_SPLITS)))
    group = heads // kv_heads
    return Shape(heads, kv_heads, head_dim, keys, threads, -(-group // -(-group // MOST_MEMBERS)))


def _supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why the variant does not support the node, or None for few tokens on a device of threads."""
    if (reason := without_threads(target) or split.few_tokens(node)) is not None:
        return reason
    if is_quantized(node):
        return f"takes a cache of f32, f16 or bf16; got codes, {node.inputs[1].dtype}"
    shape = _shape(node)
    if shape.head_dim > shape.threads:
        return f"takes heads of at most {shape.threads} columns, a thread each; got {shape.head_dim}"
    if shape.scratch_nbytes > workgroup_nbytes(target):
        return f"wants {shape.scratch_nbytes} bytes of workgroup memory; got {workgroup_nbytes(target)}"
    return None


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    """Builds a launch with programs (token, part of a group, split), then one with programs (token, head)."""
    attrs, tokens, shape = node.attrs, node.inputs[0].shape[0], _shape(node)
    rows = (bound(tokens), shape.heads, -(-bound(attrs["length"]) // shape.keys))
    # The number of splits is the bound's: reading the active length first would be another wait. Unused programs end early.
    first = ops.Launch(
        tiles_of_keys_per_program,
        (*reads(node), ops.scratch(0, "write")),
        (ops.Cells(tokens), ops.Cells(shape.kv_heads * shape.parts), ops.Cells(rows[2])),
        {"scale": attrs["scale"], **asdict(shape)},
        lanes=shape.threads,
    )
    second = ops.Launch(
        merge_by_columns,
        (ops.scratch(0, "read"), ops.read(3), ops.write(0)),
        (ops.Cells(tokens), ops.Cells(shape.heads)),
        {"head_dim": shape.head_dim, "keys": shape.keys, "threads": THREADS[0]},
        lanes=THREADS[0],
    )
    return ops.Build((first, second), (TensorSpec((*rows, shape.head_dim + 2), f32),))


def _cost(node: ops.NodeSpec, target: ops.Target) -> float:
    return split.VARIANT.cost(node, target) / SPEEDUP


VARIANT = ops.KernelVariant("split_threads", ops.GPUS, _build, _supports, _cost)
