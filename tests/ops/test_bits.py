"""All 65,536 values of f16 and of bf16: ops that move elements keep their bits, arithmetic keeps subnormals."""

import ml_dtypes
import numpy as np
import pytest

from camshaft import ops
from camshaft.backends.registry import backend_named, device
from camshaft.dtypes import as_dtype
from camshaft.lang import kernel
from camshaft.ops.op import NodeSpec
from camshaft.ops.spec import TensorSpec
from camshaft.validation.run import run_variant
from tests.support.compilers.emit_harness import FEATURES, guarded, native, trace
from tests.support.needs import require

BITS = np.arange(1 << 16, dtype=np.uint16)
SQUARE, TALL = BITS.reshape(256, 256), BITS.reshape(-1, 4)
BACK = np.arange(255, -1, -1, dtype=np.int32)
SHORT = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
# op: inputs (integers of 16 bits are the bits of the float), attributes, the bits of its last result
MOVED = {
    "copy": ((BITS,), {}, BITS),
    "cast": ((BITS,), {"to": None}, BITS),
    "where": ((BITS % 3 == 0, BITS, BITS[::-1].copy()), {}, np.where(BITS % 3 == 0, BITS, BITS[::-1])),
    "transpose": ((TALL,), {}, TALL.T),
    "transpose in tiles": ((SQUARE,), {}, SQUARE.T),
    "slice": ((BITS,), {"starts": (65535,), "sizes": (65536,), "steps": (-1,)}, BITS[::-1]),
    "concat": ((BITS[:300], BITS[300:]), {"axis": 0}, BITS),
    "split": ((BITS,), {"sizes": (1000, 64536)}, BITS[1000:]),
    "gather": ((SQUARE, BACK), {}, SQUARE[BACK]),
    "embedding": ((BACK, SQUARE), {}, SQUARE[BACK]),
}
ARITHMETIC = {
    "multiply": (lambda x: (x, np.ones_like(x)), lambda x: x),
    "add": (lambda x: (x, np.zeros_like(x)), lambda x: np.where(x == 0, x.dtype.type(0), x)),  # -0 + 0 is 0
    "negate": (lambda x: (x,), np.negative),
    "abs": (lambda x: (x,), np.abs),
}
DEVICES = ["simd", *(pytest.param(name, marks=pytest.mark.full) for name in ("scalar", "cpu:c", "webgpu"))]


def computed(name, backend, inputs, attrs):
    op, target = ops.get(name), device(backend)
    specs = tuple(TensorSpec(x.shape, as_dtype(x.dtype)) for x in inputs)
    node = NodeSpec(specs, op.outputs(specs, attrs), attrs)
    variant = next(v for v in op.variants if backend.removeprefix("cpu:") in v.backends)
    return run_variant(variant, node, target, inputs, {})[-1]


@pytest.mark.parametrize("dtype", SHORT, ids=str)
@pytest.mark.parametrize("backend", DEVICES)
def test_ops_that_move_elements_keep_their_bits(backend, dtype) -> None:
    reason = backend_named(backend).absent()
    require(reason is None, f"{backend}: {reason}")
    for name, (inputs, attrs, wanted) in MOVED.items():
        arrays = [x.view(dtype) if x.dtype == np.uint16 else x for x in inputs]
        given = {key: as_dtype(dtype).name if value is None else value for key, value in attrs.items()}
        got = computed(name.split()[0], backend, arrays, given)
        assert got.dtype == dtype, name
        np.testing.assert_array_equal(got.view(np.uint16), wanted, err_msg=name)


@pytest.mark.parametrize("dtype", SHORT, ids=str)
@pytest.mark.parametrize("backend", DEVICES[:3])
def test_arithmetic_keeps_subnormals(backend, dtype) -> None:
    reason = backend_named(backend).absent()
    require(reason is None, f"{backend}: {reason}")
    x = BITS.view(dtype)
    number = ~np.isnan(x.astype(np.float32))
    for name, (inputs_of, wanted_of) in ARITHMETIC.items():
        got = computed(name, backend, inputs_of(x), {})
        np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), ~number, err_msg=name)
        with np.errstate(invalid="ignore"):
            got_bits, wanted = (y.view(np.uint16)[number] for y in (got, wanted_of(x)))
        np.testing.assert_array_equal(got_bits, wanted, err_msg=name)


@kernel
def narrowed(k, x, out, *, n):
    for c in k.lanes(n):
        out[c] = x[c]


@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.parametrize("features", [FEATURES, {"sse2"}], ids=["this CPU", "SSE2"])
def test_rounding_to_bf16_is_that_of_integers(features, lanes) -> None:
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    x = ((BITS.astype(np.uint32) << 16)[:, None] | low).reshape(-1)
    x = x[(x & 0x7FFFFFFF) <= 0x7F800000]
    wanted = ((x + 0x7FFF + ((x >> 16) & 1)) >> 16).astype(np.uint16)
    out = np.zeros(x.size, ml_dtypes.bfloat16)
    copies = [guarded(a)[0] for a in (x.view(np.float32), out)]
    native(trace(narrowed, [x.view(np.float32), out], n=x.size), lanes, features)(copies)
    np.testing.assert_array_equal(copies[-1].view(np.uint16), wanted)
