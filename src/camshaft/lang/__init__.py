"""The kernel language: the names that kernels are written with.

Files in this folder import from each other, never from here.
"""

from camshaft.lang import ir
from camshaft.lang.ir import Value
from camshaft.lang.kernel import CompileRequest, Constant, Kernel, kernel
from camshaft.lang.tracing.tracer import (
    Array,
    Number,
    Tracer,
    Variable,
    add_products,
    first_elements,
    greater,
    power_of_two,
    tile_of,
)

__all__ = [
    "Array",
    "CompileRequest",
    "Constant",
    "Kernel",
    "Number",
    "Tracer",
    "Value",
    "Variable",
    "add_products",
    "first_elements",
    "greater",
    "ir",
    "kernel",
    "power_of_two",
    "tile_of",
]
