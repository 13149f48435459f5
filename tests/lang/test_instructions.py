"""The instruction table is full: a cell for every instruction, kind of operand and target."""

import re

import numpy as np
import pytest

from camshaft.dtypes import DTYPES, boolean, f32, f64, i32, i64, u32, u64
from camshaft.lang import ir
from camshaft.lang.atomics import ATOMICS
from camshaft.lang.dialects import C_FAMILY, Absent
from camshaft.lang.instructions import COMBINERS, INSTRUCTIONS, STRUCTURAL, identity
from camshaft.lang.targets import ELEMENTS, EXPANDED, STATEMENTS, TARGETS, VALUES

OF_KIND = {"f": (f32, f64), "i": (i32, i64), "u": (u32, u64), "b": (boolean,)}
OWN_DTYPES = {
    ("dot4", "i"): (i32,),
    ("dot4", "u"): (i32,),
    ("dot2", "f"): (f32,),
    ("dot2", "i"): (i32,),
    ("byte_lookup", "u"): (u32,),
    ("byte_pairs", "u"): (u32,),
    ("byte_signs", "u"): (u32,),
}


@pytest.mark.parametrize("row", INSTRUCTIONS.values(), ids=list(INSTRUCTIONS))
def test_each_row_has_a_lowering_and_a_meaning_for_each_kind(row):
    assert set(row.llvm) == set(row.kinds)
    assert row.result in ("same", "second", "bool", "attr")
    for kind in row.kinds:
        for dtype in OWN_DTYPES.get((row.name, kind), OF_KIND[kind]):
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
    from camshaft.lang.interpreter.values import ValueMachine
    from camshaft.lang.verifier.structural import RULES

    made_by_loops = {"index"}
    assert set(RULES) == set(STRUCTURAL) - made_by_loops
    assert set(ValueMachine(None, 4, {}, []).structural) == set(STRUCTURAL) - made_by_loops
    assert not set(STRUCTURAL) & set(INSTRUCTIONS)


def check_cell(cell):
    assert isinstance(cell, (str, Absent))
    assert cell.reason if isinstance(cell, Absent) else cell


@pytest.mark.parametrize("target", TARGETS)
def test_no_cell_of_a_target_is_empty(target):
    for row in INSTRUCTIONS.values():
        column = row.column(target)
        assert set(column) == set(row.kinds), f"{row.name} on {target}"
        for cell in column.values():
            check_cell(cell)
    for name, cells in STRUCTURAL.items():
        assert set(cells) == set(TARGETS), name
        check_cell(cells[target])
    assert set(STATEMENTS) == {statement.__name__ for statement in ir.Statement.__subclasses__()}
    for cells in STATEMENTS.values():
        assert set(cells) == set(TARGETS)
        check_cell(cells[target])
    for row in ATOMICS.values():
        assert set(row.column(target)) == set(row.kinds), f"atomic_{row.name} on {target}"
        for cell in row.column(target).values():
            check_cell(cell)
    assert set(VALUES[target]) == set(ELEMENTS[target]) == set(DTYPES)
    for cell in (*VALUES[target].values(), *ELEMENTS[target].values()):
        check_cell(cell)


def test_a_target_without_matrix_units_says_why():
    without = {target for cells in STATEMENTS.values() for target, cell in cells.items() if cell == "tiles"}
    assert set(EXPANDED) == without
    assert all(reason for reasons in EXPANDED.values() for reason in reasons)


@pytest.mark.parametrize("target", ["c", "wgsl", "msl"])
def test_a_template_names_each_operand(target):
    assert set(C_FAMILY) == set(INSTRUCTIONS)
    for row in INSTRUCTIONS.values():
        for cell in row.column(target).values():
            if isinstance(cell, str) and not cell.startswith("expand"):
                assert {int(n) for n in re.findall(r"{(\d)}", cell)} == set(range(row.arity)), row.name
                cell.format("a", "b", "c", T="t")  # raises where a brace is stray


def test_an_element_has_a_value_to_be_read_as():
    for target in TARGETS:
        for dtype, form in ELEMENTS[target].items():
            assert isinstance(form, Absent) or form in ("native", "bits", "packed")
            assert isinstance(form, Absent) or isinstance(VALUES[target][dtype], str)


@pytest.mark.parametrize("kind", COMBINERS)
@pytest.mark.parametrize("dtype", [f32, f64, i32, i64, u32])
def test_an_identity_changes_nothing(kind, dtype):
    start = dtype.numpy.type(identity(kind, dtype.numpy))
    for number in (0, 1, 100):
        assert INSTRUCTIONS[COMBINERS[kind]].numpy(start, dtype.numpy.type(number)) == number
