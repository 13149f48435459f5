"""Elementwise calls of arrays that are not contiguous: the bits of a call with copies, and no copy is made."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from camshaft import table
from tests.support.quick import quick_of

ROWS, COLUMNS = 260, 257  # past the size that builtins copy


def _views(dtype: str) -> dict[str, np.ndarray]:
    """Arrays of (ROWS, COLUMNS) with other strides."""
    wide = (np.arange(2 * ROWS * 2 * COLUMNS) % 97 + 1).astype(dtype).reshape(2 * ROWS, 2 * COLUMNS)
    square = np.ascontiguousarray(wide[:COLUMNS, :ROWS])
    half, bytes_apart = wide[:ROWS, :COLUMNS], np.zeros(ROWS * COLUMNS * wide.itemsize + 1, np.uint8)
    misaligned = bytes_apart[1:].view(dtype).reshape(ROWS, COLUMNS)
    misaligned[:] = half
    record = np.zeros((ROWS, COLUMNS), [("value", dtype), ("other", "u1")])
    record["value"] = half
    return {
        "reversed": wide[:ROWS][::-1, :COLUMNS],
        "half": half,
        "every second": wide[::2, ::2],
        "backwards": wide[:ROWS, COLUMNS - 1 :: -1],
        "transposed": square.T,
        "one row": np.broadcast_to(wide[0, :COLUMNS], (ROWS, COLUMNS)),
        "one column": np.broadcast_to(wide[:ROWS, :1], (ROWS, COLUMNS)),
        "misaligned": misaligned,
        "of a record": record["value"],
    }


# one of each width
@pytest.mark.parametrize("dtype", quick_of(["f2", "f4", "f8", "i1", "i8", "u2"], ["i1"]))
def test_strides_of_every_kind(dtype: str) -> None:
    views = _views(dtype)
    for first, a in views.items():
        for second, b in views.items():
            wanted = table().maximum(a.copy(), b.copy())
            for _ in range(3):
                np.testing.assert_array_equal(table().maximum(a, b), wanted, f"{first}, {second}")


def test_other_data_of_the_same_strides() -> None:
    a, b = np.ones((400, 250), np.float32), np.full((400, 250), 2, np.float32)
    for scale in (1, 2, 3):
        np.testing.assert_array_equal(table().add(a[::-1] * scale, (b * scale).T.copy().T), a * scale + b * scale)
        np.testing.assert_array_equal(table().subtract((a * scale)[::-1], b[::-1]), a * scale - b)


def test_no_operand_is_copied() -> None:
    x, y = np.ones((1024, 2048), np.float32), np.ones((1024, 1024), np.float32)
    table().add(x[:, ::2], y.T)
    tracemalloc.start()
    for _ in range(3):
        result = table().add(x[:, ::2], y.T)
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result.nbytes <= taken < 2 * result.nbytes + 100_000  # the last result is there until the next is made


@pytest.mark.parametrize("dtype", ["c8", "c16"])
@pytest.mark.parametrize("name", ["real", "imag", "conj"])
def test_parts_of_complex_arrays_that_are_not_contiguous(name: str, dtype: str) -> None:
    whole = (np.arange(60) + 1j * np.arange(60)[::-1]).reshape(6, 10).astype(dtype)
    record = np.zeros((6, 10), [("flag", "u1"), ("value", dtype)])
    record["value"] = whole
    for x in (whole[::-1], whole[:, ::2], whole[:, ::-1], whole[0, ::-3], whole.T, record["value"], whole[:1, 3:]):
        np.testing.assert_array_equal(getattr(table(), name)(x), getattr(np, name)(x), strict=True)
        np.testing.assert_allclose(table().fft(x), np.fft.fft(x), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("n_axes", [32, 33, 48, 64])
def test_as_many_axes_as_arrays_have(n_axes: int) -> None:
    """NumPy's broadcast_shapes takes 32."""
    x = np.arange(64, dtype=np.float32).reshape(2, 4, 8, *[1] * (n_axes - 3))
    last = np.moveaxis(x, (0, 1, 2), (-1, -2, -3))
    for a, b in ((x, x), (x[::-1], x), (x[:, ::2], x[:, 1:2]), (x, last), (last, np.float32(3))):
        wanted = np.add(a, b)
        for _ in range(2):
            np.testing.assert_array_equal(table().add(a, b), wanted, strict=True)
            np.testing.assert_array_equal(table().add(a, b, out=np.empty_like(wanted)), wanted, strict=True)
    with pytest.raises(ValueError, match="could not be broadcast together"):
        table().add(x, x[:, :3])
