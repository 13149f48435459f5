"""What the PTX emitter writes, run on a GPU that this CPU plays: ops on their samples, collectives of every kind and size."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from camshaft import ops
from camshaft.dtypes import as_dtype, boolean, f32, f64, i32, i64
from camshaft.lang import ir
from camshaft.lang.instructions import COMBINERS, INSTRUCTIONS, identity
from camshaft.lang.simt.form import SimtKernel
from camshaft.validation.validate import node_of
from tests.support.devices.simulated_gpu import SimulatedDevice, simulated
from tests.support.quick import each_value, quick_of
from tests.support.samples import check_bits, covering, has_turn, is_row, usable, without

CASES = [
    pytest.param(
        op,
        variant,
        id=f"{op.name}-{variant.name}",
        marks=() if has_turn(op, "simulated GPU", variant) else pytest.mark.full,
    )
    for op in ops.all_ops()
    for variant in op.variants
    if "cuda" in variant.backends
]
# Seconds are spent in switching fibers: samples with more multiply-adds than this are left to scripts.
MOST_FLOPS = 3e5


def _small(op, variant) -> list:
    fit = usable(op, variant, SimulatedDevice())
    least = min((op.flops(node_of(op, s)) for s in fit), default=0)  # of many tokens, more than that
    return [s for s in fit if op.flops(node_of(op, s)) <= max(least, MOST_FLOPS)]


def _quick(op, variant) -> list:
    return covering(op, _small(op, variant), most=1)


@pytest.mark.parametrize(("op", "variant"), CASES)
def test_ops_agree_with_their_references_in_any_order_of_threads(op, variant) -> None:
    quick = _quick(op, variant)
    assert quick, "no sample small enough"
    _prove(op, variant, quick)


@pytest.mark.full
@pytest.mark.parametrize(("op", "variant"), CASES)
def test_more_samples_agree_too(op, variant) -> None:
    _prove(op, variant, without(_small(op, variant)[: 2 if is_row(op) else 5], _quick(op, variant)))


def _prove(op, variant, tried) -> None:
    for sample in tried:
        check_bits(op, variant, SimulatedDevice(64, 1), sample, SimulatedDevice(64, 2))


def _body():
    """A body, and what adds a value to it."""
    body = ir.Block()

    def value(name: str, kind, *args: ir.Value, attr=None) -> ir.Value:
        made = ir.Value(name, kind, args, 0, attr, body)
        body.statements.append(made)
        return made

    return body, value


def _collective(op: str, attr, dtype, lanes: int, source=None) -> tuple[ir.Block, list[ir.Array]]:
    """A SIMT kernel's body: out[lane] = op(x[lane]); a shuffle's lane comes from the i64 array `source`."""
    arrays = [ir.Array("x", dtype, (lanes,), False), ir.Array("out", dtype, (lanes,), True)]
    arrays.insert(1, ir.Array("source", i64, (lanes,), False))
    body, value = _body()

    lane = value("lane", i64)
    x = value("load", dtype, lane, attr=(arrays[0], False, False))
    args = (x, value("load", i64, lane, attr=(arrays[1], False, False))) if source is not None else (x,)
    result = value(op, dtype, *args, attr=attr)
    body.statements.append(ir.Store(0, arrays[2], (lane,), result))
    return body, arrays


def _run(op: str, attr, x, source=None):
    dtype, lanes = as_dtype(x.dtype), len(x)
    body, arrays = _collective(op, attr, dtype, lanes, source)
    kernel = SimtKernel("k", tuple(arrays), (), (ir.GridDim(),), lanes, (), (), body, "k.py")
    out, places = np.zeros_like(x), np.zeros(lanes, np.int64) if source is None else source
    args = np.array([x.ctypes.data, places.ctypes.data, out.ctypes.data], np.int64)
    results = []
    for seed in (1, 5):
        made = simulated(kernel, seed)
        made(args.ctypes.data, 0, 1)
        results.append(out.copy())
    np.testing.assert_array_equal(*results)
    return out


def _values(dtype, lanes: int):
    rng = np.random.default_rng(lanes)
    if dtype == boolean:
        return rng.integers(0, 2, lanes).astype(bool)
    if dtype.is_integer:
        return rng.integers(-(2**40) if dtype == i64 else -(2**20), 2**20, lanes).astype(dtype.numpy)
    return rng.normal(size=lanes).astype(dtype.numpy)


def _halved(x, kind: str):
    combine = INSTRUCTIONS[COMBINERS[kind]].numpy
    while len(x) > 1:
        x = combine(x[: len(x) // 2], x[len(x) // 2 :])
    return x[0]


@pytest.mark.parametrize(
    ("lanes", "dtype"),
    quick_of(
        product([1, 2, 8, 32, 64, 256, 1024], [f32, i32, f64, i64]),
        [(1, f32), (2, i64), (32, i32), (64, f64), (256, f32)],
    ),
    ids=str,
)
def test_reductions_halve_as_the_cpu_does(dtype, lanes) -> None:
    x = _values(dtype, lanes)
    for kind in COMBINERS:
        for n in {2, 16, 64, lanes}:
            if 1 < n <= lanes:
                got = _run("reduce", (kind, n), x)
                np.testing.assert_array_equal(got, np.full(lanes, _halved(x[:n], kind)), err_msg=f"{kind} of {n}")


@pytest.mark.parametrize(("dtype", "lanes"), each_value([f32, i32, f64, i64, boolean], [1, 8, 32, 128]), ids=str)
def test_values_move_between_lanes(dtype, lanes) -> None:
    x = _values(dtype, lanes)
    for i in {0, lanes // 2, lanes - 1}:
        np.testing.assert_array_equal(_run("broadcast", i, x), np.full(lanes, x[i]))
    source = np.random.default_rng(3).integers(0, lanes, lanes)
    np.testing.assert_array_equal(_run("shuffle", None, x, source), x[source])


@pytest.mark.parametrize(("dtype", "lanes"), each_value([f32, i32, i64], [1, 4, 32, 128]), ids=str)
def test_scans_combine_each_lane_with_those_below(dtype, lanes) -> None:
    x = _values(dtype, lanes)
    for kind in COMBINERS:
        combine = INSTRUCTIONS[COMBINERS[kind]].numpy
        for exclusive in (False, True):
            start = np.full(1, identity(kind, dtype.numpy), dtype.numpy)
            wanted = combine.accumulate(np.concatenate([start, x[:-1]]) if exclusive else x)
            np.testing.assert_allclose(_run("scan", (kind, exclusive), x), wanted, rtol=1e-5, atol=1e-5)


def test_a_barrier_left_out_shows() -> None:
    # out[lane] = shared[lanes - 1 - lane] with no barrier between store and load: the order of threads decides
    lanes = 64
    x, out = ir.Array("x", i32, (lanes,), False), ir.Array("out", i32, (lanes,), True)
    shared = ir.Array("shared", i32, (lanes,), True, scratch=True)
    body, value = _body()

    lane = value("lane", i64)
    stored = value("load", i32, lane, attr=(x, False, False))
    body.statements.append(ir.Store(0, shared, (lane,), stored))
    mirrored = value("subtract", i64, value("const", i64, attr=lanes - 1), lane)
    loaded = value("load", i32, mirrored, attr=(shared, False, False))
    body.statements.append(ir.Store(0, out, (lane,), loaded))
    given, got = np.arange(lanes, dtype=np.int32), np.zeros(lanes, np.int32)
    args = np.array([given.ctypes.data, got.ctypes.data], np.int64)
    for barrier in (False, True):
        if barrier:
            at = next(i for i, item in enumerate(body.statements) if isinstance(item, ir.Store)) + 1
            body.statements.insert(at, ir.Barrier(0))
        kernel = SimtKernel("k", (x, out), (), (ir.GridDim(),), lanes, (shared,), (), body, "k.py")
        simulated(kernel)(args.ctypes.data, 0, 1)
        assert (got == given[::-1]).all() == barrier
