"""Functions with the names that other kernel-dispatch systems use, for code that moves over from them.

`kernel_*` and `dispatch_*` run one op on one backend and no other. `get_dispatch_table` and `init_dispatch_table` give the table.

Where the backend is absent, or has no kernel for the arrays, the call is a BackendError with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from camshaft import ops
from camshaft.eager.tables import DispatchTable, table
from camshaft.errors import BackendError
from camshaft.ops.op import NodeSpec
from camshaft.selection.choice import Choice
from camshaft.selection.override import check_override

REDUCTIONS = ("sum", "mean", "max", "min", "prod", "argmax", "argmin")
_tables: dict[str, DispatchTable] = {}


def _bound(backend: str) -> DispatchTable:
    """A table that runs nothing but this backend's own kernels ('blas' alone would take simd's for other ops)."""
    override = check_override(backend)
    if override not in _tables:

        def check(choice: Choice, node: NodeSpec) -> None:
            if choice.backend != override:
                raise BackendError(f"{choice.op.name}: the backend {backend!r} has no kernel; {choice.backend} has one")

        _tables[override] = DispatchTable(override, check=check)
    return _tables[override]


def _matmul(name: str, backend: str, how: str) -> Callable[..., Any]:
    def call(a: Any, b: Any, **options: Any) -> Any:
        return _bound(backend).matmul(a, b, **options)

    call.__name__ = call.__qualname__ = f"kernel_matmul_{name}"
    call.__doc__ = f"matmul {how}. BackendError with the reason where that is absent."
    return call


kernel_matmul_scalar = _matmul("scalar", "scalar", "on the CPU, one element at a time")
kernel_matmul_simd = _matmul("simd", "simd", "by camshaft's own kernels on the CPU")
kernel_matmul_blas_direct = _matmul("blas_direct", "blas", "by BLAS, called by pointer")
kernel_matmul_webgpu = _matmul("webgpu", "webgpu", "on the first WebGPU adapter")
kernel_matmul_metal = _matmul("metal", "metal", "on the first Metal device")


def kernel_elementwise_simd(op_name: str, *arrays: Any, **options: Any) -> Any:
    """An elementwise op on the CPU's vectors. BackendError for an unknown name."""
    return _elementwise(_bound("simd"), op_name)(*arrays, **options)


def kernel_reduction_simd(op_name: str, array: Any, **options: Any) -> Any:
    """A reduction (sum, mean, max, ...) on the CPU's vectors. BackendError for an unknown name."""
    known = [name for name in REDUCTIONS if name in ops.NAMES]
    if op_name not in known:
        raise BackendError(f"no reduction {op_name!r}; wanted one of {', '.join(known)}")
    return getattr(_bound("simd"), op_name)(array, **options)


def dispatch_elementwise_generic(op_name: str, *arrays: Any, **options: Any) -> Any:
    """An elementwise op of the current table, by name. BackendError for an unknown name."""
    return _elementwise(table(), op_name)(*arrays, **options)


def _elementwise(dispatch: DispatchTable, name: str) -> Callable[..., Any]:
    function: Callable[..., Any] | None = getattr(dispatch, name) if name in dispatch.ops else None
    if function is None or not function.__self__.n_inputs:  # type: ignore[attr-defined]
        raise BackendError(f"no elementwise op {name!r}")
    return function


def get_dispatch_table() -> DispatchTable:
    """The table of the override that holds here: `table()`."""
    return table()


def init_dispatch_table() -> DispatchTable:
    """The same, with every op's function made now and not on its first use. Kernels are still compiled by the calls."""
    made = table()
    for name in made.ops:
        getattr(made, name)
    return made
