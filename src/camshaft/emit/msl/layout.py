"""What emitted MSL and its runtime agree on: MslTarget (what a Metal device has) and MslModule (text, and how it is bound).

Made by module.py, read by backends/metal. The contract: array i is buffer i, at any offset that is a multiple of its dtype's
size; buffer `run_index`, after the arrays, holds the launch's run-time scalars in the kernel's order, an int each (it is there
even for a kernel without scalars, one word long). A launch of P programs is P threadgroups along x, of `lanes` threads each.
"""

from __future__ import annotations

from dataclasses import dataclass

# Entries of the argument table for buffers, and threads of a threadgroup, that every Metal device has.
MAX_BUFFERS = 31
MAX_THREADS = 1024


@dataclass(frozen=True)
class MslTarget:
    """`simd_width`: threads of a SIMD-group; 0 emits no SIMD-group functions. `max_threadgroup_nbytes`: of threadgroup memory.
    `has_matrices`: SIMD-group matrices, which Apple's GPUs have from the M1 on."""

    simd_width: int = 32
    max_threads: int = MAX_THREADS
    max_threadgroup_nbytes: int = 32_768
    has_matrices: bool = False

    def key(self) -> str:
        """A spelling for cache keys."""
        return f"msl/{self.simd_width}/{self.max_threads}/{self.max_threadgroup_nbytes}/{self.has_matrices:d}"


@dataclass(frozen=True)
class MslModule:
    """The text of one kernel. `threadgroup_nbytes`: of memory that it declares."""

    text: str
    entry: str
    lanes: int
    n_arrays: int
    n_scalars: int
    threadgroup_nbytes: int

    @property
    def run_index(self) -> int:
        """The buffer of the run-time scalars."""
        return self.n_arrays
