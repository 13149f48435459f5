"""LLVM IR that runs the kernels of a call found in the shape table: scratch, arguments, threads."""

from __future__ import annotations

from camshaft.eager.native.call_state import Call, Row
from camshaft.eager.native.output import Output, drop, returned, shared, unlocked
from camshaft.eager.native.shape_table import MOST_ARGUMENTS, MOST_STEPS, NO_BASE, OUT_BASE, SCRATCH_BASE, STEP_WORDS
from camshaft.emit.llvm.builder import I1, I64, PTR, VOID, Builder, Value

# A launch that lies on the caller's stack: entry, argument block, programs.
LAUNCH_WORDS = 3


def run_row(call: Call, row: Row, output: Output, bases: Value) -> None:
    """Runs the row's steps and returns the output. Its words are read first: without the lock another shape may take the row."""
    b = call.b
    scratch_nbytes, n_steps, release, share, axes = (
        row.word(name) for name in ("scratch_nbytes", "n_steps", "release", "share", "out_axes")
    )
    steps = row.word("steps", PTR)
    b.store_word(output.data, bases, OUT_BASE)
    b.store_word(b.const(I64, 0), bases, NO_BASE)
    scratch = _scratch(call, output, scratch_nbytes, bases)
    launches = _launches(b, steps, n_steps, bases)
    ran = b.var(I1, 1)
    with b.if_(b.ne(share, 0)):
        ran.set(shared(call, launches, n_steps))
    with b.else_():
        with b.if_(b.eq(release, 0)):
            _run_steps(b, launches, n_steps)
        with b.else_():
            unlocked(call, lambda: _run_steps(b, launches, n_steps))
    with b.if_(b.ne(scratch, b.null())):
        b.call_at(call.word("free_memory"), VOID, scratch)
    with b.if_(b.all(ran.value, b.is_null(output.given), b.eq(axes, 0))):
        b.ret(b.call_at(call.word("scalar_of"), PTR, output.array))  # takes over the array
    returned(call, output, ran.value, output.array)


def _scratch(call: Call, output: Output, nbytes: Value, bases: Value) -> Value:
    """Memory taken for this call, which threads do not share, or NULL where none is wanted."""
    b, taken = call.b, call.b.var(PTR, call.b.null())
    with b.if_(b.ne(nbytes, 0)):
        taken.set(b.call_at(call.word("take_memory"), PTR, nbytes))
        with b.if_(b.is_null(taken.value)):
            drop(call, output)
            b.goto(call.slow)
        b.store_word((b.cast("ptrtoint", taken.value, I64) + 63) & -64, bases, SCRATCH_BASE)
    return taken.value


def _launches(b: Builder, steps: Value, n_steps: Value, bases: Value) -> Value:
    """The steps as launches, each with its argument block: bases with bytes added."""
    launches = b.alloca(f"[{MOST_STEPS * LAUNCH_WORDS} x i64]", align=16)
    blocks = b.alloca(f"[{MOST_STEPS * MOST_ARGUMENTS} x i64]", align=64)
    with b.for_(0, n_steps) as s:
        step = b.element(steps, s * STEP_WORDS)
        block, launch = b.element(blocks, s * MOST_ARGUMENTS), b.element(launches, s * LAUNCH_WORDS)
        for word, value in enumerate((b.load(PTR, step), block, b.load_word(step, 1))):
            b.store_word(value, launch, word)
        pairs = b.element(step, 3)
        with b.for_(0, b.load_word(step, 2)) as i:
            pair = b.element(pairs, i * 2)
            b.store_word(b.load_word(bases, b.load(I64, pair)) + b.load_word(pair, 1), block, i)
    return launches


def _run_steps(b: Builder, launches: Value, n: Value) -> None:
    with b.for_(0, n) as i:
        launch = b.element(launches, i * LAUNCH_WORDS)
        block, programs = b.load_word(launch, 1, PTR), b.load_word(launch, 2)
        b.call_at(b.load(PTR, launch), VOID, block, b.const(I64, 0), programs)
