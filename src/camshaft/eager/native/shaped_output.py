"""LLVM IR of a shaped call's output: the caller's array, checked, or a new one."""

from __future__ import annotations

from camshaft.eager.native import cpython_abi as layout
from camshaft.eager.native.call_state import conjunction, field, word
from camshaft.eager.native.shape_table import ROW, shaped_row


def shaped_output_lines(n: int) -> list[str]:
    """From the label `output` on: %out where the caller gave a usable one that overlaps none of the n inputs, else a new array.
    Goes to `arguments`; to `slow.path` with what only Python can do or refuse, to `failed` without memory."""
    apart = [line for i in range(n) for line in _apart(i)]
    safe = conjunction("safe", [f"%safe{i}" for i in range(n)])
    return [*_made(), *_checked(), *apart, *safe, "br i1 %safe, label %arguments, label %slow.path"]


def _made() -> list[str]:
    """A new array of the row's dtype and sizes."""
    return [
        "output:",
        *shaped_row("out_dtype", "ptr"),
        *shaped_row("out_axes"),
        f"%sizes = getelementptr i8, ptr %row, i64 {8 * ROW.index('out_size0')}",
        "br i1 %has.out, label %check.out, label %make.out",
        "make.out:",
        *word("empty"),
        *word("scalar_of"),
        "%has.scalars = icmp ne ptr %scalar_of, null",
        "%has.empty = icmp ne ptr %empty, null",
        "%can.make = and i1 %has.scalars, %has.empty",
        "br i1 %can.make, label %making, label %slow.path",
        "making:",
        *word("incref"),
        "call void %incref(ptr %row.out_dtype)",
        "%made.axes = trunc i64 %row.out_axes to i32",
        "%made = call ptr %empty(i32 %made.axes, ptr %sizes, ptr %row.out_dtype, i32 0)",
        "%no.memory = icmp eq ptr %made, null",
        "br i1 %no.memory, label %failed, label %made.out",
        "made.out:",
        *field("made.data", "ptr", "%made", layout.DATA),
        "br label %arguments",
    ]


def _checked() -> list[str]:
    """The caller's array is used if dtype, layout, and every size are the row's."""
    usable = layout.C_ORDER | layout.ALIGNED | layout.WRITEABLE
    mask = (usable | layout.COPY_BACK | layout.WARN) - 2**32
    return [
        "check.out:",
        *field("out.type", "ptr", "%out", layout.TYPE),
        "%out.is.array = icmp eq ptr %out.type, %array_type",
        "br i1 %out.is.array, label %out.array, label %slow.path",
        "out.array:",
        *field("out.dtype", "ptr", "%out", layout.DESCR),
        *field("out.flags", "i32", "%out", layout.FLAGS),
        *field("out.nd", "i32", "%out", layout.ND),
        *field("out.dims", "ptr", "%out", layout.DIMENSIONS),
        *field("out.data", "ptr", "%out", layout.DATA),
        "%out.axes = zext i32 %out.nd to i64",
        "%out.right = icmp eq ptr %out.dtype, %row.out_dtype",
        f"%out.bits = and i32 %out.flags, {mask}",
        f"%out.usable = icmp eq i32 %out.bits, {usable}",
        "%out.same.axes = icmp eq i64 %out.axes, %row.out_axes",
        *conjunction("out.fits", ["%out.right", "%out.usable", "%out.same.axes"]),
        "br i1 %out.fits, label %out.size, label %slow.path",
        "out.size:",
        "%o = phi i64 [ 0, %out.array ], [ %o.next, %out.more ]",
        "%o.left = icmp ult i64 %o, %out.axes",
        "br i1 %o.left, label %out.compare, label %apart",
        "out.compare:",
        "%o.at = getelementptr i64, ptr %out.dims, i64 %o",
        "%o.size = load i64, ptr %o.at",
        "%o.row.at = getelementptr i64, ptr %sizes, i64 %o",
        "%o.row = load i64, ptr %o.row.at",
        "%o.same = icmp eq i64 %o.size, %o.row",
        "%o.next = add i64 %o, 1",
        "br i1 %o.same, label %out.more, label %slow.path",
        "out.more:",
        "br label %out.size",
        "apart:",
        *shaped_row("out_nbytes"),
        "%out.first = ptrtoint ptr %out.data to i64",
        "%out.end = add i64 %out.first, %row.out_nbytes",
    ]


def _apart(i: int) -> list[str]:
    """Input i lies before or behind the output, or begins with it where the kernel may work in place."""
    return [
        *shaped_row(f"nbytes{i}"),
        f"%first{i} = ptrtoint ptr %data{i} to i64",
        f"%end{i} = add i64 %first{i}, %row.nbytes{i}",
        f"%below{i} = icmp ule i64 %end{i}, %out.first",
        f"%above{i} = icmp ule i64 %out.end, %first{i}",
        *shaped_row(f"in_place{i}"),
        f"%may.be{i} = icmp ne i64 %row.in_place{i}, 0",
        f"%begins{i} = icmp eq i64 %first{i}, %out.first",
        f"%alike{i} = and i1 %may.be{i}, %begins{i}",
        f"%beside{i} = or i1 %below{i}, %above{i}",
        f"%safe{i} = or i1 %beside{i}, %alike{i}",
    ]
