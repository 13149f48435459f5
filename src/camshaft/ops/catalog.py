"""The catalog of ops: formula, dtypes and variants of each op, independent of the machine. Generates docs/ops.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from camshaft import ops
from camshaft.dtypes import DTYPES, DType, as_dtype
from camshaft.extent import Extent
from camshaft.ops.op import Attrs, NoGradient, Op
from camshaft.ops.primitives import is_primitive
from camshaft.ops.spec import TensorSpec

_CASTS, _REDUCTIONS = "mlx/elementwise", "dispatch/kernel_reduction_simd"
_ELEMENTWISE = "dispatch/kernel_elementwise_simd, dispatch_elementwise_generic"
ANSWERS: dict[str, tuple[str, ...]] = {
    "rms_norm": ("trueno/dispatch_rms_norm", "mlx/rms_norm"),
    "matmul": (
        "dispatch/kernel_matmul_scalar/simd/blas_direct/webgpu/metal",
        "mlx/dense_gemm",
        "mlx/dense_gemv_bf16",
        "mlx/dense_mm_bf16/f16/f32_f32",
    ),
    "affine_matmul": ("mlx/qmm_affine", "mlx/quantized_matmul", "rlx/dequant_matmul_int4"),
    "affine_matmul_grouped": ("mlx/quantized_matmul_id",),
    "minifloat_matmul": ("rlx/dequant_matmul_fp8", "rlx/dequant_matmul_nvfp4"),
    "quantize_dequantize_affine": ("mlx/qdq_affine",),
    **dict.fromkeys(("fft", "ifft", "rfft", "irfft"), ("rlx/fft1d f32/f64/c64",)),
    "quantized_matmul": (
        "trueno/dispatch_mul_mat",
        "rlx/dequant_matmul_gguf",
        "mlx/mul_mv_ext",
        "mlx/quantized_matmul_ggml",
    ),
    "dequantize": ("mlx/dequant_to_f16",),
    "quantize_dequantize_gguf": ("mlx/qdq_legacy",),
    "embedding": ("mlx/embedding",),
    "residual_norm": ("mlx/fused_residual_norm",),
    "norm_add": ("mlx/fused_norm_add",),
    "norm_gate": ("mlx/ssm_norm_gate",),
    "l2_norm": ("mlx/l2_norm",),
    "group_norm": ("rlx/group_norm_nchw",),
    "layer_norm_2d": ("rlx/layer_norm2d_nchw",),
    "scale_mask_softmax": ("mlx/scale_mask_softmax",),
    "copy": ("mlx/copy",),
    "gather": ("mlx/gather",),
    "argmax": ("mlx/argmax", _REDUCTIONS),
    "softmax": ("mlx/softmax",),
    "rope": ("trueno/dispatch_rope", "mlx/rope"),
    "rope_multi": ("mlx/rope_multi",),
    "rope_axial_2d": ("rlx/axial_rope2d",),
    "rope_vision_2d": ("mlx/vision_2d_rope",),
    "head_norm_rope": ("mlx/fused_head_norm_rope",),
    "kv_cache_update": ("trueno/dispatch_copy", "mlx/kv_cache_copy"),
    "sample": ("rlx/sample (thunk variant)",),
    "softmax_sample": ("mlx/softmax_sample",),
    "attention": (
        "trueno/dispatch_attention",
        "mlx/flash_attn_vec",
        "mlx/flash_attn_vec_peer_port_f16",
        "mlx/flash_attn_prefill",
        "mlx/flash_attn_prefill_d512",
        "mlx/flash_attn_train",
        "mlx/sdpa",
        "mlx/sdpa_decode",
        "mlx/sdpa_sliding",
    ),
    "attention_mask": ("mlx/flash_attn_prefill_mask",),
    "attention_mask_tiles": ("mlx/flash_attn_prefill_blk",),
    "turboquant_attention": (
        "mlx/flash_attn_vec_tq",
        "mlx/flash_attn_vec_tq_hb",
        "mlx/flash_attn_vec_hybrid",
        "mlx/flash_attn_vec_reduce_tq_hb_undo",
    ),
    "hadamard": ("mlx/fwht_standalone, hadamard",),
    "turboquant_encode": ("mlx/hadamard_quantize_kv",),
    "turboquant_decode": ("mlx/tq_dequantize_kv",),
    "cast": (_CASTS,),
    "transpose": ("mlx/transpose",),
    "concat": ("mlx/feature_concat", "mlx/slice_concat_2d"),
    "slice": ("mlx/slice_concat_2d",),
    "split": ("mlx/qkv_split",),
    "softcap": ("mlx/softcap",),
    "add": ("trueno/dispatch_add", "mlx/add_bias_row_2d", _CASTS, _ELEMENTWISE),
    "multiply": ("trueno/dispatch_mul", _CASTS, _ELEMENTWISE),
    "divide": ("mlx/divide_elementwise", _ELEMENTWISE),
    **dict.fromkeys(("subtract", "minimum", "maximum", "power", "negate", "abs"), (_ELEMENTWISE,)),
    "exp": ("mlx/exp_elementwise",),
    "log": ("mlx/log_elementwise",),
    "sqrt": ("mlx/sqrt_elementwise",),
    "outer": ("mlx/outer_product",),
    "silu": ("trueno/dispatch_silu",),
    "gelu": ("mlx/gelu",),
    "sigmoid_multiply": ("mlx/sigmoid_mul",),
    "silu_multiply": ("mlx/silu_mul",),
    "adam_update": ("mlx/adam_update",),
    "cross_entropy": ("rlx/softmax cross entropy (thunk variant)",),
    "dot": ("dispatch/DotFn",),
    "repeat_tiled": ("mlx/repeat_tiled",),
    "take_along_axis": ("mlx/take_along_axis",),
    "scatter_add": ("rlx/gather_backward",),
    "conv2d": ("rlx/conv2d (thunk variant)",),
    "pool2d": ("rlx/conv2d (thunk variant)",),
    "conv_transpose2d": ("rlx/conv_transpose2d_nchw",),
    "im2col": ("mlx/im2col_2d_3ch",),
    "resize_nearest": ("rlx/resize_nearest_2x",),
    "resize_bilinear": ("mlx/bilinear_resize_2d",),
    "spatial_merge_2x2": ("mlx/block_merge_2x2",),
    "moe_softmax_topk": ("mlx/moe_softmax_topk",),
    "moe_gate": ("mlx/moe_gate",),
    "moe_experts": ("mlx/moe_dispatch",),
    "moe_weighted_reduce": ("mlx/moe_weighted_reduce",),
    "quantized_matmul_grouped": ("rlx/dequant_grouped_matmul_gguf", "mlx/quantized_matmul_id_ggml"),
    "argsort": ("mlx/argsort",),
    "triangular_solve": ("mlx/tri_solve",),
    "top_k": ("rlx/top_k", "mlx/top_k"),
    "cumsum": ("mlx/cumsum", "rlx/cumsum_backward"),
    "gated_delta_rule": (
        "rlx/gated_delta_net f32/f16",
        "mlx/chunk_gated_delta_rule",
        "mlx/gated_delta_net",
        "mlx/gated_delta_net_decode",
    ),
    "delta_gates": ("mlx/compute_g_beta",),
    "delta_chunk_kkt": ("mlx/gated_delta_net_kkt",),
    "delta_chunk_wu": ("mlx/gated_delta_net_recompute_wu",),
    "delta_chunk_state": ("mlx/gated_delta_net_chunk",),
    "delta_chunk_output": ("mlx/gated_delta_net_chunk_o",),
    "triangular_inverse": ("mlx/chunk_gated_delta_rule_tri_solve_invert",),
    "conv1d_depthwise_causal": ("mlx/conv1d_depthwise_causal",),
    "ssm_conv": ("mlx/ssm_conv",),
    **dict.fromkeys(("sum", "mean", "max", "min", "prod", "argmin"), (_REDUCTIONS,)),
}


def rows_of(op: str) -> tuple[str, ...]:
    """Returns the rows of tests/data/ops.tsv that an op covers."""
    return ANSWERS.get(op, ())


_HEAD = """# Ops

