"""Rules of loops, lanes, blocks and barriers: each error names the kernel and the line."""

import numpy as np
import pytest

from camshaft.dtypes import f32
from camshaft.errors import KernelError
from camshaft.lang import kernel, operators
from tests.lang.broken_rules import ARRAYS, collected_in, expect_named_error, here

BROKEN = []
broken = collected_in(BROKEN)


@broken("left early")
def break_in_a_loop(k, x, y, out):
    for c in k.lanes(64):  # here
        out[0, c] = x[0, c]
        break


@broken("left early")
def return_from_a_loop(k, x, y, out):
    for i in k.range(4):  # here
        out[i, 0] = 1
        return


@broken("left early")
def break_and_go_on(k, x, y, out):
    for _ in k.range(4):  # here
        break
    out[0, 0] = 1


@broken("AttributeError: 'Tracer' object has no attribute 'cosh'")
def a_word_that_there_is_none_of(k, x, y, out):
    for c in k.lanes(64):
        out[0, c] = k.cosh(x[0, c])  # here


@broken("TypeError: ")
def a_function_of_numpy(k, x, y, out):
    for c in k.lanes(64):
        out[0, c] = np.exp(x[0, c])  # here


@broken("16777216 bytes of scratch: at most 1114112")
def much_scratch(k, x, y, out):
    held = k.scratch(f32, 1 << 22)  # here
    held[0] = 1.0


@broken("has no truth")
def if_on_a_traced_value(k, x, y, out):
    if x[0, 0] > 0:  # here
        out[0, 0] = 1


@broken("has no truth")
def and_of_traced_values(k, x, y, out):
    out[0, 0] = k.select(x[0, 0] > 0 and x[0, 1] > 0, 1.0, 0.0)  # here


@broken("inside k.lanes")
def nested_lanes(k, x, y, out):
    for c in k.lanes(4):
        for d in k.lanes(64):  # here
            out[c, d] = 1


@broken("inside k.lanes")
def range_in_lanes(k, x, y, out):
    for c in k.lanes(4):
        for d in k.range(64):  # here
            out[d, c] = 1


@broken("outside the loop that made it")
def value_outside_its_loop(k, x, y, out):
    for c in k.lanes(64):
        last = x[0, c]
    out[0, 0] = last  # here


@broken("outside the block that made it")
def variable_outside_its_block(k, x, y, out):
    for _ in k.range(4):
        v = k.var(1.0)
    out[0, 0] = v.value  # here


@broken("inside k.lanes")
def collective_in_lanes(k, x, y, out):
    total = k.accumulator("sum")
    for c in k.lanes(64):
        total += x[0, c]
        out[0, 0] = k.lanes_sum(total)  # here


@broken("not all lanes arrive")
def collective_in_a_varying_when(k, x, y, out):
    total = k.accumulator("sum")
    with k.when(k.lane() > 1):
        out[0, 0] = k.lanes_sum(total)  # here


@broken("barrier")
def barrier_in_lanes(k, x, y, out):
    for _ in k.lanes(64):
        k.barrier()  # here


@broken("a barrier that not all lanes reach")
def barrier_in_a_varying_when(k, x, y, out):
    with k.when(k.lane() > 1):
        k.barrier()  # here


@broken("varies by lane")
def lanes_in_a_varying_when(k, x, y, out):
    with k.when(k.lane() > 1):
        for c in k.lanes(64):  # here
            out[0, c] = 1


@broken("would depend on the lane count")
def sum_of_a_uniform_value(k, x, y, out):
    out[0, 0] = k.lanes_sum(x[0, 0])  # here


@broken("use k.accumulator")
def counting_lanes(k, x, y, out):
    count = k.var(0.0)
    for _ in k.lanes(64):
        count.set(count.value + 1)  # here


@broken("wanted a traced boolean")
def when_of_a_python_boolean(k, x, y, out):
    with k.when(True):  # here
        out[0, 0] = 1


@broken("wanted a traced boolean")
def when_of_a_vector(k, x, y, out):
    with k.when(k.iota(4) > 1):  # here
        out[0, 0] = 1


@broken("no accumulator")
def unknown_accumulator(k, x, y, out):
    k.accumulator("mean")  # here


@broken("wanted above 0")
def step_of_zero(k, x, y, out):
    for i in k.range(0, 4, 0):  # here
        out[i, 0] = 1


@broken("wanted above 0")
def step_backward(k, x, y, out):
    for i in k.range(4, 0, -1):  # here
        out[i, 0] = 1


@broken("wanted a uniform i64")
def varying_loop_bound(k, x, y, out):
    for _ in k.range(k.lane()):  # here
        out[0, 0] = 1


@broken("program axis 1")
def axis_outside_the_grid(k, x, y, out):
    out[k.program(1), 0] = 1  # here


@pytest.mark.parametrize(("function", "message"), BROKEN)
def test_a_broken_rule_is_named_with_kernel_and_line(function, message):
    expect_named_error(function, message)


def test_an_exception_in_a_loop_body_is_told_with_its_line_and_not_as_a_loop_left():
    def fails(k, x, y, out):
        for c in k.lanes(64):
            out[0, c] = x[0, c] * [1.0][3]  # here

    words = rf"^kernel fails, line {here(fails)}: IndexError: list index out of range$"
    with pytest.raises(KernelError, match=words) as raised:
        kernel(fails).trace(ARRAYS)
    assert isinstance(raised.value.__cause__, IndexError)
    assert not operators.recorders


def test_an_exception_caught_around_a_loop_does_not_hide_that_it_was_left():
    def hides(k, x, y, out):
        try:
            for c in k.lanes(64):
                out[0, c] = x[0, c]
                raise ValueError
        except ValueError:
            pass

    with pytest.raises(KernelError, match="left early"):
        kernel(hides).trace(ARRAYS)


def test_a_loop_held_open_is_noticed():
    def holds(k, x, y, out):
        k.held = loop = k.lanes(64)
        next(loop)

    with pytest.raises(KernelError, match=r"kernel holds, line \d+: .*left early"):
        kernel(holds).trace(ARRAYS)


def test_a_traced_value_does_not_outlive_its_kernel():
    kept = []

    def keeps(k, x, y, out):
        kept.append(x[0, 0])

    kernel(keeps).trace(ARRAYS)
    with pytest.raises(KernelError, match="outside of its kernel"):
        kept[0] + 1


def test_a_kernel_is_told_how_many_arrays_it_takes():
    def takes_two(k, x, out):
        pass

    with pytest.raises(KernelError, match="takes_two takes 2"):
        kernel(takes_two).trace(ARRAYS)
