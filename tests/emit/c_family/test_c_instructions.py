"""Every row of the instruction table through C: scalars against the interpreter, vectors against LLVM bit for bit."""

from shutil import which

import numpy as np
import pytest

from camshaft.dtypes import DTYPES, boolean, f32, f64, i32, i64, u32, u64
from camshaft.lang import kernel
from camshaft.lang.atomics import ATOMICS
from camshaft.lang.instructions import INSTRUCTIONS
from tests.emit.llvm.test_instructions import TIES, second, values
from tests.support.compilers.c_harness import agree, through_c
from tests.support.compilers.emit_harness import native, trace
from tests.support.needs import require
from tests.support.quick import each_value, full, quick_of

N = 64
# What is computed in several roundings, in another order than LLVM's: ulps apart.
ROUNDED = {"exp", "log", "tanh", "rsqrt", "erf", "sin", "cos"}
APART = ("cast", "bitcast", "select", "dot4", "dot2", "byte_lookup", "byte_pairs", "byte_signs")


def rows(dtype):
    """The rows of the table that take a dtype, but for those with tests of their own."""
    return [r for r in INSTRUCTIONS.values() if dtype.kind in r.kinds and r.name not in APART]


def operands(dtype, count):
    """What every row may be given: two of anything, a shift's distance or a power of two, a divisor; a third for fma."""
    drawn = [values(dtype, seed)[:count] for seed in (1, 2, 3)]
    if dtype == i64:
        drawn = [d // 4 % (1 << 30) for d in drawn]  # indexes must not overflow
    if dtype.kind == "f":
        return [*drawn, second(dtype, "scale", 4)[:count], drawn[1]]
    if dtype == boolean:
        return [*drawn, drawn[1], drawn[1]]
    return [*drawn, second(dtype, "shift_left", 4)[:count], second(dtype, "floor_divide", 5)[:count]]


def chosen(name, given):
    """The second operand of a row."""
    if name in ("shift_left", "shift_right", "scale"):
        return given[3]
    return given[4] if name in ("floor_divide", "remainder") else given[1]


@kernel
def all_scalar(k, x, y, z, s, d, out, truth, *, n, dtype):
    for i in k.lanes(n):
        given = x[i], y[i], z[i], s[i], d[i]
        for r, row in enumerate(rows(DTYPES[dtype])):
            args = (given[0], chosen(row.name, given), given[2])[: row.arity]
            (truth if row.result == "bool" else out)[r, i] = k.apply(row.name, *args)


@kernel
def all_explicit(k, x, y, z, s, d, out, truth, *, n, dtype, width):
    for i in k.range(0, n, width):
        given = [k.load_vector(a, i, width=width) for a in (x, y, z, s, d)]
        for r, row in enumerate(rows(DTYPES[dtype])):
            args = (given[0], chosen(row.name, given), given[2])[: row.arity]
            k.store_vector(truth if row.result == "bool" else out, k.apply(row.name, *args), r, i)


def arrays(dtype):
    given = operands(dtype, N)
    n_rows = len(rows(dtype))
    return [*given, np.zeros((n_rows, N), dtype.numpy), np.zeros((n_rows, N), np.bool_)]


@pytest.mark.parametrize("dtype", [f32, f64, i32, i64, u32, u64, boolean])
def test_scalars_mean_what_the_table_says(dtype):
    rtol, atol = {f32: (6e-7, 3e-45), f64: (1e-15, 0.0)}.get(dtype, (0.0, 0.0))
    given = arrays(dtype)
    agree(all_scalar, given, outputs=2, n=N, dtype=dtype.name, rtol=rtol, atol=atol)


@pytest.mark.parametrize(("dtype", "width"), each_value([f32, f64, i32, u32, i64], [1, 4, 16, 64]))
def test_vectors_are_llvms_bit_for_bit(dtype, width):
    kernel_ir = trace(all_explicit, arrays(dtype), 2, n=N, dtype=dtype.name, width=width)
    ours, theirs = arrays(dtype), arrays(dtype)
    through_c(kernel_ir, ours)
    native(kernel_ir, 1)(theirs)
    np.testing.assert_array_equal(ours[-1], theirs[-1])
    for row, a, b in zip(rows(dtype), ours[-2], theirs[-2], strict=True):
        if row.name in ROUNDED:
            ulp = np.finfo(dtype.numpy).eps
            np.testing.assert_allclose(a, b, rtol=2 * ulp, atol=3e-45, err_msg=row.name)
        else:
            np.testing.assert_array_equal(a, b, err_msg=row.name)


@kernel
def product_and_sum(k, x, y, z, out, *, n, width):
    if width == 1:
        for c in k.lanes(n):
            out[c] = k.rounded(x[c] * y[c]) + z[c]
    else:
        for c in k.range(0, n, width):
            a, b, added = (k.load_vector(v, c, width=width) for v in (x, y, z))
            k.store_vector(out, k.rounded(a * b) + added, c)


@pytest.mark.parametrize(("dtype", "width", "compiler"), each_value([f32, f64], [1, 4, 16], ["gcc", "clang"], times=2))
def test_a_rounded_product_is_not_fused_with_its_sum(dtype, width, compiler, monkeypatch):
    """Compilers vectorize the loop of width 1, and may not forget there what `rounded` says."""
    require(which(compiler), f"no {compiler}")
    monkeypatch.setenv("CAMSHAFT_CC", compiler)
    x, y, z = (np.random.default_rng(seed).normal(size=992).astype(dtype.numpy) for seed in range(3))
    given = [x, y, z, np.zeros_like(x)]
    through_c(trace(product_and_sum, given, n=992, width=width), given)
    np.testing.assert_array_equal(given[-1], x * y + z)


@kernel
def converted(k, x, *outputs, n, width):
    for i in k.range(0, n, width):
        v = k.load_vector(x, i, width=width)
        for out in outputs:
            if out.dtype.name in ("f32", "f64", "i32", "i64", "u32", "u64", "bool"):
                k.store_vector(out, v if v.dtype == out.dtype else v.to(out.dtype), i)
            else:  # a storage dtype: seen as what a load of it gives
                k.store_vector(out, v.to(out.dtype).to(k_arithmetic(out.dtype)), i)


def k_arithmetic(dtype):
    return f32 if dtype.is_float else (i32 if dtype.kind == "i" else u32)


@pytest.mark.parametrize(("source", "width"), each_value([f32, f64, i32, i64, u32, boolean], [1, 4, 16, 64]))
def test_conversions_round_saturate_and_wrap(source, width):
    x = values(source, 5)[:N]
    if source.is_float:
        x[np.abs(x) < 1e-30] = 0  # bf16 subnormals may be flushed
        x[: len(TIES)] = TIES
    outputs = [np.zeros(N, d.numpy) for d in DTYPES.values()]
    agree(converted, [x, *outputs], outputs=len(outputs), n=N, width=width)


@kernel
def chosen_and_moved(k, c, x, y, bits, out, words, *, n, width):
    for i in k.range(0, n, width):
        a, b = k.load_vector(x, i, width=width), k.load_vector(y, i, width=width)
        which = k.load_vector(c, i, width=width)
        k.store_vector(out, k.select(which, a, b), i)
        k.store_vector(words, k.bitcast(k.bitcast(k.load_vector(bits, i, width=width), f32), u32), i)


@pytest.mark.parametrize(("dtype", "width"), each_value([f32, f64, i64, boolean], [1, 4, 64]))
def test_select_and_bitcast(dtype, width):
    rng = np.random.default_rng(4)
    given = [rng.random(N) < 0.5, values(dtype, 1)[:N], values(dtype, 2)[:N], rng.integers(0, 1 << 30, N, np.uint32)]
    outputs = [np.zeros(N, dtype.numpy), np.zeros(N, np.uint32)]
    out, words = agree(chosen_and_moved, [*given, *outputs], outputs=2, n=N, width=width)
    np.testing.assert_array_equal(out, np.where(given[0], given[1], given[2]))
    np.testing.assert_array_equal(words, given[3])


@kernel
def dots(k, acc, a, b, scalars, vectors, *, n, width):
    for i in k.lanes(n):
        scalars[i] = k.dot4(acc[i], a[i], b[i])
    for i in k.range(0, n, width):
        given = [k.load_vector(x, i, width=width) for x in (acc, a, b)]
        k.store_vector(vectors, k.dot4(*given), i)


@pytest.mark.parametrize("width", quick_of([1, 2, 4, 8, 16, 32, 64], [1, 4, 16, 64]))
def test_dot4_by_instruction_and_by_bytes(width):
    words = [np.random.default_rng(seed).integers(0, 1 << 32, N, np.uint64).astype(np.uint32) for seed in (1, 2, 3)]
    words[1][:4] = words[2][:4] = [0xFFFFFFFF, 0x80808080, 0x7F7F7F7F, 0]
    given = [words[0].view(np.int32), words[1], words[2], *(np.zeros(N, np.int32) for _ in range(2))]
    agree(dots, given, outputs=2, n=N, width=width)


@kernel
def halved(k, x, sums, greatest, one, *, width):
    v = k.load_vector(x, 0, width=width)
    sums[0], greatest[0], one[0] = k.vector_sum(v), k.vector_max(v), k.element(v, width - 1)


@pytest.mark.parametrize(("dtype", "width"), each_value([f32, i32, f64], [1, 2, 16, 64]))
def test_vectors_are_reduced_by_halving(dtype, width):
    x = values(dtype, 3)[:width] if dtype == i32 else np.random.default_rng(3).normal(size=width).astype(dtype.numpy)
    outputs = [np.zeros(1, dtype.numpy) for _ in range(3)]
    agree(halved, [x, *outputs], outputs=3, width=width)


@kernel
def atomics(k, y, x, out, *, kind):
    for i in k.range(8):
        at = i % 2
        if kind == "compare_exchange":
            out[i] = k.compare_exchange(x, y[i], y[i] + 1, at)
        else:
            out[i] = getattr(k, f"atomic_{kind}")(x, y[i], at)
    k.atomic_add(x, x.dtype.numpy.type(1).item(), 2)  # what it gives is not used


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (kind, dtype) if i == n % len(dtypes) else full(kind, dtype)
        for n, (kind, dtypes) in enumerate(
            (kind, [dtype for dtype in (i32, u32, f32) if dtype.kind in row.kinds]) for kind, row in ATOMICS.items()
        )
        for i, dtype in enumerate(dtypes)
    ],
)
def test_atomics_change_one_element_and_give_the_old(kind, dtype):
    y, x = np.array([3, 5, 3, 4, 9, 1, 7, 2], dtype.numpy), np.array([3, 6, 10], dtype.numpy)
    agree(atomics, [y, x, np.zeros(8, dtype.numpy)], outputs=2, kind=kind)
