"""Build: the launches of kernels that compute a node, and the arrays that they read and write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from camshaft.dtypes import DType
from camshaft.extent import Extent
from camshaft.lang import Constant, Kernel
from camshaft.ops.spec import Dim, TensorSpec


@dataclass(frozen=True)
class Operand:
    """A kernel's array argument: a part of the node's input, output or scratch tensor number `index`.

    `shape` and `dtype`, if given, reinterpret the part's bytes (the size stays the same). Inputs are read unless `access`
    says otherwise.
    """

    kind: Literal["input", "output", "scratch"]
    index: int
    part: str = "data"
    shape: tuple[int, ...] | None = None
    access: Literal["read", "write", "update"] = "read"
    dtype: DType | None = None


def read(index: int, part: str = "data", shape: tuple[int, ...] | None = None) -> Operand:
    """Returns an operand that reads input `index`."""
    return Operand("input", index, part, shape)


def update(index: int, part: str = "data", shape: tuple[int, ...] | None = None) -> Operand:
    """Returns an operand that reads and writes input `index` in place (STATE)."""
    return Operand("input", index, part, shape, "update")


def write(index: int, part: str = "data", shape: tuple[int, ...] | None = None, dtype: DType | None = None) -> Operand:
    """Returns an operand that writes output `index`."""
    return Operand("output", index, part, shape, "write", dtype)


def scratch(index: int, access: Literal["read", "write", "update"], shape: tuple[int, ...] | None = None) -> Operand:
    """Returns an operand that reads or writes scratch tensor `index` of the build."""
    return Operand("scratch", index, "data", shape, access)


@dataclass(frozen=True)
class Cells:
    """A grid axis with ceil(dim / per) programs."""

    dim: Dim
    per: int = 1


@dataclass(frozen=True)
class Launch:
    """A kernel launch. `arrays` are in the kernel's order; `extents` are the run-time scalars that follow them.

    `lanes` (a power of two) overrides the device's lane width. The last grid axis varies fastest. `sizes` names the constants
    that the kernel may also take as run-time scalars (ops/kernels/run_time_sizes.py): sizes, strides, or tuples of them.
    """

    kernel: Kernel
    arrays: tuple[Operand, ...]
    grid: tuple[Cells, ...]
    constants: Mapping[str, Constant] = field(default_factory=dict)
    extents: tuple[Extent, ...] = ()
    lanes: int | None = None
    sizes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.kernel.name


@dataclass(frozen=True, eq=False)
class NativeCall:
    """A launch of LLVM IR that is not traced from a kernel: `llvm_ir(symbol)` has the kernel entry ABI and calls functions
    by pointer.

    Its argument block: the arrays' addresses, the address of `words` (int64 constants: function addresses, sizes), then for
    each extent the address of its active value. The text contains no address, so its object can be cached; `digest`
    identifies everything that the text depends on.
    """

    name: str
    digest: str
    llvm_ir: Callable[[str], str]
    arrays: tuple[Operand, ...]
    words: np.ndarray[Any, np.dtype[np.int64]]
    grid: tuple[Cells, ...]
    extents: tuple[Extent, ...] = ()


@dataclass(frozen=True)
class Build:
    """A variant's implementation of a node: launches in order, and their scratch tensors."""

    launches: tuple[Launch | NativeCall, ...]
    scratch: tuple[TensorSpec, ...] = ()
