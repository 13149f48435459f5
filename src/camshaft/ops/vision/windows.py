"""Windows over the last axes of a tensor, which convolutions and pooling share: their arguments, sizes, and reference.

A window has `kernel` elements along each axis, `dilation` apart; windows begin `stride` apart in x, which is padded by `padding`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from camshaft.extent import Extent
from camshaft.ops import op as ops
from camshaft.ops.checks import same_dtype
from camshaft.ops.kernels.bits import as_bits
from camshaft.ops.movement.moved import expect_whole, whole
from camshaft.ops.movement.padded_rows import Pair, pad_launch
from camshaft.ops.parameters import Attribute
from camshaft.ops.spec import TensorSpec

Axes = tuple[int, ...]
_NUMBERS = "int | tuple[int, ...]"
STRIDE, DILATION = Attribute("stride", _NUMBERS, 1), Attribute("dilation", _NUMBERS, 1)
PADDING = Attribute("padding", "int | tuple[int, ...] | tuple[tuple[int, int], ...]", 0)
GROUPS = Attribute("groups", "int", 1)


@dataclass(frozen=True)
class Windows:
    """Sizes along each axis. `sizes` are those of x; `places` is the number of windows."""

    sizes: Axes
    kernel: Axes
    stride: Axes
    dilation: Axes
    padding: tuple[Pair, ...]

    @property
    def padded(self) -> Axes:
        """The sizes of x with its padding."""
        return tuple(n + sum(pair) for n, pair in zip(self.sizes, self.padding, strict=True))

    @property
    def reach(self) -> Axes:
        """The elements that a window spans."""
        return tuple((n - 1) * d + 1 for n, d in zip(self.kernel, self.dilation, strict=True))

    @property
    def places(self) -> Axes:
        """The number of windows."""
        return tuple((n - r) // s + 1 for n, r, s in zip(self.padded, self.reach, self.stride, strict=True))

    @property
    def is_padded(self) -> bool:
        """Whether x is padded at all."""
        return any(pair != (0, 0) for pair in self.padding)


def each(op: str, name: str, value: Any, rank: int, least: int = 1) -> Axes:
    """One integer for all axes or one for each, as a tuple. ShapeError for others, and below `least`."""
    listed = value if isinstance(value, tuple) else (value,) * rank
    fits = len(listed) == rank and all(whole(n, least) for n in listed)
    ops.expect(fits, op, f"{name} {value}", f"an integer of {least} or more, or {rank} of them")
    return tuple(listed)


def paddings(op: str, value: Any, rank: int) -> tuple[Pair, ...]:
    """The padding before and after each axis: an integer, one for each axis, or a pair for each. ShapeError for others."""
    listed = value if isinstance(value, tuple) else (value,) * rank
    pairs = tuple(p if isinstance(p, tuple) else (p, p) for p in listed)
    fits = len(pairs) == rank and all(len(p) == 2 and all(whole(n) for n in p) for p in pairs)
    ops.expect(fits, op, f"padding {value}", f"an integer of 0 or more, or {rank} of them or of pairs (before, after)")
    return pairs


def windows_of(op: str, sizes: Sequence[int], kernel: Any, attrs: ops.Attrs, stride: Any = 1) -> Windows:
    """The windows of an op with the attributes stride, padding and dilation. ShapeError where x is smaller than a window."""
    rank = len(sizes)
    given = attrs.get("stride", stride)
    found = Windows(
        tuple(sizes),
        each(op, "kernel", kernel, rank),
        each(op, "stride", stride if given is None else given, rank),
        each(op, "dilation", attrs.get("dilation", 1), rank),
        paddings(op, attrs.get("padding", 0), rank),
    )
    came = f"windows over {list(found.reach)} of {list(found.padded)} elements"
    ops.expect(min(found.places) > 0, op, came, "no window larger than the padded x")
    return found


def expect_images(op: str, specs: Sequence[TensorSpec], dtypes: Sequence[Any], axes: str, rank: int) -> None:
    """ShapeError unless all are of one of `dtypes`, have `rank` axes, none of them empty, and no Extent."""
    same_dtype(op, specs, tuple(dtypes))
    for spec in specs:
        fits = len(spec.shape) == rank and 0 not in spec.bounds and not any(isinstance(d, Extent) for d in spec.shape)
        ops.expect(fits, op, spec, f"a tensor {axes} with no empty axis and no Extent")


@dataclass(frozen=True)
class Conv:
    """The sizes of a convolution; `channels` and `per_group` are those of x and of the result in each group."""

    images: int
    groups: int
    channels: int
    per_group: int
    windows: Windows

    @property
    def depth(self) -> int:
        """Products of an element of the result."""
        return self.channels * prod(self.windows.kernel)

    @property
    def multiply_adds(self) -> int:
        """Products in all."""
        return self.images * self.groups * self.per_group * self.depth * prod(self.windows.places)


def conv_of(specs: Sequence[TensorSpec], attrs: ops.Attrs, op: str = "conv2d") -> Conv:
    """The convolution of x and w. ShapeError where groups do not divide channels, or w has other channels than x's groups."""
    x, w = specs[0].bounds, specs[1].bounds
    groups = expect_whole(op, "groups", attrs.get("groups", 1))
    fits = x[1] % groups == 0 and w[0] % groups == 0
    ops.expect(fits, op, f"groups {groups} for {x[1]} and {w[0]} channels", "a divisor of both")
    ops.expect(w[1] == x[1] // groups, op, specs[1], f"w with {x[1] // groups} channels per group")
    return Conv(x[0], groups, w[1], w[0] // groups, windows_of(op, x[2:], tuple(w[2:]), attrs))


def padded_array(x: ops.Array, w: Windows, value: float = 0) -> ops.Array:
    """x padded along its last axes, for references."""
    widths = ((0, 0),) * (x.ndim - len(w.sizes)) + w.padding
    return np.pad(x, widths, constant_values=value)


def views(x: ops.Array, w: Windows) -> ops.Array:
    """The windows of a padded array: [.., *places, *kernel]."""
    rank = len(w.sizes)
    axes = tuple(range(x.ndim - rank, x.ndim))
    seen = np.lib.stride_tricks.sliding_window_view(x, w.reach, axes)
    steps: list[Any] = [slice(None, None, step) for step in (*w.stride, *w.dilation)]
    return seen[(..., *steps)]


def padded_input(
    x: TensorSpec, w: Windows, value: float = 0, at: int = 0
) -> tuple[tuple[ops.Launch, ...], ops.Operand, tuple[TensorSpec, ...]]:
    """What a kernel over windows reads: input 0, flat, or with padding scratch `at`, the launch that fills it, and its spec."""
    n = prod(x.bounds)
    flat = ops.read(0, shape=(n,))
    if not w.is_padded:
        return (), flat, ()
    lead = prod(x.bounds[: -len(w.sizes)])
    spec = TensorSpec((lead * prod(w.padded),), x.dtype)
    arrays = as_bits(flat, x), as_bits(ops.scratch(at, "write"), spec)
    source = TensorSpec((lead, *w.sizes), x.dtype)
    launch = pad_launch(source, ((0, 0), *w.padding), "constant", value, arrays)
    return (launch,), ops.scratch(at, "read"), (spec,)


def tap(f: Any, x: Any, w: Windows, at: Axes) -> Any:
    """Graph tensor: element `at` of every window of the padded x, [.., *places]."""
    starts = [i * d for i, d in zip(at, w.dilation, strict=True)]
    cuts = zip(starts, w.places, w.stride, strict=True)
    return x[(..., *(slice(a, a + (n - 1) * s + 1, s) for a, n, s in cuts))]


def image_of(m: Windows) -> dict[str, int]:
    """The sizes of a padded image and of windows over it, as kernels take them."""
    (height, width), (rows, columns) = m.padded, m.kernel
    (row_step, column_step), (row_gap, column_gap) = m.stride, m.dilation
    names = ["height", "width", "rows", "columns", "row_step", "column_step", "row_gap", "column_gap"]
    return dict(zip(names, (height, width, rows, columns, row_step, column_step, row_gap, column_gap), strict=True))
