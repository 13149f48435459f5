"""The C-family emitter's text: parentheses, names from the source, line comments, what is inlined and what never moves."""

import re

import numpy as np
import pytest

from camshaft.dtypes import f32, i32, i64
from camshaft.emit.c.module import C11
from camshaft.emit.c_family.analysis import uses_of
from camshaft.emit.c_family.source import Names, formula, source_line, source_names
from camshaft.emit.c_family.text import Text, add, call, fill, multiply
from camshaft.emit.c_family.values import expression
from camshaft.emit.msl.body import MSL
from camshaft.emit.wgsl.body import WGSL, context
from camshaft.emit.wgsl.module import emit
from camshaft.errors import KernelError
from camshaft.lang import kernel
from camshaft.lang.instructions import INSTRUCTIONS
from camshaft.lang.simt.form import to_simt
from camshaft.lang.targets import STATEMENTS, STRUCTURAL
from tests.support.compilers.emit_harness import trace
from tests.support.compilers.wgsl_harness import TARGET


@pytest.mark.parametrize(
    ("template", "operands", "want"),
    [
        ("{0} + {1}", ("a", "b"), "a + b"),
        ("{0} * {1}", ("a + b", "c"), "(a + b) * c"),
        ("{0} - {1}", ("a", "b + c"), "a - (b + c)"),
        ("{0} + {1}", ("a * b", "c * d"), "a * b + c * d"),
        ("{0} / {1}", ("a", "b * c"), "a / (b * c)"),
        ("{0} < {1}", ("a + b", "c"), "a + b < c"),
        ("{0} & {1}", ("a + b", "c < d"), "(a + b) & (c < d)"),
        ("{0} << u32({1})", ("a + b", "c + d"), "(a + b) << u32(c + d)"),
        ("max({0}, {1})", ("a + b", "c < d"), "max(a + b, c < d)"),
        ("-{0}", ("-1",), "-(-1)"),
        ("{0} ? {1} : {2}", ("a < b", "c", "d + e"), "(a < b) ? c : (d + e)"),
    ],
)
def test_parentheses_stand_where_they_are_needed(template, operands, want):
    assert fill(template, [parsed(o) for o in operands]).code == want


def parsed(code):
    """A Text of one operator or none."""
    found = re.fullmatch(r"(\w+) (\S+) (\w+)", code)
    if found:
        return fill(f"{{0}} {found[2]} {{1}}", (Text(found[1]), Text(found[3])))
    return fill("-{0}", (Text(code[1:]),)) if code.startswith("-") else Text(code)


def test_index_arithmetic_leaves_no_zeros_and_ones():
    row, zero = Text("row"), Text("0")
    assert add(zero, row) == add(row, zero) == multiply(row, 1) == row
    assert multiply(zero, 7).code == "0"
    assert add(multiply(Text("3"), 5), Text("2")).code == "17"
    assert add(row, add(Text("a"), Text("b"))).code == "row + a + b"
    assert call("f", row, add(row, Text("1"))).code == "f(row, row + 1)"


def test_names_are_given_once_in_a_scope_and_never_a_reserved_one():
    names = Names(frozenset({"if"}))
    assert [names.new("x"), names.new("x"), names.new("if"), names.new("_"), names.new("größe")] == [
        "x",
        "x_1",
        "if_1",
        "v",
        "v_1",
    ]
    opened = len(names.taken)
    assert names.new("inner") == "inner"
    assert names.new("shared", everywhere=True) == "shared"
    names.close(opened)
    assert names.new("inner") == "inner"
    assert names.new("shared") == "shared_1"


@kernel
def sample_kernel(k, x, w, out, *, dim, eps):
    # y[r, c] = x[r, c] / sqrt(mean_c(x[r]^2) + eps) * w[c]
    # eps keeps it finite
    row, squares = k.program(0), k.accumulator("sum")
    for c in k.lanes(dim):
        squares += x[row, c] ** 2
    scale = k.rsqrt(k.lanes_sum(squares) / dim + eps)
    unused = scale * 3.0
    assert unused is not None
    for c in k.lanes(dim):
        out[row, c] = x[row, c] * scale * w[c]


def text_of(function, arrays, lanes=32, **keywords):
    return emit(to_simt(trace(function, arrays, **keywords), lanes), TARGET).text


def body_of(text):
    return text[text.index("@compute") :]


def test_text_reads_like_its_source():
    x = np.zeros((2, 40), np.float32)
    text = text_of(sample_kernel, [x, x[0].copy(), x.copy()], grid=(2,), dim=40, eps=1e-5)
    first = sample_kernel.function.__code__.co_firstlineno
    assert "// y[r, c] = x[r, c] / sqrt(mean_c(x[r]^2) + eps) * w[c]\n// eps keeps it finite\n" in text
    body = body_of(text)
    assert "let row = program;" in body
    assert f"// line {first + 5}: for c in k.lanes(dim):\n    for (var c = lane; c < 40; c += 32) {{" in body
    assert "squares += a0_value * a0_value;" in body
    assert re.search(r"let scale = inverseSqrt\(v\d+ / 40\.0 \+ 1e-05\);", body)
    assert "a2[a2_start + row * 40 + c] = a0[a0_start + row * 40 + c] * scale * a1[a1_start + c];" in body
    assert body.count("for (var c = lane;") == 2, "a name is free again after its loop"
    assert "3.0" not in body, "what nobody uses is not written"


