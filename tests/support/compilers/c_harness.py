"""Runs a kernel through its C text, compiled by the C compiler at hand. Used by the tests of emit/c*.py."""

from functools import cache
from math import prod

import numpy as np

from camshaft.backends.c.compilers import absent, find_compiler
from camshaft.backends.c.load import build, load
from camshaft.emit.c.module import emit
from camshaft.lang.interpreter.interpret import grid_sizes, interpret
from tests.support.compilers.emit_harness import ENTRY, guarded, guards_whole, trace
from tests.support.compilers.stored import key_of, stored
from tests.support.needs import require


def function(text):
    """The function `kernel` of a C text, as one of its own name."""
    require(absent() is None, f"cpu:c: {absent()}")
    return _function(text, find_compiler())


@cache
def _function(text, compiler):
    key = key_of("c", compiler.key(), text)
    name = f"k{key[:20]}"
    library = load(stored(key, lambda: build(compiler, text.replace("void kernel(", f"void {name}("))))
    return ENTRY(library.address(name)), library


def through_c(kernel_ir, arrays, values=(), programs=None):
    """Runs the kernel on the arrays themselves."""
    entry, _ = function(emit(kernel_ir, "kernel"))
    held = np.array(values or (0,), np.int64)
    places = [a.ctypes.data for a in arrays] + [held.ctypes.data + 8 * i for i in range(len(values))]
    block = np.array(places, np.int64)
    entry(block.ctypes.data, *(programs or (0, prod(grid_sizes(kernel_ir, values)))))


def agree(kernel, arrays, outputs=1, scalars=None, grid=(1,), rtol=0.0, atol=0.0, **constants):
    """Asserts that the C rendering and the interpreter, at one lane, agree; gives the outputs. Guards are checked."""
    scalars = scalars or {}
    kernel_ir = trace(kernel, arrays, outputs, tuple(scalars), grid, **constants)
    values = list(scalars.values())
    pairs = [guarded(a) for a in arrays]
    through_c(kernel_ir, [copy for copy, _ in pairs], values)
    assert all(guards_whole(*pair) for pair in pairs), "bytes around an array were written"
    meant = [a.copy() for a in arrays]
    interpret(kernel_ir, meant, values, lanes=1, shuffle_seed=1)
    got = [copy for copy, _ in pairs[-outputs:]]
    for a, b in zip(got, meant[-outputs:], strict=True):
        wide = [x.astype(np.float64) if x.dtype.kind not in "iub" else x for x in (a, b)]
        np.testing.assert_allclose(*wide, rtol=rtol, atol=atol)
    return got
