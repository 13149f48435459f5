"""LLVM IR of the functions that CPython calls for an op whose kernels are compiled for each shape.

As call_ir.py's, but what was compiled is found by the inputs' dtypes and shapes: their words are hashed to one row of a table and
compared with it. A row names the output and the steps: entries with the places of their arguments. Inputs are contiguous and
`out` lies apart from them, or just where one does that the row lets be written; anything else, and a row that is another
shape's, goes to the op's Python function.
"""

from __future__ import annotations

from camshaft.eager.native import cpython_abi as layout
from camshaft.eager.native.call_state import ROWS_AT, field, word
from camshaft.eager.native.shape_table import (
    ATTRIBUTE_WORDS,
    KEY_WORDS,
    MOST_ARGUMENTS,
    MOST_ATTRIBUTES,
    MOST_AXES,
    MOST_STEPS,
    MULTIPLIER,
    N_BASES,
    NO_BASE,
    OUT_BASE,
    ROW_BITS,
    ROW_WORDS,
    SCRATCH_BASE,
    STEP_WORDS,
    shaped_row,
)
from camshaft.eager.native.shaped_output import shaped_output_lines
from camshaft.eager.native.shaped_run import LAUNCH_WORDS, RUN_STEPS, finish_lines, ready_lines, step_lines


def _given(n: int) -> list[str]:
    """n inputs by position; by keyword `out` and a few attributes, which are a part of the key."""
    return [
        f"%right.count = icmp eq i64 %n, {n}",
        "br i1 %right.count, label %counted, label %slow.path",
        "counted:",
        "%no.names = icmp eq ptr %names, null",
        "br i1 %no.names, label %inputs, label %keywords",
        "keywords:",
        *field("n.names", "i64", "%names", layout.TUPLE_SIZE),
        *word("out_name"),
        f"%items = getelementptr i8, ptr %names, i64 {layout.TUPLE_ITEMS}",
        f"%values = getelementptr ptr, ptr %args, i64 {n}",
        f"%attributes = getelementptr i64, ptr %key, i64 {n * KEY_WORDS}",
        f"%few.names = icmp ule i64 %n.names, {MOST_ATTRIBUTES + 1}",
        "br i1 %few.names, label %keyword, label %slow.path",
        "keyword:",
        "%w = phi i64 [ 0, %keywords ], [ %w.next, %is.out ], [ %w.next, %attribute ]",
        "%place = phi i64 [ 0, %keywords ], [ %place, %is.out ], [ %place.next, %attribute ]",
        "%so.far = phi ptr [ null, %keywords ], [ %value, %is.out ], [ %so.far, %attribute ]",
        "%w.left = icmp ult i64 %w, %n.names",
        "br i1 %w.left, label %read, label %inputs",
        "read:",
        "%w.next = add i64 %w, 1",
        "%item.at = getelementptr ptr, ptr %items, i64 %w",
        "%item = load ptr, ptr %item.at",
        "%value.at = getelementptr ptr, ptr %values, i64 %w",
        "%value = load ptr, ptr %value.at",
        "%names.out = icmp eq ptr %item, %out_name",
        "br i1 %names.out, label %is.out, label %room",
        "is.out:",
        "br label %keyword",
        "room:",
        f"%has.room = icmp ult i64 %place, {ATTRIBUTE_WORDS}",
        "br i1 %has.room, label %attribute, label %slow.path",
        "attribute:",
        "%name.to = getelementptr i64, ptr %attributes, i64 %place",
        "store ptr %item, ptr %name.to",
        "%place.value = add i64 %place, 1",
        "%value.to = getelementptr i64, ptr %attributes, i64 %place.value",
        "store ptr %value, ptr %value.to",
        "%place.next = add i64 %place, 2",
        "br label %keyword",
        "inputs:",
        "%out = phi ptr [ null, %counted ], [ %so.far, %keyword ]",
        "%has.out = icmp ne ptr %out, null",
    ]


