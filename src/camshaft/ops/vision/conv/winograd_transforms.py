"""The transforms of conv2d's `winograd`: y = A ((G g) (B d)) along the rows of an image, and the kernels for weights and image.

d are rows of x, g the three rows of a window, y rows of the result. Windows one row apart: F(4, 3), 6 products for 12, with the
points 0, 1, -1, 1/2, -2 and infinity, which round least (Barabasz et al., 2020). Windows two rows apart: their first and last
rows meet every second row of x, so F(4, 2) with the points 0, -1, 1/2, 2 and infinity takes 5 products for 8; the rows between
are multiplied as they are, all by the same weights: 9 for 12.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from camshaft.lang import Array, Number, Tracer, Value, kernel
from camshaft.ops.matmul.shapes import WIDTH

IntOrValue = TypeVar("IntOrValue", int, Value)
Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Transform:
    """The matrices for windows whose rows begin `step` rows apart. The last row of G is that of all further points."""

    step: int
    b: Matrix
    g: Matrix
    a: Matrix

    @property
    def points(self) -> int:
        """Products."""
        return len(self.b)

    @property
    def taken(self) -> int:
        """Rows of a window."""
        return len(self.g[0])

    @property
    def seen(self) -> int:
        """Rows of x."""
        return len(self.b[0])

    @property
    def made(self) -> int:
        """Rows of the result."""
        return len(self.a)


_ONE_APART = Transform(
    step=1,
    b=(
        (1, -3 / 2, -2, 3 / 2, 1, 0),
        (0, -1, 1 / 2, 5 / 2, 1, 0),
        (0, 1, -5 / 2, 1 / 2, 1, 0),
        (0, -2, -1, 2, 1, 0),
        (0, 1 / 2, -1, -1 / 2, 1, 0),
        (0, 1, -3 / 2, -2, 3 / 2, 1),
    ),
    g=(
        (1, 0, 0),
        (1 / 3, 1 / 3, 1 / 3),
        (-1 / 3, 1 / 3, -1 / 3),
        (-16 / 15, -8 / 15, -4 / 15),
        (1 / 15, -2 / 15, 4 / 15),
        (0, 0, 1),
    ),
    a=((1, 1, 1, 1, 1, 0), (0, 1, -1, 1 / 2, -2, 0), (0, 1, 1, 1 / 4, 4, 0), (0, 1, -1, 1 / 8, -8, 1)),
)
_TWO_APART = Transform(
    step=2,
    b=(
        (1, 0, -3 / 2, 0, -3 / 2, 0, 1, 0, 0),
        (0, 0, 1, 0, -5 / 2, 0, 1, 0, 0),
        (0, 0, -2, 0, -1, 0, 1, 0, 0),
        (0, 0, -1 / 2, 0, 1 / 2, 0, 1, 0, 0),
        (0, 0, 1, 0, -3 / 2, 0, -3 / 2, 0, 1),
        *(tuple(float(r == 2 * q + 1) for r in range(9)) for q in range(4)),
    ),
    g=(
        (1, 0, 0),
        (-2 / 9, 0, 2 / 9),
        (-8 / 9, 0, -4 / 9),
        (1 / 9, 0, 2 / 9),
        (0, 0, 1),
        (0, 1, 0),
    ),
    a=(
        (1, 1, 1, 1, 0, 1, 0, 0, 0),
        (0, -1, 1 / 2, 2, 0, 0, 1, 0, 0),
        (0, 1, 1 / 4, 4, 0, 0, 0, 1, 0),
        (0, -1, 1 / 8, 8, 1, 0, 0, 0, 1),
    ),
)
# By the rows from a window to the next.
TRANSFORMS = {t.step: t for t in (_ONE_APART, _TWO_APART)}


def combined(k: Tracer, factors: Sequence[float], values: Sequence[Value]) -> Value:
    """The sum of values by factors, in order."""
    total: Value | None = None
    for factor, value in zip(factors, values, strict=True):
        if factor and total is None:
            total = value if factor == 1 else value * factor
        elif factor and total is not None:
            total = total + value if factor == 1 else total - value if factor == -1 else k.fma(value, factor, total)
    assert total is not None
    return total


@kernel
def transform_weights(k: Tracer, w: Array, out: Array, *, step: int, outputs: int, channels: int, columns: int) -> None:
    # out[p, o, (c, s)] = sum_r G[p, r] w[o, c, r, s]
    o, t = k.program(0), TRANSFORMS[step]
    for d in k.lanes(channels * columns):
        at = (o * channels + d // columns) * (t.taken * columns) + d % columns
        rows = [k.gather(w, at + r * columns) for r in range(t.taken)]
        for p, factors in enumerate(t.g):
            out[p * outputs + o, d] = combined(k, factors, rows)


@dataclass(frozen=True)
class Image:
    """Sizes of an image of a group and of its transform: bands of `pitch` columns, in each of `column_step` phases, with zeros
    where the image is padded, and up to `length`. A program transforms one of `parts` even parts of the bands."""

    step: int
    column_step: int
    channels: int
    height: int
    width: int
    top: int
    left: int
    pitch: int
    bands: int
    parts: int
    length: int

    def start(self, column: IntOrValue, phase: int) -> IntOrValue:
        """The columns of a phase before a column of x."""
        return (column + (self.left + self.column_step - 1 - phase)) // self.column_step

    @property
    def masked(self) -> int:
        """The last bands of a part, whose vectors are stored under masks: those of others may reach beyond a band, because the
        next ones overwrite that. A Zen 4 takes 13 cycles to store under a mask."""
        return -(-WIDTH // self.pitch)


@dataclass(frozen=True)
class Band:
    """A program's arrays and a band: the rows of x that it sees, with whether they are in x, and the rows of `out` by point and
    phase, where it begins at column `at`."""

    k: Tracer
    s: Image
    x: Array
    out: Array
    seen: list[tuple[Value, Value]]
    made: list[list[Value]]
    at: Value
    is_masked: bool

    def transform(self) -> None:
        """Stores the transformed rows between zeros, from the first column to the last."""
        k, s = self.k, self.s
        for phase in range(s.column_step):
            self.clear(phase, 0, s.start(0, phase))
        for j in k.range(0, s.width, WIDTH):
            self.transform_vector(j)
        for phase in range(s.column_step):
            self.clear(phase, s.start(s.width, phase), s.pitch)

    def transform_vector(self, j: Value) -> None:
        """Transforms the columns of x from j on."""
        k, s = self.k, self.s
        rows = [
            k.load_vector(self.x, row * s.width + j, width=WIDTH, count=k.select(is_there, s.width - j, 0))
            for row, is_there in self.seen
        ]
        columns = k.iota(WIDTH) + k.splat(s.left + j, WIDTH)
        for phase in range(s.column_step):
            start, mask = s.start(j, phase), columns % s.column_step == phase
            for factors, made in zip(TRANSFORMS[s.step].b, self.made, strict=True):
                values = combined(k, factors, rows)
                packed = values if s.column_step == 1 else k.pack(values, mask)
                self.store(made[phase], packed, start, s.start(s.width, phase))

    def clear(self, phase: int, start: int, stop: int) -> None:
        """Sets columns of a phase of all points to 0."""
        for made in self.made:
            for j in range(start, stop, WIDTH):
                self.store(made[phase], self.k.splat(0.0, WIDTH), j, stop)

    def store(self, row: Value, values: Value, start: Number, stop: int) -> None:
        """Stores a vector at a column; with masks up to `stop`."""
        self.k.store_vector(self.out, values, row, self.at + start, count=stop - start if self.is_masked else None)


@kernel
def transform_image(k: Tracer, x: Array, out: Array, *, image: tuple[int, ...]) -> None:
    # out[image, p, c, f, (i, j)] = sum_r B[p, r] x[image, c, made step i + r - top, column_step j + f - left], and 0 outside x
    s = Image(*image)
    t, plane = TRANSFORMS[s.step], k.program(0) * s.channels + k.program(1)
    first = k.program(0) * (t.points * s.channels) + k.program(1)
    made = [[(first + p * s.channels) * s.column_step + f for f in range(s.column_step)] for p in range(t.points)]

    def transform(i: Value, is_masked: bool) -> None:
        ys = [i * (t.made * s.step) + (r - s.top) for r in range(t.seen)]
        nearest = [k.minimum(k.maximum(y, 0), s.height - 1) for y in ys]
        seen = [(plane * s.height + near, near == y) for y, near in zip(ys, nearest, strict=True)]
        Band(k, s, x, out, seen, made, i * s.pitch, is_masked).transform()

    begin, end = ((k.program(2) + n) * s.bands // s.parts for n in (0, 1))
    masked = k.maximum(end - s.masked, begin)
    for i in k.range(begin, masked):
        transform(i, False)
    for i in k.range(masked, end):
        transform(i, True)
    with k.when(end == s.bands):
        for row in [row for rows in made for row in rows]:
            for j in k.range(s.bands * s.pitch, s.length):
                out[row, j] = 0.0
