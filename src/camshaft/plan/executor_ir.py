"""The executor's LLVM IR: it walks thunk records with all workers inside it, for every plan. Compiled by native.py.

Layouts (int64 words), shared with workers.py and execute.py:
  record   entry, args, constant, wait, home, number of factors, 3 x (extent address, divisor), stride; 128 bytes. Home is -1
           where every worker runs all programs; a worker's args are `stride` bytes after those of the one before
  control  one per pool, a 128-byte line per group of writers, see the offsets below
"""

from __future__ import annotations

from string import Template

from camshaft.plan.barrier_ir import AWAIT, BARRIER, CORES, pause_declaration, pause_ir
from camshaft.plan.clock_ir import STAMP_ENTRIES, TIMED, clock_ir
from camshaft.plan.schedule import COPY_NBYTES_PER_PROGRAM, MAX_FACTORS
from camshaft.plan.wake import WakeRow

RECORD_WORDS = 16
ENTRY, ARGS, CONSTANT, WAIT, HOME, N_FACTORS, FACTORS = range(7)
STRIDE = FACTORS + 2 * MAX_FACTORS
EVERYWHERE = -1

# What the timed form writes for a worker and a thunk: ticks at start and end, programs run, the first of them. After a
# worker's thunks comes one for its whole run, of which it writes the start. Nothing is written after the last barrier: the
# caller may have let go of the stamps by then.
STAMP_WORDS = 4
START, END, SIZE, PLACE = range(4)

# Lines of two cache lines each: the neighbour is prefetched along with the one that is wanted.
LINE_WORDS = 16
WAIT_FUNCTION, WAKE_FUNCTION, CORE_FUNCTION, SPIN_BOUND, SHORT_SPIN_BOUND, CALLER_SPIN_BOUND, WORKERS = range(7)
RUN_GENERATION = 1 * LINE_WORDS
RECORDS, FIRST, LAST, FAILED, STOP = range(2 * LINE_WORDS, 2 * LINE_WORDS + 5)
ARRIVED = 3 * LINE_WORDS
GENERATION = 4 * LINE_WORDS
RUN_SLEEPERS = 5 * LINE_WORDS
SLEEPERS = 6 * LINE_WORDS
# Then two lines for each worker: its own (runs seen, spins missed), and one that the others read (the core it is on).
WORKER_LINES = 7 * LINE_WORDS
WORDS_PER_WORKER = 2 * LINE_WORDS
RUNS_SEEN, RUN_MISSES, MISSES = range(3)
CORE = LINE_WORDS
CALLER_MISSES, CALLER_CORE = WORKER_LINES + MISSES, WORKER_LINES + CORE

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

