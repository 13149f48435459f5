"""What the emitter makes for a target: scalar code without vectors, reduced feature sets, refusals."""

import re

import numpy as np
import pytest

from camshaft.backends.cpu.compile import assembly
from camshaft.emit.llvm.expanded.expansions import EXPANSIONS
from camshaft.emit.llvm.module import CPU_RULES, emit
from camshaft.emit.nvptx.module import SIMT_RULES
from camshaft.emit.target import CpuTarget, native_lanes
from camshaft.errors import KernelError
from camshaft.lang import kernel
from camshaft.lang.instructions import INSTRUCTIONS
from camshaft.lang.targets import STATEMENTS, STRUCTURAL
from tests.support.compilers.emit_harness import FEATURES, agree, trace

PACKED = re.compile(r"\b\w*(add|sub|mul|div|fmadd\w*)p[sd]\b")


@kernel
def scaled_sum(k, x, y, out, *, n):
    for c in k.lanes(n):
        out[c] = x[c] * 3 + y[c]


def arrays(n=64):
    return [np.ones(n, np.float32), np.ones(n, np.float32), np.zeros(n, np.float32)]


def test_the_scalar_backend_has_no_packed_arithmetic():
    kernel_ir = trace(scaled_sum, arrays(), n=64)
    scalar = emit(kernel_ir, CpuTarget("x86_64", 1, FEATURES), "f")
    assert not PACKED.search(assembly(scalar, vectorize=False))
    wide = emit(kernel_ir, CpuTarget("x86_64", 8, FEATURES), "f")
    assert PACKED.search(assembly(wide, vectorize=False))


@kernel
def a_bit_of_all(k, x, y, out, *, n):
    total = k.accumulator("sum")
    for c in k.lanes(n):
        total += k.exp(x[c]) * k.tanh(y[c // 4]) + k.rsqrt(k.abs(x[c]) + 1)
    mean = k.lanes_sum(total) / n
    for c in k.lanes(n):
        with k.when(x[c] > 0):
            out[c] = k.round(x[c] * mean) + k.floor(y[c])


FEATURE_SETS = [set(), {"sse4.1"}, {"avx2", "fma", "f16c"}, {"avx512f", "avx512vl", "avx2", "fma", "f16c"}]


@pytest.mark.parametrize("features", [needed for needed in FEATURE_SETS if needed <= FEATURES])
def test_code_for_fewer_features_runs_here(features):
    x = np.random.default_rng(0).normal(size=77).astype(np.float32)
    agree(a_bit_of_all, [x, x[::-1].copy(), np.zeros(77, np.float32)], n=77, features=features, rtol=2e-5, atol=2e-5)


def test_lane_width_follows_the_widest_register():
    assert native_lanes(frozenset()) == 4
    assert native_lanes(frozenset({"avx2"})) == 8
    assert native_lanes(frozenset({"avx2", "avx512f", "avx512vl"})) == 16


def test_every_expansion_exists_and_is_used():
    cells = [cell for row in INSTRUCTIONS.values() for column in (row.llvm, row.ptx) for cell in column.values()]
    named = {cell[7:] for cell in cells if isinstance(cell, str) and cell.startswith("expand:")}
    assert named - {"select", "cast"} == set(EXPANSIONS)  # these two are the emitter's own: their operands differ


@pytest.mark.parametrize(("column", "rules"), [("llvm", CPU_RULES), ("ptx", SIMT_RULES)])
def test_there_is_a_rule_for_each_value_and_statement_that_the_emitter_lowers(column, rules):
    lowered = {"emitter", "matrix units"}
    values = {name for name, row in STRUCTURAL.items() if row[column] in lowered} - {"index"}  # loops make it
    only_simt = {"broadcast"} if column == "ptx" else set()  # lang/simt/ makes it
    assert set(rules.values) == set(INSTRUCTIONS) | values | only_simt
    statements = {name for name, row in STATEMENTS.items() if row[column] in lowered}
    assert {rule.__name__ for rule in rules.statements} == statements


@kernel
def crossing_blocks(k, x, out, *, n):
    for c in k.lanes(n):
        out[c] = x[c // 24]


def test_an_index_whose_pattern_is_lost_at_a_width_is_refused_there():
    kernel_ir = trace(crossing_blocks, [np.zeros(9, np.float32), np.zeros(200, np.float32)], n=200)
    emit(kernel_ir, CpuTarget("x86_64", 8, FEATURES), "f")
    with pytest.raises(KernelError, match=r"kernel crossing_blocks, line \d+: .*k\.gather"):
        emit(kernel_ir, CpuTarget("x86_64", 16, FEATURES), "f")


@kernel
def awkward(k, first, last, *, n):
    for c in k.lanes(n):
        last[c] = first[c]


def test_array_names_do_not_meet_the_emitters_own():
    from camshaft.dtypes import f32
    from camshaft.lang import ir

    params = [ir.ArrayParam("first", f32, (8,)), ir.ArrayParam("last", f32, (8,), True)]
    text = emit(awkward.trace(params, (), {"n": 8}), CpuTarget("x86_64", 4, FEATURES), "f")
    assert "f:" in assembly(text)
