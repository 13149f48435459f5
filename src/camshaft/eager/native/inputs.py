"""LLVM IR of a native call's inputs: what was given, as addresses and flags, and that all of it agrees."""

from __future__ import annotations

from camshaft.eager.native import cpython_abi as layout
from camshaft.eager.native.call_state import ROW_WORDS, ROWS_AT, conjunction, field, row, word

# Elements up to which strided inputs are copied natively, one after the other and with the interpreter's lock held.
MOST_COPIED = 1 << 14


def given_lines(n: int) -> list[str]:
    """n inputs, and `out` as the next argument, by position or as the only keyword; or no `out` at all."""
    return [
        "%no.names = icmp eq ptr %names, null",
        "br i1 %no.names, label %positions, label %keywords",
        "positions:",
        f"%one.more = icmp eq i64 %n, {n + 1}",
        f"%no.more = icmp eq i64 %n, {n}",
        "%right.count = or i1 %one.more, %no.more",
        "br i1 %right.count, label %inputs, label %slow.path",
        "keywords:",
        *field("n.names", "i64", "%names", layout.TUPLE_SIZE),
        *field("name", "ptr", "%names", layout.TUPLE_ITEMS),
        *word("out_name"),
        "%one.name = icmp eq i64 %n.names, 1",
        "%is.out = icmp eq ptr %name, %out_name",
        f"%are.inputs = icmp eq i64 %n, {n}",
        *conjunction("named", ["%one.name", "%is.out", "%are.inputs"]),
        "br i1 %named, label %inputs, label %slow.path",
        "inputs:",
        "%has.out = phi i1 [ true, %keywords ], [ %one.more, %positions ]",
    ]


def input_lines(i: int, following: str) -> list[str]:
    """Input i's address, flags, shape and dtype: an ndarray's own, or those of a number."""
    x = f"%in{i}"
    return [
        f"br label %input{i}",
        f"input{i}:",
        *field(f"in{i}", "ptr", "%args", 8 * i),
        *field(f"type{i}", "ptr", x, layout.TYPE),
        f"%array{i} = icmp eq ptr %type{i}, %array_type",
        f"br i1 %array{i}, label %is.array{i}, label %no.array{i}",
        f"no.array{i}:",
        f"%a.float{i} = icmp eq ptr %type{i}, %float_type",
        f"br i1 %a.float{i}, label %is.float{i}, label %no.float{i}",
        f"no.float{i}:",
        *(line.replace("%int_type", f"%int_type{i}") for line in word("int_type")),
        f"%an.int{i} = icmp eq ptr %type{i}, %int_type{i}",
        f"br i1 %an.int{i}, label %is.int{i}, label %is.other{i}",
        f"is.other{i}:",  # a NumPy scalar, if a row knows its type
        f"%other.data{i} = getelementptr i8, ptr {x}, i64 {layout.SCALAR_VALUE}",
        f"br label %{following}",
        f"is.int{i}:",
        *(line.replace("%int_value", f"%int_value{i}") for line in word("int_value")),
        f"%int.of{i} = call i64 %int_value{i}(ptr {x}, ptr %overflow)",
        f"%over{i} = load i32, ptr %overflow",
        f"%held{i} = icmp eq i32 %over{i}, 0",
        f"%int.real{i} = sitofp i64 %int.of{i} to double",
        f"br i1 %held{i}, label %{following}, label %slow.path",
        f"is.float{i}:",
        *field(f"value{i}", "double", x, layout.FLOAT_VALUE),
        f"br label %{following}",
        f"is.array{i}:",
        *field(f"own.data{i}", "ptr", x, layout.DATA),
        *field(f"own.nd{i}", "i32", x, layout.ND),
        *field(f"own.dims{i}", "ptr", x, layout.DIMENSIONS),
        *field(f"own.dtype{i}", "ptr", x, layout.DESCR),
        *field(f"own.flags{i}", "i32", x, layout.FLAGS),
        f"br label %{following}",
        f"{following}:",
        *(
            f"%{name}{i} = phi {kind} [ {real}, %is.float{i} ], [ {whole}, %is.int{i} ], "
            f"[ {other}, %is.other{i} ], [ {own}, %is.array{i} ]"
            for name, kind, real, whole, other, own in (
                ("data", "ptr", f"%slot{i}", f"%slot{i}", f"%other.data{i}", f"%own.data{i}"),
                ("nd", "i32", "0", "0", "0", f"%own.nd{i}"),
                ("dims", "ptr", "null", "null", "null", f"%own.dims{i}"),
                ("dtype", "ptr", "null", "null", "null", f"%own.dtype{i}"),
                ("flags", "i32", "-1", "-1", "-1", f"%own.flags{i}"),
                ("number", "double", f"%value{i}", f"%int.real{i}", "0.0", "0.0"),
                ("int", "i64", "0", f"%int.of{i}", "0", "0"),
                ("is.real", "i1", "true", "false", "false", "false"),
                ("is.weak", "i1", "true", "true", "false", "false"),
            )
        ),
        f"%single{i} = icmp eq i32 %nd{i}, 0",
        f"%order{i} = select i1 %single{i}, i32 -1, i32 %flags{i}",
    ]


