"""Refusals follow from the tables: every kernel that a target lacks something for is refused with the reason, and no other."""

import numpy as np
import pytest

from camshaft.dtypes import DTYPES, f64, i32
from camshaft.emit.refusal import refusal
from camshaft.lang import ir, kernel
from camshaft.lang.dialects import Absent
from camshaft.lang.targets import ELEMENTS, TARGETS
from tests.emit.llvm.test_memory import copy
from tests.support.compilers.emit_harness import trace


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", list(DTYPES))
def test_arrays_of_a_dtype_that_the_target_lacks_are_refused(name, target):
    x = np.zeros((1, 4), DTYPES[name].numpy)
    cell = ELEMENTS[target][name]
    reason = refusal(trace(copy, [x, x.copy()], n=4), target)
    assert reason == (f"a0: {cell.reason}" if isinstance(cell, Absent) else None)


@kernel
def through_f64(k, x, out):
    for c in k.lanes(4):
        out[c] = (x[c].to(f64) * 2.0).to(i32)


def test_values_that_the_target_lacks_are_refused_with_their_line():
    x = np.zeros(4, np.int32)
    kernel_ir = trace(through_f64, [x, x.copy()])
    line = through_f64.function.__code__.co_firstlineno + 3
    assert refusal(kernel_ir, "wgsl") == f"line {line}: WGSL has no 64-bit floats"
    assert refusal(kernel_ir, "msl") == f"line {line}: Metal has no 64-bit floats"
    assert refusal(kernel_ir, "llvm") is refusal(kernel_ir, "c") is None


def test_more_elements_than_an_index_reaches_are_refused():
    params = [ir.ArrayParam("x", i32, (1 << 31,)), ir.ArrayParam("out", i32, (4,), True)]
    kernel_ir = through_f64.trace(params)
    assert refusal(kernel_ir, "wgsl") == "x: 2147483648 elements; an index of wgsl reaches 2147483647"
    assert refusal(kernel_ir, "c") is None
