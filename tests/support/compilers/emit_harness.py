"""Runs a kernel compiled and interpreted on equal arrays, each array between guard bytes. Used by the tests of emit/."""

from functools import cache
from math import prod

import numpy as np

from camshaft.backends.cpu.compile import compile_module, host_target, load_kernel
from camshaft.backends.cpu.loaded import ENTRY
from camshaft.dtypes import as_dtype
from camshaft.emit.llvm.module import emit
from camshaft.emit.target import CpuTarget
from camshaft.lang import ir
from camshaft.lang.interpreter.interpret import grid_sizes, interpret
from camshaft.lang.verifier.verify import verify
from tests.support.compilers.stored import key_of, stored

FEATURES = frozenset(f[1:] for f in host_target().features.split(",") if f.startswith("+"))
# One lane, a short vector, the widest of a CPU in f32, and several of them. Tests of words that depend on the width name theirs.
WIDTHS = (1, 4, 16, 64)
GUARD_NBYTES = 64


def trace(kernel, arrays, outputs=1, scalars=(), grid=(1,), **constants):
    """Kernel IR, verified. The last `outputs` arrays are written; a grid axis is a size, a (scalar, divisor) or a GridDim."""
    first = len(arrays) - outputs
    params = [ir.ArrayParam(f"a{i}", as_dtype(a.dtype), a.shape, i >= first) for i, a in enumerate(arrays)]
    dims = [ir.GridDim(d) if isinstance(d, int) else ir.GridDim(1, *d) for d in grid]
    kernel_ir = kernel.trace(params, scalars, constants, dims)
    verify(kernel_ir)
    return kernel_ir


def guarded(array):
    """A copy of the array with guard bytes on both sides: (copy, whole buffer)."""
    whole = np.full(array.nbytes + 2 * GUARD_NBYTES + 64, 0xA5, np.uint8)
    start = GUARD_NBYTES + -(whole.ctypes.data + GUARD_NBYTES) % 64
    copy = whole[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy, whole


def guards_whole(copy, whole):
    """Whether no byte around the array was touched."""
    start = copy.ctypes.data - whole.ctypes.data
    return (whole[:start] == 0xA5).all() and (whole[start + copy.nbytes :] == 0xA5).all()


def compiled(text, vectorize=True):
    """The object of an LLVM module, from the store if it was compiled before."""
    return stored(key_of("llvm", str(vectorize), text), lambda: compile_module(text, vectorize=vectorize))


@cache
def _entry(text, vectorize):
    """The function `kernel` of an LLVM module, loaded under a name of its own."""
    name = f"kernel_{key_of(str(vectorize), text)}"
    return ENTRY(load_kernel(compiled(text.replace("@kernel(", f"@{name}("), vectorize)).address(name))


def native(kernel_ir, lanes, features=FEATURES, vectorize=True):
    """The compiled kernel as a function (arrays, scalar values)."""
    entry = _entry(emit(kernel_ir, CpuTarget("x86_64", lanes, frozenset(features)), "kernel"), vectorize)

    def call(arrays, values=(), programs=None):
        held = np.array(values or (0,), np.int64)
        places = [a.ctypes.data for a in arrays] + [held.ctypes.data + 8 * i for i in range(len(values))]
        block = np.array(places, np.int64)
        first, last = programs or (0, prod(grid_sizes(kernel_ir, values)))
        entry(block.ctypes.data, first, last)

    return call


def both(kernel, arrays, outputs=1, scalars=None, grid=(1,), lanes=8, features=FEATURES, **constants):
    """(compiled outputs, interpreted outputs) of one kernel at one width, guards checked."""
    scalars = scalars or {}
    kernel_ir = trace(kernel, arrays, outputs, tuple(scalars), grid, **constants)
    values = list(scalars.values())
    pairs = [guarded(a) for a in arrays]
    native(kernel_ir, lanes, features)([copy for copy, _ in pairs], values)
    assert all(guards_whole(*pair) for pair in pairs), "bytes around an array were written"
    meant = [a.copy() for a in arrays]
    interpret(kernel_ir, meant, values, lanes=lanes, shuffle_seed=lanes)
    return [copy for copy, _ in pairs[-outputs:]], meant[-outputs:]


def agree(kernel, arrays, *, widths=WIDTHS, rtol=0.0, atol=0.0, **keywords):
    """Asserts that the compiled kernel and the interpreter agree at every width; gives the last outputs."""
    return agreeing(both, kernel, arrays, widths, rtol, atol, **keywords)


def agreeing(both, kernel, arrays, widths, rtol, atol, **keywords):
    """Asserts that the two results of `both`, compiled and interpreted, agree at every width; gives the last compiled ones."""
    for lanes in widths:
        got, meant = both(kernel, arrays, lanes=lanes, **keywords)
        for a, b in zip(got, meant, strict=True):
            wide = [x.astype(np.float64) if x.dtype.kind not in "iub" else x for x in (a, b)]
            np.testing.assert_allclose(*wide, rtol=rtol, atol=atol, err_msg=f"at {lanes} lanes")
    return got
