"""SimtContext: the LLVM IR of one thread of a kernel's SIMT form while it is written, and what its machine gives.

The thread's code is a CPU's at one lane, with barriers and collectives of a workgroup. A second machine, in tests/support/, runs
such code anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from camshaft.dtypes import DType
from camshaft.emit.llvm.context import Context
from camshaft.emit.llvm.control import branch

# Threads that exchange values at once.
WARP = 32


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a machine gives the threads of a workgroup.

    - `wait_for_all()`: a barrier of the workgroup, which orders its memory.
    - `shuffled(word, source)`: the i32 `word` of the thread whose place in this warp is the i32 `source`.
    - `multiplied(dtype, a, b, c)`: c (4 floats) + a (4 words) times b (2 words), a piece of a tile of the 16-bit float `dtype`:
      emit/nvptx/tiles.py.
    - `matrices(pointer, count, across)`: a word of each of 2 or 4 matrices of 8 x 8 in workgroup memory, the pair (lane / 4,
      2 (lane % 4)) of each, transposed first if `across`. `pointer`: this thread's row of 8, thread n giving row n % 8 of matrix
      n / 8.
    - `begin_copy(to, source, nbytes, present)`: begins to copy `present` (i32) of 4, 8 or 16 bytes from the device's memory to
      the workgroup's, the rest zeros; `wait_for_copies()`: until those that this thread began have ended.
    """

    wait_for_all: Callable[[SimtContext], None]
    shuffled: Callable[[SimtContext, str, str], str]
    multiplied: Callable[[SimtContext, DType, list[str], list[str], list[str]], list[str]]
    matrices: Callable[[SimtContext, str, int, bool], list[str]]
    begin_copy: Callable[[SimtContext, str, str, int, str], None]
    wait_for_copies: Callable[[SimtContext], None]


@dataclass(kw_only=True)
class SimtContext(Context):
    """`threads` of a workgroup. `exchange_nbytes`: bytes of workgroup memory that its collectives pass values in."""

    machine: Machine
    threads: int
    exchange_nbytes: int = 0


def guarded(ctx: Context, conditions: list[str], write: Callable[[], None]) -> None:
    """What `write` writes, where all conditions (i1) hold."""
    if not conditions:
        write()
        return
    together = conditions[0]
    for condition in conditions[1:]:
        together = ctx.line(f"and i1 {together}, {condition}")
    branch(ctx, together, ctx.label("when"), ctx.label("after"), write)
