"""Every way of breaking the language's rules is an error that names the kernel and the line."""

import re

import numpy as np
import pytest

from camshaft.dtypes import bf16, boolean, f16, f32, i8, i32, i64, u32
from camshaft.errors import KernelError, VerifyError
from camshaft.lang import ir, kernel, operators
from camshaft.lang.verifier.verify import verify

ARRAYS = (
    ir.ArrayParam("x", f32, (4, 64)),
    ir.ArrayParam("y", i32, (64,)),
    ir.ArrayParam("out", f32, (4, 64), writable=True),
)
BROKEN = []


def broken(message, exact=True):
    """Adds a kernel body that must fail with this message, at its line marked `# here` if there is one."""

    def add(function):
        BROKEN.append(pytest.param(function, message, id=function.__name__))
        return function

    return add


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


@broken("wanted one dtype")
def mixed_dtypes(k, x, y, out):
    out[0, 0] = x[0, 0] + y[0]  # here


@broken("does not fit i32")
def float_constant_to_an_integer(k, x, y, out):
    out[0, 0] = (y[0] + 1.5).to(f32)  # here


@broken("does not fit i32")
def constant_out_of_range(k, x, y, out):
    out[0, 0] = (y[0] + 2**31).to(f32)  # here


@broken("does not fit u32")
def negative_unsigned_constant(k, x, y, out):
    out[0, 0] = (y[0].to(u32) + -1).to(f32)  # here


@broken("does not take")
def division_of_integers(k, x, y, out):
    out[0, 0] = (y[0] / 2).to(f32)  # here


@broken("does not take f32")
def bits_of_floats(k, x, y, out):
    out[0, 0] = x[0, 0] & x[0, 1]  # here


@broken("only squares")
def cubes(k, x, y, out):
    out[0, 0] = x[0, 0] ** 3  # here


@broken("not writable")
def storing_to_a_read_only_array(k, x, y, out):
    x[0, 0] = 1.0  # here


@broken("wanted f32")
def storing_another_dtype(k, x, y, out):
    out[0, 0] = y[0]  # here


@broken("ask for k.gather")
def strided_read(k, x, y, out):
    for c in k.lanes(4):
        out[0, c] = x[c, 0]  # here


@broken("ask for k.gather")
def read_at_a_loaded_index(k, x, y, out):
    for c in k.lanes(64):
        out[0, c] = x[0, y[c].to(i64)]  # here


@broken("ask for k.scatter")
def backward_write(k, x, y, out):
    for c in k.lanes(64):
        out[0, 63 - c] = x[0, c]  # here


@broken("every lane stores another value")
def lanes_into_one_element(k, x, y, out):
    for c in k.lanes(64):
        out[0, 0] = x[0, c]  # here


@broken("2 dimensions, indexed with 1")
def too_few_indices(k, x, y, out):
    out[0] = 1.0  # here


@broken("along axis 0 of 4")
def constant_index_outside(k, x, y, out):
    out[4, 0] = 1.0  # here


@broken("does not fit i64")
def fractional_index(k, x, y, out):
    out[0.5, 0] = 1.0  # here


@broken("wanted a traced boolean")
def when_of_a_python_boolean(k, x, y, out):
    with k.when(True):  # here
        out[0, 0] = 1


@broken("wanted a traced boolean")
def when_of_a_vector(k, x, y, out):
    with k.when(k.iota(4) > 1):  # here
        out[0, 0] = 1


@broken("explicit vector")
def vectors_in_lanes(k, x, y, out):
    for _ in k.lanes(64):
        k.store_vector(out, k.load_vector(x, 0, 0, width=4), 0, 0)  # here


@broken("varies by lane")
def vector_and_lanes(k, x, y, out):
    v = k.load_vector(x, 0, 0, width=8)
    k.store_vector(out, v * k.lane().to(f32), 0, 0)  # here


@broken("wanted one width")
def vectors_of_two_widths(k, x, y, out):
    v = k.load_vector(x, 0, 0, width=8) + k.load_vector(x, 0, 0, width=4)  # here
    k.store_vector(out, v, 0, 0)


@broken("power of two")
def vector_of_three(k, x, y, out):
    k.store_vector(out, k.load_vector(x, 0, 0, width=3), 0, 0)  # here


@broken("wants an explicit vector")
def scalar_into_store_vector(k, x, y, out):
    k.store_vector(out, x[0, 0], 0, 0)  # here


@broken("element 8 of a vector of 8")
def element_outside(k, x, y, out):
    out[0, 0] = k.element(k.load_vector(x, 0, 0, width=8), 8)  # here


@broken("set into a variable")
def variable_of_another_dtype(k, x, y, out):
    v = k.var(0.0)
    v.set(y[0])  # here


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


@broken("sizes differ")
def bitcast_of_another_size(k, x, y, out):
    out[0, 0] = k.bitcast(x[0, 0], i64).to(f32)  # here


@broken("storage dtypes have no arithmetic")
def arithmetic_on_halves(k, x, y, out):
    out[0, 0] = (x[0, 0].to(f16) * x[0, 1].to(f16)).to(f32)  # here


@broken("storage dtypes have no arithmetic")
def comparison_of_bytes(k, x, y, out):
    out[0, 0] = k.select(y[0].to(i8) < y[1].to(i8), 1.0, 0.0)  # here


@broken("wanted i32, u32, u32")
def dot4_of_signed_words(k, x, y, out):
    out[0, 0] = k.dot4(y[0], y[1], y[2]).to(f32)  # here


@broken("wanted a traced value or a number, got str")
def storing_text(k, x, y, out):
    out[0, 0] = "1"  # here


def here(function):
    """The line marked `# here` in the function's source."""
    import inspect

    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if "# here" in line)


@pytest.mark.parametrize(("function", "message"), BROKEN)
def test_a_broken_rule_is_named_with_kernel_and_line(function, message):
    with pytest.raises((KernelError, VerifyError), match=re.escape(message)) as raised:
        verify(kernel(function).trace(ARRAYS))
    assert str(raised.value).startswith(f"kernel {function.__name__}, line {here(function)}: ")


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


def test_constants_of_numpy_are_refused_rather_than_guessed():
    def adds(k, x, y, out):
        out[0, 0] = x[0, 0] + np.float32(1)

    with pytest.raises(KernelError, match="got float32"):
        kernel(adds).trace(ARRAYS)


def test_storage_dtypes_may_be_moved():
    def moves(k, x, y, out):
        half = k.select(y[0] > 0, x[0, 0].to(bf16), x[0, 1].to(bf16))
        out[0, 0] = half.to(f32) + k.select(k.const(True, boolean), 1.0, 2.0)

    verify(kernel(moves).trace(ARRAYS))


def test_an_error_in_a_function_of_another_file_names_its_place_too(tmp_path, monkeypatch):
    """A row of an op's table is called by a shared kernel, whose own line would not say which row is wrong."""
    (tmp_path / "a_row.py").write_text(
        "def dot(k, x):\n    return k.dot4(x, x, x)\n\ndef raises(k, x):\n    return 1 // 0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import a_row

    def calls(k, x, y, out, *, how):
        out[0, 0] = getattr(a_row, how)(k, x[0, 0])  # here

    for how, message in (("dot", "(a_row.py, line 2): dot4 of"), ("raises", "(a_row.py, line 5): ZeroDivisionError")):
        with pytest.raises(KernelError, match=re.escape(f"kernel calls, line {here(calls)} {message}")):
            kernel(calls).trace(ARRAYS, constants={"how": how})
