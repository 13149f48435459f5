"""Kernel bodies traced, and run by the interpreter."""

import numpy as np

from camshaft.dtypes import as_dtype
from camshaft.lang import ir, kernel
from camshaft.lang.interpreter.interpret import interpret

N = 32


def run(function, arrays, outputs=1, scalars=None, grid=(1,), lanes=8, **keywords):
    first, scalars = len(arrays) - outputs, scalars or {}
    params = [ir.ArrayParam(f"a{i}", as_dtype(a.dtype), a.shape, i >= first) for i, a in enumerate(arrays)]
    dims = [ir.GridDim(d) if isinstance(d, int) else ir.GridDim(1, *d) for d in grid]
    made = kernel(function).trace(params, tuple(scalars), {}, dims)
    return interpret(made, arrays, list(scalars.values()), lanes=lanes, **keywords)


def floats(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
