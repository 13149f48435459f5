"""A launch whose programs are taken by turns: whoever is free takes the next few.

A share fixed beforehand is only as fast as the slowest worker, which may have to share its core with another library's threads:
those of NumPy's BLAS keep on asking for work for a while after a product.
"""

from __future__ import annotations

from camshaft.emit.llvm.builder import I64, PTR, VOID, Builder, Module, Value

# The words of a launch by turns: the launch (entry, argument block, programs), and into how many parts its programs go. The
# count of programs taken has two cache lines of its own.
LAUNCH, PARTS = range(2)
TAKEN = 16
TURN_WORDS = 32


def camshaft_take(b: Builder, args: Value, first: Value, last: Value) -> None:
    """An entry as a kernel's: each of its programs takes turns to the end."""
    launch, taken = b.load_word(args, LAUNCH, PTR), b.element(args, TAKEN)
    code, block, programs = b.load(PTR, launch), b.load_word(launch, 1, PTR), b.load_word(launch, 2)
    even = programs // b.load_word(args, PARTS)
    few = b.select(b.ult(even, 2), 1, even)
    with b.loop() as done:
        start = b.fetch("add", taken, few, "monotonic")
        b.goto_unless(b.slt(start, programs), done)
        b.call_at(code, VOID, block, start, b.smin(start + few, programs))


def turns_ir() -> str:
    """The module of `camshaft_take(args, first, last)`."""
    module = Module()
    module.define(camshaft_take, VOID, PTR, I64, I64)
    return module.text()
