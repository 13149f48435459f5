"""camshaft runs tensor programs as a flat schedule of proved, measured kernels.

Names are loaded when they are first used, so that importing camshaft costs nothing. Ops are functions here too, of arrays and
of a graph's tensors: camshaft.rms_norm(x, w, eps=1e-5) (eager/functions.py).
"""

from __future__ import annotations

from importlib import import_module

from camshaft.plan.hooks import provide as _provide
from camshaft.version import __version__ as __version__

TYPE_CHECKING = False  # without typing and importlib.util, which take 15 ms
if TYPE_CHECKING:
    from typing import Any

    from camshaft.backends.registry import device, devices
    from camshaft.compat import (
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
    )
    from camshaft.eager.op_functions import *  # noqa: F403 - the ops' types, written by scripts/stubs.py
    from camshaft.eager.tables import DispatchTable, select_kernels, table
    from camshaft.errors import CamshaftError
    from camshaft.extent import Extent
    from camshaft.formats.blocks import dequantize_gguf, quantize_gguf
    from camshaft.generate.grammar.grammar import Grammar
    from camshaft.generate.language_model import LanguageModel
    from camshaft.generate.options import GenerateOptions
    from camshaft.generate.pooled.embedding_model import EmbeddingModel
    from camshaft.generate.pooled.reranker import Reranker
    from camshaft.generate.sampling.parameters import Sampling
    from camshaft.generate.speech.options import TranscribeOptions
    from camshaft.generate.speech.speech_model import SpeechModel
    from camshaft.generate.text_to_text.text_to_text_model import TextToTextModel
    from camshaft.graph.gradients.custom_vjp import custom_vjp
    from camshaft.graph.graph import Graph, Tensor
    from camshaft.graph.passes.recompute import checkpoint
    from camshaft.ops import register_variant
    from camshaft.plan.compile import compile
    from camshaft.plan.execution_plan import ExecutionPlan
    from camshaft.plan.gradient import grad, value_and_grad
    from camshaft.plan.jit import jit
    from camshaft.plan.jvp import jvp
    from camshaft.selection.host_info import capabilities
    from camshaft.selection.override import backend, get_backend_override, set_backend_override
    from camshaft.validation.proof import validate_backends

_PUBLIC = {
    "backends.registry": "device devices",
    "compat": "dispatch_elementwise_generic get_dispatch_table init_dispatch_table kernel_elementwise_simd "
    "kernel_matmul_blas_direct kernel_matmul_metal kernel_matmul_scalar kernel_matmul_simd kernel_matmul_webgpu "
    "kernel_reduction_simd",
    "eager.tables": "DispatchTable select_kernels table",
    "errors": "CamshaftError",
    "extent": "Extent",
    "formats.blocks": "dequantize_gguf quantize_gguf",
    "generate.pooled.embedding_model": "EmbeddingModel",
    "generate.grammar.grammar": "Grammar",
    "generate.language_model": "LanguageModel",
    "generate.options": "GenerateOptions",
    "generate.pooled.reranker": "Reranker",
    "generate.sampling.parameters": "Sampling",
    "generate.speech.options": "TranscribeOptions",
    "generate.speech.speech_model": "SpeechModel",
    "generate.text_to_text.text_to_text_model": "TextToTextModel",
    "graph.gradients.custom_vjp": "custom_vjp",
    "graph.graph": "Graph Tensor",
    "graph.passes.recompute": "checkpoint",
    "ops": "register_variant",
    "plan.compile": "compile",
    "plan.execution_plan": "ExecutionPlan",
    "plan.gradient": "grad value_and_grad",
    "plan.jit": "jit",
    "plan.jvp": "jvp",
    "selection.host_info": "capabilities",
    "selection.override": "backend get_backend_override set_backend_override",
    "validation.proof": "validate_backends",
}
_HOME = {name: f"camshaft.{module}" for module, names in _PUBLIC.items() for name in names.split()}
__all__ = [
    "CamshaftError",
    "DispatchTable",
    "EmbeddingModel",
    "ExecutionPlan",
    "Extent",
    "GenerateOptions",
    "Grammar",
    "Graph",
    "LanguageModel",
    "Reranker",
    "Sampling",
    "SpeechModel",
    "Tensor",
    "TextToTextModel",
    "TranscribeOptions",
    "backend",
    "capabilities",
    "checkpoint",
    "compile",
    "custom_vjp",
    "dequantize_gguf",
    "device",
    "devices",
    "dispatch_elementwise_generic",
    "get_backend_override",
    "get_dispatch_table",
    "grad",
    "init_dispatch_table",
    "jit",
    "jvp",
    "kernel_elementwise_simd",
    "kernel_matmul_blas_direct",
    "kernel_matmul_metal",
    "kernel_matmul_scalar",
    "kernel_matmul_simd",
    "kernel_matmul_webgpu",
    "kernel_reduction_simd",
    "quantize_gguf",
    "register_variant",
    "select_kernels",
    "set_backend_override",
    "table",
    "validate_backends",
    "value_and_grad",
]


_provide(
    {
        "tune_graphs": "camshaft.tune.graphs",
        "measure_at_exit": "camshaft.tune.jobs",
        "Used": "camshaft.tune.jobs",
        "used_in": "camshaft.tune.jobs",
        "store_state": "camshaft.generate.stored.plan_cache",
        "carry_over": "camshaft.generate.stored.plan_cache",
        "SavedPlans": "camshaft.generate.stored.plan_cache",
        "profile": "camshaft.observe.profile",
        "lowered": "camshaft.observe.instrument",
        "built": "camshaft.observe.instrument",
    }
)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name.startswith("_"):
        raise AttributeError(f"module 'camshaft' has no attribute {name!r}")
    from importlib.util import find_spec

    if find_spec(f"camshaft.{name}") is not None:
        return import_module(f"camshaft.{name}")
    from camshaft.ops import NAMES

    if name not in NAMES:
        raise AttributeError(f"camshaft has no op {name!r}")
    made = globals()[name] = import_module("camshaft.eager.functions").function(name)
    return made


def __dir__() -> list[str]:
    """The public names and the ops, for tab completion."""
    from camshaft.ops import NAMES

    return sorted({*__all__, *NAMES, "__version__", "__doc__", "__file__", "__name__", "__path__"})
