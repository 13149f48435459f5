"""The table's elementwise ops against NumPy: shapes, strides, dtypes, broadcasting, `out`, overlap, and its words for errors."""

from __future__ import annotations

import array
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import camshaft
from camshaft import table
from camshaft.errors import CamshaftError
from camshaft.ops import NAMES

DTYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.int8, np.int16, np.int32, np.int64]
DTYPES += [np.uint8, np.uint16, np.uint32, np.uint64]
F32 = np.float32
FUNCTIONS = [name for name in ("add", "multiply") if name in NAMES]
# Operands of up to three axes that broadcast to [2, 3, 5] or [1, 3, 17]: every axis there, one, or missing.
WHOLE = st.sampled_from([(2, 3, 5), (1, 3, 17), (4, 1, 16)])


def zeros(*shape: int, dtype: Any = F32) -> np.ndarray:
    return np.zeros(shape, dtype)


@st.composite
def shapes(draw: Any) -> list[tuple[int, ...]]:
    whole = draw(WHOLE)
    made = []
    for _ in range(2):
        sizes = [draw(st.sampled_from([n, n, n, 1])) for n in whole]
        made.append(tuple(sizes[draw(st.integers(0, 3)) :]))
    return made


@st.composite
def strided(draw: Any, shape: tuple[int, ...], dtype: Any, seed: int) -> np.ndarray:
    """An array of this shape that is contiguous, Fortran's, every second element of another, or backwards."""
    rng = np.random.default_rng(seed)
    kind = draw(st.sampled_from("CCFS-"))
    sizes = tuple(2 * n for n in shape) if kind == "S" else shape
    values = rng.integers(0, 9, sizes).astype(dtype)
    if kind == "F":
        return np.asarray(values, order="F")
    if kind == "S" and shape:
        return values[tuple(slice(None, None, 2) for _ in shape)]
    return values[(slice(None, None, -1),) * len(shape)] if kind == "-" and shape else values


@given(data=st.data(), name=st.sampled_from(FUNCTIONS), sizes=shapes(), dtype=st.sampled_from(DTYPES))
def test_one_dtype_any_shapes_and_strides(data: Any, name: str, sizes: Any, dtype: Any) -> None:
    a, b = (data.draw(strided(shape, dtype, i)) for i, shape in enumerate(sizes))
    wanted = getattr(np, name)(a, b)
    got = getattr(table(), name)(a, b)
    assert type(got) is type(wanted)
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(got, wanted)
    out = data.draw(strided(np.shape(wanted), dtype, 7))
    assert getattr(table(), name)(a, b, out=out) is out
    np.testing.assert_array_equal(out, wanted)


@given(
    name=st.sampled_from(FUNCTIONS),
    first=st.sampled_from([*DTYPES, bool, int, float]),
    second=st.sampled_from([*DTYPES, bool]),
    swap=st.booleans(),
)
def test_mixed_dtypes_are_promoted_as_numpy_does(name: str, first: Any, second: Any, swap: bool) -> None:
    if {first, second} == {bool} or (name == "subtract" and bool in (first, second)):
        return  # NumPy adds booleans to booleans by its own rule; camshaft's add has none
    a = first(3) if first in (int, float) else np.arange(6).astype(first)
    pair = (a, np.arange(6)[::-1].astype(second))
    pair = pair[::-1] if swap else pair
    wanted = getattr(np, name)(*pair)
    got = getattr(table(), name)(*pair)
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(("left", "right"), [((0,), (0,)), ((2, 0), (1,)), ((0, 3), (1, 3)), ((), ()), ((), (0,))])
def test_empty_and_0d_arrays_as_numpy(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = np.ones(left, F32), np.ones(right, F32)
    got, wanted = table().add(a, b), np.add(a, b)
    assert type(got) is type(wanted)
    assert got.shape == wanted.shape
    np.testing.assert_array_equal(got, wanted)
    out = np.empty(wanted.shape, F32)
    assert table().add(a, b, out) is out


@pytest.mark.parametrize("shift", [-40, -16, -3, -1, 0, 1, 3, 16, 40])
@pytest.mark.parametrize("n", [5, 100, 9000])
def test_an_output_that_overlaps_an_input(n: int, shift: int) -> None:
    memory = np.arange(n + 80, dtype=F32)
    a, out = memory[40 : 40 + n], memory[40 + shift : 40 + shift + n]
    wanted = np.add(a, a[::-1])
    assert table().add(a, a[::-1].copy(), out=out) is out
    np.testing.assert_array_equal(out, wanted)
    square = np.arange(36, dtype=F32).reshape(6, 6)
    wanted = square + square.T
    np.testing.assert_array_equal(table().add(square, square.T, out=square), wanted)
    memory = np.arange(8, dtype=F32)
    np.testing.assert_array_equal(table().add(memory[:7], memory[0:1].reshape(()), out=memory[1:]), np.arange(7))


CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "shapes": ((zeros(2, 3), zeros(4)), {}),
    "three shapes": ((zeros(3), zeros(3)), {"out": zeros(4)}),
    "smaller out": ((zeros(2, 3), zeros(3)), {"out": zeros(3)}),
    "out to stretch": ((zeros(3), zeros(3)), {"out": zeros(3, 1)}),
    "out of integers": ((zeros(3), zeros(3)), {"out": zeros(3, dtype=np.int32)}),
    "out is a list": ((zeros(3), zeros(3)), {"out": [1, 2, 3]}),
    "two outs": ((zeros(3), zeros(3)), {"out": (zeros(3), zeros(3))}),
    "out twice": ((zeros(3), zeros(3), zeros(3)), {"out": zeros(3)}),
    "one operand": ((zeros(3),), {}),
    "four operands": ((zeros(3), zeros(3), zeros(3), zeros(3)), {}),
    "keyword": ((zeros(3), zeros(3)), {"foo": 1}),
    "text": ((np.array(["a"]), zeros(3)), {}),
    "a number too great": ((zeros(3, dtype=np.int8), 300), {}),
}