Made by `camshaft ops --markdown`. `camshaft ops` shows the same with what was proved on your machine, `camshaft ops NAME` all
that there is to one op. An example is the shortest of the samples that an op is proved on: dtypes and shapes of its tensors, its
attributes and results. Dtypes are those that the op's inputs may have, block formats among them; backends those that a variant
is written for. What an op computes exactly is its `reference`, in NumPy and float64, beside its kernels in `src/camshaft/ops/`.
The decomposition of an op that is not a primitive has the named ops, and computes the same within the op's tolerance. Its
[gradient](gradients.md) comes from a rule of its own or from the decomposition; `camshaft ops NAME` says why an op has none.
"""


Sampled: TypeAlias = tuple[tuple[TensorSpec, ...], Attrs]
"""The inputs and attributes of a sample."""


@dataclass(frozen=True)
class ClaimedVariant:
    """A variant and the backends that it supports."""

    name: str
    backends: tuple[str, ...]


@dataclass(frozen=True)
class OpEntry:
    """An op's row in the catalog. `family` is the file that defines it, or its own name. `dtypes` are those of its inputs.
    `gradient` is where it comes from. `rows` are the rows of tests/data/ops.tsv that it covers. `example` is a call of it."""

    name: str
    family: str
    formula: str
    dtypes: tuple[str, ...]
    gradient: str
    primitive: bool
    variants: tuple[ClaimedVariant, ...]
    rows: tuple[str, ...]
    example: str


def entry(op: Op) -> OpEntry:
    """Returns the entry of an op."""
    claimed = tuple(ClaimedVariant(v.name, tuple(sorted(v.backends))) for v in op.variants)
    gradient, primitive, some = gradient_of(op), is_primitive(op), tuple(_sampled(op))
    dtypes, example = dtypes_of(op, some), example_of(op, some)
    group, rows = ops.group_of(op.name), rows_of(op.name)
    return OpEntry(op.name, group, op.formula, dtypes, gradient, primitive, claimed, rows, example)


def gradient_of(op: Op) -> str:
    """Returns 'own rule', 'by decomposition' or 'none', with the reason."""
    if isinstance(op.vjp, NoGradient):
        return f"none: {op.vjp.why}"
    return "by decomposition" if op.vjp is None else "own rule"


def catalog() -> tuple[OpEntry, ...]:
    """Returns the entries of all ops in the table's order."""
    return tuple(entry(op) for op in ops.all_ops())