def reference_lines(n: int) -> list[str]:
    """The first input that is more than one element gives the shape."""
    lines, last = [], n - 1
    for name, kind in (("dims", "ptr"), ("nd", "i32"), ("in", "ptr")):
        chosen = f"%{name}{last}"
        for i in reversed(range(last)):
            lines.append(f"%ref.{name}.{i} = select i1 %single{i}, {kind} {chosen}, {kind} %{name}{i}")
            chosen = f"%ref.{name}.{i}"
        lines.append(f"%ref.{name} = select i1 true, {kind} {chosen}, {kind} {chosen}")
    lines += conjunction("only.single", [f"%single{i}" for i in range(n)])
    return [*lines, "br i1 %only.single, label %slow.path, label %find"]


def find_row_lines(n: int) -> list[str]:
    """The row of the inputs' dtypes; a Python number goes with any."""
    compared = []
    for i in range(n):
        compared += [
            *row(f"dtype{i}", "ptr"),
            f"%same.dtype{i} = icmp eq ptr %dtype{i}, %row.dtype{i}",
            *row(f"scalar{i}", "ptr"),
            f"%same.type{i} = icmp eq ptr %type{i}, %row.scalar{i}",
            f"%strong{i} = or i1 %same.dtype{i}, %same.type{i}",
            f"%right{i} = or i1 %is.weak{i}, %strong{i}",
        ]
    return [
        "find:",
        *word("n_rows", "i64"),
        "br label %look",
        "look:",
        "%r = phi i64 [ 0, %find ], [ %r.next, %differs ]",
        "%left = icmp ult i64 %r, %n_rows",
        "br i1 %left, label %try, label %slow.path",
        "try:",
        f"%r.word = mul i64 %r, {ROW_WORDS}",
        f"%r.at = add i64 %r.word, {ROWS_AT}",
        "%row = getelementptr i64, ptr %state, i64 %r.at",
        *compared,
        *conjunction("this", [f"%right{i}" for i in range(n)]),
        "br i1 %this, label %found, label %differs",
        "differs:",
        "%r.next = add i64 %r, 1",
        "br label %look",
        "found:",
    ]


def agree_lines(n: int) -> list[str]:
    """Numbers that the row takes, alignment, one number of axes; then the sizes, whose product is %total."""
    lines, fine = [*row("number"), *row("least"), *row("most")], []
    lines.append("%takes.float = icmp ne i64 %row.number, 0")
    for i in range(n):
        lines += [
            f"%fits.least{i} = icmp sge i64 %int{i}, %row.least",
            f"%fits.most{i} = icmp sle i64 %int{i}, %row.most",
            f"%in.range{i} = and i1 %fits.least{i}, %fits.most{i}",
            f"%takes.weak{i} = select i1 %is.real{i}, i1 %takes.float, i1 %in.range{i}",
            f"%takes{i} = select i1 %is.weak{i}, i1 %takes.weak{i}, i1 true",
            f"%aligned.bit{i} = and i32 %flags{i}, {layout.ALIGNED}",
            f"%aligned{i} = icmp ne i32 %aligned.bit{i}, 0",
            f"%same.nd{i} = icmp eq i32 %nd{i}, %ref.nd",
            f"%fits{i} = or i1 %single{i}, %same.nd{i}",
        ]
        fine += [f"%takes{i}", f"%aligned{i}", f"%fits{i}"]
    lines += conjunction("agree", fine)
    lines += ["br i1 %agree, label %sizes, label %slow.path", "sizes:", "%axes = zext i32 %ref.nd to i64"]
    lines += [f"%shape{i} = select i1 %single{i}, ptr %ref.dims, ptr %dims{i}" for i in range(n)]
    lines += [
        "br label %size",
        "size:",
        "%axis = phi i64 [ 0, %sizes ], [ %axis.next, %more ]",
        "%total = phi i64 [ 1, %sizes ], [ %product, %more ]",
        "%some.left = icmp ult i64 %axis, %axes",
        "br i1 %some.left, label %compare, label %counted",
        "compare:",
        "%size.at = getelementptr i64, ptr %ref.dims, i64 %axis",
        "%this.size = load i64, ptr %size.at",
        "%product = mul i64 %total, %this.size",
        "%axis.next = add i64 %axis, 1",
    ]
    for i in range(n):
        lines += [
            f"%size{i}.at = getelementptr i64, ptr %shape{i}, i64 %axis",
            f"%size{i} = load i64, ptr %size{i}.at",
            f"%same.size{i} = icmp eq i64 %size{i}, %this.size",
        ]
    lines += conjunction("same.sizes", [f"%same.size{i}" for i in range(n)])
    lines += ["br i1 %same.sizes, label %more, label %slow.path", "more:", "br label %size", "counted:"]
    for i in range(n):
        before = f"%orders.{i - 1}" if i else "-1"
        lines.append(f"%orders.{i} = and i32 {before}, %order{i}")
    return [
        *lines,
        f"%in.order = and i32 %orders.{n - 1}, {layout.C_ORDER | layout.F_ORDER}",
        "%ordered = icmp ne i32 %in.order, 0",
        "%any = icmp ne i64 %total, 0",
        "br i1 %any, label %some, label %slow.path",
        "some:",
        "br i1 %ordered, label %output, label %reorder",
        *_reorder(n),
    ]