def _input(i: int) -> list[str]:
    """An exact ndarray, contiguous, with few axes; its part of the key."""
    x, key = f"%in{i}", i * KEY_WORDS
    usable = layout.C_ORDER | layout.ALIGNED
    return [
        *field(f"in{i}", "ptr", "%args", 8 * i),
        *field(f"type{i}", "ptr", x, layout.TYPE),
        f"%array{i} = icmp eq ptr %type{i}, %array_type",
        f"br i1 %array{i}, label %is.array{i}, label %slow.path",
        f"is.array{i}:",
        *field(f"data{i}", "ptr", x, layout.DATA),
        *field(f"nd{i}", "i32", x, layout.ND),
        *field(f"dims{i}", "ptr", x, layout.DIMENSIONS),
        *field(f"dtype{i}", "i64", x, layout.DESCR),
        *field(f"flags{i}", "i32", x, layout.FLAGS),
        f"%axes{i} = zext i32 %nd{i} to i64",
        f"%bits{i} = and i32 %flags{i}, {usable}",
        f"%usable{i} = icmp eq i32 %bits{i}, {usable}",
        f"%few{i} = icmp ule i64 %axes{i}, {MOST_AXES}",
        f"%fits{i} = and i1 %usable{i}, %few{i}",
        f"br i1 %fits{i}, label %sizes{i}, label %slow.path",
        f"sizes{i}:",
        f"%key{i} = getelementptr i64, ptr %key, i64 {key}",
        f"store i64 %dtype{i}, ptr %key{i}",
        f"%key.axes{i} = getelementptr i64, ptr %key, i64 {key + 1}",
        f"store i64 %axes{i}, ptr %key.axes{i}",
        f"%key.sizes{i} = getelementptr i64, ptr %key, i64 {key + 2}",
        f"br label %size{i}",
        f"size{i}:",
        f"%j{i} = phi i64 [ 0, %sizes{i} ], [ %j.next{i}, %copy{i} ]",
        f"%j.left{i} = icmp ult i64 %j{i}, %axes{i}",
        f"br i1 %j.left{i}, label %copy{i}, label %sized{i}",
        f"copy{i}:",
        f"%from{i} = getelementptr i64, ptr %dims{i}, i64 %j{i}",
        f"%extent{i} = load i64, ptr %from{i}",
        f"%to{i} = getelementptr i64, ptr %key.sizes{i}, i64 %j{i}",
        f"store i64 %extent{i}, ptr %to{i}",
        f"%j.next{i} = add i64 %j{i}, 1",
        f"br label %size{i}",
        f"sized{i}:",
        f"%base{i} = getelementptr i64, ptr %bases, i64 {i}",
        f"store ptr %data{i}, ptr %base{i}",
    ]


def _find(n: int) -> list[str]:
    """The row that the key's hash names, or the one beside it, which must have the very key."""
    lines, last = ["br label %hashed", "hashed:"], "0"
    names = [f"key{i}" for i in range(n * KEY_WORDS)] + [f"attribute{i}" for i in range(ATTRIBUTE_WORDS)]
    for i in range(len(names)):
        lines += [
            f"%k{i}.at = getelementptr i64, ptr %key, i64 {i}",
            f"%k{i} = load i64, ptr %k{i}.at",
            f"%mixed{i} = xor i64 {last}, %k{i}",
            f"%hash{i} = mul i64 %mixed{i}, {MULTIPLIER - 2**64}",
        ]
        last = f"%hash{i}"
    lines += [
        f"%index = lshr i64 {last}, {64 - ROW_BITS}",
        "br label %probe",
        "probe:",
        "%probed = phi i64 [ %index, %hashed ], [ %beside, %elsewhere ]",
        f"%row.word = mul i64 %probed, {ROW_WORDS}",
        f"%row.place = add i64 %row.word, {ROWS_AT}",
        "%row = getelementptr i64, ptr %state, i64 %row.place",
    ]
    last = "0"
    for i, name in enumerate(names):
        lines += [
            *shaped_row(name),
            f"%other{i} = xor i64 %k{i}, %row.{name}",
            f"%others{i} = or i64 {last}, %other{i}",
        ]
        last = f"%others{i}"
    return [
        *lines,
        f"%known = icmp eq i64 {last}, 0",
        "br i1 %known, label %output, label %unknown",
        "unknown:",
        "%is.first = icmp eq i64 %probed, %index",
        "br i1 %is.first, label %elsewhere, label %slow.path",
        "elsewhere:",
        "%beside = xor i64 %index, 1",
        "br label %probe",
    ]


def shaped_ir(symbol: str, n: int, state_slot: int) -> str:
    """The function for n inputs. `state_slot` is where `self` keeps the ndarray of its state, in bytes."""
    lines = [
        "begin:",
        f"%key = alloca [{n * KEY_WORDS + ATTRIBUTE_WORDS} x i64]",
        f"%bases = alloca [{N_BASES} x i64]",
        f"%blocks = alloca [{MOST_STEPS * MOST_ARGUMENTS} x i64], align 64",
        f"%launches = alloca [{MOST_STEPS * LAUNCH_WORDS} x i64], align 16",
        "%asked = alloca ptr",
        *field("holder", "ptr", "%self", state_slot),
        *field("state", "ptr", "%holder", layout.DATA),
        *word("array_type"),
        f"call void @llvm.memset.p0.i64(ptr %key, i8 0, i64 {8 * (n * KEY_WORDS + ATTRIBUTE_WORDS)}, i1 false)",
        *_given(n),
    ]
    for i in range(n):
        lines += _input(i)
    lines += [*_find(n), *shaped_output_lines(n), *ready_lines(OUT_BASE, SCRATCH_BASE, NO_BASE)]
    lines += [*step_lines(STEP_WORDS, MOST_ARGUMENTS), *finish_lines()]
    early = [line for name in ("scratch_nbytes", "n_steps", "release", "share") for line in shaped_row(name)]
    at = lines.index("arguments:") + 3
    lines[at:at] = [*early, *shaped_row("steps", "ptr")]
    text = "\n".join(line if line.endswith(":") else f"  {line}" for line in lines)
    return (
        f"define ptr @{symbol}(ptr %self, ptr %args, i64 %n, ptr %names) nounwind {{\n{text}\n}}\n{RUN_STEPS}"
        "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)\n"
    )
