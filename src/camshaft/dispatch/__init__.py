"""What the machine claims, what was proved on it, what is chosen. Each name is loaded when it is first asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from camshaft.dispatch.claims import Claim, claim_of
    from camshaft.dispatch.evidence import BackendValidation, Verdict
    from camshaft.dispatch.kernels import (
        dispatch_elementwise_generic,
        kernel_elementwise_simd,
        kernel_matmul_blas_direct,
        kernel_matmul_metal,
        kernel_matmul_scalar,
        kernel_matmul_simd,
        kernel_matmul_webgpu,
        kernel_reduction_simd,
    )
    from camshaft.dispatch.machine import RuntimeCapabilities, capabilities
    from camshaft.dispatch.override import backend, get_backend_override, set_backend_override
    from camshaft.dispatch.proof import prove, validate_backends
    from camshaft.dispatch.select import Choice, Loser, choose
    from camshaft.dispatch.tables import (
        DispatchTable,
        get_dispatch_table,
        init_dispatch_table,
        select_kernels,
        table,
    )

_HOME = {
    "RuntimeCapabilities": "machine",
    "capabilities": "machine",
    "Claim": "claims",
    "claim_of": "claims",
    "BackendValidation": "evidence",
    "Verdict": "evidence",
    "backend": "override",
    "get_backend_override": "override",
    "set_backend_override": "override",
    "prove": "proof",
    "validate_backends": "proof",
    "Choice": "select",
    "Loser": "select",
    "choose": "select",
    "DispatchTable": "tables",
    "get_dispatch_table": "tables",
    "init_dispatch_table": "tables",
    "select_kernels": "tables",
    "table": "tables",
    "dispatch_elementwise_generic": "kernels",
    "kernel_elementwise_simd": "kernels",
    "kernel_matmul_blas_direct": "kernels",
    "kernel_matmul_metal": "kernels",
    "kernel_matmul_scalar": "kernels",
    "kernel_matmul_simd": "kernels",
    "kernel_matmul_webgpu": "kernels",
    "kernel_reduction_simd": "kernels",
}
__all__ = [
    "BackendValidation",
    "Choice",
    "Claim",
    "DispatchTable",
    "Loser",
    "RuntimeCapabilities",
    "Verdict",
    "backend",
    "capabilities",
    "choose",
    "claim_of",
    "dispatch_elementwise_generic",
    "get_backend_override",
    "get_dispatch_table",
    "init_dispatch_table",
    "kernel_elementwise_simd",
    "kernel_matmul_blas_direct",
    "kernel_matmul_metal",
    "kernel_matmul_scalar",
    "kernel_matmul_simd",
    "kernel_matmul_webgpu",
    "kernel_reduction_simd",
    "prove",
    "select_kernels",
    "set_backend_override",
    "table",
    "validate_backends",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"camshaft.dispatch has no {name!r}")
    value = getattr(import_module(f"camshaft.dispatch.{_HOME[name]}"), name)
    globals()[name] = value
    return value
