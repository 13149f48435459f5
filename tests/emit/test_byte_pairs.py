"""byte_pairs and byte_signs: 16-bit sums of byte products and signs of bytes, against plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from camshaft.emit.refusal import refusal
from camshaft.emit.target import LEVELS
from camshaft.errors import KernelError, VerifyError
from camshaft.lang import kernel
from camshaft.lang.interpreter.interpret import interpret
from tests.support.compilers import c_harness, emit_harness
from tests.support.compilers.emit_harness import FEATURES, trace
from tests.support.quick import quick_of

FEATURE_SETS = {"host": FEATURES, "avx2": LEVELS["avx2"].features, "sse4": LEVELS["sse4"].features, "shifts": set()}
N = 64


@kernel
def vectors(k, acc, a, b, pairs, signs, *, n, width):
    for i in k.range(0, n, width):
        total, left, right = (k.load_vector(x, i, width=width) for x in (acc, a, b))
        k.store_vector(pairs, k.byte_pairs(total, left, right), i)
        k.store_vector(signs, k.byte_signs(left, right), i)


@kernel
def lanes(k, acc, a, b, pairs, signs, *, n):
    for c in k.lanes(n):
        pairs[c] = k.byte_pairs(acc[c], a[c], b[c])
        signs[c] = k.byte_signs(a[c], b[c])


def given() -> list[np.ndarray]:
    """Any 16-bit sums; bytes below 128 and any bytes, with their extremes; and where results go."""
    rng = np.random.default_rng(0)
    u, s = rng.integers(0, 128, (N, 4)).astype(np.uint8), rng.integers(-128, 128, (N, 4)).astype(np.int8)
    u[0], s[0], u[1], s[1], u[2], s[2] = 127, -128, 127, 127, 128, -127
    s[3] = (0, -1, 1, -128)
    acc = rng.integers(0, 1 << 32, N, np.uint64).astype(np.uint32)
    return [acc, u.view(np.uint32)[:, 0], s.view(np.uint32)[:, 0], np.zeros(N, np.uint32), np.zeros(N, np.uint32)]


def wanted(acc: np.ndarray, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    u, s = a.view(np.uint8).astype(np.int32), b.view(np.int8).astype(np.int32)
    sums = acc.view(np.int16) + (u * s).reshape(-1, 2).sum(-1)
    signs = a.view(np.int8).astype(np.int32) * np.sign(s)
    return sums.astype(np.int16).view(np.uint32), signs.astype(np.int8).view(np.uint32)


CASES = [(width, name) for name in FEATURE_SETS for width in (1, 2, 4, 8, 16, 32)]


@pytest.mark.parametrize(("width", "features"), quick_of(CASES, [case for case in CASES if case[0] in (1, 16)]))
def test_pairs_and_signs_are_exact(width, features):
    arrays = given()
    settings = {"features": FEATURE_SETS[features], "outputs": 2}
    for found in (
        emit_harness.agree(vectors, arrays, n=N, width=width, widths=(1, 8), **settings),
        emit_harness.agree(lanes, arrays, n=N, widths=(1, 16), **settings),
    ):
        for out, want in zip(found, wanted(*arrays[:3]), strict=True):
            np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("width", quick_of([1, 4, 8, 16], [1, 16]))
def test_pairs_and_signs_in_c(width):
    arrays = given()
    found = c_harness.agree(vectors, arrays, outputs=2, n=N, width=width)
    for out, want in zip(found, wanted(*arrays[:3]), strict=True):
        np.testing.assert_array_equal(out, want)


def test_the_interpreter_reports_a_sum_that_x86_would_saturate():
    arrays = given()
    arrays[1][5], arrays[2][5] = 0xFFFF, 0x7F7F  # 2 * 255 * 127
    with pytest.raises(VerifyError, match="byte_pairs of two products whose sum exceeds 16 bits"):
        interpret(trace(lanes, arrays, 2, n=N), arrays, lanes=4)


def test_gpus_refuse_both_and_the_tracer_other_dtypes():
    made = trace(lanes, given(), 2, n=N)
    assert "dot4 is for GPUs" in refusal(made, "wgsl")
    assert "dot4 is for GPUs" in refusal(made, "msl")

    @kernel
    def wrong(k, acc, out, *, n):
        for c in k.lanes(n):
            out[c] = k.byte_signs(acc[c], acc[c])

    with pytest.raises(KernelError, match="byte_signs of i32, i32: wanted u32"):
        trace(wrong, [np.zeros(N, np.int32), np.zeros(N, np.int32)], n=N)
