"""Kernels as MSL, run on the stand-in headers and compared with the interpreter."""

from __future__ import annotations

import numpy as np

from camshaft.dtypes import f32
from camshaft.emit.msl.context import MslTarget
from camshaft.emit.msl.module import emit
from camshaft.lang import kernel
from camshaft.lang.interpreter.interpret import grid_sizes, interpret
from camshaft.lang.simt.form import to_simt
from tests.support.compilers.emit_harness import guarded, guards_whole, trace
from tests.support.devices.metal_harness import compile_msl


def run_msl(traced, arrays, values=(), lanes=64, target=None):
    """The arrays after the kernel ran; guard bytes around them checked."""
    module = emit(to_simt(traced, lanes), target or MslTarget())
    code = compile_msl([module.text])[0][module.entry]
    pairs = [guarded(a) for a in arrays]
    run = np.array([*values] or [0], np.int32)
    addresses = [copy.ctypes.data for copy, _ in pairs] + [run.ctypes.data]
    code(addresses, int(np.prod(grid_sizes(traced, values))), module.lanes)
    assert all(guards_whole(*pair) for pair in pairs), "bytes around an array were written"
    return [copy for copy, _ in pairs]


def agree(function, arrays, outputs=1, scalars=None, grid=(1,), lanes=64, rtol=0.0, atol=0.0, target=None, **constants):
    """Asserts that MSL and the interpreter give the same; the last outputs."""
    scalars = scalars or {}
    traced = trace(function, arrays, outputs, tuple(scalars), grid, **constants)
    got = run_msl(traced, arrays, list(scalars.values()), lanes, target)[-outputs:]
    meant = [a.copy() for a in arrays]
    interpret(traced, meant, list(scalars.values()), lanes=lanes, shuffle_seed=lanes, subgroup_lanes=32)
    for a, b in zip(got, meant[-outputs:], strict=True):
        wide = [x.astype(np.float64) if x.dtype.kind not in "iub" else x for x in (a, b)]
        np.testing.assert_allclose(*wide, rtol=rtol, atol=atol)
    return got


@kernel
def reductions(k, x, out, total, *, n):
    # lanes' sum, max and min; then a scratch array turned round
    row = k.program(0)
    sums, most, least = k.accumulator("sum"), k.accumulator("max"), k.accumulator("min")
    for c in k.lanes(n):
        sums += x[row, c]
        most.combine(x[row, c])
        least.combine(x[row, c])
    total[row, 0] = k.lanes_sum(sums)
    total[row, 1] = k.lanes_max(most)
    total[row, 2] = k.lanes_min(least)
    turned = k.scratch(f32, n)
    for c in k.lanes(n):
        turned[c] = x[row, c]
    k.barrier()
    for c in k.lanes(n):
        out[row, c] = k.gather(turned, (n - 1) - c)


def text_of(function, arrays, outputs=1, lanes=64, **constants):
    return emit(to_simt(trace(function, arrays, outputs, **constants), lanes), MslTarget()).text
