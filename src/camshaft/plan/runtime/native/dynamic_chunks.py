"""LLVM IR of a launch whose programs are taken by turns: whoever is free takes the next few.

A share fixed beforehand is only as fast as the slowest worker, which may have to share its core with another library's threads:
those of NumPy's BLAS keep on asking for work for a while after a product.
"""

from __future__ import annotations

from string import Template

# The words of a launch by turns: the launch (entry, argument block, programs), and into how many parts its programs go. The
# count of programs taken has two cache lines of its own.
LAUNCH, PARTS = range(2)
TAKEN = 16
TURN_WORDS = 32

_TEXT = """
define void @camshaft_take(ptr %args, i64 %first, i64 %last) {
entry:
  %launch = load ptr, ptr %args
  %parts.at = getelementptr i64, ptr %args, i64 $PARTS
  %parts = load i64, ptr %parts.at
  %taken = getelementptr i64, ptr %args, i64 $TAKEN
  %code = load ptr, ptr %launch
  %block.at = getelementptr i64, ptr %launch, i64 1
  %block = load ptr, ptr %block.at
  %programs.at = getelementptr i64, ptr %launch, i64 2
  %programs = load i64, ptr %programs.at
  %even = udiv i64 %programs, %parts
  %some = icmp ugt i64 %even, 1
  %few = select i1 %some, i64 %even, i64 1
  br label %turn
turn:
  %from = atomicrmw add ptr %taken, i64 %few monotonic
  %left = icmp slt i64 %from, %programs
  br i1 %left, label %work, label %done
work:
  %past = add i64 %from, %few
  %over = icmp sgt i64 %past, %programs
  %to = select i1 %over, i64 %programs, i64 %past
  call void %code(ptr %block, i64 %from, i64 %to)
  br label %turn
done:
  ret void
}
"""


def turns_ir() -> str:
    """The module of `camshaft_take(args, first, last)`, an entry as a kernel's: each of its programs takes turns to the end."""
    return Template(_TEXT).substitute(PARTS=PARTS, TAKEN=TAKEN)
