"""Fits kernels over rows to a machine: blocks of columns, the tunables `block` and `lanes`, nontemporal stores; sums of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from camshaft.extent import Extent
from camshaft.lang import Array, Tracer, ir, kernel
from camshaft.ops import op as ops

# Columns per program: 16 KiB of each f32 operand, 0.5 (add) to 2 (silu) microseconds of work on one AVX-512 core.
BLOCK = 4096
LANES = (4, 8, 16, 32, 64, 128)
# Bytes of inputs and outputs from which nontemporal stores pay: most of a last-level cache (docs/performance/elementwise.md).
STREAM_NBYTES = 24 << 20
# The most f32 of a row that a program stores in scratch until the row is complete.
MAX_ROW = 16384
# f32 of a cache line, and columns that one iteration over a row covers at most.
_LINE, _STEP = 16, 64
Builder = Callable[[ops.NodeSpec, ops.Target], ops.Build]


def even_block(columns: int, most: int = BLOCK) -> int:
    """Returns the block that splits `columns` into the fewest blocks of at most `most`, of nearly equal size and in whole
    vectors."""
    count = -(-columns // most)
    return min(columns, -(-columns // count // 64) * 64)


def tunables(build: Builder) -> ops.Tunables:
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
        return _with_lanes(replace(made, launches=(changed,)), target, values)

    def defaults(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
        return {"block": BLOCK, "lanes": target.lanes}

    values = {"block": (512, 1024, 2048, 4096, 8192, 16384, 65536, 1 << 20), "lanes": LANES}
    return ops.Tunables(values, defaults, build_with, _refusal)


def lane_tunables(build: Builder) -> ops.Tunables:
    """The tunable `lanes` of the launches that `build` makes. On a CPU, k.lanes may process up to eight vectors per iteration,
    with independent accumulators."""
    return ops.Tunables(
        {"lanes": LANES},
        lambda node, target: {"lanes": target.lanes},
        lambda node, target, values: _with_lanes(build(node, target), target, values),
        _refusal,
    )


def _with_lanes(build: ops.Build, target: ops.Target, values: ops.Values) -> ops.Build:
    """Returns the build with these lanes in every launch. The device's own number leaves the build as it is."""
    if values["lanes"] == target.lanes:
        return build
    launches = tuple(replace(la, lanes=values["lanes"]) if isinstance(la, ops.Launch) else la for la in build.launches)
    return replace(build, launches=launches)


def _refusal(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> str | None:
    if target.backend not in ("simd", "c"):
        return f"lanes are fixed on {target.backend}"
    if not target.lanes <= values["lanes"] <= 8 * target.lanes:
        return f"{values['lanes']} lanes on a device of {target.lanes}"
    return None


def row_lanes(columns: int, target: ops.Target, vectors: int = 4) -> int | None:
    """Returns the lanes for a reduction over a row: so many vectors on a CPU if the row has 16 or more, so that sums overlap;
    else as `row_threads`."""
    is_long = target.backend == "simd" and columns >= 16 * target.lanes
    return vectors * target.lanes if is_long and vectors > 1 else row_threads(columns, target)


def row_threads(columns: int, target: ops.Target) -> int | None:
    """Returns the lanes for a row on an NVIDIA GPU, a thread per column of up to 1024; None for the device's own. With 128
    threads a row of 576 took 5.5 us on an H200: each of its turns waits for memory."""
    if target.backend != "cuda":
        return None
    wanted = min(target.limits.get("lanes", target.lanes), 1 << (columns - 1).bit_length())
    return wanted if wanted > target.lanes else None


def streams(node: ops.NodeSpec, target: ops.Target) -> bool:
    """Returns whether to use nontemporal stores for the node's results, which avoid reading each line before it is written.
    Not for an Extent: the active size may be small."""
    specs = (*node.inputs, *node.outputs)
    known = all(isinstance(d, int) for spec in specs for d in spec.shape)
    return target.backend == "simd" and known and sum(spec.nbytes for spec in specs) >= STREAM_NBYTES


def prefetch_next_row(k: Tracer, x: Array, row: ir.Value, column: ir.Value) -> None:
    """Prefetches x[row + 1] at these columns into the second cache: memory is idle while a row in the first one is computed.
    Into the first cache layer_norm of 1024 x 4096 takes 1.2 times as long (Zen 4)."""
    for i in range(0, _STEP, _LINE):
        k.prefetch(x, row + 1, column + i, near=False)


@kernel
def sum_of_group(k: Tracer, parts: Array, out: Array, *, group: int, n: int, block: int) -> None:
    # out[h, i] = sum_g parts[h group + g, i]
    head, start = k.program(0), k.program(1) * block
    for i in k.lanes(start, k.minimum(start + block, n)):
        total = parts[head * group, i]
        for g in range(1, group):
            total = total + parts[head * group + g, i]
        out[head, i] = total
