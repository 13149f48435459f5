"""dot2: products of pairs of bf16 added in f32, of 16-bit integers in i32, against exact arithmetic, on every target that runs
here."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from camshaft.emit.llvm.module import emit
from camshaft.errors import KernelError
from camshaft.lang import kernel
from tests.support.compilers import c_harness, emit_harness, wgsl_harness
from tests.support.compilers.cross import CrossTarget, assembly_for
from tests.support.compilers.emit_harness import FEATURES, trace

N = 128
SHORT_SETS = {
    "host": FEATURES,
    "avx-vnni": {"avx2", "avxvnni"},
    "avx512": {"avx2", "avx512f", "avx512vl", "avx512bw"},
    "avx2": {"avx2"},
    "sse2": {"sse2"},
    "shifts": set(),
}
FEATURE_SETS = {"host": FEATURES, "avx2": {"avx2", "fma", "f16c"}, "no fma": set()}


@kernel
def lanes(k, sums, a, b, out, *, n):
    for c in k.lanes(n):
        out[c] = k.dot2(sums[c], a[c], b[c])


@kernel
def vectors(k, sums, a, b, out, *, n, width):
    for c in k.range(0, n, width):
        x, y, z = (k.load_vector(array, c, width=width) for array in (sums, a, b))
        k.store_vector(out, k.dot2(x, y, z), c)


def given() -> list[np.ndarray]:
    """Sums and pairs of every size, so that the order of sums shows; specials at the start."""
    rng = np.random.default_rng(3)

    def draw(n: int) -> np.ndarray:
        return rng.normal(size=n) * 2.0 ** rng.integers(-8, 8, n)

    pairs = [draw(2 * N).astype(ml_dtypes.bfloat16) for _ in range(2)]
    pairs[0][:8], pairs[1][:8] = (np.inf, 1, np.inf, -np.inf, np.nan, 0, 3e38, 3e38), (1, 1, 1, 1, 1, 1, 4, -4)
    return [draw(N).astype(np.float32), *(p.view(np.uint32) for p in pairs), np.zeros(N, np.float32)]


def rounded(exact: Fraction) -> np.float32:
    """The nearest f32, ties to even, of a number in range: by way of f64, whose error decides where it lies on a tie."""
    near = np.float32(float(exact))
    beside = [near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))]
    return min(beside, key=lambda x: (abs(Fraction(float(x)) - exact), int(x.view(np.uint32)) & 1))


def test_the_meaning_is_two_sums_each_rounded_once() -> None:
    sums, a, b, out = given()
    (out,) = emit_harness.agree(lanes, given(), n=N, widths=(1,))
    left, right = (x.view(ml_dtypes.bfloat16).astype(np.float64).reshape(N, 2) for x in (a, b))
    for i in range(4, N):
        first = rounded(Fraction(float(sums[i])) + Fraction(left[i, 1]) * Fraction(right[i, 1]))
        assert out[i] == rounded(Fraction(float(first)) + Fraction(left[i, 0]) * Fraction(right[i, 0]))
    assert np.isposinf(out[0])
    assert np.isnan(out[1])
    assert np.isnan(out[2])
    assert np.isneginf(out[3]), "the first sum overflows where that of both would not"


@pytest.mark.parametrize("features", FEATURE_SETS)
def test_llvm(features) -> None:
    chosen = FEATURE_SETS[features]
    emit_harness.agree(lanes, given(), n=N, features=chosen)
    for width in (1, 2, 4, 8, 16, 32, 64):
        emit_harness.agree(vectors, given(), n=N, width=width, widths=(1, 8), features=chosen)


@pytest.mark.parametrize("width", [1, 4, 16, 64])
def test_c(width) -> None:
    for form, keywords in ((lanes, {}), (vectors, {"width": width})):
        c_harness.agree(form, given(), n=N, **keywords)


@pytest.mark.full
def test_wgsl() -> None:
    finite = [x[4:].copy() for x in given()]
    wgsl_harness.agree(lanes, finite, widths=(32,), n=N - 4)


def test_a_vector_is_one_instruction() -> None:
    features = frozenset({"avx2", "avx512f", "avx512vl", "avx512bw", "avx512bf16"})
    target = CrossTarget("x86_64-unknown-linux-gnu", "znver4", features)
    text = assembly_for(target, emit(trace(vectors, given(), n=16, width=16), target.at(16), "kernel"))
    assert text.count("\tvdpbf16ps") == 1


def test_other_dtypes_are_refused() -> None:
    @kernel
    def floats(k, sums, a, out):
        for c in k.lanes(N):
            out[c] = k.dot2(sums[c], a[c], a[c])

    with pytest.raises(KernelError, match="wanted f32 or i32, u32, u32"):
        trace(floats, [np.zeros(N, np.float32)] * 3)


def shorts() -> list[np.ndarray]:
    """Sums near the ends, and pairs among which are the least and greatest: they wrap."""
    rng = np.random.default_rng(5)
    pairs = [rng.integers(-(2**15), 2**15, 2 * N).astype(np.int16) for _ in range(2)]
    pairs[0][:4], pairs[1][:4] = (-(2**15), -(2**15), 2**15 - 1, -(2**15)), (-(2**15), -(2**15), 2**15 - 1, 2**15 - 1)
    return [
        rng.integers(-(2**31), 2**31, N).astype(np.int32),
        *(p.view(np.uint32) for p in pairs),
        np.zeros(N, np.int32),
    ]


def test_of_integers_it_is_the_sum_that_wraps() -> None:
    sums, a, b, _ = shorts()
    (out,) = emit_harness.agree(lanes, shorts(), n=N, widths=(1,))
    left, right = (x.view(np.int16).astype(np.int64).reshape(N, 2) for x in (a, b))
    wanted = (sums + (left * right).sum(-1) + 2**31) % 2**32 - 2**31
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("features", [name for name, needed in SHORT_SETS.items() if needed <= FEATURES])
def test_llvm_of_integers(features) -> None:
    chosen = SHORT_SETS[features]
    emit_harness.agree(lanes, shorts(), n=N, features=chosen)
    for width in (1, 2, 4, 8, 16, 32, 64):
        emit_harness.agree(vectors, shorts(), n=N, width=width, widths=(1, 8), features=chosen)


@pytest.mark.parametrize("width", [1, 4, 16, 64])
def test_c_and_wgsl_of_integers(width) -> None:
    c_harness.agree(vectors, shorts(), n=N, width=width)
    if width == 1:
        c_harness.agree(lanes, shorts(), n=N)
        wgsl_harness.agree(lanes, shorts(), widths=(32,), n=N)


@pytest.mark.parametrize(
    ("triple", "cpu", "features", "word"),
    [
        ("x86_64", "znver4", {"avx2", "avx512f", "avx512vl", "avx512bw", "avx512vnni"}, "vpdpwssd"),
        ("x86_64", "alderlake", {"avx2", "avxvnni"}, "vpdpwssd"),
        ("x86_64", "haswell", {"avx2"}, "vpmaddwd"),
        ("x86_64", "nehalem", {"sse2", "sse4.1"}, "pmaddwd"),
    ],
)
def test_integers_are_multiplied_by_the_levels_instruction(triple, cpu, features, word) -> None:
    target = CrossTarget(f"{triple}-unknown-linux-gnu", cpu, frozenset(features))
    text = assembly_for(target, emit(trace(vectors, shorts(), n=16, width=16), target.at(16), "kernel"))
    widest = 16 if "avx512f" in features else 8 if "avx2" in features else 4
    assert text.count(f"\t{word}") == 16 // widest
