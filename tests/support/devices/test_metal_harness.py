"""The stand-in for Metal sees what Metal would do wrong: missing and divergent barriers, and text that does not compile."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.devices.metal_harness import StandInError, compile_msl, have_compiler
from tests.support.needs import require


@pytest.fixture(autouse=True)
def _compiler():
    require(have_compiler(), "needs g++")


TURNED = """#include <metal_stdlib>
using namespace metal;

kernel void turned(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
                   uint group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_threadgroup]]) {
    threadgroup float room[64];
    room[lane] = x[group * 64 + lane];
    SYNC
    out[group * 64 + lane] = room[63 - lane];
}
"""
BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"


def run(text):
    x = np.arange(256, dtype=np.float32)
    out = np.zeros_like(x)
    compile_msl([text])[0]["turned"]([x.ctypes.data, out.ctypes.data], 4, 64)
    return out.reshape(4, 64), x.reshape(4, 64)[:, ::-1]


def test_a_barrier_orders_and_its_absence_shows():
    got, want = run(TURNED.replace("SYNC", BARRIER))
    np.testing.assert_array_equal(got, want)
    got, want = run(TURNED.replace("SYNC", ""))
    assert (got != want).any()


def test_a_barrier_that_some_threads_skip_is_a_fault():
    with pytest.raises(StandInError, match="4 of 64 threads wait at a barrier that the others never reach"):
        run(TURNED.replace("SYNC", f"if (lane < 4) {BARRIER}"))
    with pytest.raises(StandInError, match="threads wait at barriers of lines"):
        run(TURNED.replace("SYNC", f"if (lane < 4) {{\n{BARRIER}\n}} else {{\n{BARRIER}\n}}"))


def test_text_that_is_no_cpp_does_not_compile():
    with pytest.raises(StandInError, match="nothing_of_that_name"):
        run(TURNED.replace("SYNC", "nothing_of_that_name();"))


def test_half_and_bfloat_round_to_nearest_even():
    text = """kernel void rounded(device const float* x [[buffer(0)]], device half* h [[buffer(1)]],
    device bfloat* b [[buffer(2)]], device float* back [[buffer(3)]], uint i [[threadgroup_position_in_grid]]) {
    h[i] = half(x[i]);
    b[i] = bfloat(x[i]);
    back[i] = float(h[i]);
}
"""
    import ml_dtypes

    rng = np.random.default_rng(1)
    x = rng.integers(0, 2**32, 4000, dtype=np.uint32).view(np.float32)
    x[:3000] = rng.normal(size=3000) * 10.0 ** rng.integers(-9, 6, 3000)
    x = x[~np.isnan(x)]
    h, b, back = np.zeros(len(x), np.float16), np.zeros(len(x), ml_dtypes.bfloat16), np.zeros_like(x)
    compile_msl([text])[0]["rounded"]([a.ctypes.data for a in (x, h, b, back)], len(x), 1)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(h.view(np.uint16), x.astype(np.float16).view(np.uint16))
        np.testing.assert_array_equal(b.view(np.uint16), x.astype(ml_dtypes.bfloat16).view(np.uint16))
        np.testing.assert_array_equal(back, x.astype(np.float16).astype(np.float32))
