"""The variant of attention for prompts: a tile of tokens times tiles of keys with online softmax.

The kernels are in tiled_kernels.py and tiled_steps.py; this file chooses the size of a tile for a machine.
"""

from __future__ import annotations

from dataclasses import asdict

from camshaft.extent import Extent
from camshaft.ops import op as ops
from camshaft.ops.attention.paged import is_quantized
from camshaft.ops.attention.registers import register_vectors
from camshaft.ops.attention.tiled_kernels import one_quantized_tile_per_program, one_tile_per_program
from camshaft.ops.attention.tiled_steps import BLOCK_ROWS, Shape
from camshaft.ops.kernels.target import has_threads, workgroup_nbytes

# Rows and keys of tiles; the first that fits is used. More scores first, then more rows, because a tile reads each key once.
TILES = sorted(((r, c) for r in (48, 36, 24, 12) for c in (64, 32, 16)), key=lambda n: (-n[0] * n[1], -n[0]))
MAX_SCRATCH_NBYTES = 128_000
# Bytes of a GPU's workgroup memory through which 16 threads exchange values.
EXCHANGE_NBYTES = 256


def shape_of(node: ops.NodeSpec, target: ops.Target) -> Shape:
    """Returns the tile's default sizes, about 48 rows on a CPU."""
    return _shape(node, target, defaults(node, target))


def _shape(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> Shape:
    attrs = node.attrs
    tokens = max(1, values["tile_rows"] * attrs["kv_heads"] // attrs["heads"])
    sizes = attrs["heads"], attrs["kv_heads"], attrs["head_dim"]
    unpacked = is_quantized(node) and not has_threads(target)  # a GPU's workgroup memory has no room for it
    return Shape(*sizes, tokens, values["tile_keys"], values["block_vectors"], int(unpacked))


def scratch_limit(target: ops.Target) -> int:
    """Returns the bytes of scratch available to a tile."""
    return workgroup_nbytes(target) - EXCHANGE_NBYTES if has_threads(target) else MAX_SCRATCH_NBYTES


def supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why no tile fits the workgroup memory, or None."""
    shape = shape_of(node, target)
    if shape.scratch_nbytes > scratch_limit(target):
        return f"{shape.group} heads of a group with head_dim {shape.head_dim} exceed the workgroup memory"
    return None


def defaults(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
    """Returns the default rows and keys of a tile and vectors of the register tile. On a GPU this is the tile with the most
    scores that fits the workgroup memory."""
    vectors, most = max(1, register_vectors(target) // BLOCK_ROWS), scratch_limit(target)
    found = [{"tile_rows": rows, "tile_keys": keys, "block_vectors": vectors} for rows, keys in TILES]
    return next((values for values in found if _shape(node, target, values).scratch_nbytes <= most), found[-1])


def refusal(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> str | None:
    """Returns why the tile does not fit the workgroup memory, or None."""
    shape = _shape(node, target, values)
    if shape.scratch_nbytes > scratch_limit(target):
        return f"{shape.rows} rows and {shape.tile_keys} keys exceed the workgroup memory"
    return None


def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    """Builds a launch with programs (kv head, tile of tokens), so that a worker reuses a head's keys and values in its cache."""
    return build_with(node, target, defaults(node, target))


def build_with(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> ops.Build:
    """Like `build`, with a value for each tunable."""
    shape, tokens = _shape(node, target, values), node.inputs[0].shape[0]
    launch = ops.Launch(
        one_quantized_tile_per_program if is_quantized(node) else one_tile_per_program,
        (*(ops.read(i) for i in range(len(node.inputs))), ops.write(0)),
        (ops.Cells(shape.kv_heads), ops.Cells(tokens, per=shape.tile_tokens)),
        {"scale": node.attrs["scale"], **asdict(shape)},
        extents=(tokens,) if isinstance(tokens, Extent) else (),
    )
    return ops.Build((launch,))


TUNABLES = ops.Tunables(
    {
        "tile_rows": (12, 24, 36, 48, 72, 96),
        "tile_keys": (16, 32, 64, 128, 256),
        "block_vectors": (1, 2, 3, 4),
    },
    defaults,
    build_with,
    refusal,
)