@kernel
def swapped(k, out):
    a, b = out[0], out[1]
    out[0] = b
    out[1] = a
    held = k.var(out[2])
    before = held.value + 1.0
    held.set(7.0)
    out[2] = before
    out[3] = held.value


def test_what_reads_memory_or_variables_never_passes_a_change_of_them():
    from tests.support.compilers.wgsl_harness import agree

    (got,) = agree(swapped, [np.array([1, 2, 3, 4], np.float32)], widths=(1, 4))
    assert got.tolist() == [2, 1, 4, 7]


@kernel
def in_a_loop(k, out, *, n):
    total = k.var(out[0])
    for i in k.range(n):
        seen = total.value
        total.set(seen + out[i])
        out[i] = seen
    with k.when(total.value > 3.0):
        out[0] = total.value


def test_reads_before_a_block_stay_before_it():
    from tests.support.compilers.wgsl_harness import agree

    agree(in_a_loop, [np.arange(6, dtype=np.float32)], widths=(1, 4), n=6)


def test_dead_values_and_what_only_they_use_are_dead():
    x = np.zeros((1, 8), np.float32)
    body = trace(sample_kernel, [x, x[0].copy(), x.copy()], dim=8, eps=1e-5).body
    uses = uses_of(body)
    dead = [v for v in body.statements if getattr(v, "op", "") == "multiply" and not uses.alive(v)]
    assert len(dead) == 1
    assert uses.count[next(v for v in body.statements if getattr(v, "op", "") == "rsqrt")] == 1


@pytest.mark.parametrize("dialect", [C11, MSL, WGSL], ids=lambda dialect: dialect.column)
def test_there_is_a_rule_for_each_value_and_statement_that_the_emitter_lowers(dialect):
    lowered = {"emitter", "matrix units"}
    values = {name for name, row in STRUCTURAL.items() if row[dialect.column] in lowered} - {"index"}  # loops make it
    only_simt = set() if dialect is C11 else {"broadcast"}  # lang/simt/ makes it
    assert set(dialect.values) == set(INSTRUCTIONS) | values | only_simt
    not_scaled = {"TileScale"} if dialect is MSL else set()  # Metal's units take no tile that is scaled
    statements = {name for name, row in STATEMENTS.items() if row[dialect.column] in lowered} - not_scaled
    assert {rule.__name__ for rule in dialect.statements} == statements


def test_a_dialect_without_a_rule_says_so():
    from camshaft.lang import ir

    ctx = context(to_simt(trace(swapped, [np.zeros(4, np.float32)]), 4), TARGET)
    value = ir.Value("unheard_of", f32, line=12)
    with pytest.raises(KernelError, match=r"kernel swapped, line 12: wgsl has no rule for the value unheard_of"):
        expression(ctx, value)
    with pytest.raises(KernelError, match="wgsl has no helper cast_f32_u64"):
        ctx.use("cast_f32_u64")


def test_source_is_read_for_names_lines_and_formulas():
    path = __file__
    first = sample_kernel.function.__code__.co_firstlineno
    assert source_names(path).assigned[first + 4] == (first + 4, ("row", "squares"))
    assert source_names(path).loops[first + 5] == "c"
    assert source_line(path, first + 7) == "scale = k.rsqrt(k.lanes_sum(squares) / dim + eps)"
    assert formula(path, "sample_kernel")[1] == "eps keeps it finite"
    assert formula(path, "no_such_kernel") == ()
    assert source_line("<stdin>", 3) == ""
    assert source_names("<stdin>").assigned == {}


@kernel
def divisions(k, x, out, *, n):
    for c in k.lanes(n):
        i = x[c].to(i64)
        out[c] = ((c // 3) * 1 + c % 8 + i // 8 + i % 8 + i // 3).to(i32)


def test_divisions_use_what_is_known_of_their_operands():
    x = np.zeros(9, np.int32)
    body = body_of(text_of(divisions, [x, x.copy()], n=9))
    assert "c / 3 + c % 8 + (i >> 3u) + (i & 7) + floor_divide_i32(i, 3)" in body


@kernel
def mirrored(k, x, out, *, n):
    staged = k.scratch(f32, n)
    lane, thread = k.scratch(f32, n), k.scratch(f32, n)  # two on a line keep their numbers
    for c in k.lanes(n):
        staged[c] = x[c]
        lane[c] = x[c]
        thread[c] = x[c]
    k.barrier()
    for c in k.lanes(n):
        out[c] = k.gather(staged, n - 1 - c) + lane[c] + thread[c]


def test_scratch_has_the_name_that_the_source_gives_it():
    arrays = [np.zeros(70, np.float32), np.zeros(70, np.float32)]
    text = emit(to_simt(trace(mirrored, arrays, n=70), 32), TARGET).text
    assert "var<workgroup> staged: array<f32, 70>;" in text
    assert "a1[a1_start + c] = staged[69 - c] + scratch1[c] + scratch2[c];" in text
