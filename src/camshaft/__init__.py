"""camshaft runs tensor programs as a flat schedule of proved, measured kernels.

Names are loaded when they are first used, so that importing camshaft costs nothing. Ops are functions here too:
camshaft.rms_norm(x, w, eps=1e-5) on graph tensors (graph/functions.py).
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from camshaft.plan.hooks import provide as _provide
from camshaft.version import __version__ as __version__

if TYPE_CHECKING:
    from camshaft.backends.registry import device, devices
    from camshaft.dispatch import (
        backend,
        capabilities,
        get_backend_override,
        set_backend_override,
        validate_backends,
    )
    from camshaft.errors import CamshaftError
    from camshaft.extent import Extent
    from camshaft.generate.language_model import LanguageModel
    from camshaft.generate.sampling import Sampling
    from camshaft.graph.graph import Graph, Tensor
    from camshaft.graph.tensor_functions import *  # noqa: F403 - the ops' types, written by scripts/stubs.py
    from camshaft.ops import register_variant
    from camshaft.plan.compile import compile
    from camshaft.plan.eager import (
        DispatchTable,
        dispatch_elementwise_generic,
        get_dispatch_table,
        init_dispatch_table,
        kernel_elementwise_simd,
        kernel_matmul_blas_direct,
        kernel_matmul_metal,
        kernel_matmul_scalar,
        kernel_matmul_simd,
        kernel_matmul_webgpu,
        kernel_reduction_simd,
        select_kernels,
        table,
    )
    from camshaft.plan.execution_graph import ExecutionGraph
    from camshaft.plan.execution_plan import ExecutionPlan
    from camshaft.plan.jit import jit

_HOME = {
    "CamshaftError": "camshaft.errors",
    "DispatchTable": "camshaft.plan.eager",
    "ExecutionGraph": "camshaft.plan.execution_graph",
    "ExecutionPlan": "camshaft.plan.execution_plan",
    "Extent": "camshaft.extent",
    "Graph": "camshaft.graph.graph",
    "LanguageModel": "camshaft.generate.language_model",
    "Sampling": "camshaft.generate.sampling",
    "Tensor": "camshaft.graph.graph",
    "backend": "camshaft.dispatch",
    "capabilities": "camshaft.dispatch",
    "compile": "camshaft.plan.compile",
    "device": "camshaft.backends.registry",
    "devices": "camshaft.backends.registry",
    "dispatch_elementwise_generic": "camshaft.plan.eager",
    "get_backend_override": "camshaft.dispatch",
    "get_dispatch_table": "camshaft.plan.eager",
    "init_dispatch_table": "camshaft.plan.eager",
    "jit": "camshaft.plan.jit",
    "kernel_elementwise_simd": "camshaft.plan.eager",
    "kernel_matmul_blas_direct": "camshaft.plan.eager",
    "kernel_matmul_metal": "camshaft.plan.eager",
    "kernel_matmul_scalar": "camshaft.plan.eager",
    "kernel_matmul_simd": "camshaft.plan.eager",
    "kernel_matmul_webgpu": "camshaft.plan.eager",
    "kernel_reduction_simd": "camshaft.plan.eager",
    "register_variant": "camshaft.ops",
    "select_kernels": "camshaft.plan.eager",
    "set_backend_override": "camshaft.dispatch",
    "table": "camshaft.plan.eager",
    "validate_backends": "camshaft.dispatch",
}
__all__ = [
    "CamshaftError",
    "DispatchTable",
    "ExecutionGraph",
    "ExecutionPlan",
    "Extent",
    "Graph",
    "LanguageModel",
    "Sampling",
    "Tensor",
    "backend",
    "capabilities",
    "compile",
    "device",
    "devices",
    "dispatch_elementwise_generic",
    "get_backend_override",
    "get_dispatch_table",
    "init_dispatch_table",
    "jit",
    "kernel_elementwise_simd",
    "kernel_matmul_blas_direct",
    "kernel_matmul_metal",
    "kernel_matmul_scalar",
    "kernel_matmul_simd",
    "kernel_matmul_webgpu",
    "kernel_reduction_simd",
    "register_variant",
    "select_kernels",
    "set_backend_override",
    "table",
    "validate_backends",
]


_provide(
    {
        "tune_graphs": "camshaft.tune.graphs",
        "profile": "camshaft.observe.profile",
        "lowered": "camshaft.observe.watch",
        "built": "camshaft.observe.watch",
    }
)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name.startswith("_"):
        raise AttributeError(f"module 'camshaft' has no attribute {name!r}")
    if find_spec(f"camshaft.{name}") is not None:
        return import_module(f"camshaft.{name}")
    return getattr(import_module("camshaft.graph.functions"), name)


def __dir__() -> list[str]:
    """The public names and the ops, for tab completion."""
    from camshaft.ops import NAMES

    return sorted({*__all__, *NAMES, "__version__", "__doc__", "__file__", "__name__", "__path__"})
