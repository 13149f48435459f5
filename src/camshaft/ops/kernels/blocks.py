"""Blocks of columns: how many elements of a row a program of an elementwise or copying kernel takes, and the tunables for it."""

from __future__ import annotations

from dataclasses import replace

from camshaft.extent import Extent
from camshaft.ops import op as ops
from camshaft.ops.kernels import lanes

# Columns per program: 16 KiB of each f32 operand, 0.5 (add) to 2 (silu) microseconds of work on one AVX-512 core.
BLOCK = 4096


def even_block(columns: int, most: int = BLOCK) -> int:
    """The block that splits `columns` into the fewest blocks of at most `most`, of nearly equal size and in whole vectors."""
    count = -(-columns // most)
    return min(columns, -(-columns // count // 64) * 64)


def tunables(build: lanes.Builder) -> ops.Tunables:
    """The tunables `block` and `lanes` of a build with one launch, whose last grid axis is columns in blocks of its constant
    `block`."""

    def build_with(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> ops.Build:
        made = build(node, target)
        (only,) = made.launches
        assert isinstance(only, ops.Launch)
        columns = only.grid[-1].dim
        block = values["block"] if isinstance(columns, Extent) else even_block(columns, values["block"])
        grid = (*only.grid[:-1], ops.Cells(columns, per=block))
        changed = replace(only, grid=grid, constants={**only.constants, "block": block})
        return lanes.with_lanes(replace(made, launches=(changed,)), target, values)

    def defaults(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
        return {"block": BLOCK, "lanes": target.lanes}

    values = {"block": (512, 1024, 2048, 4096, 8192, 16384, 65536, 1 << 20), "lanes": lanes.LANES}
    return ops.Tunables(values, defaults, build_with, lanes.refusal)
