"""One thread of a kernel's SIMT form in LLVM IR: the CPU's emitter at one lane, with barriers and collectives of a workgroup.

Between body.py and module.py. What depends on the machine (its thread index, barrier, shuffles within a warp, the
workgroup's memory) are the abstract methods; tests/support/simulated_gpu.py has a second machine, on which kernels run anywhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import prod
from typing import cast

from camshaft.dtypes import DType
from camshaft.emit.llvm.body import BodyEmitter
from camshaft.emit.llvm.values import Rep, array_name, integer, memory_dtype, scalar_type
from camshaft.emit.nvptx import collectives
from camshaft.emit.nvptx import tiles as llvm_tiles
from camshaft.emit.nvptx.collectives import WARP
from camshaft.emit.target import CpuTarget
from camshaft.lang import ir
from camshaft.lang.simt.form import SimtKernel


class SimtEmitter(BodyEmitter, ABC):
    """Emits the statements of one thread. `exchange_nbytes`: bytes of workgroup memory that its collectives pass values in."""

    def __init__(self, kernel: SimtKernel, target: CpuTarget) -> None:
        # the writer reads only what both forms of a kernel have
        super().__init__(cast(ir.KernelIR, kernel), target)
        self.simt = kernel
        self.exchange_nbytes = 0

    # --- the machine -------------------------------------------------------------------------------------------------
    @abstractmethod
    def wait_for_all(self) -> None:
        """A barrier of the workgroup, which orders its memory."""

    @abstractmethod
    def shuffled(self, word: str, source: str) -> str:
        """The i32 `word` of the thread whose place in this warp is the i32 `source`."""

    @abstractmethod
    def multiplied(self, dtype: DType, a: list[str], b: list[str], c: list[str]) -> list[str]:
        """c (4 floats) + a (4 words) times b (2 words), a piece of a tile of the 16-bit float `dtype`: emit/nvptx/tiles.py."""

    @abstractmethod
    def matrices(self, pointer: str, count: int, across: bool) -> list[str]:
        """A word of each of 2 or 4 matrices of 8 x 8 in workgroup memory, the pair (lane / 4, 2 (lane % 4)) of each, transposed
        first if `across`. `pointer`: this thread's row of 8, thread n giving row n % 8 of matrix n / 8."""

    @abstractmethod
    def begin_copy(self, to: str, source: str, nbytes: int, present: str) -> None:
        """Begins to copy `present` (i32) of 4, 8 or 16 bytes from the device's memory to the workgroup's, the rest zeros."""

    @abstractmethod
    def wait_for_copies(self) -> None:
        """Until those that this thread began have ended."""

    def exchange(self, nbytes: int) -> str:
        """A pointer to workgroup memory of that many bytes for every thread; all collectives share it."""
        self.exchange_nbytes = max(self.exchange_nbytes, nbytes * self.simt.lanes)
        return "%exchange"

    # --- statements --------------------------------------------------------------------------------------------------
    def emit(self) -> None:
        """The body of one thread; %lane and %program0.. are given."""
        for array in self.simt.private:
            element = scalar_type(memory_dtype(array.dtype))
            self.allocas.append(f"{array_name(array.name)} = alloca [{prod(array.shape)} x {element}], align 16")
        self.block(self.simt.body)

    def statement(self, item: ir.Statement) -> None:
        own = llvm_tiles.STATEMENTS.get(type(item))
        if own is None:
            super().statement(item)
        else:
            own(self, item)

    def barrier(self, item: ir.Barrier) -> None:
        self.wait_for_all()

    def guarded(self, conditions: list[str], write: Callable[[], None]) -> None:
        """What `write` writes, where all conditions (i1) hold."""
        if not conditions:
            write()
            return
        together = conditions[0]
        for condition in conditions[1:]:
            together = self.line(f"and i1 {together}, {condition}")
        inside, done = self.label("when"), self.label("after")
        self.write(f"br i1 {together}, label %{inside}, label %{done}")
        self.open(inside)
        write()
        self.write(f"br label %{done}")
        self.open(done)

    # --- values ------------------------------------------------------------------------------------------------------
    def value(self, value: ir.Value) -> Rep:
        own = _VALUES.get(value.op)
        return own(self, value) if own is not None else super().value(value)

    def words_shuffled(self, name: str, dtype: DType, source: str) -> str:
        """A value of any dtype from another thread of this warp, word by word."""
        if dtype.nbytes == 8:
            return self._halves_shuffled(name, dtype, source)
        typ, bits = scalar_type(dtype), "i1" if dtype.kind == "b" else f"i{dtype.bits}"
        word = name if typ == bits else self.line(f"bitcast {typ} {name} to {bits}")
        word = word if bits == "i32" else self.line(f"zext {bits} {word} to i32")
        got = self.shuffled(word, source)
        got = got if bits == "i32" else self.line(f"trunc i32 {got} to {bits}")
        return got if typ == bits else self.line(f"bitcast {bits} {got} to {typ}")

    def _halves_shuffled(self, name: str, dtype: DType, source: str) -> str:
        typ = scalar_type(dtype)
        whole = name if typ == "i64" else self.line(f"bitcast {typ} {name} to i64")
        low = self.shuffled(self.line(f"trunc i64 {whole} to i32"), source)
        high = self.shuffled(self.line(f"trunc i64 {self.line(f'lshr i64 {whole}, 32')} to i32"), source)
        upper = self.line(f"shl i64 {self.line(f'zext i32 {high} to i64')}, 32")
        joined = self.line(f"or i64 {upper}, {self.line(f'zext i32 {low} to i64')}")
        return joined if typ == "i64" else self.line(f"bitcast i64 {joined} to {typ}")

    def place_in_warp(self, index: str) -> str:
        """An i64 lane index as the i32 that `shuffled` takes."""
        return self.line(f"trunc i64 {index} to i32")

    @property
    def crosses_warps(self) -> bool:
        return self.simt.lanes > WARP


_VALUES: dict[str, Callable[[SimtEmitter, ir.Value], Rep]] = {
    "lane": lambda e, v: Rep("%lane"),
    "lane_count": lambda e, v: integer(e.simt.lanes),
    "reduce": collectives.reduce,
    "broadcast": collectives.broadcast,
    "shuffle": collectives.shuffle,
    "scan": collectives.scan,
}
