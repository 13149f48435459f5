"""Every row of the instruction table in WGSL, run on an adapter (Mesa's software Vulkan will do), against the interpreter."""

import numpy as np
import pytest

from camshaft.dtypes import bf16, boolean, f16, f32, i8, i16, i32, i64, u8, u16, u32
from camshaft.errors import KernelError
from camshaft.lang import kernel
from camshaft.lang.instructions import INSTRUCTIONS
from tests.emit.llvm.test_instructions import PLAIN, N, binary, choose, convert, convert_through, reinterpret, second
from tests.emit.llvm.test_instructions import ternary as ternary
from tests.emit.llvm.test_instructions import unary as unary
from tests.emit.llvm.test_instructions import values as all_values
from tests.support.compilers.wgsl_harness import TARGET, agree, both

# A driver's own functions: Vulkan asks 3 + 2 |x| ulp of exp, 3 ulp or 2^-21 absolute of log, 2.5 ulp of a division.
RTOL = {
    "exp": 3e-5,
    "log": 3e-6,
    "tanh": 3e-5,
    "erf": 2e-6,
    "sin": 4e-7,
    "cos": 4e-7,
    "rsqrt": 1e-6,
    "sqrt": 4e-7,
    "divide": 4e-7,
    "fma": 3e-7,
}
ATOL = {"exp": 2e-38, "log": 1e-6, "tanh": 1e-6}
FORMS = {1: unary, 2: binary, 3: ternary}


def values(dtype, seed):
    """As for a CPU, but no subnormal numbers: a GPU may take them for 0."""
    drawn = all_values(dtype, seed)
    if dtype == f32:
        drawn[np.abs(drawn) < 1.2e-38] = 0
    return drawn


def cases():
    """Each row in each dtype; the quick run has one of a row's dtypes, another of the next."""
    for i, name in enumerate(PLAIN):
        dtypes = [dtype for dtype in (f32, i32, u32, boolean) if dtype.kind in INSTRUCTIONS[name].kinds]
        for n, dtype in enumerate(dtypes):
            marks = () if n == i % len(dtypes) else pytest.mark.full
            yield pytest.param(name, dtype, id=f"{name}-{dtype}", marks=marks)


@pytest.mark.parametrize(("name", "dtype"), list(cases()))
def test_a_row_means_what_its_numpy_column_says(name, dtype):
    row = INSTRUCTIONS[name]
    inputs = [values(dtype, 1)] + [
        second(dtype, name, 2 + i) if name.startswith(("shift", "floor", "rem", "scale")) else values(dtype, 2 + i)
        for i in range(row.arity - 1)
    ]
    out = np.zeros(N, np.bool_ if row.result == "bool" else dtype.numpy)
    tolerance = {"rtol": RTOL.get(name, 0.0), "atol": ATOL.get(name, 0.0)} if dtype == f32 else {}
    agree(FORMS[row.arity], [*inputs, out], widths=(32,), n=N, name=name, **tolerance)


@kernel
def index_arithmetic(k, x, y, out, *, n, name):
    for c in k.lanes(n):
        out[c] = k.apply(name, x[c].to(i64), y[c].to(i64)).to(i32)


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "floor_divide", "remainder", "minimum", "maximum"])
def test_indexes_are_32_bit(name):
    x = np.random.default_rng(1).integers(-30_000, 30_000, N).astype(np.int32)
    y = np.random.default_rng(2).integers(1, 300, N).astype(np.int32)
    y[::2] *= -1
    agree(index_arithmetic, [x, y, np.zeros(N, np.int32)], widths=(32,), n=N, name=name)


