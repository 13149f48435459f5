"""What a WGSL module says: bindings, entry, literals, uniform flow. (The other test_wgsl files run modules.)"""

from dataclasses import replace

import numpy as np
import pytest

from camshaft.dtypes import f32, f64, i32, i64, u32
from camshaft.emit.wgsl.body import context, fixed_word
from camshaft.emit.wgsl.functions import FUNCTIONS, RESERVED
from camshaft.emit.wgsl.layout import SPECIAL_WORDS, n_fixed
from camshaft.emit.wgsl.module import emit
from camshaft.errors import KernelError
from camshaft.lang import kernel
from camshaft.lang.dialects import C_FAMILY
from camshaft.lang.simt.form import to_simt
from tests.emit.llvm.structure_kernels import affine, floats, grids
from tests.support.compilers.emit_harness import trace
from tests.support.compilers.wgsl_harness import TARGET, agree


def module_of(function, arrays, lanes=32, target=TARGET, **keywords):
    return emit(to_simt(trace(function, arrays, **keywords), lanes), target)


def grid_module():
    shape = (7, 5, 8)
    arrays = [floats(*shape), np.zeros(shape, np.float32)]
    return module_of(grids, arrays, scalars=("rows", "heads"), grid=(("rows", 2), ("heads", 1), 2))


def test_the_last_axis_runs_fastest_and_the_rest_of_the_programs_return():
    text = grid_module().text
    assert "if (program >= 2 * ((rows + 1) / 2) * heads) { return; }" in text
    assert "let part = program % 2;\n    let head = program / 2 % heads;\n    let token = program / 2 / heads;" in text
    assert "let rows = run[fixed[1].x];\n    let heads = run[fixed[1].y];" in text


def test_fixed_words_say_where_scalars_and_arrays_are():
    module = grid_module()
    assert module.n_fixed == n_fixed(2, 2) == 8
    words = module.fixed_words([5, 3], [0, 128])
    assert words.dtype == np.int32
    assert words.tolist() == [*SPECIAL_WORDS, 5, 3, 0, 32]
    assert fixed_word(4) == "fixed[1].x"
    with pytest.raises(KernelError, match="1 scalars and 2 arrays; wanted 2 and 2"):
        module.fixed_words([5], [0, 0])


@pytest.mark.parametrize(("programs", "grid"), [(0, (0, 0)), (1, (1, 1)), (65_535, (65_535, 1)), (65_536, (65_535, 2))])
def test_a_dispatch_is_folded(programs, grid):
    assert grid_module().dispatch(programs) == grid


def test_the_table_names_no_helper_that_is_missing():
    missing = set()
    for name, columns in C_FAMILY.items():
        for kind, cell in columns["wgsl"].items():
            if isinstance(cell, str) and cell.startswith("expand:") and name != "cast":
                dtype = {"f": "f32", "i": "i32", "u": "u32"}[kind if name != "dot4" else "i"]
                missing |= {f"{cell.removeprefix('expand:')}_{dtype}"} - FUNCTIONS.keys()
    assert not missing


def literal(value, dtype):
    ctx = context(to_simt(trace(affine, [floats(2), floats(2)], n=2, start=0), 4), TARGET)
    return ctx.literal(value, dtype).code


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (1.0, f32, "1.0"),
        (0.1, f32, "0.1"),
        (-0.0, f32, "-0.0"),
        (3.4028234663852886e38, f32, "3.4028234663852886e+38"),
        (float("inf"), f32, "infinity()"),
        (float("-inf"), f32, "-infinity()"),
        (float("nan"), f32, "not_a_number()"),
        (7, i32, "7"),
        (-7, i64, "-7"),
        (-(1 << 63), i64, "-2147483648"),
        (9, u32, "9u"),
        (0x0F0F0F0F, u32, "0xf0f0f0fu"),
    ],
)
def test_literals(value, dtype, text):
    assert literal(value, dtype) == text


def test_what_passes_32_bits_or_has_64_is_refused():
    with pytest.raises(KernelError, match="the number 4294967296 passes the 32 bits"):
        literal(1 << 32, i64)

    @kernel
    def wide(k, x, out):
        for c in k.lanes(2):
            out[c] = (x[c].to(f64) * 2.0).to(f32)

    with pytest.raises(KernelError, match="WGSL has no 64-bit floats"):
        module_of(wide, [floats(2), floats(2)])


@kernel
def virtual(k, private, loop, *, n):
    for var in k.lanes(n):
        let = private[var] + 1.0
        loop[var] = let * let


def test_names_that_wgsl_keeps_for_itself_are_changed():
    (out,) = agree(virtual, [floats(9), np.zeros(9, np.float32)], n=9)
    assert out.all()
    text = module_of(virtual, [floats(9), floats(9)], n=9).text
    assert "fn virtual_1(" in text
    assert "let let_1 = " in text
    assert {"virtual", "let", "var"} <= RESERVED


@kernel
def waits_for_loaded(k, n, x, out):
    rows, total = n[0].to(i64), k.var(0.0)
    with k.when(rows > 1):
        for row in k.range(rows):
            part = k.accumulator("sum")
            for c in k.lanes(8):
                part += x[row, c]
            total += k.lanes_sum(part)
    out[0] = total.value


def test_conditions_from_memory_around_barriers_are_made_provably_uniform():
    arrays = [np.array([3], np.int32), floats(5, 8), np.zeros(1, np.float32)]
    agree(waits_for_loaded, arrays, rtol=1e-6)
    text = module_of(waits_for_loaded, arrays).text
    assert "if (broadcast_bool(1 < rows, 0, lane)) {" in text
    assert "let stop = broadcast_i32(rows, 0, lane);" in text
    params = [*arrays]
    read_only = replace(TARGET, read_only=frozenset({"a0"}))
    assert "broadcast" not in module_of(waits_for_loaded, params, target=read_only).text


def test_run_time_scalars_need_no_proof():
    @kernel
    def by_extent(k, x, out, n):
        total = k.var(0.0)
        for row in k.range(n):
            part = k.accumulator("sum")
            for c in k.lanes(8):
                part += x[row, c]
            total += k.lanes_sum(part)
        out[0] = total.value

    arrays = [floats(5, 8), np.zeros(1, np.float32)]
    agree(by_extent, arrays, scalars={"n": 4}, rtol=1e-6)
    assert "broadcast" not in module_of(by_extent, arrays, scalars=("n",)).text


def test_f16_is_enabled_only_where_elements_are_of_it():
    arrays = [np.zeros(8, np.float16), np.zeros(8, np.float16)]
    with_f16 = replace(TARGET, features=frozenset({"shader-f16"}))
    module = module_of(affine, arrays, n=8, start=0, target=with_f16)
    assert module.text.startswith("enable f16;")
    assert module.requires == {"shader-f16"}
    assert module_of(affine, [floats(8), floats(8)], n=8, start=0, target=with_f16).requires == frozenset()
    assert "f16;" not in module_of(affine, arrays, n=8, start=0).text
