"""LLVM IR that others call: a run, alone or with workers, a worker's life, a spin, a copy. A part of executor_ir.py."""

from __future__ import annotations

# A run is published by its number in RUN_GENERATION; worker 0 is the caller. STOP makes the workers return 0.
ENTRIES = """
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
COPY = """
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
