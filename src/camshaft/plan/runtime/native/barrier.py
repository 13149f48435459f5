"""LLVM IR for waiting: the bounded spin, the sleep, the barrier, and who shares a core. A part of executor_ir.py."""

from __future__ import annotations

_PAUSES = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    # isb waits long enough to leave the core to others; yield is a no-op on most.
    "aarch64": ("declare void @llvm.aarch64.isb(i32)", "call void @llvm.aarch64.isb(i32 15)"),
    "arm64": ("declare void @llvm.aarch64.isb(i32)", "call void @llvm.aarch64.isb(i32 15)"),
}
_NO_PAUSE = ("", 'call void asm sideeffect "", "~{memory}"()')

# await returns once the word is no longer `seen`: a bounded spin, then sleep. A worker whose spins end in sleep again and
# again (its core is wanted by the one it waits for) spins long only every 16th time. The sleeper counts itself before it looks
# again, and the waker changes the word before it looks at the count, both sequentially consistent: no wake is lost.
# The caller (worker 0) goes on spinning while it is on the core where its run began: who sleeps is woken on the waker's core in
# a guest of KVM, and from then on the two share it, 8 us a wait.
AWAIT = """
define internal void @system_wait(ptr %control, ptr %word, i32 %expected) noinline {
  %function.at = getelementptr i64, ptr %control, i64 $WAIT_FUNCTION
  %function = load ptr, ptr %function.at
  $wait
  ret void
}
define internal void @system_wake(ptr %control, ptr %word) noinline {
  %function.at = getelementptr i64, ptr %control, i64 $WAKE_FUNCTION
  %function = load ptr, ptr %function.at
  $wake
  ret void
}
define internal void @await(ptr %control, ptr %word, i32 %seen, ptr %sleepers, ptr %misses) noinline {
entry:
  %missed = load i64, ptr %misses
  %few = icmp ult i64 %missed, 4
  %low = and i64 %missed, 15
  %probe = icmp eq i64 %low, 0
  %patient = or i1 %few, %probe
  %long.at = getelementptr i64, ptr %control, i64 $SPIN_BOUND
  %long = load i64, ptr %long.at
  %short.at = getelementptr i64, ptr %control, i64 $SHORT_SPIN_BOUND
  %short = load i64, ptr %short.at
  %bound = select i1 %patient, i64 %long, i64 %short
  br label %spin
spin:
  %turn = phi i64 [ 0, %entry ], [ %turn.next, %again ]
  %now = load atomic i32, ptr %word acquire, align 4
  %changed = icmp ne i32 %now, %seen
  br i1 %changed, label %met, label %still
still:
  %turn.next = add i64 %turn, 1
  %spent = icmp uge i64 %turn, %bound
  br i1 %spent, label %tired, label %again
tired:
  %callers = getelementptr i64, ptr %control, i64 $CALLER_MISSES
  %is_caller = icmp eq ptr %misses, %callers
  %longest.at = getelementptr i64, ptr %control, i64 $CALLER_SPIN_BOUND
  %longest = load i64, ptr %longest.at
  %within = icmp ult i64 %turn, %longest
  %may_stay = and i1 %is_caller, %within
  br i1 %may_stay, label %where, label %lie_down
where:
  %unmoved = call i1 @is_unmoved(ptr %control)
  br i1 %unmoved, label %again, label %lie_down
again:
  $pause
  br label %spin
met:
  store i64 0, ptr %misses
  br label %done
lie_down:
  %missed.next = add i64 %missed, 1
  store i64 %missed.next, ptr %misses
  %before = atomicrmw add ptr %sleepers, i32 1 seq_cst
  br label %look
look:
  %then = load atomic i32, ptr %word seq_cst, align 4
  %woken = icmp ne i32 %then, %seen
  br i1 %woken, label %get_up, label %sleep
sleep:
  call void @system_wait(ptr %control, ptr %word, i32 %seen)
  br label %look
get_up:
  %after = atomicrmw sub ptr %sleepers, i32 1 seq_cst
  br label %done
done:
  ret void
}
define internal void @publish(ptr %control, ptr %word, i32 %value, ptr %sleepers) alwaysinline {
entry:
  store atomic i32 %value, ptr %word seq_cst, align 4
  %asleep = load atomic i32, ptr %sleepers seq_cst, align 4
  %anyone = icmp ne i32 %asleep, 0
  br i1 %anyone, label %wake, label %done
wake:
  call void @system_wake(ptr %control, ptr %word)
  br label %done
done:
  ret void
}
"""

