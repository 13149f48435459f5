"""The executor's LLVM IR: it walks thunk records with all workers inside it, for every plan. Compiled by native.py.

The words that it reads and writes are laid out in executor_layout.py.
"""

from __future__ import annotations

from string import Template

from camshaft.plan.runtime.native import layout
from camshaft.plan.runtime.native.barrier import AWAIT, BARRIER, CORES, pause_declaration, pause_ir
from camshaft.plan.runtime.native.clock import STAMP_ENTRIES, TIMED, clock_ir
from camshaft.plan.runtime.native.entries import COPY, ENTRIES
from camshaft.plan.runtime.native.os_wait import WaitRow
from camshaft.plan.schedule import COPY_NBYTES_PER_PROGRAM

# programs = constant * product of ceil(extent / divisor), and 0 where an extent is 0
_PROGRAMS = """
define internal i64 @programs(ptr %record) alwaysinline {
entry:
  %constant.at = getelementptr i64, ptr %record, i64 $CONSTANT
  %constant = load i64, ptr %constant.at
  %n_factors.at = getelementptr i64, ptr %record, i64 $N_FACTORS
  %n_factors = load i64, ptr %n_factors.at
  %factors = getelementptr i64, ptr %record, i64 $FACTORS
  br label %head
head:
  %product = phi i64 [ %constant, %entry ], [ %more, %body ]
  %k = phi i64 [ 0, %entry ], [ %k.next, %body ]
  %left = icmp ult i64 %k, %n_factors
  br i1 %left, label %body, label %done
body:
  %factor = getelementptr [2 x i64], ptr %factors, i64 %k
  %extent.at = load ptr, ptr %factor
  %extent = load i64, ptr %extent.at
  %divisor.at = getelementptr i64, ptr %factor, i64 1
  %divisor = load i64, ptr %divisor.at
  %below = sub i64 %extent, 1
  %quotient = udiv i64 %below, %divisor
  %up = add i64 %quotient, 1
  %empty = icmp eq i64 %extent, 0
  %count = select i1 %empty, i64 0, i64 %up
  %more = mul i64 %product, %count
  %k.next = add i64 %k, 1
  br label %head
done:
  ret i64 %product
}
"""

