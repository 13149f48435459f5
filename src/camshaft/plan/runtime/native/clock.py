"""LLVM IR that reads a steady clock, and the entries of the executor's timed form. A part of executor_ir.py.

Ticks, not nanoseconds: timed.py calibrates them against the system's clock. All cores must count alike, which it checks.
"""

from __future__ import annotations

from camshaft.errors import PlanError

# Lines of the executor's text that only the timed form has begin with this.
TIMED = ";timed"

# x86-64: the time-stamp counter, which counts at a constant rate on every CPU since 2008; lfence lets what came before it end.
_X86 = """
declare void @llvm.x86.sse2.lfence()
declare i64 @llvm.readcyclecounter()
define internal i64 @clock() alwaysinline {
  call void @llvm.x86.sse2.lfence()
  %now = call i64 @llvm.readcyclecounter()
  ret i64 %now
}
"""
# AArch64: the generic timer, 10 to 40 ns a tick (1 ns from Armv8.6 on); its cycle counter is closed to programs. The isb is
# declared with the pause; LLVM's steady counter is the constant 0 there.
_ARM = """
declare i64 @llvm.read_volatile_register.i64(metadata)
define internal i64 @clock() alwaysinline {
  call void @llvm.aarch64.isb(i32 15)
  %now = call i64 @llvm.read_volatile_register.i64(metadata !90002)
  ret i64 %now
}
!90002 = !{!"cntvct_el0"}
"""
# RISC-V: the time register, which all cores share; its cycle counter is closed to programs.
_RISCV = """
declare i64 @llvm.readsteadycounter()
define internal i64 @clock() alwaysinline {
  fence seq_cst
  %now = call i64 @llvm.readsteadycounter()
  ret i64 %now
}
"""
_CLOCKS = {"x86_64": _X86, "aarch64": _ARM, "arm64": _ARM, "riscv64": _RISCV}

# Where the workers of one run at a time put their stamps: [workers, thunks + 1, STAMP_WORDS].
STAMP_ENTRIES = """
@stamps = internal global ptr null
@stamps_per_worker = internal global i64 0
define void @camshaft_stamps(ptr %stamps, i64 %per_worker) {
  store ptr %stamps, ptr @stamps
  store i64 %per_worker, ptr @stamps_per_worker
  ret void
}
define i64 @camshaft_clock() {
  %now = call i64 @clock()
  ret i64 %now
}
"""


def clock_ir(machine: str) -> str:
    """The function @clock of `machine` (the triple's first part). PlanError where no clock is known."""
    if machine not in _CLOCKS:
        raise PlanError(f"no clock to time thunks by on {machine}; there is one on {', '.join(_CLOCKS)}")
    return _CLOCKS[machine]
