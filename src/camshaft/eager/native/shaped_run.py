"""LLVM IR of a shaped call's second half: scratch, the steps' arguments, on which threads they run."""

from __future__ import annotations

from camshaft.eager.native.call_state import field, word

# Rows of launches and of argument blocks that lie on the caller's stack are reached by these many words.
LAUNCH_WORDS = 3

RUN_STEPS = """
define internal void @run_steps(ptr %launches, i64 %n) {
entry:
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %left = icmp ult i64 %i, %n
  br i1 %left, label %body, label %done
body:
  %word = mul i64 %i, 3
  %at = getelementptr i64, ptr %launches, i64 %word
  %code = load ptr, ptr %at
  %block.at = getelementptr i64, ptr %at, i64 1
  %block = load ptr, ptr %block.at
  %programs.at = getelementptr i64, ptr %at, i64 2
  %programs = load i64, ptr %programs.at
  call void %code(ptr %block, i64 0, i64 %programs)
  %next = add i64 %i, 1
  br label %head
done:
  ret void
}
"""


def step_lines(step_words: int, most_arguments: int) -> list[str]:
    """Launch i's words, and its argument block: bases with bytes added."""
    return [
        "br label %step",
        "step:",
        "%s = phi i64 [ 0, %ready ], [ %s.next, %step.done ]",
        "%s.left = icmp ult i64 %s, %row.n_steps",
        "br i1 %s.left, label %fill, label %filled",
        "fill:",
        f"%s.word = mul i64 %s, {step_words}",
        "%step.at = getelementptr i64, ptr %row.steps, i64 %s.word",
        *field("step.entry", "ptr", "%step.at", 0),
        *field("step.programs", "i64", "%step.at", 8),
        *field("step.count", "i64", "%step.at", 16),
        f"%s.block.word = mul i64 %s, {most_arguments}",
        "%s.block = getelementptr i64, ptr %blocks, i64 %s.block.word",
        f"%s.launch.word = mul i64 %s, {LAUNCH_WORDS}",
        "%s.launch = getelementptr i64, ptr %launches, i64 %s.launch.word",
        "store ptr %step.entry, ptr %s.launch",
        "%s.launch.block = getelementptr i64, ptr %s.launch, i64 1",
        "store ptr %s.block, ptr %s.launch.block",
        "%s.launch.programs = getelementptr i64, ptr %s.launch, i64 2",
        "store i64 %step.programs, ptr %s.launch.programs",
        "%pairs = getelementptr i64, ptr %step.at, i64 3",
        "br label %argument",
        "argument:",
        "%g = phi i64 [ 0, %fill ], [ %g.next, %set ]",
        "%g.left = icmp ult i64 %g, %step.count",
        "br i1 %g.left, label %set, label %step.done",
        "set:",
        "%pair = getelementptr [2 x i64], ptr %pairs, i64 %g",
        *field("base.index", "i64", "%pair", 0),
        *field("base.offset", "i64", "%pair", 8),
        "%base.at = getelementptr i64, ptr %bases, i64 %base.index",
        "%base = load i64, ptr %base.at",
        "%argument.value = add i64 %base, %base.offset",
        "%argument.at = getelementptr i64, ptr %s.block, i64 %g",
        "store i64 %argument.value, ptr %argument.at",
        "%g.next = add i64 %g, 1",
        "br label %argument",
        "step.done:",
        "%s.next = add i64 %s, 1",
        "br label %step",
    ]


def ready_lines(out_base: int, scratch_base: int, no_base: int) -> list[str]:
    """Where output and scratch lie. Scratch is taken for the call: threads do not share it."""
    return [
        "arguments:",
        "%result = phi ptr [ %made, %made.out ], [ %out, %apart ]",
        "%result.data = phi ptr [ %made.data, %made.out ], [ %out.data, %apart ]",
        f"%out.base = getelementptr i64, ptr %bases, i64 {out_base}",
        "store ptr %result.data, ptr %out.base",
        f"%no.base = getelementptr i64, ptr %bases, i64 {no_base}",
        "store i64 0, ptr %no.base",
        "%no.scratch = icmp eq i64 %row.scratch_nbytes, 0",
        "br i1 %no.scratch, label %ready, label %take",
        "take:",
        *word("take_memory"),
        "%taken = call ptr %take_memory(i64 %row.scratch_nbytes)",
        "%none.taken = icmp eq ptr %taken, null",
        "br i1 %none.taken, label %give.up, label %taken.scratch",
        "taken.scratch:",
        "%taken.first = ptrtoint ptr %taken to i64",
        "%taken.past = add i64 %taken.first, 63",
        "%taken.even = and i64 %taken.past, -64",
        f"%scratch.base = getelementptr i64, ptr %bases, i64 {scratch_base}",
        "store i64 %taken.even, ptr %scratch.base",
        "br label %ready",
        "ready:",
        "%scratch = phi ptr [ null, %arguments ], [ %taken, %taken.scratch ]",
    ]


