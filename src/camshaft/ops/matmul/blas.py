"""matmul by BLAS: cblas_sgemm called by pointer on slices of rows and columns; 16-bit operands are widened first."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import prod

import numpy as np

from camshaft.backends.blas import library, trampoline
from camshaft.dtypes import f32
from camshaft.lang import Array, Tracer, kernel
from camshaft.ops import op as ops
from camshaft.ops.matmul.shapes import Sizes, only_f32, only_floats, sizes_of
from camshaft.ops.spec import TensorSpec, bound
from camshaft.store.files import digest_of

MAX_SIZE = 2**31 - 1  # scipy-openblas32 takes 32-bit sizes
# Limits of a program's rows, which are a quarter of the product's. Each program packs its operands, so slices that are small in
# both directions cost time: of 1024 x 1024, slices of 256 x 64 cost 16 %, of 256 x 1024 6 % (Zen 4).
LEAST_ROWS, MOST_ROWS = 128, 512
WHOLE_COLUMNS = 4096
WIDEN_BLOCK = 4096


@kernel
def widen(k: Tracer, x: Array, out: Array, *, n: int) -> None:
    # out[i] = f32(x[i])
    for i in k.elements(n, WIDEN_BLOCK):
        out[i] = x[i]


def rows_per(s: Sizes) -> int:
    """Returns the rows of one program, a multiple of the register tile. The split depends only on the shape, so results do
    not depend on the number of workers."""
    return min(max(-(-bound(s.rows) // (4 * 64)) * 64, LEAST_ROWS), MOST_ROWS)


def columns_per(s: Sizes) -> int:
    """Returns the columns of one program: all of them if the rows alone give several programs, else an eighth in full vectors,
    from 64 to 512."""
    if bound(s.rows) > LEAST_ROWS and s.columns <= WHOLE_COLUMNS:
        return s.columns
    return min(max(-(-s.columns // (8 * 16)) * 16, 64), 512)


def _supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why BLAS cannot compute the node, or None."""
    s = sizes_of(node)
    if max(bound(s.rows), s.columns, s.depth) > MAX_SIZE:
        return f"BLAS takes sizes up to {MAX_SIZE}"
    return only_floats(node) or only_f32(node) or library.absent()


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    """Builds launches that widen inputs that are not f32, then one native call."""
    s = sizes_of(node)
    operands: list[ops.Operand] = []
    launches: list[ops.Launch | ops.NativeCall] = []
    scratch: list[TensorSpec] = []
    for i, spec in enumerate(node.inputs):
        if spec.dtype == f32:
            operands.append(ops.read(i))
            continue
        n = prod(spec.bounds)
        wide = ops.scratch(len(scratch), "write", (n,))
        launches.append(ops.Launch(widen, (ops.read(i, shape=(n,)), wide), (ops.Cells(n, WIDEN_BLOCK),), {"n": n}))
        operands.append(ops.scratch(len(scratch), "read"))
        scratch.append(TensorSpec(spec.bounds, f32))
    slices = trampoline.Slices(bound(s.rows), s.columns, s.depth, s.transposed, rows_per(s), columns_per(s))
    call = ops.NativeCall(
        trampoline.NAME,
        _digest(bool(s.extents)),
        functools.partial(trampoline.llvm_ir, extent=bool(s.extents)),
        (*operands, ops.write(0)),
        slices.words(library.blas_library().sgemm, s.offsets()),
        (ops.Cells(s.matrices), ops.Cells(s.rows, slices.rows_per), ops.Cells(s.columns, slices.columns_per)),
        s.extents,
    )
    return ops.Build((*launches, call), tuple(scratch))


@functools.cache
def _digest(extent: bool) -> str:
    return digest_of(trampoline.llvm_ir("symbol", extent=extent))


def _cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """Measured on Zen 4: 3.1 multiply-adds per lane and nanosecond, operands at 30 bytes per nanosecond, 0.2 us per call."""
    s = sizes_of(node)
    calls = s.matrices * -(-bound(s.rows) // rows_per(s)) * -(-s.columns // columns_per(s))
    return s.multiply_adds / (3.1 * target.lanes) + sum(spec.nbytes for spec in node.inputs) / 30 + 200.0 * calls


def _supports_numpy(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why NumPy cannot compute the node, or None."""
    if sizes_of(node).extents:
        return "a host call computes every row up to the bound; the rows are an Extent"
    if node.inputs[0].parts[0].dtype.is_integer:
        return "NumPy multiplies integers without BLAS"
    return only_f32(node) or library.absent()


def _build_numpy(node: ops.NodeSpec, target: ops.Target) -> ops.HostCall:
    """Builds a host call of NumPy's matmul, which uses NumPy's BLAS and threads."""
    return ops.HostCall(_by_numpy)


def _by_numpy(node: ops.NodeSpec, inputs: Sequence[ops.Array], outputs: Sequence[ops.Array]) -> None:
    a, b = (x.astype(outputs[0].dtype, copy=False) for x in inputs)
    np.matmul(a, np.swapaxes(b, -1, -2) if sizes_of(node).transposed and b.ndim > 1 else b, out=outputs[0])


def _cost_numpy(node: ops.NodeSpec, target: ops.Target) -> float:
    """The cost of `blas` plus the call into Python, during which the other workers wait."""
    return _cost(node, target) + 20_000.0


BLAS = ops.KernelVariant("blas", frozenset({"blas"}), _build, _supports, _cost)
NUMPY = ops.KernelVariant("numpy", frozenset({"blas"}), _build_numpy, _supports_numpy, _cost_numpy)
