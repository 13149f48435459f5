"""The instruction table is full."""

import numpy as np
import pytest

from camshaft.dtypes import boolean, f32, f64, i32, i64, u32, u64
from camshaft.lang.instructions import COMBINERS, INSTRUCTIONS, STRUCTURAL, identity

OF_KIND = {"f": (f32, f64), "i": (i32, i64), "u": (u32, u64), "b": (boolean,)}


@pytest.mark.parametrize("row", INSTRUCTIONS.values(), ids=list(INSTRUCTIONS))
def test_each_row_has_a_lowering_and_a_meaning_for_each_kind(row):
    assert set(row.llvm) == set(row.kinds)
    assert row.result in ("same", "second", "bool", "attr")
    for kind in row.kinds:
        for dtype in OF_KIND[kind] if row.name != "dot4" else (i32,):
            operand = np.ones(4, dtype.numpy)
            args = [operand] * row.arity
            if row.name == "select":
                args[0] = np.ones(4, np.bool_)
            if row.result == "attr":
                args.append(dtype)
            with np.errstate(all="ignore"):
                result = row.numpy(*args)
            assert result.dtype == (np.bool_ if row.result == "bool" else dtype.numpy)


def test_structural_values_are_known_to_verifier_emitter_and_interpreter():
    from camshaft.lang.interpreter_values import ValueMachine
    from camshaft.lang.verify_values import _STRUCTURAL

    made_by_loops = {"index"}
    assert set(_STRUCTURAL) == STRUCTURAL - made_by_loops
    assert set(ValueMachine(None, 4, {}, []).structural) == STRUCTURAL - made_by_loops
    assert not STRUCTURAL & set(INSTRUCTIONS)


@pytest.mark.parametrize("kind", COMBINERS)
@pytest.mark.parametrize("dtype", [f32, f64, i32, i64, u32])
def test_an_identity_changes_nothing(kind, dtype):
    start = dtype.numpy.type(identity(kind, dtype.numpy))
    for number in (0, 1, 100):
        assert INSTRUCTIONS[COMBINERS[kind]].numpy(start, dtype.numpy.type(number)) == number
