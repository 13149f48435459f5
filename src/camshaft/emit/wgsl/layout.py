"""WgslTarget: what an adapter has. WgslModule: the text of a kernel and its bindings.

The contract between emit/wgsl/module.py and backends/webgpu, all in group 0:

- binding 0, `run: array<i32>`, storage, read-only: the run's active extents, an i32 each, in the order of the plan.
- binding 1, `fixed: array<vec4<i32>, n>`, uniform: `n_fixed` words of one launch, made by `fixed_words` when it is bound.
- bindings 2 and up, storage: the arrays, in the kernel's order, each in one piece or more (`WgslModule.bindings`). All
  are read-write, even those that a kernel only reads: WebGPU forbids binding one buffer as read-only and as writable in a
  dispatch, and inputs and outputs are slices of one arena. `WgslTarget.read_only` names the arrays whose buffer nothing
  writes in that dispatch.

A binding's offset must be a multiple of the adapter's alignment, an array's address need not: bind from the address rounded down
(`aligned`, bytes), and pass the bytes that were cut off to `fixed_words`. An array's address is a multiple of its dtype's size.
Piece p starts at aligned + its `offset_nbytes` and ends `nbytes` later or at the array's end, rounded up to 4 bytes, whichever
comes first. A piece that would start at or past the end (there is one byte of slack for the rounding) is never read; bind any
legal range for it. An allocation is therefore a multiple of 4 bytes.

A launch of P programs is `dispatch(P)` workgroups, none if P is 0. The kernel computes P from the run's extents, and workgroups
past it return.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from camshaft.errors import KernelError

# Words without a literal in WGSL: infinity and a quiet NaN; and two unused words.
SPECIAL_WORDS = (0x7F800000, 0x7FC00000, 0, 0)
RUN_BINDING, FIXED_BINDING, FIRST_ARRAY_BINDING = 0, 1, 2


@dataclass(frozen=True)
class WgslTarget:
    """The limits and features of an adapter. `features`: 'shader-f16', 'subgroups', 'packed-dot' (dot4I8Packed).

    `subgroup_size`: the smallest size of a subgroup (0: not known). `max_binding_nbytes`: of one storage binding.
    `max_bindings`: storage bindings of one stage. `alignment`: bytes, of a binding's offset. `read_only`: arrays, by name,
    whose buffers nothing writes in the same dispatch. `enables_subgroups`: whether the text has `enable subgroups`, which
    browsers require and naga refuses (wgpu issue 5555).
    """

    features: frozenset[str] = frozenset()
    subgroup_size: int = 0
    max_binding_nbytes: int = 128 << 20
    max_bindings: int = 8
    max_workgroups: int = 65_535
    max_workgroup_nbytes: int = 16_384
    max_threads: int = 256
    alignment: int = 256
    read_only: frozenset[str] = frozenset()
    enables_subgroups: bool = False

    def key(self) -> str:
        """A text for cache keys."""
        numbers = (self.subgroup_size, self.max_binding_nbytes, self.max_workgroups, self.alignment)
        names = (",".join(sorted(self.features)), ",".join(sorted(self.read_only)), str(self.enables_subgroups))
        return "/".join(("wgsl", *map(str, numbers), *names))


@dataclass(frozen=True)
class WgslBinding:
    """One storage binding: the bytes from `offset_nbytes` of array number `array` on, at most `nbytes` of them."""

    binding: int
    array: int
    offset_nbytes: int
    nbytes: int
    read_only: bool


@dataclass(frozen=True)
class WgslModule:
    """The text of one kernel. `requires`: device features that it uses. `workgroup_nbytes`: of workgroup memory."""

    text: str
    entry: str
    lanes: int
    bindings: tuple[WgslBinding, ...]
    itemsizes: tuple[int, ...]
    n_scalars: int
    requires: frozenset[str]
    workgroup_nbytes: int
    max_workgroups: int

    @property
    def n_fixed(self) -> int:
        """Words of binding 1: a multiple of 4."""
        return n_fixed(self.n_scalars, len(self.itemsizes))

    def fixed_words(self, scalars: Sequence[int], cut_nbytes: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int32]]:
        """The words of binding 1. `scalars`: indexes of the run's extents; `cut_nbytes`: each array's address minus `aligned`."""
        if len(scalars) != self.n_scalars or len(cut_nbytes) != len(self.itemsizes):
            raise KernelError(
                f"{self.entry}: {len(scalars)} scalars and {len(cut_nbytes)} arrays; "
                f"wanted {self.n_scalars} and {len(self.itemsizes)}"
            )
        words = np.zeros(self.n_fixed, np.int32)
        words[:4] = SPECIAL_WORDS
        words[4 : 4 + self.n_scalars] = scalars
        elements = [cut // size for cut, size in zip(cut_nbytes, self.itemsizes, strict=True)]
        words[4 + self.n_scalars : 4 + self.n_scalars + len(elements)] = elements
        return words

    def dispatch(self, programs: int) -> tuple[int, int]:
        """Workgroups along x and y for that many programs: a grid dimension has at most `max_workgroups`."""
        across = min(programs, self.max_workgroups)
        return across, -(-programs // across) if across else 0


def n_fixed(n_scalars: int, n_arrays: int) -> int:
    """Words of binding 1: the special ones, an index per scalar, an offset per array, rounded up to vectors."""
    return -(-(len(SPECIAL_WORDS) + n_scalars + n_arrays) // 4) * 4


def piece_nbytes(target: WgslTarget) -> int:
    """Bytes of one piece of an array that exceeds a binding's limit: a power of two, so that shifts split an index."""
    return 1 << (target.max_binding_nbytes.bit_length() - 1)


def pieces(nbytes: int, target: WgslTarget) -> tuple[tuple[int, int], ...]:
    """(offset, size) in bytes of an array's pieces. Its address may be up to one alignment past the aligned address."""
    whole = -(-nbytes // 4) * 4 + target.alignment
    if whole <= target.max_binding_nbytes:
        return ((0, whole),)
    size = piece_nbytes(target)
    return tuple((start, min(size, whole - start)) for start in range(0, whole, size))