def finish_lines() -> list[str]:
    """Runs the launches, gives scratch back, returns the output or NULL with the pool's error."""
    return [
        "filled:",
        "%alone = icmp eq i64 %row.share, 0",
        "br i1 %alone, label %by.itself, label %shared",
        "by.itself:",
        "%quick = icmp eq i64 %row.release, 0",
        "br i1 %quick, label %here, label %release",
        "here:",
        "call void @run_steps(ptr %launches, i64 %row.n_steps)",
        "br label %give.back",
        "release:",
        *word("save_thread"),
        *word("restore_thread"),
        "%thread = call ptr %save_thread()",
        "call void @run_steps(ptr %launches, i64 %row.n_steps)",
        "call void %restore_thread(ptr %thread)",
        "br label %give.back",
        "shared:",
        # The launches lie at a multiple of 16, so the last bits say how many they are.
        "%launches.tagged = getelementptr i8, ptr %launches, i64 %row.n_steps",
        *word("long_from_address"),
        *word("pool"),
        *word("vectorcall"),
        *word("decref"),
        "%address = call ptr %long_from_address(ptr %launches.tagged)",
        "%no.address = icmp eq ptr %address, null",
        "br i1 %no.address, label %give.back, label %ask",
        "ask:",
        "store ptr %address, ptr %asked",
        "%answer = call ptr %vectorcall(ptr %pool, ptr %asked, i64 1, ptr null)",
        "call void %decref(ptr %address)",
        "%broke = icmp eq ptr %answer, null",
        "br i1 %broke, label %give.back, label %ran",
        "ran:",
        "call void %decref(ptr %answer)",
        "br label %give.back",
        "give.back:",
        "%right = phi i1 [ true, %here ], [ true, %release ], [ true, %ran ], [ false, %shared ], [ false, %ask ]",
        "%had.scratch = icmp ne ptr %scratch, null",
        "br i1 %had.scratch, label %free.it, label %done",
        "free.it:",
        *word("free_memory"),
        "call void %free_memory(ptr %scratch)",
        "br label %done",
        "done:",
        "br i1 %right, label %returns, label %drop",
        "returns:",
        "br i1 %has.out, label %again, label %fresh",
        "fresh:",
        "%no.axes = icmp eq i64 %row.out_axes, 0",
        "br i1 %no.axes, label %as.scalar, label %leave",
        "as.scalar:",
        *(line.replace("%scalar_of", "%scalar_of.new") for line in word("scalar_of")),
        "%scalar = call ptr %scalar_of.new(ptr %result)",  # takes over the array
        "ret ptr %scalar",
        *closing_lines(),
    ]


def closing_lines() -> list[str]:
    """How every call ends: `again` takes a reference to the caller's `out`; `drop` and `give.up` let go of an array made here."""

    def named(name: str, other: str) -> list[str]:
        return [line.replace(f"%{name}", f"%{other}") for line in word(name)]

    return [
        "again:",
        *named("incref", "incref.out"),
        "call void %incref.out(ptr %result)",
        "br label %leave",
        "leave:",
        "ret ptr %result",
        "drop:",
        "br i1 %has.out, label %failed, label %drop.made",
        "drop.made:",
        *named("decref", "decref.made"),
        "call void %decref.made(ptr %result)",
        "br label %failed",
        "failed:",
        "ret ptr null",
        "give.up:",
        "br i1 %has.out, label %slow.path, label %give.up.made",
        "give.up.made:",
        *named("decref", "decref.given"),
        "call void %decref.given(ptr %result)",
        "br label %slow.path",
        "slow.path:",
        *named("vectorcall", "vectorcall.slow"),
        *word("slow"),
        "%slowly = call ptr %vectorcall.slow(ptr %slow, ptr %args, i64 %n, ptr %names)",
        "ret ptr %slowly",
    ]
