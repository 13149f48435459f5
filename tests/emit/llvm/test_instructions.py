"""Every row of the instruction table, compiled against interpreted, for every dtype of its kinds."""

import numpy as np
import pytest

from camshaft.dtypes import DTYPES, boolean, f32, f64, i32, i64, u32, u64
from camshaft.lang import kernel
from camshaft.lang.instructions import INSTRUCTIONS
from tests.support.compilers.emit_harness import agree
from tests.support.quick import each_value, full

N = 75
WIDTHS = [(1, 16), full((8,))]
ARITHMETIC = (f32, f64, i32, i64, u32, u64)
FLOAT_SPECIALS = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3e38, 88.5, -103.5]
# halfway between two bf16, then between two f16: the even one of both
TIES = [1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 1 + 2**-11, 1 + 3 * 2**-11]
ROUNDED = {"exp": 4e-7, "log": 4e-7, "tanh": 6e-7, "erf": 4e-7, "sin": 3e-7, "cos": 3e-7, "rsqrt": 3e-7, "fma": 0.0}
APART = ("cast", "bitcast", "select", "dot4", "dot2", "byte_lookup", "byte_pairs", "byte_signs")
PLAIN = [name for name in INSTRUCTIONS if name not in APART]


@kernel
def unary(k, x, out, *, n, name):
    for c in k.lanes(n):
        out[c] = k.apply(name, x[c])


@kernel
def binary(k, x, y, out, *, n, name):
    for c in k.lanes(n):
        out[c] = k.apply(name, x[c], y[c])


@kernel
def ternary(k, x, y, z, out, *, n, name):
    for c in k.lanes(n):
        out[c] = k.apply(name, x[c], y[c], z[c])


@kernel
def uniform_binary(k, x, y, out, *, n, name):
    for i in k.range(n):
        out[i] = k.apply(name, x[i], y[i])


@kernel
def explicit_binary(k, x, y, out, *, n, name):
    for i in k.range(0, n, 16):
        count = k.minimum(i * 0 + 16, i * -1 + n)
        a = k.load_vector(x, i, width=16, count=count)
        b = k.load_vector(y, i, width=16, count=count)
        k.store_vector(out, k.apply(name, a, b), i, count=count)


@kernel
def convert(k, x, out, *, n, to):
    for c in k.lanes(n):
        out[c] = x[c].to(DTYPES[to])


@kernel
def convert_through(k, x, out, *, n, to):
    for c in k.lanes(n):
        out[c] = x[c].to(DTYPES[to]).to(f32)


@kernel
def reinterpret(k, x, out, *, n, to):
    for c in k.lanes(n):
        out[c] = k.bitcast(x[c], DTYPES[to])


@kernel
def choose(k, condition, x, y, out, *, n):
    for c in k.lanes(n):
        out[c] = k.select(condition[c], x[c], y[c])