@kernel
def divided_by_constants(k, x, out, *, n, by):
    for c in k.lanes(n):
        i = x[c].to(i64)
        out[0, c] = (i // by).to(i32)
        out[1, c] = (i % by).to(i32)
        out[2, c] = ((c + 3) // by).to(i32)
        out[3, c] = ((c + 3) % by).to(i32)


@pytest.mark.parametrize("by", [1, 7, 32])
def test_divisions_by_constants_round_down(by):
    x = np.random.default_rng(1).integers(-300, 300, N).astype(np.int32)
    agree(divided_by_constants, [x, np.zeros((4, N), np.int32)], widths=(32,), n=N, by=by)


CASTS = [(a, b) for a in (f32, i32, u32, boolean) for b in (f32, i32, u32, boolean) if a != b]


@pytest.mark.parametrize(("source", "to"), CASTS, ids=str)
def test_conversions_by_value(source, to):
    agree(convert, [values(source, 3), np.zeros(N, to.numpy)], widths=(32,), n=N, to=to.name)


NARROW = [(a, b) for a in (f32, i32, u32) for b in (f16, bf16, i8, u8, i16, u16, i64) if (a, b) != (u32, i64)]


@pytest.mark.parametrize(("source", "to"), NARROW, ids=str)
def test_conversions_through_a_narrow_dtype(source, to):
    drawn = values(source, 4)
    if to == i64:  # what WGSL holds in 32 bits
        drawn = np.clip(np.nan_to_num(drawn), -1000, 1000).astype(source.numpy)
    agree(convert_through, [drawn, np.zeros(N, np.float32)], widths=(32,), n=N, to=to.name)


# u32 values that are known to be below 2^31, and such that are not
KNOWN = {
    "mask": lambda k, x: x & 0x7FFFFFFF,
    "shift": lambda k, x: x >> 1,
    "minimum": lambda k, x: k.minimum(x, 1000),
    "remainder": lambda k, x: x % 1000,
    "quotient": lambda k, x: x // 3,
    "choice": lambda k, x: k.select(x < 9, x & 15, x >> 9),
    "two": lambda k, x: (x >> 4) | (x & 7),
}
UNKNOWN = {
    "itself": lambda k, x: x,
    "sum": lambda k, x: (x & 15) + x,
    "small mask": lambda k, x: x & 0xFFFFFFFF,
    "no shift": lambda k, x: x >> 0,
    "choice": lambda k, x: k.select(x < 9, x & 15, x),
}


def halved(make):
    @kernel
    def halve(k, x, out, *, n):
        for c in k.lanes(n):
            out[c] = (make(k, x[c]).to(i64) // 2).to(i32)

    return halve


@pytest.mark.parametrize("name", KNOWN)
def test_unsigned_numbers_known_to_be_below_half_are_indexes(name):
    agree(halved(KNOWN[name]), [values(u32, 6), np.zeros(N, np.int32)], widths=(32,), n=N)


@pytest.mark.parametrize("name", UNKNOWN)
def test_other_unsigned_numbers_are_refused_as_indexes(name):
    with pytest.raises(KernelError, match=r"line \d+: a u32 that may be 2\^31 or more becomes an index"):
        agree(halved(UNKNOWN[name]), [values(u32, 6), np.zeros(N, np.int32)], widths=(32,), n=N)


def test_bytes_are_indexes():
    agree(halved(lambda k, x: x), [values(u32, 6).astype(np.uint8), np.zeros(N, np.int32)], widths=(32,), n=N)


@pytest.mark.parametrize(("source", "to"), [(f32, u32), (u32, f32), (i32, u32), (f32, i32)], ids=str)
def test_bitcasts(source, to):
    agree(reinterpret, [values(source, 5), np.zeros(N, to.numpy)], widths=(32,), n=N, to=to.name)


@pytest.mark.parametrize("dtype", [f32, i32, u32, boolean], ids=str)
def test_select(dtype):
    arrays = [values(boolean, 6), values(dtype, 7), values(dtype, 8), np.zeros(N, dtype.numpy)]
    agree(choose, arrays, widths=(32,), n=N)


@kernel
def dot(k, acc, a, b, out, *, n):
    for c in k.lanes(n):
        out[c] = k.dot4(acc[c], a[c], b[c])


@pytest.mark.parametrize("features", [frozenset(), frozenset({"packed-dot"})], ids=["shifts", "packed"])
def test_dot4_of_unsigned_and_signed_bytes(features):
    from dataclasses import replace

    words = [values(u32, seed) for seed in (9, 10)]
    words[0][:2], words[1][:2] = 0xFFFFFFFF, 0x80808080
    arrays = [values(i32, 11) // 2, *words, np.zeros(N, np.int32)]
    agree(dot, arrays, widths=(32,), n=N, target=replace(TARGET, features=features))


@kernel
def constants(k, x, out):
    for c in k.lanes(1):
        for i, number in enumerate(CONSTANTS):
            out[i, c] = x[c] * 0.0 + number


CONSTANTS = [0.0, 1.0, -1.0, 1e-5, 3.4028234663852886e38, -3.4028234663852886e38, 1.17549435e-38, 0.1, 16777216.0]


def test_constants_keep_their_value():
    got, _ = both(constants, [np.ones(1, np.float32), np.zeros((len(CONSTANTS), 1), np.float32)], lanes=4)
    assert got[0][:, 0].tolist() == [float(np.float32(c)) for c in CONSTANTS]


@kernel
def special_constants(k, x, out):
    for c in k.lanes(1):
        for i, number in enumerate([float("inf"), float("-inf"), float("nan")]):
            out[i, c] = k.select(x[c] > 0.0, number, 0.0)


def test_infinity_and_nan_are_words_of_the_launch():
    agree(special_constants, [np.ones(1, np.float32), np.zeros((3, 1), np.float32)], widths=(1,))