# The last to arrive opens generation `next`; `stay` false leaves without waiting for the others (the end of a run).
BARRIER = """
define internal void @barrier(ptr %control, i32 %next, i32 %workers, ptr %misses, i1 %stay) alwaysinline {
entry:
  %arrived = getelementptr i64, ptr %control, i64 $ARRIVED
  %generation = getelementptr i64, ptr %control, i64 $GENERATION
  %sleepers = getelementptr i64, ptr %control, i64 $SLEEPERS
  %before = atomicrmw add ptr %arrived, i32 1 acq_rel
  %here = add i32 %before, 1
  %last = icmp eq i32 %here, %workers
  br i1 %last, label %open, label %other
open:
  store atomic i32 0, ptr %arrived monotonic, align 4
  call void @publish(ptr %control, ptr %generation, i32 %next, ptr %sleepers)
  br label %done
other:
  br i1 %stay, label %stand, label %done
stand:
  %seen = sub i32 %next, 1
  call void @await(ptr %control, ptr %generation, i32 %seen, ptr %sleepers, ptr %misses)
  br label %done
done:
  ret void
}
"""

# Which core each worker was on when the run began; `is_unmoved` says whether the caller still is. A worker that shares its core
# with one before it leaves the executor after the run and is moved: guests of KVM see halted cores as taken and stack two
# workers on one, 30 us a barrier.
CORES = """
define internal ptr @lines_of(ptr %control, i64 %worker) alwaysinline {
  %skip = mul i64 %worker, $WORDS_PER_WORKER
  %at = add i64 %skip, $WORKER_LINES
  %lines = getelementptr i64, ptr %control, i64 %at
  ret ptr %lines
}
define internal void @say_core(ptr %control, i64 %worker) noinline {
entry:
  %function.at = getelementptr i64, ptr %control, i64 $CORE_FUNCTION
  %function = load ptr, ptr %function.at
  %unknown = icmp eq ptr %function, null
  br i1 %unknown, label %done, label %ask
ask:
  %core = call i32 %function()
  %core.64 = sext i32 %core to i64
  %lines = call ptr @lines_of(ptr %control, i64 %worker)
  %core.at = getelementptr i64, ptr %lines, i64 $CORE
  %said = load i64, ptr %core.at
  %same = icmp eq i64 %said, %core.64
  br i1 %same, label %done, label %say
say:
  store atomic i64 %core.64, ptr %core.at monotonic, align 8
  br label %done
done:
  ret void
}
define internal i1 @is_unmoved(ptr %control) noinline {
  %function.at = getelementptr i64, ptr %control, i64 $CORE_FUNCTION
  %function = load ptr, ptr %function.at
  %core = call i32 %function()
  %core.64 = sext i32 %core to i64
  %said.at = getelementptr i64, ptr %control, i64 $CALLER_CORE
  %said = load i64, ptr %said.at
  %same = icmp eq i64 %said, %core.64
  ret i1 %same
}
define internal i1 @shares_core(ptr %control, i64 %worker) noinline {
entry:
  %function.at = getelementptr i64, ptr %control, i64 $CORE_FUNCTION
  %function = load ptr, ptr %function.at
  %unknown = icmp eq ptr %function, null
  br i1 %unknown, label %no, label %ask
ask:
  %core = call i32 %function()
  %core.64 = sext i32 %core to i64
  br label %head
head:
  %other = phi i64 [ 0, %ask ], [ %other.next, %body ]
  %left = icmp slt i64 %other, %worker
  br i1 %left, label %body, label %no
body:
  %lines = call ptr @lines_of(ptr %control, i64 %other)
  %core.at = getelementptr i64, ptr %lines, i64 $CORE
  %theirs = load atomic i64, ptr %core.at monotonic, align 8
  %same = icmp eq i64 %theirs, %core.64
  %other.next = add i64 %other, 1
  br i1 %same, label %yes, label %head
yes:
  ret i1 true
no:
  ret i1 false
}
"""


def pause_ir(machine: str) -> str:
    """The call that makes one turn of a spin cheap for the others; a compiler barrier where there is none."""
    return _PAUSES.get(machine, _NO_PAUSE)[1]


def pause_declaration(machine: str) -> str:
    """What the module must declare for `pause_ir`."""
    return _PAUSES.get(machine, _NO_PAUSE)[0] + "\n"
