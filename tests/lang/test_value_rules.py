"""Rules of dtypes, constants, indices and vectors: each error names the kernel and the line."""

import re

import numpy as np
import pytest

from camshaft.dtypes import bf16, boolean, f16, f32, i8, i64, u32
from camshaft.errors import KernelError
from camshaft.lang import kernel
from camshaft.lang.verifier.verify import verify
from tests.lang.broken_rules import ARRAYS, collected_in, expect_named_error, here

BROKEN = []
broken = collected_in(BROKEN)


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


@pytest.mark.parametrize(("function", "message"), BROKEN)
def test_a_broken_rule_is_named_with_kernel_and_line(function, message):
    expect_named_error(function, message)


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