# A run is published by its number in RUN_GENERATION; worker 0 is the caller. STOP makes the workers return 0.
_ENTRIES = """
define void @camshaft_run_alone(ptr %records, i64 %first, i64 %last, ptr %failed) {
  call void @walk(ptr null, i64 0, i64 1, ptr %records, i64 %first, i64 %last, ptr %failed)
  ret void
}
define internal void @summon(ptr %control) alwaysinline {
  %run = getelementptr i64, ptr %control, i64 $RUN_GENERATION
  %sleepers = getelementptr i64, ptr %control, i64 $RUN_SLEEPERS
  %number = load atomic i32, ptr %run monotonic, align 4
  %number.next = add i32 %number, 1
  call void @publish(ptr %control, ptr %run, i32 %number.next, ptr %sleepers)
  ret void
}
define internal void @work(ptr %control, i64 %worker) noinline {
  %workers.at = getelementptr i64, ptr %control, i64 $WORKERS
  %workers = load i64, ptr %workers.at
  %records.at = getelementptr i64, ptr %control, i64 $RECORDS
  %records = load ptr, ptr %records.at
  %first.at = getelementptr i64, ptr %control, i64 $FIRST
  %first = load i64, ptr %first.at
  %last.at = getelementptr i64, ptr %control, i64 $LAST
  %last = load i64, ptr %last.at
  %failed.at = getelementptr i64, ptr %control, i64 $FAILED
  %failed = load ptr, ptr %failed.at
  call void @walk(ptr %control, i64 %worker, i64 %workers, ptr %records, i64 %first, i64 %last, ptr %failed)
  ret void
}
define void @camshaft_run(ptr %control, ptr %records, i64 %first, i64 %last, ptr %failed) {
  %records.at = getelementptr i64, ptr %control, i64 $RECORDS
  store ptr %records, ptr %records.at
  %first.at = getelementptr i64, ptr %control, i64 $FIRST
  store i64 %first, ptr %first.at
  %last.at = getelementptr i64, ptr %control, i64 $LAST
  store i64 %last, ptr %last.at
  %failed.at = getelementptr i64, ptr %control, i64 $FAILED
  store ptr %failed, ptr %failed.at
  call void @say_core(ptr %control, i64 0)
  call void @summon(ptr %control)
  call void @work(ptr %control, i64 0)
  ret void
}
define void @camshaft_stop(ptr %control) {
  %stop.at = getelementptr i64, ptr %control, i64 $STOP
  store i64 1, ptr %stop.at
  call void @summon(ptr %control)
  ret void
}
define i64 @camshaft_worker(ptr %control, i64 %worker) {
entry:
  %lines = call ptr @lines_of(ptr %control, i64 %worker)
  %misses = getelementptr i64, ptr %lines, i64 $RUN_MISSES
  %before = load i64, ptr %lines
  %before.32 = trunc i64 %before to i32
  %run = getelementptr i64, ptr %control, i64 $RUN_GENERATION
  %sleepers = getelementptr i64, ptr %control, i64 $RUN_SLEEPERS
  %stop.at = getelementptr i64, ptr %control, i64 $STOP
  br label %idle
idle:
  %seen = phi i32 [ %before.32, %entry ], [ %seen.next, %turn ]
  call void @await(ptr %control, ptr %run, i32 %seen, ptr %sleepers, ptr %misses)
  %seen.next = add i32 %seen, 1
  %seen.64 = zext i32 %seen.next to i64
  store i64 %seen.64, ptr %lines
  %stop = load i64, ptr %stop.at
  %go_home = icmp ne i64 %stop, 0
  br i1 %go_home, label %out, label %turn
turn:
  call void @say_core(ptr %control, i64 %worker)
  call void @work(ptr %control, i64 %worker)
  %crowded = call i1 @shares_core(ptr %control, i64 %worker)
  br i1 %crowded, label %move, label %idle
move:
  ret i64 1
out:
  ret i64 0
}
define void @camshaft_spin(i64 %turns) {
entry:
  br label %spin
spin:
  %turn = phi i64 [ 0, %entry ], [ %turn.next, %again ]
  %spent = icmp uge i64 %turn, %turns
  br i1 %spent, label %done, label %again
again:
  $pause
  %turn.next = add i64 %turn, 1
  br label %spin
done:
  ret void
}
"""

# A copy's program moves one chunk. Arguments: source, destination, size, memmove.
_COPY = """
define void @camshaft_copy(ptr %args, i64 %first, i64 %last) {
  %source = load ptr, ptr %args
  %destination.at = getelementptr i64, ptr %args, i64 1
  %destination = load ptr, ptr %destination.at
  %nbytes.at = getelementptr i64, ptr %args, i64 2
  %nbytes = load i64, ptr %nbytes.at
  %memmove.at = getelementptr i64, ptr %args, i64 3
  %memmove = load ptr, ptr %memmove.at
  %from = mul i64 %first, $COPY_NBYTES_PER_PROGRAM
  %whole = mul i64 %last, $COPY_NBYTES_PER_PROGRAM
  %to = call i64 @llvm.umin.i64(i64 %whole, i64 %nbytes)
  %size = sub i64 %to, %from
  %source.from = getelementptr i8, ptr %source, i64 %from
  %destination.from = getelementptr i8, ptr %destination, i64 %from
  %moved = call ptr %memmove(ptr %destination.from, ptr %source.from, i64 %size)
  ret void
}
"""


def executor_ir(row: WakeRow, machine: str, *, timed: bool = False) -> str:
    """The executor's module as IR text: it sleeps by `row` and pauses as `machine` (the triple's first part) does.

    `timed` gives the form that stamps what each worker does; the ordinary form is the same text without those lines.
    PlanError for a timed form on a machine whose clock is not known.
    """
    words: dict[str, object] = {name: value for name, value in globals().items() if isinstance(value, int)}
    words |= {"wait": row.wait, "wake": row.wake, "pause": pause_ir(machine)}
    words["COPY_NBYTES_PER_PROGRAM"] = COPY_NBYTES_PER_PROGRAM
    text = _PROGRAMS + AWAIT + BARRIER + CORES + _WALK + _ENTRIES + _COPY + pause_declaration(machine)
    if timed:
        text = text.replace(TIMED, "") + clock_ir(machine) + STAMP_ENTRIES
    else:
        text = "".join(line for line in text.splitlines(keepends=True) if not line.startswith(TIMED))
    return Template(text).substitute(words)