@pytest.mark.parametrize("call", CALLS)
def test_errors_are_worded_as_numpy_words_them(call: str) -> None:
    args, kwargs = CALLS[call]
    with pytest.raises((ValueError, TypeError, OverflowError)) as theirs:
        np.add(*args, **kwargs)
    with pytest.raises(CamshaftError) as ours:
        table().add(*args, **kwargs)
    assert str(ours.value) == str(theirs.value)
    kind = next(k for k in (ValueError, TypeError, OverflowError) if isinstance(theirs.value, k))
    assert isinstance(ours.value, kind)


def test_a_read_only_output_is_refused() -> None:
    frozen = zeros(16)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="output array is read-only") as error:
        table().add(zeros(16), zeros(16), out=frozen)
    assert isinstance(error.value, CamshaftError)
    assert not frozen.any()


def test_an_output_of_another_dtype_or_a_larger_shape() -> None:
    a = np.arange(6, dtype=F32)
    for out in (zeros(6, dtype=np.float64), zeros(6, dtype=np.float16), zeros(2, 6), np.zeros(12, F32)[::2]):
        assert table().add(a, a, out=out) is out
        np.testing.assert_array_equal(out, np.add(a, a, out=np.empty_like(out)))
    with pytest.raises(TypeError, match="Cannot cast ufunc 'add'"):
        table().add(a, a, out=np.empty(6, "U3"))
    swapped = a.astype(">f4")
    np.testing.assert_array_equal(table().add(swapped, a), a + a)
    odd = np.zeros(25, np.uint8)[1:].view(F32)
    odd[:] = a
    np.testing.assert_array_equal(table().add(odd, odd, out=odd), a + a)


class Named(np.ndarray):
    """A subclass, which the builtin leaves to Python."""


class Wrapped:
    """Another library's array: DLPack in, its own from_dlpack out."""

    def __init__(self, held: np.ndarray) -> None:
        self.held = held

    def __dlpack__(self, **options: Any) -> Any:
        return self.held.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.held.__dlpack_device__()

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.held

    def __array_namespace__(self) -> type[Wrapped]:
        return Wrapped

    @staticmethod
    def from_dlpack(other: Any) -> Wrapped:
        return Wrapped(np.from_dlpack(other))


def test_what_goes_in_and_comes_out() -> None:
    a = np.arange(4, dtype=F32)
    for value in (a.view(Named), [0.0, 1.0, 2.0, 3.0], memoryview(a), array.array("f", a.tolist())):
        got = table().add(value, a)
        assert type(got) is np.ndarray
        np.testing.assert_array_equal(got, np.asarray(value) + a)
    got = table().add(Wrapped(a), a)
    assert isinstance(got, Wrapped)
    np.testing.assert_array_equal(got.held, a + a)
    out = Wrapped(zeros(4))
    assert table().add(a, Wrapped(a), out=out) is out
    np.testing.assert_array_equal(out.held, a + a)
    with pytest.raises(TypeError, match="a masked array would lose its mask"):
        table().add(np.ma.masked_array(a, a > 1), a)
    with pytest.raises(TypeError, match="cannot be read as an array on the CPU"):
        table().add(Elsewhere(), a)


class Elsewhere:
    """An array that lies on a GPU."""

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("it lies on a GPU")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


def test_fortran_operands_give_a_fortran_result() -> None:
    a = np.asfortranarray(np.arange(12, dtype=F32).reshape(3, 4))
    assert table().add(a, a).flags.f_contiguous
    np.testing.assert_array_equal(table().add(a, np.ascontiguousarray(a)), a + a)


@pytest.mark.parametrize("numbers", [(1.0, 0.0), (1, 0), (1, 0.5), (True, False)], ids=str)
def test_two_numbers_have_the_dtype_that_numpy_gives_them(numbers: tuple[float, float]) -> None:
    mask = np.array([True, False, True])
    found, wanted = camshaft.where(mask, *numbers), np.where(mask, *numbers)
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)
    traced = camshaft.jit(lambda m: camshaft.where(m, *numbers))(mask)
    np.testing.assert_array_equal(traced, wanted)