def _reorder(n: int) -> list[str]:
    """A small call with strided inputs is the same call with contiguous copies of them."""
    lines = [
        "reorder:",
        *word("new_copy"),
        f"%small.enough = icmp ult i64 %total, {MOST_COPIED}",
        "%can.copy = icmp ne ptr %new_copy, null",
        "%copies = and i1 %small.enough, %can.copy",
        "br i1 %copies, label %copy0, label %slow.path",
    ]
    for i in range(n):
        following = f"copy{i + 1}" if i + 1 < n else "copied"
        lines += [
            f"copy{i}:",
            f"%copy{i}.at = getelementptr ptr, ptr %copied.args, i64 {i}",
            f"%c.bit{i} = and i32 %order{i}, {layout.C_ORDER}",
            f"%as.is{i} = icmp ne i32 %c.bit{i}, 0",
            f"br i1 %as.is{i}, label %keep{i}, label %new{i}",
            f"new{i}:",
            f"%fresh{i} = call ptr %new_copy(ptr %in{i}, i32 0)",
            f"br label %kept{i}",
            f"keep{i}:",
            *(line.replace("%incref", f"%incref.keep{i}") for line in word("incref")),
            f"call void %incref.keep{i}(ptr %in{i})",
            f"br label %kept{i}",
            f"kept{i}:",
            f"%given{i} = phi ptr [ %fresh{i}, %new{i} ], [ %in{i}, %keep{i} ]",
            f"store ptr %given{i}, ptr %copy{i}.at",
            f"br label %{following}",
        ]
    lines += ["copied:"]
    for i in range(n):
        lines.append(f"%got{i} = icmp ne ptr %given{i}, null")
    lines += [
        *conjunction("got.all", [f"%got{i}" for i in range(n)]),
        "br i1 %got.all, label %once.more, label %let.go",
        "once.more:",
        f"%out.from = getelementptr ptr, ptr %args, i64 {n}",
        f"%out.to = getelementptr ptr, ptr %copied.args, i64 {n}",
        "br i1 %has.out, label %with.out, label %call.again",
        "with.out:",
        "%out.given = load ptr, ptr %out.from",
        "store ptr %out.given, ptr %out.to",
        "br label %call.again",
        "call.again:",
        "%second = call ptr @SYMBOL(ptr %self, ptr %copied.args, i64 %n, ptr %names)",
        "br label %let.go",
        "let.go:",
        "%answer = phi ptr [ null, %copied ], [ %second, %call.again ]",
    ]
    for i in range(n):
        lines += [
            f"br i1 %got{i}, label %drop{i}, label %dropped{i}",
            f"drop{i}:",
            *(line.replace("%decref", f"%decref.copy{i}") for line in word("decref")),
            f"call void %decref.copy{i}(ptr %given{i})",
            f"br label %dropped{i}",
            f"dropped{i}:",
        ]
    return [*lines, "ret ptr %answer"]
