"""The verifier on Kernel IR that no tracer would make, as a faulty pass might leave it."""

import re
import time

import pytest

from camshaft.dtypes import boolean, f32, i32, i64
from camshaft.errors import VerifyError
from camshaft.lang import ir, kernel
from camshaft.lang.instructions import INSTRUCTIONS
from camshaft.lang.verifier.verify import MAX_SCRATCH_NBYTES, verify

X, OUT = ir.Array("x", f32, (64,), False), ir.Array("out", f32, (64,), True)


def const(number=1.0, dtype=f32):
    return ir.Value("const", dtype, attr=number, line=3)


def module(*statements, **changes):
    """Kernel IR of these statements."""
    parts = {
        "name": "made",
        "arrays": (X, OUT),
        "scalars": ("n",),
        "grid": (ir.GridDim(4),),
        "scratch": (),
        "body": ir.Block(None, list(statements)),
        "source_file": "",
    }
    return ir.KernelIR(**(parts | changes))


def value(op, dtype=f32, *args, **keywords):
    return ir.Value(op, dtype, args, line=7, **keywords)


def refused(message, *statements, **changes):
    with pytest.raises(VerifyError, match=re.escape(message)) as raised:
        verify(module(*statements, **changes))
    assert str(raised.value).startswith("kernel made, line ")


def test_a_well_formed_kernel_passes():
    a, at = const(), const(0, i64)
    verify(module(a, at, value("add", f32, a, a), ir.Store(9, OUT, (at,), a)))


A, B, C = const(), const(2, i32), const(True, boolean)
VECTOR = value("splat", f32, A, width=8)
SHAPES = [
    ("no row for the instruction 'sinh'", [A, value("sinh", f32, A)]),
    ("wanted f32, f32", [A, B, value("add", f32, A, B)]),
    ("1 operands: wanted 2", [A, value("add", f32, A)]),
    ("gives i32: wanted f32", [A, value("add", i32, A, A)]),
    ("gives f32: wanted bool", [A, value("less", f32, A, A)]),
    ("wanted bool, f32, f32", [A, value("select", f32, A, A, A)]),
    ("has no row for f32", [A, value("and", f32, A, A)]),
    ("bitcast of f32 to i64", [A, value("bitcast", i64, A)]),
    ("wanted i32, u32, u32", [B, value("dot4", i32, B, B, B)]),
    ("is recorded twice", [A, A]),
    ("used before it is made", [value("negate", f32, A)]),
    ("gives a width of 0", [A, VECTOR, value("add", f32, VECTOR, A)]),
    ("gives a width of 4", [A, VECTOR, value("add", f32, VECTOR, A, width=4)]),
    ("gives a width of 8", [A, value("add", f32, A, A, width=8)]),
    ("wanted a power of two", [A, value("splat", f32, A, width=6)]),
    ("wanted one uniform value", [A, VECTOR, value("splat", f32, VECTOR, width=8)]),
    ("iota of no width", [value("iota", i64)]),
    ("wanted an explicit vector", [A, value("vector_sum", f32, A)]),
    ("does not fit i32", [const(1.5, i32)]),
    ("scalar 1 of 1", [value("scalar", i64, attr=1)]),
    ("program axis 2", [value("program", i64, attr=2)]),
    ("k.lanes_mean of", [A, value("reduce", f32, A, attr="mean")]),
    ("starts as", [B, ir.VarNew(7, ir.Var(f32, 0, B, None, ir.Block(), 7))]),
    ("x is read-only", [A, Z := const(0, i64), ir.Store(7, X, (Z,), A)]),
    ("wanted f32", [B, Z, ir.Store(7, OUT, (Z,), B)]),
    ("indexed with <const i32", [A, B, ir.Store(7, OUT, (B,), A)]),
    ("is not an array of this kernel", [A, Z, ir.Store(7, ir.Array("other", f32, (8,), True), (Z,), A)]),
    ("a count without", [A, Z, ir.Store(7, OUT, (Z,), A, count=Z)]),
    ("wanted a boolean", [A, ir.When(7, A, ir.Block())]),
    ("wanted a uniform i64", [A, ir.Range(7, value("index", i64), A, A, 1, ir.Block())]),
    ("step 0", [Z, ir.Range(7, value("index", i64), Z, Z, 0, ir.Block())]),
]


@pytest.mark.parametrize(("message", "statements"), SHAPES, ids=[m for m, _ in SHAPES])
def test_a_malformed_value_or_statement_is_refused(message, statements):
    refused(message, *statements)


def test_a_value_is_not_used_outside_its_block():
    inner, condition = const(), const(True, boolean)
    when = ir.When(5, condition, ir.Block(None, [inner]))
    refused("outside the block that made it", condition, when, value("negate", f32, inner))


def test_a_variable_is_made_once_and_before_use():
    var = ir.Var(f32, 0, A, None, ir.Block(), 7)
    refused("a variable is made twice", A, ir.VarNew(7, var), ir.VarNew(8, var))
    refused("outside the block that made it", A, value("var_get", f32, attr=var))
    refused("outside the block that made it", A, ir.VarSet(7, var, A))
    refused("read as", A, ir.VarNew(7, var), value("var_get", i32, attr=var))


def test_the_grid_and_the_arrays_are_checked():
    refused("the grid has no axis", grid=())
    refused("the grid names the scalar 'm'", grid=(ir.GridDim(scalar="m"),))
    refused("the grid has an axis", grid=(ir.GridDim(scalar="n", divisor=0),))
    refused("two arrays have one name", arrays=(X, X))
    refused("wanted positive sizes", scratch=(ir.Array("s", f32, (4, 0), True, True),))
    refused("wanted positive sizes", scratch=(ir.Array("s", f32, (), True, True),))
    refused("bytes of scratch", scratch=(ir.Array("s", f32, (MAX_SCRATCH_NBYTES,), True, True),))
    refused("wanted an identifier", arrays=(ir.Array("a b", f32, (4,), False),))


def test_a_missing_column_is_noticed(monkeypatch):
    row = INSTRUCTIONS["add"]
    monkeypatch.setitem(INSTRUCTIONS, "add", type(row)(row.name, 2, "fiu", "same", row.numpy, {"i": "add", "u": "add"}))
    refused("add has no row for f32", A, value("add", f32, A, A))


@kernel
def long_kernel(k, x, out):
    total = k.accumulator("sum")
    for c in k.lanes(64):
        for _ in range(30):
            total += x[c] * x[c]
    out[0] = k.lanes_sum(total)


def test_verifying_takes_about_a_millisecond():
    params = [ir.ArrayParam("x", f32, (64,)), ir.ArrayParam("out", f32, (64,), True)]
    made = long_kernel.trace(params)
    times = []
    for _ in range(20):
        started = time.perf_counter()
        verify(made)
        times.append(time.perf_counter() - started)
    assert min(times) < 5e-3  # 180 instructions; 0.5 ms on a quiet machine
