"""The variant of sorts that merges sorted runs: long rows of the last axis on a CPU, a row by all workers."""

from __future__ import annotations

from camshaft.dtypes import as_dtype
from camshaft.lang import Constant
from camshaft.ops import op as ops
from camshaft.ops.kernels.launch import plan_workers
from camshaft.ops.scan.definition import axis_of, layout_of
from camshaft.ops.sort import merge
from camshaft.ops.sort.definition import Ordered
from camshaft.ops.sort.keys import as_bits, keys_of
from camshaft.ops.sort.network import Words
from camshaft.ops.spec import TensorSpec, bound

# Elements of a run that a lane sorts, and the runs of a block by their number for each lane.
LENGTHS, TILES = (2048, 512, 64), (4, 2, 1)
# Elements of a part that a program merges, and of a program that stores results.
PART, BLOCK = 1024, 16384
LEAST = 64
SIZES = ("inner", "dim", "length", "stride", "total", "steps", "half")


def words_of(row: Ordered, node: ops.NodeSpec) -> Words:
    """What is sorted."""
    indexed = "places" in row.gives
    return Words(keys_of(as_dtype(node.inputs[0].dtype).name, row.descending(node.attrs), indexed), indexed)


def width_of(words: Words, target: ops.Target) -> int:
    """Lanes: as many as a vector has of the words."""
    return max(1, target.lanes // 2) if words.dtype.bits > 32 else target.lanes


def shape_of(dim: int, width: int) -> tuple[int, int, int]:
    """(elements of a run, tiles of a block, blocks): the greatest that leave little of the last tile and block empty."""

    def fits(size: int) -> bool:
        return 8 * (-dim % size) <= dim

    length = next((n for n in LENGTHS if fits(n * width)), LENGTHS[-1])
    tiles = next((n for n in TILES if fits(n * length * width)), 1)
    return length, tiles, -(-dim // (length * width * tiles))


def build(row: Ordered, node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    """Blocks sorted by a program each, then a launch for each level of merges, then the results."""
    x, words = node.inputs[0], words_of(row, node)
    outer, inner, dim, _ = layout_of(x, axis_of(row.name, x, node.attrs))
    rows, width = bound(outer) * inner, width_of(words, target)
    length, tiles, blocks = shape_of(dim, width)
    part, size = min(PART, length // 2), tiles * width * length
    stride = tiles * width * (length + width)
    common: dict[str, Constant] = {
        "dtype": as_dtype(x.dtype).name, "descending": row.descending(node.attrs), "gives": " ".join(row.gives),
        "inner": inner,
    }  # fmt: skip
    keys = ops.scratch(0, "update", (rows, 2, blocks * stride))
    source, grid = as_bits(ops.read(0, shape=(rows, dim)), x), (ops.Cells(outer), ops.Cells(inner))
    sizes = {"dim": dim, "length": length, "tiles": tiles, "width": width, "part": part}
    first = ops.Launch(
        merge.sort_blocks, (source, keys), (*grid, ops.Cells(blocks)), {**common, **sizes}, lanes=width, sizes=SIZES[:2]
    )
    launches, half = [first], ((tiles * width).bit_length() - 1) & 1
    programs = ops.Cells(blocks * size, per=merge.STREAMS * part)
    runs, total = blocks, blocks * size
    while runs > 1:
        given = {"width": width, "part": part, "half": half, "length": size, "stride": stride, "total": total}
        given |= {"steps": size.bit_length()}
        launches.append(
            ops.Launch(merge.merge_runs, (keys,), (*grid, programs), {**common, **given}, lanes=width, sizes=SIZES)
        )
        runs, size, stride, half = -(-runs // 2), 2 * size, 2 * stride, 1 - half
    out = ops.write(0, shape=(rows, dim))
    arrays = ops.scratch(0, "read", keys.shape), as_bits(out, x) if row.gives == ("values",) else out
    last = {**common, "half": half, "dim": dim, "block": BLOCK}
    launches.append(ops.Launch(merge.put_sorted, arrays, (*grid, ops.Cells(dim, per=BLOCK)), last, sizes=SIZES))
    assert keys.shape is not None
    return ops.Build(tuple(launches), (TensorSpec(keys.shape, words.dtype),))


def cost(row: Ordered, node: ops.NodeSpec, target: ops.Target) -> float:
    """ns, measured with AVX2 and AVX-512."""
    x, width = node.inputs[0], width_of(words_of(row, node), target)
    outer, inner, dim, _ = layout_of(x, axis_of(row.name, x, node.attrs))
    length, tiles, blocks = shape_of(dim, width)
    elements = bound(outer) * inner * blocks * tiles * width * length
    levels = (tiles * width * blocks - 1).bit_length()
    shared = min(plan_workers() or 1, bound(outer) * inner * blocks)
    return 2000.0 + elements * (5.0 + 1.6 * levels) * 8 / width / shared


def supports(row: Ordered, node: ops.NodeSpec, target: ops.Target, lanes: int = 4) -> str | None:
    """The last axis; indexes beside elements of at most 32 bits; vectors of so many lanes of 32 bits."""
    x = node.inputs[0]
    *_, dim, columns = layout_of(x, axis_of(row.name, x, node.attrs))
    if "places" in row.gives and dim > words_of(row, node).most_indexed:
        return "wanted elements beside which an index fits"
    if target.lanes < lanes:
        return f"wanted vectors of {32 * lanes} bits or more"
    return f"wanted rows of more than {LEAST} elements of the last axis" if columns > 1 or dim <= LEAST else None


def merges(row: Ordered) -> ops.KernelVariant:
    """Merges runs that are sorted a run per lane."""
    return ops.KernelVariant(
        "merges",
        frozenset({"simd"}),
        lambda node, target: build(row, node, target),
        lambda node, target: supports(row, node, target),
        lambda node, target: cost(row, node, target),
    )