def values(dtype, seed):
    """Random elements, and the awkward ones of the dtype, in a shuffled order."""
    rng = np.random.default_rng(seed)
    if dtype.kind == "b":
        return rng.random(N) < 0.5
    if dtype.is_float:
        special = np.array(FLOAT_SPECIALS)
        drawn = rng.normal(size=N - special.size) * 10.0 ** rng.integers(-3, 4, N - special.size)
        return rng.permutation(np.concatenate([special, drawn])).astype(dtype.numpy)
    info = np.iinfo(dtype.numpy)
    small = rng.integers(-9 if info.min else 0, 9, N // 2)
    large = rng.integers(info.min // 2, info.max // 2, N - small.size - 2, dtype=dtype.numpy)
    ends = [info.max, info.min] if dtype != i64 else [info.max // 4, info.min // 4]
    return rng.permutation(np.concatenate([small.astype(dtype.numpy), large, np.array(ends, dtype.numpy)]))


def second(dtype, name, seed):
    """The second operand: within the meaning of shifts, divisions and powers of two."""
    if name == "scale":
        return np.random.default_rng(seed).integers(0, 40, N).astype(dtype.numpy)
    if name.startswith("shift"):
        return np.random.default_rng(seed).integers(0, dtype.bits, N).astype(dtype.numpy)
    drawn = values(dtype, seed)
    if name in ("floor_divide", "remainder"):
        drawn[(drawn == 0) | (drawn == (-1 if dtype.kind == "i" else 0))] = 3
    if name == "multiply" and dtype == i64:
        drawn %= 2  # i64 must not overflow
    return drawn


def cases():
    """Each row in each dtype; the quick run has one of a row's dtypes, another of the next."""
    for i, name in enumerate(PLAIN):
        dtypes = [dtype for dtype in (*ARITHMETIC, boolean) if dtype.kind in INSTRUCTIONS[name].kinds]
        for n, dtype in enumerate(dtypes):
            marks = () if n == i % len(dtypes) else pytest.mark.full
            yield pytest.param(name, dtype, id=f"{name}-{dtype}", marks=marks)


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize(("name", "dtype"), list(cases()))
def test_a_row_means_what_its_numpy_column_says(name, dtype, widths):
    row = INSTRUCTIONS[name]
    inputs = [values(dtype, 1)] + [second(dtype, name, 2 + i) for i in range(row.arity - 1)]
    out = np.zeros(N, np.bool_ if row.result == "bool" else dtype.numpy)
    form = {1: unary, 2: binary, 3: ternary}[row.arity]
    rtol = ROUNDED.get(name, 0.0) if dtype == f32 else (1e-15 if name in ROUNDED else 0.0)
    atol = 3e-45 if dtype == f32 and name in ROUNDED else 0.0
    agree(form, [*inputs, out], n=N, name=name, widths=widths, rtol=rtol, atol=atol)


@pytest.mark.parametrize(
    ("name", "dtype"),
    each_value(
        ["add", "minimum", "less", "and", "floor_divide", "remainder", "shift_right"], [i64, f32, u32, i32], times=2
    ),
)
def test_uniform_and_explicit_forms_mean_the_same(name, dtype):
    if dtype.kind not in INSTRUCTIONS[name].kinds:
        return
    inputs = [values(dtype, 1), second(dtype, name, 2)]
    out = np.zeros(N, np.bool_ if INSTRUCTIONS[name].result == "bool" else dtype.numpy)
    agree(uniform_binary, [*inputs, out], n=N, name=name, widths=(1, 16))
    if name not in ("floor_divide", "remainder"):  # the last vector's missing elements are 0: no divisor
        agree(explicit_binary, [*inputs, out], n=N, name=name, widths=(1, 8))


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize(
    ("to", "source"),
    each_value(
        [d for d in DTYPES.values() if d not in (DTYPES["f16"], DTYPES["bf16"])],
        [f32, f64, i32, i64, u32, boolean],
        times=2,
    ),
)
def test_casts_truncate_saturate_and_wrap(source, to, widths):
    x = values(source, 5)
    if to.name in ("i8", "i16", "u8", "u16"):
        back = convert_through  # a storage dtype has no arithmetic: it is seen by casting back
        agree(back, [x, np.zeros(N, np.float32)], n=N, to=to.name, widths=widths)
    else:
        agree(convert, [x, np.zeros(N, to.numpy)], n=N, to=to.name, widths=widths)


@pytest.mark.parametrize("to", ["f16", "bf16"])
@pytest.mark.parametrize("source", [f32, f64, i32, i64, u32])
def test_casts_to_16_bit_floats_round_to_even(source, to):
    x = values(source, 6)
    if source.is_float:
        x[np.abs(x) < 1e-30] = 0  # bf16 subnormals may be flushed
        x[: len(TIES)] = TIES
    agree(convert_through, [x, np.zeros(N, np.float32)], n=N, to=to, widths=(1, 8, 16))


def test_bf16_is_rounded_in_integers_where_the_machine_cannot():
    x = values(f32, 7)
    x[: len(TIES)] = TIES
    keywords = {"n": N, "to": "bf16", "widths": (1, 8, 16)}
    agree(convert_through, [x, np.zeros(N, np.float32)], features={"avx2", "fma", "f16c"}, **keywords)


@pytest.mark.parametrize(
    ("source", "to"), [("f32", "u32"), ("f32", "i32"), ("u32", "f32"), ("f64", "i64"), ("i32", "u32")]
)
def test_bitcast_keeps_the_bits(source, to):
    x = values(DTYPES[source], 8)
    agree(reinterpret, [x, np.zeros(N, DTYPES[to].numpy)], n=N, to=to, widths=(1, 8))


@pytest.mark.parametrize("dtype", [f32, f64, i32, i64, u32, boolean])
def test_select_takes_the_first_where_the_condition_holds(dtype):
    condition = np.random.default_rng(3).random(N) < 0.5
    x, y = values(dtype, 1), values(dtype, 2)
    (out,) = agree(choose, [condition, x, y, np.zeros(N, dtype.numpy)], n=N)
    np.testing.assert_array_equal(out, np.where(condition, x, y))