# A worker's share of n programs: contiguous, the remainder to the first workers counted from the thunk's home. After a
# failed host thunk the walk goes on, so that all workers meet at every barrier, but runs nothing. Lines that begin with
# ";timed" are in the timed form only (clock_ir.py); the ordinary form does not have them.
_WALK = """
define internal void @walk(ptr %control, i64 %worker, i64 %workers, ptr %records, i64 %first, i64 %last, ptr %failed)
    alwaysinline {
entry:
;timed  %stamps.all = load ptr, ptr @stamps
;timed  %stamps.stride = load i64, ptr @stamps_per_worker
;timed  %stamps.skip = mul i64 %worker, %stamps.stride
;timed  %stamps.mine = getelementptr [$STAMP_WORDS x i64], ptr %stamps.all, i64 %stamps.skip
;timed  %whole.index = sub i64 %stamps.stride, 1
;timed  %whole = getelementptr [$STAMP_WORDS x i64], ptr %stamps.mine, i64 %whole.index
;timed  %begun = call i64 @clock()
;timed  store i64 %begun, ptr %whole
  %workers.32 = trunc i64 %workers to i32
  %alone = icmp eq i64 %workers, 1
  %mine.at = call ptr @lines_of(ptr %control, i64 %worker)
  %misses = getelementptr i64, ptr %mine.at, i64 $MISSES
  %generation = getelementptr i64, ptr %control, i64 $GENERATION
  br i1 %alone, label %head, label %join
join:
  %opened = load atomic i32, ptr %generation monotonic, align 4
  br label %head
head:
  %i = phi i64 [ %first, %entry ], [ %first, %join ], [ %i.next, %next ]
  %gate = phi i32 [ 0, %entry ], [ %opened, %join ], [ %gate.now, %next ]
  %skip = phi i1 [ false, %entry ], [ false, %join ], [ %skip.now, %next ]
  %left = icmp slt i64 %i, %last
  br i1 %left, label %body, label %end
body:
  %record = getelementptr [$RECORD_WORDS x i64], ptr %records, i64 %i
  %wait.at = getelementptr i64, ptr %record, i64 $WAIT
  %wait = load i64, ptr %wait.at
  %wanted = icmp ne i64 %wait, 0
  %later = icmp ne i64 %i, %first
  %meet = and i1 %wanted, %later
  br i1 %meet, label %gather, label %count
gather:
  %gate.next = add i32 %gate, 1
  br i1 %alone, label %look, label %meeting
meeting:
  call void @barrier(ptr %control, i32 %gate.next, i32 %workers.32, ptr %misses, i1 true)
  br label %look
look:
  %failure = load atomic i64, ptr %failed monotonic, align 8
  %broken = icmp ne i64 %failure, 0
  br label %count
count:
  %gate.now = phi i32 [ %gate, %body ], [ %gate.next, %look ]
  %skip.now = phi i1 [ %skip, %body ], [ %broken, %look ]
;timed  %stamp = getelementptr [$STAMP_WORDS x i64], ptr %stamps.mine, i64 %i
;timed  %stamp.size = getelementptr i64, ptr %stamp, i64 $SIZE
;timed  %started = call i64 @clock()
;timed  store i64 %started, ptr %stamp
;timed  store i64 0, ptr %stamp.size
  br i1 %skip.now, label %next, label %share
share:
  %n = call i64 @programs(ptr %record)
  br i1 %alone, label %launch, label %turn
turn:
  %home.at = getelementptr i64, ptr %record, i64 $HOME
  %home = load i64, ptr %home.at
  %everywhere = icmp slt i64 %home, 0
  br i1 %everywhere, label %launch, label %part
part:
  %from = sub i64 %worker, %home
  %wrapped = add i64 %from, %workers
  %below = icmp slt i64 %from, 0
  %place = select i1 %below, i64 %wrapped, i64 %from
  %few = icmp sle i64 %n, %workers
  br i1 %few, label %one_each, label %split
one_each:
  %mine = icmp slt i64 %place, %n
  %one = zext i1 %mine to i64
  br label %launch
split:
  %even = udiv i64 %n, %workers
  %rest = urem i64 %n, %workers
  %start.even = mul i64 %place, %even
  %shift = call i64 @llvm.umin.i64(i64 %place, i64 %rest)
  %start.split = add i64 %start.even, %shift
  %extra = icmp slt i64 %place, %rest
  %extra.1 = zext i1 %extra to i64
  %size.split = add i64 %even, %extra.1
  br label %launch
launch:
  %start = phi i64 [ 0, %share ], [ 0, %turn ], [ %place, %one_each ], [ %start.split, %split ]
  %size = phi i64 [ %n, %share ], [ %n, %turn ], [ %one, %one_each ], [ %size.split, %split ]
;timed  store i64 %size, ptr %stamp.size
;timed  %stamp.place = getelementptr i64, ptr %stamp, i64 $PLACE
;timed  store i64 %start, ptr %stamp.place
  %some = icmp sgt i64 %size, 0
  br i1 %some, label %call, label %next
call:
  %args.at = getelementptr i64, ptr %record, i64 $ARGS
  %args.first = load ptr, ptr %args.at
  %stride.at = getelementptr i64, ptr %record, i64 $STRIDE
  %stride = load i64, ptr %stride.at
  %args.skip = mul i64 %worker, %stride
  %args = getelementptr i8, ptr %args.first, i64 %args.skip
  %kernel = load ptr, ptr %record
  %stop = add i64 %start, %size
  call void %kernel(ptr %args, i64 %start, i64 %stop)
  br label %next
next:
;timed  %ended = call i64 @clock()
;timed  %stamp.end = getelementptr i64, ptr %stamp, i64 $END
;timed  store i64 %ended, ptr %stamp.end
  %i.next = add i64 %i, 1
  br label %head
end:
  br i1 %alone, label %out, label %leave
leave:
  %gate.end = add i32 %gate, 1
  %caller = icmp eq i64 %worker, 0
  call void @barrier(ptr %control, i32 %gate.end, i32 %workers.32, ptr %misses, i1 %caller)
  br label %out
out:
  ret void
}
declare i64 @llvm.umin.i64(i64, i64)
"""


def executor_ir(row: WaitRow, machine: str, *, timed: bool = False) -> str:
    """The executor's module as IR text: it sleeps by `row` and pauses as `machine` (the triple's first part) does.

    `timed` gives the form that stamps what each worker does; the ordinary form is the same text without those lines.
    PlanError for a timed form on a machine whose clock is not known.
    """
    words: dict[str, object] = {name: value for name, value in vars(layout).items() if isinstance(value, int)}
    words |= {"wait": row.wait, "wake": row.wake, "pause": pause_ir(machine)}
    words["COPY_NBYTES_PER_PROGRAM"] = COPY_NBYTES_PER_PROGRAM
    text = _PROGRAMS + AWAIT + BARRIER + CORES + _WALK + ENTRIES + COPY + pause_declaration(machine)
    if timed:
        text = text.replace(TIMED, "") + clock_ir(machine) + STAMP_ENTRIES
    else:
        text = "".join(line for line in text.splitlines(keepends=True) if not line.startswith(TIMED))
    return Template(text).substitute(words)
