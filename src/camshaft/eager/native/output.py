"""LLVM IR of a native call's output and of its launch: the array, the arguments, on which threads."""

from __future__ import annotations

from camshaft.eager.native import cpython_abi as layout
from camshaft.eager.native.call_state import AS_F32, AS_F64, ENTRIES, ROW, conjunction, field, row, word
from camshaft.eager.native.shaped_run import closing_lines

_OUT_FLAGS = layout.ALIGNED | layout.WRITEABLE
_OUT_MASK = _OUT_FLAGS | layout.COPY_BACK | layout.WARN


def output_lines(n: int) -> list[str]:
    """The caller's `out`, checked as NumPy does, or a new array of the inputs' order."""
    return [
        "output:",
        *row("out_dtype", "ptr"),
        "br i1 %has.out, label %check.out, label %make.out",
        "make.out:",
        *word("new_like"),
        "%can.make = icmp ne ptr %new_like, null",
        "br i1 %can.make, label %making, label %slow.path",
        "making:",
        *word("incref"),
        "call void %incref(ptr %row.out_dtype)",
        f"%made = call ptr %new_like(ptr %ref.in, i32 {layout.KEEP_ORDER}, ptr %row.out_dtype, i32 0)",
        "%no.memory = icmp eq ptr %made, null",
        "br i1 %no.memory, label %failed, label %made.out",
        "made.out:",
        *field("made.data", "ptr", "%made", layout.DATA),
        "br label %arguments",
        "check.out:",
        *field("out", "ptr", "%args", 8 * n),
        *field("out.type", "ptr", "%out", layout.TYPE),
        "%out.is.array = icmp eq ptr %out.type, %array_type",
        "br i1 %out.is.array, label %out.array, label %slow.path",
        "out.array:",
        *field("out.dtype", "ptr", "%out", layout.DESCR),
        *field("out.flags", "i32", "%out", layout.FLAGS),
        *field("out.nd", "i32", "%out", layout.ND),
        *field("out.dims", "ptr", "%out", layout.DIMENSIONS),
        *field("out.data", "ptr", "%out", layout.DATA),
        "%out.right = icmp eq ptr %out.dtype, %row.out_dtype",
        f"%out.bits = and i32 %out.flags, {_OUT_MASK - (1 << 32)}",
        f"%out.usable = icmp eq i32 %out.bits, {_OUT_FLAGS}",
        "%out.common = and i32 %out.flags, %in.order",
        "%out.ordered = icmp ne i32 %out.common, 0",
        "%out.same.nd = icmp eq i32 %out.nd, %ref.nd",
        *conjunction("out.fits", ["%out.right", "%out.usable", "%out.ordered", "%out.same.nd"]),
        "br i1 %out.fits, label %out.size, label %slow.path",
        "out.size:",
        "%o = phi i64 [ 0, %out.array ], [ %o.next, %out.more ]",
        "%o.left = icmp ult i64 %o, %axes",
        "br i1 %o.left, label %out.compare, label %apart",
        "out.compare:",
        "%o.at = getelementptr i64, ptr %out.dims, i64 %o",
        "%o.size = load i64, ptr %o.at",
        "%o.ref.at = getelementptr i64, ptr %ref.dims, i64 %o",
        "%o.ref = load i64, ptr %o.ref.at",
        "%o.same = icmp eq i64 %o.size, %o.ref",
        "%o.next = add i64 %o, 1",
        "br i1 %o.same, label %out.more, label %slow.path",
        "out.more:",
        "br label %out.size",
        *_apart(n),
    ]


def _apart(n: int) -> list[str]:
    """`out` begins where an input does, or their bytes do not meet."""
    lines = ["apart:", *row("out_nbytes")]
    lines += [
        "%out.span = mul i64 %total, %row.out_nbytes",
        "%out.first = ptrtoint ptr %out.data to i64",
        "%out.end = add i64 %out.first, %out.span",
    ]
    for i in range(n):
        lines += [
            f"%first{i} = ptrtoint ptr %data{i} to i64",
            *row(f"nbytes{i}"),
            f"%all{i} = mul i64 %total, %row.nbytes{i}",
            f"%span{i} = select i1 %single{i}, i64 %row.nbytes{i}, i64 %all{i}",
            f"%same.width{i} = icmp eq i64 %row.nbytes{i}, %row.out_nbytes",
            f"%end{i} = add i64 %first{i}, %span{i}",
            f"%below{i} = icmp ule i64 %end{i}, %out.first",
            f"%above{i} = icmp ule i64 %out.end, %first{i}",
            f"%begins{i} = icmp eq i64 %first{i}, %out.first",
            f"%whole{i} = xor i1 %single{i}, true",
            f"%alike{i} = and i1 %begins{i}, %same.width{i}",
            f"%in.place{i} = and i1 %alike{i}, %whole{i}",
            f"%beside{i} = or i1 %below{i}, %above{i}",
            f"%safe{i} = or i1 %beside{i}, %in.place{i}",
        ]
    lines += conjunction("safe", [f"%safe{i}" for i in range(n)])
    return [*lines, "br i1 %safe, label %arguments, label %slow.path"]