def dtypes_of(op: Op, some: Sequence[Sampled]) -> tuple[str, ...]:
    """Returns the dtypes and block formats of the samples' inputs, and the dtypes that the shape rule accepts instead of
    the first input's."""
    found: set[str] = set()
    for specs, attrs in some:
        found |= {spec.dtype.name for spec in specs}
        found |= {d.name for d in DTYPES.values() if d.name not in found and _takes(op, specs, attrs, d)}
    return (*(name for name in DTYPES if name in found), *sorted(found - DTYPES.keys()))


def _sampled(op: Op) -> Iterator[Sampled]:
    for sample in op.samples():
        yield sample.specs or tuple(TensorSpec(a.shape, as_dtype(a.dtype)) for a in sample.inputs), sample.attrs


def _takes(op: Op, specs: tuple[TensorSpec, ...], attrs: Attrs, dtype: DType) -> bool:
    """Returns whether the op accepts `dtype` in every input that has the first input's dtype."""
    first = specs[0]
    if not first.is_plain or first.dtype == dtype:
        return False
    return op.accepts(tuple(replace(s, dtype=dtype) if s.dtype == first.dtype else s for s in specs), attrs)


def example_of(op: Op, some: Sequence[Sampled]) -> str:
    """Returns the shortest sample as a call: dtypes and shapes of tensors, attributes, and results."""
    found = []
    for specs, attrs in some:
        made = " ".join(map(_shown, op.infer(specs, attrs))) or "nothing"
        given = [
            *map(_shown, specs),
            *(f"{name}={_value(value)}" for name, value in attrs.items() if not callable(value)),
        ]
        found.append(f"{op.name}({', '.join(given)}) -> {made}")
    return min(found, key=len)


def _shown(spec: TensorSpec) -> str:
    return f"{spec.dtype.name}{list(spec.bounds)}"


def _value(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    return f"{value.bound}" if isinstance(value, Extent) else repr(value)


def page(parts_of: Callable[[Op], Iterable[str]]) -> str:
    """Returns the text of docs/ops.md. `parts_of` returns the ops of a decomposition (graph/passes/decompose.py)."""
    head = "| op | what it computes | decomposition | dtypes | gradient | variants: backends | example |"
    lines, rows = [_HEAD, head, "|---|---|---|---|---|---|---|"], catalog()
    lines += [_line(row, parts_of(ops.get(row.name))) for row in rows]
    lines += ["", "## Rows of tests/data/ops.tsv", "", "| op | rows that it answers |", "|---|---|"]
    lines += [f"| `{row.name}` | {', '.join(row.rows)} |" for row in rows if row.rows]
    return "\n".join(lines) + "\n"


def _line(row: OpEntry, parts: Iterable[str]) -> str:
    variants = "; ".join(f"{v.name}: {' '.join(v.backends)}" for v in row.variants)
    variants = variants or "none: computed by its decomposition"
    what = row.formula.replace("|", "\\|")
    made_of = "primitive" if row.primitive else " ".join(parts)
    gradient, example = row.gradient.partition(":")[0], row.example.replace("|", "\\|")
    return f"| `{row.name}` | {what} | {made_of} | {' '.join(row.dtypes)} | {gradient} | {variants} | `{example}` |"
