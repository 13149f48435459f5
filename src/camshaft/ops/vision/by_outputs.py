"""The variant of conv2d whose vectors are outputs: tiles of places by a vector or two of outputs, from packed weights.

Elements of x are read one by one where they are, at any stride, so neither windows nor strided images are copied, and a row of
the result of any length has full vectors: 196 places are 14 tiles of 14, but 3 panels of 64 and 4 places more. Sums are put in
order as they are stored, which pays where a window has many elements.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from math import prod

from camshaft.dtypes import f32, f64
from camshaft.lang import Array, Number, Tracer, Value, kernel, tile_of
from camshaft.ops import op as ops
from camshaft.ops.matmul.blocks import blocked
from camshaft.ops.matmul.shapes import WIDTH, Sizes, Tiles
from camshaft.ops.spec import TensorSpec
from camshaft.ops.vision.windows import Conv, conv_of, padded_input

# Places and vectors of a register tile, by lanes. 14 by 2 are 28 sums; with 2 vectors of weights and an element of x 31 registers
# of 32. A vector of 16 elements is two registers of 8 lanes: 6 by 1 are 12 sums, with weights and an element 15 of 16.
TILES = {16: (14, 2), 8: (6, 1)}
# Nanoseconds to store a result, by lanes: sums are put in order one by one without AVX-512 (Zen 4, Zen 3).
STORE_NS = {16: 0.35, 8: 1.8}
# Products that are added up in registers, as many as in a part of a packed panel.
PART = 512
# Bytes of x that a program reads: they stay in the L2 cache for the programs of the next panels.
BLOCK_NBYTES = 384 << 10
# Programs that are wanted, so that workers finish together.
PROGRAMS = 32


@dataclass(frozen=True)
class Shape:
    """Sizes of a convolution for the kernel. A row of the result has `tiles` tiles of places, of which `tall` have `tile`, the
    others one less. A program computes `block` tiles and adds `part` channels at a time."""

    groups: int
    channels: int
    outputs: int
    height: int
    width: int
    rows: int
    columns: int
    row_step: int
    column_step: int
    row_gap: int
    column_gap: int
    out_rows: int
    out_columns: int
    tile: int
    tiles: int
    tall: int
    block: int
    part: int
    vectors: int

    @property
    def panel(self) -> int:
        """Outputs of a tile."""
        return self.vectors * WIDTH

    @property
    def panels(self) -> int:
        """Panels of a group's outputs."""
        return -(-self.outputs // self.panel)


def shape_of(c: Conv, target: ops.Target) -> Shape:
    """The sizes of a convolution; one of single elements side by side has one row."""
    m, (places, vectors) = c.windows, TILES[target.lanes]
    (height, width), (out_rows, out_columns) = m.padded, m.places
    if prod(m.kernel) == 1 and prod(m.stride) == 1:
        height, width, out_rows, out_columns = 1, height * width, 1, out_rows * out_columns
    tiles = -(-out_columns // places)
    tile = -(-out_columns // tiles)
    panels = c.images * c.groups * -(-c.per_group // (vectors * WIDTH))
    nbytes = 64 * c.channels * m.kernel[0] * (tile * m.stride[1] // 16 + 2)  # cache lines of x that a tile reads
    blocks = min(max(-(-PROGRAMS // panels), out_rows * tiles * nbytes // BLOCK_NBYTES), out_rows * tiles)
    (rows, columns), (row_step, column_step), (row_gap, column_gap) = m.kernel, m.stride, m.dilation
    tall = out_columns - tiles * (tile - 1)
    return Shape(
        groups=c.groups,
        channels=c.channels,
        outputs=c.per_group,
        height=height,
        width=width,
        rows=rows,
        columns=columns,
        row_step=row_step,
        column_step=column_step,
        row_gap=row_gap,
        column_gap=column_gap,
        out_rows=out_rows,
        out_columns=out_columns,
        tile=tile,
        tiles=tiles,
        tall=tall,
        block=-(-out_rows * tiles // blocks),
        part=min(max(PART // prod(m.kernel), 1), c.channels),
        vectors=vectors,
    )


@dataclass(frozen=True)
class Program:
    """A program's arrays, its image and group (`index`), and its panel of outputs."""

    k: Tracer
    s: Shape
    weights: Array
    x: Array
    out: Array
    sums: Array
    index: Value
    panel: Value

    def tile(self, row: Value, place: Value, count: int) -> None:
        """The panel's outputs of `count` places of a row of the result."""
        k, s = self.k, self.s
        image = self.index * (s.channels * s.height * s.width)
        first = image + row * (s.row_step * s.width) + place * s.column_step
        self.part(first, 0, min(s.part, s.channels), count)
        if s.channels > s.part:
            for c in k.range(s.part, s.channels, s.part):
                self.part(first, c, k.minimum(c + s.part, s.channels), count)
        output = self.panel * s.panel
        k.barrier()
        for o in k.range(k.minimum(s.outputs - output, s.panel)):
            at = ((self.index * s.outputs + output + o) * s.out_rows + row) * s.out_columns + place
            for i in k.lanes(count):
                self.out[at + i] = k.gather(self.sums, i, o)

    def part(self, first: Value, start: Number, stop: Number, count: int) -> None:
        """The sums over some channels, added to those of the channels before."""
        k, s = self.k, self.s
        sums = tile_of(k, count, s.vectors, WIDTH)
        panel = self.index % s.groups * s.panels + self.panel
        for c in k.range(start, stop):
            for r in k.range(s.rows):
                at = first + c * (s.height * s.width) + r * (s.row_gap * s.width)
                d = (c * s.rows + r) * s.columns
                # not unrolled: elements that two columns share would take registers from the sums
                for column in k.range(s.columns):
                    weights = [
                        k.load_vector(self.weights, panel, d + column, j * WIDTH, width=WIDTH) for j in range(s.vectors)
                    ]
                    for i, line in enumerate(sums):
                        x = k.splat(self.x[at + column * s.column_gap + i * s.column_step], WIDTH)
                        for total, w in zip(line, weights, strict=True):
                            total.set(k.fma(x, w, total.value))
        for i, line in enumerate(sums):
            for j, total in enumerate(line):
                value = total.value
                if not isinstance(start, int):
                    value = k.load_vector(self.sums, i, j * WIDTH, width=WIDTH) + value
                k.store_vector(self.sums, value, i, j * WIDTH)


@kernel
def outputs_by_places(k: Tracer, weights: Array, x: Array, out: Array, *, shape: tuple[int, ...]) -> None:
    # out[n, o, i, j] = sum_(c, r, s) x[n, c, i step + r gap, j step + s gap] weights[o, c, r, s], with o along vectors
    s = Shape(*shape)
    tiles = Tiles(k, s.out_columns, s.tile, s.tall, None)
    program = Program(k, s, weights, x, out, k.scratch(f32, s.tile, s.panel), k.program(0), k.program(2))
    first = k.program(1) * s.block
    for t in k.range(first, k.minimum(first + s.block, s.out_rows * s.tiles)):
        row, at = t // s.tiles, t % s.tiles
        place = tiles.first_row(at)
        if not tiles.has_short:
            program.tile(row, place, s.tile)
            continue
        with k.when(at < s.tall):
            program.tile(row, place, s.tile)
        with k.when(at >= s.tall):
            program.tile(row, place, s.tile - 1)


def _weights(c: Conv, s: Shape) -> Sizes:
    """The weights as a matrix of outputs by depth for each group, which are packed."""
    return Sizes(s.tile, c.per_group, c.depth, True, (c.groups,), (0,), (1,), 1, c.groups)


def supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """None, or why not."""
    if node.inputs[0].dtype == f64:
        return "computes in f32; f64 is computed in f64"
    if target.lanes not in TILES:
        return f"{target.lanes} lanes; wanted {' or '.join(map(str, TILES))}, whose tiles fit the registers"
    return None


def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    """Launches that pad the image and pack the weights, once if they are constant; and the product."""
    c = conv_of(node.inputs, node.attrs)
    s, dtype = shape_of(c, target), node.inputs[0].dtype
    w = _weights(c, s)
    packed = TensorSpec((c.groups * s.panels, c.depth, s.panel), f32)
    pack = blocked.pack_of(w, s.vectors, ops.read(1, shape=w.b_shape), dtype != f32)
    pads, x, scratch = padded_input(node.inputs[0], c.windows, at=1)
    out = ops.write(0, shape=(prod(node.outputs[0].bounds),))
    grid = ops.Cells(c.images * c.groups), ops.Cells(s.out_rows * s.tiles, s.block), ops.Cells(s.panels)
    product = ops.Launch(outputs_by_places, (ops.scratch(0, "read"), x, out), grid, {"shape": astuple(s)})
    return ops.Build((pack, *pads, product), (packed, *scratch))


def cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """Products as in a matmul's tile, STORE_NS to store a result, 0.6 ns to pack a weight."""
    c = conv_of(node.inputs, node.attrs)
    s = shape_of(c, target)
    places = c.images * c.groups * prod(c.windows.places)
    computing = places * c.depth * s.panels * s.panel * (1 + 0.5 / s.tile) / (3.4 * target.lanes)
    return computing + places * c.per_group * STORE_NS[target.lanes] + 0.6 * prod(node.inputs[1].bounds) + 100.0
