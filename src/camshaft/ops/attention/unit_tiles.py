"""The variant of attention for prompts on AMX: q K and p V in tiles of bf16, the softmax between them in f32.

Scores keep 16 bits of q and of K: each is the sum of two bf16, and three of the four products are added. Weights and values are
rounded to bf16. Rows, runs and programs are those of tiled.py; the steps on a tile are in unit_tile_steps.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from camshaft.dtypes import bf16, f16
from camshaft.lang import Tracer, kernel
from camshaft.ops import op as ops
from camshaft.ops.attention import split
from camshaft.ops.attention.paged import arguments_of, multiply_adds, without_options
from camshaft.ops.attention.tiled import runs_of, tiles_build
from camshaft.ops.attention.unit_tile_steps import Shape, UnitTile
from camshaft.ops.matmul.blocks.unit_panels import SIDE, without_tiles
from camshaft.ops.rule import Builder, Match, Use, Uses
from camshaft.ops.spec import bound

TOLERANCE = {"f32": 2e-5}
TILE_ROWS, TILE_KEYS = (32, 64, 96, 128, 192, 256, 384), (64, 128, 256, 512)
# Bytes of scratch: what leaves half of an L2 cache of 1 MB to keys and values.
MOST_NBYTES = 600_000


@kernel
def one_unit_tile_per_program(k: Tracer, *arguments: Any, scale: float, **sizes: int) -> None:
    # as one_tile_per_program in tiled.py
    given, shape = arguments_of(arguments), Shape(**sizes)
    tile, kv_head = UnitTile(k, shape), k.program(0)
    for run in runs_of(k, given, shape.tile_tokens):
        n_rows = run.n_tokens * shape.group
        tile.start(given.q, given.positions, run.first, n_rows, kv_head, scale)
        keys = run.keys(k, given, kv_head)
        for base in k.range(0, run.greatest + 1, shape.tile_keys):
            tile.unpack(replace(keys, base=base, count=k.minimum(run.greatest + 1 - base, shape.tile_keys)))
            k.barrier()
            for block in k.range((n_rows + (SIDE - 1)) // SIDE):
                reach = tile.reach(block)
                with k.when(base <= reach):
                    tile.score(block, reach, base)
                    tile.weigh(block, base)
                    tile.mix(block, reach, base)
            k.barrier()
        tile.finish(given.rest[0], run.first, n_rows, kv_head)


def shape_of(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> Shape:
    """Returns the sizes of a program."""
    heads, kv_heads, head_dim = (node.attrs[name] for name in ("heads", "kv_heads", "head_dim"))
    return Shape(heads, kv_heads, head_dim, max(1, values["tile_rows"] * kv_heads // heads), values["tile_keys"])


def defaults(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
    """Returns the most rows up to 192, with the most keys, that fit: rows share what is unpacked."""
    rows = [n for n in reversed(TILE_ROWS) if n <= 192]
    found = [{"tile_rows": row, "tile_keys": keys} for row in rows for keys in reversed(TILE_KEYS)]
    return next((v for v in found if shape_of(node, target, v).scratch_nbytes <= MOST_NBYTES), found[-1])


def refusal(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> str | None:
    """Returns why a program's tiles are no scratch, or None."""
    nbytes = shape_of(node, target, values).scratch_nbytes
    return f"a program takes {nbytes} bytes, more than {MOST_NBYTES}" if nbytes > MOST_NBYTES else None


def without_bf16(node: ops.NodeSpec) -> str | None:
    """Returns why a node may not be computed in bf16, or None."""
    if node.attrs.get("precision") != "bf16":
        return "takes precision 'bf16'"
    if node.inputs[1].dtype not in (f16, bf16):
        return f"takes a cache of f16 or bf16; got {node.inputs[1].dtype}"
    return None


def _supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why the variant does not support the node, or None; next tokens of sequences are left to split_keys."""
    if (reason := without_tiles(target) or without_options(node) or without_bf16(node)) is not None:
        return reason
    if split.VARIANT.supports(node, target) is None:
        return f"takes more than {split.MAX_TOKENS} tokens; got {bound(node.inputs[0].shape[0])}"
    return refusal(node, target, defaults(node, target))


def _build(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> ops.Build:
    return tiles_build(one_unit_tile_per_program, node, asdict(shape_of(node, target, values)))


def _cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """Measured on Emerald Rapids: 110 to 140 multiply-adds per ns for 512 tokens; `tiled` has 45 there."""
    return multiply_adds(node) / 110.0 + 1000.0


def coarse(use: Use, uses: Uses) -> Match | None:
    """Lets attention of many tokens round weights and values to bf16."""
    tokens = use.inputs[0].spec.bounds[0]
    if "precision" in use.attrs or tokens <= split.MAX_TOKENS:
        return None

    def build(new: Builder) -> Mapping[Any, Any]:
        made = new.apply(use.op, use.inputs, {**use.attrs, "precision": "bf16"}, use.name)
        return dict(zip(use.outputs, made, strict=True))

    return Match(build)


_TUNABLES = ops.Tunables({"tile_rows": TILE_ROWS, "tile_keys": TILE_KEYS}, defaults, _build, refusal)
VARIANT = ops.KernelVariant(
    "unit_tiles", frozenset({"simd"}), _TUNABLES.build_default, _supports, _cost, _TUNABLES, tolerance=TOLERANCE
)