def arguments_lines(n: int) -> list[str]:
    """Floats in the row's format, the entry of this set of single inputs, and its argument block."""
    lines = [
        "arguments:",
        "%result = phi ptr [ %made, %made.out ], [ %out, %apart ]",
        "%result.data = phi ptr [ %made.data, %made.out ], [ %out.data, %apart ]",
        "switch i64 %row.number, label %ints [ " + f"i64 {AS_F32}, label %floats.32 i64 {AS_F64}, label %floats.64 ]",
        "ints:",
        *(f"store i64 %int{i}, ptr %slot{i}" for i in range(n)),
        "br label %entry.of",
        "floats.32:",
    ]
    for i in range(n):
        lines += [f"%number{i}.32 = fptrunc double %number{i} to float", f"store float %number{i}.32, ptr %slot{i}"]
    lines += ["br label %entry.of", "floats.64:"]
    lines += [f"store double %number{i}, ptr %slot{i}" for i in range(n)]
    lines += ["br label %entry.of", "entry.of:"]
    sets = "0"
    for i in range(n):
        lines += [
            f"%bit{i} = select i1 %single{i}, i64 {1 << i}, i64 0",
            f"%set{i} = or i64 {sets}, %bit{i}",
            f"%word{i} = getelementptr i64, ptr %block, i64 {i}",
            f"store ptr %data{i}, ptr %word{i}",
        ]
        sets = f"%set{i}"
    return [
        *lines,
        f"%out.word = getelementptr i64, ptr %block, i64 {n}",
        "store ptr %result.data, ptr %out.word",
        f"%total.word = getelementptr i64, ptr %block, i64 {n + 1}",
        "store ptr %total.at, ptr %total.word",
        "store i64 %total, ptr %total.at",
        f"%entry.index = add i64 {sets}, {ENTRIES}",
        "%entry.at = getelementptr i64, ptr %row, i64 %entry.index",
        "%entry = load ptr, ptr %entry.at",
        "%no.entry = icmp eq ptr %entry, null",
        "br i1 %no.entry, label %give.up, label %count",
        *_launch(n),
    ]


def _lead(n: int) -> list[str]:
    """The elements before the output's first whole cache line, alone: vectors of 64 bytes across lines cost 7% of an add."""
    lines = [
        "large:",
        "%result.first = ptrtoint ptr %result.data to i64",
        "%result.past = sub i64 0, %result.first",
        "%lead.nbytes = and i64 %result.past, 63",
        "%lead.out_nbytes = load i64, ptr %row.out_nbytes.place",
        "%lead = udiv i64 %lead.nbytes, %lead.out_nbytes",
        "%no.lead = icmp eq i64 %lead, 0",
        "br i1 %no.lead, label %even, label %uneven",
        "uneven:",
        "store i64 %lead, ptr %total.at",
        "call void %entry(ptr %block, i64 0, i64 1)",
        "%result.even = getelementptr i8, ptr %result.data, i64 %lead.nbytes",
        "store ptr %result.even, ptr %out.word",
    ]
    for i in range(n):
        lines += [
            f"%lead.nbytes{i}.at = getelementptr i64, ptr %row, i64 {ROW.index(f'nbytes{i}')}",
            f"%lead.each{i} = load i64, ptr %lead.nbytes{i}.at",
            f"%lead.whole{i} = mul i64 %lead, %lead.each{i}",
            f"%lead.step{i} = select i1 %single{i}, i64 0, i64 %lead.whole{i}",
            f"%data.even{i} = getelementptr i8, ptr %data{i}, i64 %lead.step{i}",
            f"store ptr %data.even{i}, ptr %word{i}",
        ]
    return [
        *lines,
        "br label %even",
        "even:",
        "%rest = sub i64 %total, %lead",
        "store i64 %rest, ptr %total.at",
        "%below.rest = sub i64 %rest, 1",
        "%quotient = udiv i64 %below.rest, %row.block",
        "%programs = add i64 %quotient, 1",
    ]


def _launch(n: int) -> list[str]:
    """On this thread, on this thread without the lock, or by the pool. What is small is one program."""
    return [
        "count:",
        *row("block"),
        *row("release"),
        *row("share"),
        f"%row.out_nbytes.place = getelementptr i64, ptr %row, i64 {ROW.index('out_nbytes')}",
        "%small = icmp ult i64 %total, %row.release",
        "br i1 %small, label %here, label %large",
        "here:",
        "call void %entry(ptr %block, i64 0, i64 1)",
        "br label %done",
        *_lead(n),
        "%alone = icmp ult i64 %total, %row.share",
        "br i1 %alone, label %release, label %shared",
        "release:",
        *word("save_thread"),
        *word("restore_thread"),
        "%thread = call ptr %save_thread()",
        "call void %entry(ptr %block, i64 0, i64 %programs)",
        "call void %restore_thread(ptr %thread)",
        "br label %done",
        "shared:",
        "store ptr %entry, ptr %launch",
        "%launch.block = getelementptr i64, ptr %launch, i64 1",
        "store ptr %block, ptr %launch.block",
        "%launch.programs = getelementptr i64, ptr %launch, i64 2",
        "store i64 %programs, ptr %launch.programs",
        *word("long_from_address"),
        *word("pool"),
        *word("vectorcall"),
        *word("decref"),
        "%launch.tagged = getelementptr i8, ptr %launch, i64 1",  # one launch: see call_shaped_run.py
        "%address = call ptr %long_from_address(ptr %launch.tagged)",
        "%no.address = icmp eq ptr %address, null",
        "br i1 %no.address, label %drop, label %ask",
        "ask:",
        "store ptr %address, ptr %asked",
        "%ran = call ptr %vectorcall(ptr %pool, ptr %asked, i64 1, ptr null)",
        "call void %decref(ptr %address)",
        "%broke = icmp eq ptr %ran, null",
        "br i1 %broke, label %drop, label %shared.done",
        "shared.done:",
        "call void %decref(ptr %ran)",
        "br label %done",
        "done:",
        "br i1 %has.out, label %again, label %leave",
        *closing_lines(),
    ]
