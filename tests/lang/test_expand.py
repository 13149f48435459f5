"""Elementary functions as Kernel IR: as accurate in the interpreter as the instruction table states, and gone from the kernel."""

import numpy as np
import pytest

from camshaft.lang import ir, kernel, traversal
from camshaft.lang.expand.functions import EXPANSIONS, expand_functions, expanded_on
from camshaft.lang.interpreter.interpret import interpret
from camshaft.lang.simt.form import to_simt
from camshaft.lang.targets import TARGETS
from camshaft.lang.verifier.verify import verify
from tests.emit.llvm.test_accuracy import WIDE, WIDER, WORST_ULP, apply, sweeps, ulps
from tests.support.compilers.emit_harness import both, trace
from tests.support.quick import full

WITHOUT_SCALE = frozenset({"scale"})


def instructions(kernel_ir):
    return [item.op for item in traversal.walk(kernel_ir.body) if isinstance(item, ir.Value)]


@pytest.mark.parametrize("dtype", [full(np.float32), np.float64])
@pytest.mark.parametrize("name", [name for name in EXPANSIONS if name in WORST_ULP])
def test_an_expansion_is_as_accurate_as_stated_in_the_interpreter(name, dtype):
    x = sweeps(name, dtype)[:: 1 if name == "erf" else 8]
    # the interpreter's fma of f64 splits numbers, which overflows
    x = np.ascontiguousarray(x[np.abs(x) < np.finfo(dtype).max / 2**30])
    kernel_ir = expand_functions(trace(apply, [x, x], n=x.size, name=name), "llvm", WITHOUT_SCALE)
    verify(kernel_ir)
    got = np.zeros_like(x)
    interpret(kernel_ir, [x, got], lanes=1 << 14)
    with np.errstate(all="ignore"):
        wide = WIDE.get(name, getattr(np, name, None))(x.astype(WIDER[dtype]))
        finite = np.isfinite(wide.astype(dtype))
        np.testing.assert_array_equal(got[~finite], wide[~finite].astype(dtype))
        assert ulps(got[finite], wide[finite], dtype).max() <= WORST_ULP[name]


@kernel
def every_place(k, x, out, *, n, names):
    with k.when(k.program(0) >= 0):
        start = k.var(k.exp(x[0]))
        for name in names.split():
            start.set(k.apply(name, *[start.value] * (2 if name == "scale" else 1)))
        for c in k.lanes(n):
            with k.when(k.erf(x[c]) < k.log(x[0])):
                out[c] = start.value + k.tanh(x[c])


@pytest.mark.parametrize("column", TARGETS)
def test_no_function_that_a_target_expands_is_left(column):
    x = np.zeros(5, np.float32)
    kernel_ir = trace(every_place, [x, x], n=5, names=" ".join(EXPANSIONS))
    form = kernel_ir if column in ("llvm", "c") else to_simt(kernel_ir, 32)
    expanded = expand_functions(form, column)
    assert expanded_on(column)
    assert not expanded_on(column).keys() & set(instructions(expanded))
    assert set(instructions(form)) >= EXPANSIONS.keys()  # the kernel itself is as it was
    if form is kernel_ir:
        verify(expanded)


@kernel
def uniform_under_a_mask(k, x, out, wide, *, n):
    with k.when(k.lane() < 3):
        out[0] = k.sin(x[0])  # one value, though it is computed where some lanes are off
        out[1] = k.cos(x[1])
    for i in k.range(0, n, 16):
        angles = k.load_vector(x, i, width=16)
        k.store_vector(wide, k.sin(angles) + k.cos(angles), i)


@pytest.mark.parametrize("lanes", [1, 8])
def test_a_far_angle_is_reduced_wherever_it_stands(lanes):
    x = np.array([1e9, -3e20, 0.5, np.inf, 2**26, -(2**28)] * 8, np.float32)
    given = [x, np.zeros(2, np.float32), np.zeros_like(x)]
    got, meant = both(uniform_under_a_mask, given, outputs=2, lanes=lanes, n=48)
    np.testing.assert_allclose(got[0], meant[0], rtol=1e-7)
    np.testing.assert_allclose(got[1], meant[1], rtol=3e-7)
    kernel_ir = expand_functions(trace(uniform_under_a_mask, given, 2, n=48), "llvm")
    verify(kernel_ir)
    expanded = [g.copy() for g in given]
    interpret(kernel_ir, expanded, lanes=lanes)
    np.testing.assert_array_equal(expanded[1], got[0])
    np.testing.assert_array_equal(expanded[2], got[1])


def test_sin_and_cos_of_one_angle_share_its_reduction():
    x = np.zeros(48, np.float32)
    once = expand_functions(trace(apply, [x, x], n=48, name="sin"), "llvm")
    both_of_three = expand_functions(trace(uniform_under_a_mask, [x, x[:2], x], 2, n=48), "llvm")
    branches = [sum(isinstance(item, ir.When) for item in traversal.walk(k.body)) for k in (once, both_of_three)]
    assert branches == [1, 1 + 3]


@kernel
def plain(k, x, out, *, n):
    for c in k.lanes(n):
        out[c] = x[c] * x[c] + 1.0


def test_a_kernel_without_functions_stays_itself():
    x = np.zeros(5, np.float32)
    kernel_ir = trace(plain, [x, x], n=5)
    assert expand_functions(kernel_ir, "llvm") is kernel_ir


def test_an_expansion_states_its_own_fused_steps():
    x = np.zeros(5, np.float32)
    expanded = expand_functions(trace(apply, [x, x], n=5, name="log"), "llvm")
    sums = [
        v for v in traversal.walk(expanded.body) if isinstance(v, ir.Value) and v.op in ("add", "subtract", "multiply")
    ]
    assert all((v.attr == ir.EXACT) == v.dtype.is_float for v in sums)
