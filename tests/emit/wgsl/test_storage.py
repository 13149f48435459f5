"""Storage dtypes, bindings and their pieces in WGSL, run on an adapter, against the interpreter."""

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest

from camshaft.emit.wgsl.layout import WgslTarget, pieces
from camshaft.emit.wgsl.module import emit
from camshaft.errors import KernelError
from camshaft.lang.simt.form import to_simt
from tests.emit.llvm.test_memory import add_one, copy, counted, gather_scatter, repeated, stored_values
from tests.support.compilers.emit_harness import trace
from tests.support.compilers.wgsl_harness import TARGET, agree
from tests.support.quick import quick_of

STORED = ["f16", "bf16", "f32", "i8", "u8", "i16", "u16", "i32", "u32", "bool"]
WITH_F16 = replace(TARGET, features=frozenset({"shader-f16"}))
TARGETS = {"packed": TARGET, "shader-f16": WITH_F16}


@pytest.mark.parametrize(
    ("name", "target"), quick_of(product(STORED, TARGETS), [("f16", "shader-f16"), *product(STORED, ["packed"])])
)
@pytest.mark.parametrize("n", quick_of([1, 3, 77], [77]))
def test_every_storage_dtype_is_read_and_written(name, n, target):
    x, target = stored_values(name, (2, n)), TARGETS[target]
    (out,) = agree(copy, [x, np.zeros((2, n), x.dtype)], grid=(2,), n=n, target=target, widths=(1, 32))
    np.testing.assert_array_equal(out, x)
    if name != "bool":
        agree(add_one, [x, np.zeros((2, n), x.dtype)], grid=(2,), n=n, target=target, widths=(64,))


@pytest.mark.parametrize("name", ["f16", "bf16", "i8", "u16", "bool"])
def test_storage_dtypes_are_gathered_scattered_and_repeated(name):
    x = stored_values(name, 45)
    place = np.random.default_rng(1).permutation(45).astype(np.int32)
    (out,) = agree(gather_scatter, [x, place, np.zeros(45, x.dtype)], n=45)
    np.testing.assert_array_equal(out, x)
    agree(repeated, [stored_values(name, 20), np.zeros(77, x.dtype)], n=77, widths=(32,))


@pytest.mark.parametrize("name", ["bf16", "u8"])
def test_counted_vectors_of_storage_dtypes(name):
    x = stored_values(name, 8)
    agree(counted, [x, np.zeros(8, x.dtype)], scalars={"count": 5}, width=8, widths=(1,))


@pytest.mark.parametrize("name", ["f32", "f16", "u8", "bool"])
@pytest.mark.parametrize("target", [TARGET, WITH_F16], ids=["packed", "shader-f16"])
def test_an_array_larger_than_a_binding_lies_in_pieces(name, target):
    small = replace(target, max_binding_nbytes=2048)
    x = stored_values(name, (3, 700))
    (out,) = agree(copy, [x, np.zeros((3, 700), x.dtype)], grid=(3,), n=700, target=small, widths=(32,))
    np.testing.assert_array_equal(out, x)


def test_pieces_cover_the_array_and_the_room_for_its_alignment():
    target = WgslTarget(max_binding_nbytes=1 << 20)
    assert pieces(100, target) == ((0, 100 + 256),)
    for nbytes in ((1 << 20) - 255, 1 << 20, (5 << 20) + 3):
        found = pieces(nbytes, target)
        assert all(size <= 1 << 20 for _, size in found)
        assert found[0][0] == 0
        assert all(a[0] + a[1] == b[0] for a, b in pairwise(found))
        assert found[-1][0] + found[-1][1] >= nbytes + 255


def test_an_array_that_nothing_writes_may_be_bound_read_only():
    x = stored_values("f32", (1, 40))
    target = replace(TARGET, read_only=frozenset({"a0"}))
    module = emit(to_simt(trace(copy, [x, x], n=40), 32), target)
    assert "var<storage, read> a0" in module.text
    assert [b.read_only for b in module.bindings] == [True, False]


@pytest.mark.parametrize("name", ["i64", "f64", "u64"])
def test_64_bit_arrays_are_refused(name):
    x = stored_values(name, (1, 4))
    with pytest.raises(KernelError, match="64-bit"):
        emit(to_simt(trace(copy, [x, x.copy()], n=4), 32), TARGET)


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ({"max_bindings": 2}, "3 storage bindings; the adapter has at most 2"),
        ({"max_threads": 16}, "32 threads in a workgroup; the adapter has at most 16"),
    ],
)
def test_a_limit_that_is_passed_is_named(limit, message):
    x = stored_values("f32", (1, 40))
    with pytest.raises(KernelError, match=message):
        emit(to_simt(trace(copy, [x, x.copy()], n=40), 32), replace(TARGET, **limit))
