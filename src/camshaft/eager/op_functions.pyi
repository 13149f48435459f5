"""The types of the ops as functions of arrays and tensors, camshaft.<op>. Written by scripts/stubs.py."""

from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import ArrayLike

from camshaft.extent import Extent
from camshaft.graph.tensor import Tensor

Array: TypeAlias = np.ndarray[Any, Any]

__all__ = [
    "abs",
    "adam_update",
    "add",
    "affine_dequantize",
    "affine_matmul",
    "affine_matmul_grouped",
    "affine_quantize",
    "arange",
    "argmax",
    "argmin",
    "argsort",
    "assign",
    "attention",
    "attention_gradient",
    "attention_mask",
    "attention_mask_tiles",
    "batch_invariant_matmul",
    "binary_cross_entropy_with_logits",
    "broadcast_to",
    "cast",
    "ceil",
    "cholesky",
    "clip",
    "concat",
    "conj",
    "conv1d",
    "conv1d_depthwise_causal",
    "conv2d",
    "conv_slots",
    "conv_transpose2d",
    "copy",
    "cos",
    "cross_entropy",
    "cross_entropy_gradient",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "delta_chunk_kkt",
    "delta_chunk_output",
    "delta_chunk_state",
    "delta_chunk_wu",
    "delta_gates",
    "delta_rule",
    "dequantize",
    "divide",
    "dot",
    "dplr_slots",
    "dropout",
    "dry",
    "elu",
    "embedding",
    "equal",
    "erf",
    "exp",
    "expm1",
    "fft",
    "fft_rows",
    "flip",
    "floor",
    "floor_divide",
    "gated_delta_rule",
    "gated_delta_rule_gradient",
    "gated_delta_slots",
    "gated_linear_attention",
    "gated_linear_attention_gradient",
    "gated_product",
    "gather",
    "gelu",
    "gelu_erf",
    "gelu_multiply",
    "gelu_multiply_q8",
    "greater",
    "greater_equal",
    "group_norm",
    "hadamard",
    "hard_swish",
    "head_norm_rope",
    "ifft",
    "im2col",
    "imag",
    "irfft",
    "isnan",
    "kv_cache_quantize",
    "kv_cache_update",
    "l1_loss",
    "l2_norm",
    "layer_norm",
    "layer_norm_2d",
    "leaky_relu",
    "less",
    "less_equal",
    "log",
    "log1p",
    "log_softmax",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "logit_bias",
    "mamba2_ssd",
    "masked_sample",
    "matmul",
    "matmul_grouped",
    "matmul_grouped_transposed",
    "matmul_grouped_weights",
    "max",
    "max_with_index",
    "maximum",
    "mean",
    "mel_scale",
    "min",
    "minifloat_dequantize",
    "minifloat_matmul",
    "minimum",
    "mirostat",
    "mirostat_update",
    "mish",
    "moe_experts",
    "moe_gate",
    "moe_route",
    "moe_softmax_topk",
    "moe_weighted_reduce",
    "mse_loss",
    "multiply",
    "negate",
    "norm_add",
    "norm_gate",
    "not_equal",
    "one_hot",
    "outer",
    "pack_codes",
    "pad",
    "pool2d",
    "power",
    "prod",
    "put",
    "quantize_activations",
    "quantize_dequantize_affine",
    "quantize_dequantize_gguf",
    "quantized_matmul",
    "quantized_matmul_grouped",
    "quantized_matmul_grouped_transposed",
    "quantized_matmul_transposed",
    "real",
    "reciprocal",
    "relu",
    "remainder",
    "repeat",
    "repeat_penalty",
    "repeat_tiled",
    "resample",
    "residual_norm",
    "residual_norm_q8",
    "resize_bicubic",
    "resize_bilinear",
    "resize_nearest",
    "rfft",
    "rms_norm",
    "rms_norm_q8",
    "roll",
    "rope",
    "rope_axial_2d",
    "rope_multi",
    "rope_vision_2d",
    "round",
    "rounded_matmul",
    "rsqrt",
    "rwkv6_gradient",
    "rwkv6_slots",
    "rwkv6_time_mix",
    "rwkv7_gradient",
    "rwkv7_time_mix",
    "sample",
    "scale_mask_softmax",
    "scaled_dot_product_attention",
    "scatter_add",
    "searchsorted",
    "selective_scan",
    "selective_scan_gradient",
    "selective_scan_slots",
    "short_conv",
    "short_conv_slots",
    "sigmoid",
    "sigmoid_multiply",
    "silu",
    "silu_multiply",
    "silu_multiply_q8",
    "sin",
    "slice",
    "slot_rows",
    "softcap",
    "softmax",
    "softmax_sample",
    "softplus",
    "sort",
    "spatial_merge_2x2",
    "split",
    "sqrt",
    "square",
    "ssd_slots",
    "ssm_conv",
    "stft",
    "stop_gradient",
    "subtract",
    "sum",
    "take_along_axis",
    "tan",
    "tanh",
    "tile",
    "token_mask",
    "top_k",
    "top_k_top_p",
    "top_n_sigma",
    "transpose",
    "triangular_inverse",
    "triangular_solve",
    "tril",
    "triu",
    "trunc",
    "turboquant_attention",
    "turboquant_decode",
    "turboquant_encode",
    "typical_p",
    "uniform",
    "unique",
    "unpack_codes",
    "where",
    "xtc",
]

@overload
def rms_norm(
    x: ArrayLike,
    w: ArrayLike,
    /,
    *,
    out: Array | None = None,
    eps: float,
    offset: float = 0.0,
    to: str = "f32",
    axis: int = -1,
) -> Any: ...
@overload
def rms_norm(
    x: Tensor | ArrayLike,
    w: Tensor | ArrayLike,
    /,
    *,
    eps: float,
    offset: float = 0.0,
    to: str = "f32",
    axis: int = -1,
    name: str | None = None,
) -> Tensor: ...
@overload
def layer_norm(
    x: ArrayLike, w: ArrayLike, b: ArrayLike, /, *, out: Array | None = None, eps: float, axis: int = -1
) -> Any: ...
@overload
def layer_norm(
    x: Tensor | ArrayLike,
    w: Tensor | ArrayLike,
    b: Tensor | ArrayLike,
    /,
    *,
    eps: float,
    axis: int = -1,
    name: str | None = None,
) -> Tensor: ...
@overload
def residual_norm(
    a: ArrayLike,
    b: ArrayLike,
    w: ArrayLike,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    eps: float,
    offset: float = 0.0,
    to: str = "f32",
) -> tuple[Any, Any]: ...
@overload
def residual_norm(
    a: Tensor | ArrayLike,
    b: Tensor | ArrayLike,
    w: Tensor | ArrayLike,
    /,
    *,
    eps: float,
    offset: float = 0.0,
    to: str = "f32",
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def softmax(x: ArrayLike, /, *, out: Array | None = None, axis: int = -1) -> Any: ...
@overload
def softmax(x: Tensor | ArrayLike, /, *, axis: int = -1, name: str | None = None) -> Tensor: ...
@overload
def log_softmax(x: ArrayLike, /, *, out: Array | None = None, axis: int = -1) -> Any: ...
@overload
def log_softmax(x: Tensor | ArrayLike, /, *, axis: int = -1, name: str | None = None) -> Tensor: ...
@overload
def l2_norm(x: ArrayLike, /, *, out: Array | None = None, eps: float = 1e-06, axis: int = -1) -> Any: ...
@overload
def l2_norm(x: Tensor | ArrayLike, /, *, eps: float = 1e-06, axis: int = -1, name: str | None = None) -> Tensor: ...
@overload
def norm_gate(
    x: ArrayLike, w: ArrayLike, z: ArrayLike, /, *, out: Array | None = None, eps: float, offset: float = 0.0
) -> Any: ...
@overload
def norm_gate(
    x: Tensor | ArrayLike,
    w: Tensor | ArrayLike,
    z: Tensor | ArrayLike,
    /,
    *,
    eps: float,
    offset: float = 0.0,
    name: str | None = None,
) -> Tensor: ...
@overload
def norm_add(
    x: ArrayLike, w: ArrayLike, residual: ArrayLike, /, *, out: Array | None = None, eps: float, offset: float = 0.0
) -> Any: ...
@overload
def norm_add(
    x: Tensor | ArrayLike,
    w: Tensor | ArrayLike,
    residual: Tensor | ArrayLike,
    /,
    *,
    eps: float,
    offset: float = 0.0,
    name: str | None = None,
) -> Tensor: ...
@overload
def group_norm(
    x: ArrayLike, w: ArrayLike, b: ArrayLike, /, *, out: Array | None = None, groups: int, eps: float = 1e-05
) -> Any: ...
@overload
def group_norm(
    x: Tensor | ArrayLike,
    w: Tensor | ArrayLike,
    b: Tensor | ArrayLike,
    /,
    *,
    groups: int,
    eps: float = 1e-05,
    name: str | None = None,
) -> Tensor: ...
@overload
def layer_norm_2d(
    x: ArrayLike, w: ArrayLike, b: ArrayLike, /, *, out: Array | None = None, eps: float = 1e-05
) -> Any: ...
@overload
def layer_norm_2d(
    x: Tensor | ArrayLike,
    w: Tensor | ArrayLike,
    b: Tensor | ArrayLike,
    /,
    *,
    eps: float = 1e-05,
    name: str | None = None,
) -> Tensor: ...
@overload
def scale_mask_softmax(x: ArrayLike, mask: ArrayLike, /, *, out: Array | None = None, scale: float = 1.0) -> Any: ...
@overload
def scale_mask_softmax(
    x: Tensor | ArrayLike, mask: Tensor | ArrayLike, /, *, scale: float = 1.0, name: str | None = None
) -> Tensor: ...
@overload
def matmul(
    a: ArrayLike,
    b: ArrayLike,
    /,
    out: Array | None = None,
    *,
    transpose_b: bool = False,
    to: str = "f32",
    precision: str = "f32",
) -> Any: ...
@overload
def matmul(
    a: Tensor | ArrayLike,
    b: Tensor | ArrayLike,
    /,
    *,
    transpose_b: bool = False,
    to: str = "f32",
    precision: str = "f32",
    name: str | None = None,
) -> Tensor: ...
@overload
def batch_invariant_matmul(x: ArrayLike, w: ArrayLike, /, *, out: Array | None = None) -> Any: ...
@overload
def batch_invariant_matmul(x: Tensor | ArrayLike, w: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def rounded_matmul(a: ArrayLike, b: ArrayLike, /, *, out: Array | None = None, transpose_b: bool) -> Any: ...
@overload
def rounded_matmul(
    a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, transpose_b: bool, name: str | None = None
) -> Tensor: ...
@overload
def quantize_activations(x: ArrayLike, /, *, out: Array | None = None, group: int = 32, zero: int = 0) -> Any: ...
@overload
def quantize_activations(
    x: Tensor | ArrayLike, /, *, group: int = 32, zero: int = 0, name: str | None = None
) -> Tensor: ...
@overload
def quantized_matmul(x: ArrayLike, w: ArrayLike, /, *, out: Array | None = None) -> Any: ...
@overload
def quantized_matmul(x: Tensor | ArrayLike, w: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def quantized_matmul_transposed(x: ArrayLike, w: ArrayLike, /, *, out: Array | None = None) -> Any: ...
@overload
def quantized_matmul_transposed(
    x: Tensor | ArrayLike, w: Tensor | ArrayLike, /, *, name: str | None = None
) -> Tensor: ...
@overload
def gated_product(
    x: ArrayLike,
    gate: ArrayLike,
    up: ArrayLike,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    sums: tuple[tuple[int, int], ...],
    act: str = "silu",
) -> Any: ...
@overload
def gated_product(
    x: Tensor | ArrayLike,
    gate: Tensor | ArrayLike,
    up: Tensor | ArrayLike,
    /,
    *,
    sums: tuple[tuple[int, int], ...],
    act: str = "silu",
    name: str | None = None,
) -> Tensor | tuple[Tensor, ...]: ...
@overload
def dequantize(x: ArrayLike, /, *, out: Array | None = None, to: str = "f32") -> Any: ...
@overload
def dequantize(x: Tensor | ArrayLike, /, *, to: str = "f32", name: str | None = None) -> Tensor: ...
@overload
def unpack_codes(codes: ArrayLike, /, *, out: Array | None = None, code: str = "u4", to: str = "f32") -> Any: ...
@overload
def unpack_codes(
    codes: Tensor | ArrayLike, /, *, code: str = "u4", to: str = "f32", name: str | None = None
) -> Tensor: ...
@overload
def affine_dequantize(
    codes: ArrayLike,
    scales: ArrayLike,
    biases: ArrayLike,
    /,
    *,
    out: Array | None = None,
    bits: int = 4,
    group_size: int = 64,
    to: str = "f32",
) -> Any: ...
@overload
def affine_dequantize(
    codes: Tensor | ArrayLike,
    scales: Tensor | ArrayLike,
    biases: Tensor | ArrayLike,
    /,
    *,
    bits: int = 4,
    group_size: int = 64,
    to: str = "f32",
    name: str | None = None,
) -> Tensor: ...
@overload
def minifloat_dequantize(
    codes: ArrayLike,
    scales: ArrayLike,
    /,
    *global_scale: ArrayLike,
    out: Array | None = None,
    code: str = "e4m3",
    group_size: int | None = None,
    group_rows: int = 1,
    scales_as: str | None = None,
    to: str = "f32",
) -> Any: ...
@overload
def minifloat_dequantize(
    codes: Tensor | ArrayLike,
    scales: Tensor | ArrayLike,
    /,
    *global_scale: Tensor | ArrayLike,
    code: str = "e4m3",
    group_size: int | None = None,
    group_rows: int = 1,
    scales_as: str | None = None,
    to: str = "f32",
    name: str | None = None,
) -> Tensor: ...
@overload
def affine_matmul(
    x: ArrayLike,
    codes: ArrayLike,
    scales: ArrayLike,
    biases: ArrayLike,
    /,
    *,
    out: Array | None = None,
    bits: int = 4,
    group_size: int = 64,
) -> Any: ...
@overload
def affine_matmul(
    x: Tensor | ArrayLike,
    codes: Tensor | ArrayLike,
    scales: Tensor | ArrayLike,
    biases: Tensor | ArrayLike,
    /,
    *,
    bits: int = 4,
    group_size: int = 64,
    name: str | None = None,
) -> Tensor: ...
@overload
def minifloat_matmul(
    x: ArrayLike,
    codes: ArrayLike,
    scales: ArrayLike,
    /,
    *global_scale: ArrayLike,
    out: Array | None = None,
    code: str = "e4m3",
    group_size: int | None = None,
    group_rows: int = 1,
    scales_as: str | None = None,
) -> Any: ...
@overload
def minifloat_matmul(
    x: Tensor | ArrayLike,
    codes: Tensor | ArrayLike,
    scales: Tensor | ArrayLike,
    /,
    *global_scale: Tensor | ArrayLike,
    code: str = "e4m3",
    group_size: int | None = None,
    group_rows: int = 1,
    scales_as: str | None = None,
    name: str | None = None,
) -> Tensor: ...
@overload
def affine_matmul_grouped(
    x: ArrayLike,
    codes: ArrayLike,
    scales: ArrayLike,
    biases: ArrayLike,
    experts: ArrayLike,
    /,
    *,
    out: Array | None = None,
    bits: int = 4,
    group_size: int = 64,
) -> Any: ...
@overload
def affine_matmul_grouped(
    x: Tensor | ArrayLike,
    codes: Tensor | ArrayLike,
    scales: Tensor | ArrayLike,
    biases: Tensor | ArrayLike,
    experts: Tensor | ArrayLike,
    /,
    *,
    bits: int = 4,
    group_size: int = 64,
    name: str | None = None,
) -> Tensor: ...
@overload
def pack_codes(x: ArrayLike, /, *, out: Array | None = None, code: str = "u4") -> Any: ...
@overload
def pack_codes(x: Tensor | ArrayLike, /, *, code: str = "u4", name: str | None = None) -> Tensor: ...
@overload
def affine_quantize(
    w: ArrayLike, /, *, out: Array | tuple[Array, ...] | None = None, bits: int = 4, group_size: int = 64
) -> tuple[Any, Any, Any]: ...
@overload
def affine_quantize(
    w: Tensor | ArrayLike, /, *, bits: int = 4, group_size: int = 64, name: str | None = None
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def quantize_dequantize_affine(
    w: ArrayLike,
    scales: ArrayLike,
    biases: ArrayLike,
    /,
    *,
    out: Array | None = None,
    bits: int = 4,
    group_size: int = 64,
) -> Any: ...
@overload
def quantize_dequantize_affine(
    w: Tensor | ArrayLike,
    scales: Tensor | ArrayLike,
    biases: Tensor | ArrayLike,
    /,
    *,
    bits: int = 4,
    group_size: int = 64,
    name: str | None = None,
) -> Tensor: ...
@overload
def real(x: ArrayLike, /, *, out: Array | None = None) -> Any: ...
@overload
def real(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def imag(x: ArrayLike, /, *, out: Array | None = None) -> Any: ...
@overload
def imag(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def conj(x: ArrayLike, /, *, out: Array | None = None) -> Any: ...
@overload
def conj(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def fft_rows(
    x: ArrayLike,
    factors: ArrayLike,
    /,
    *,
    out: Array | None = None,
    n: int | None = None,
    form: str = "complex",
    inverse: bool = False,
    scale: float = 1.0,
    keep: int | None = None,
    turn_in: bool = False,
    turn_out: bool = False,
    real: int | None = None,
) -> Any: ...
@overload
def fft_rows(
    x: Tensor | ArrayLike,
    factors: Tensor | ArrayLike,
    /,
    *,
    n: int | None = None,
    form: str = "complex",
    inverse: bool = False,
    scale: float = 1.0,
    keep: int | None = None,
    turn_in: bool = False,
    turn_out: bool = False,
    real: int | None = None,
    name: str | None = None,
) -> Tensor: ...
@overload
def fft(
    x: ArrayLike, /, *, out: Array | None = None, n: int | None = None, axis: int = -1, norm: str | None = None
) -> Any: ...
@overload
def fft(
    x: Tensor | ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str | None = None, name: str | None = None
) -> Tensor: ...
@overload
def ifft(
    x: ArrayLike, /, *, out: Array | None = None, n: int | None = None, axis: int = -1, norm: str | None = None
) -> Any: ...
@overload
def ifft(
    x: Tensor | ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str | None = None, name: str | None = None
) -> Tensor: ...
@overload
def rfft(
    x: ArrayLike, /, *, out: Array | None = None, n: int | None = None, axis: int = -1, norm: str | None = None
) -> Any: ...
@overload
def rfft(
    x: Tensor | ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str | None = None, name: str | None = None
) -> Tensor: ...
@overload
def irfft(
    x: ArrayLike, /, *, out: Array | None = None, n: int | None = None, axis: int = -1, norm: str | None = None
) -> Any: ...
@overload
def irfft(
    x: Tensor | ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str | None = None, name: str | None = None
) -> Tensor: ...
@overload
def stft(
    x: ArrayLike,
    window: ArrayLike,
    /,
    *,
    out: Array | None = None,
    n_fft: int,
    hop_length: int | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
) -> Any: ...
@overload
def stft(
    x: Tensor | ArrayLike,
    window: Tensor | ArrayLike,
    /,
    *,
    n_fft: int,
    hop_length: int | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    name: str | None = None,
) -> Tensor: ...
@overload
def mel_scale(
    x: ArrayLike,
    /,
    *,
    out: Array | None = None,
    n_mels: int,
    sample_rate: int,
    f_min: float = 0.0,
    f_max: float | None = None,
    norm: str | None = None,
    mel: str = "htk",
) -> Any: ...
@overload
def mel_scale(
    x: Tensor | ArrayLike,
    /,
    *,
    n_mels: int,
    sample_rate: int,
    f_min: float = 0.0,
    f_max: float | None = None,
    norm: str | None = None,
    mel: str = "htk",
    name: str | None = None,
) -> Tensor: ...
@overload
def quantize_dequantize_gguf(x: ArrayLike, /, *, out: Array | None = None, format: str = "Q4_0") -> Any: ...
@overload
def quantize_dequantize_gguf(x: Tensor | ArrayLike, /, *, format: str = "Q4_0", name: str | None = None) -> Tensor: ...
@overload
def embedding(ids: ArrayLike, table: ArrayLike, /, *, out: Array | None = None, to: str | None = None) -> Any: ...
@overload
def embedding(
    ids: Tensor | ArrayLike, table: Tensor | ArrayLike, /, *, to: str | None = None, name: str | None = None
) -> Tensor: ...
@overload
def gather(x: ArrayLike, rows: ArrayLike, /, *, out: Array | None = None) -> Any: ...
@overload
def gather(x: Tensor | ArrayLike, rows: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def transpose(x: ArrayLike, /, *, out: Array | None = None, axes: tuple[int, ...] | None = None) -> Any: ...
@overload
def transpose(x: Tensor | ArrayLike, /, *, axes: tuple[int, ...] | None = None, name: str | None = None) -> Tensor: ...
@overload
def slice(
    x: ArrayLike,
    /,
    *,
    out: Array | None = None,
    starts: tuple[int, ...],
    sizes: tuple[int | None, ...],
    steps: tuple[int, ...] | None = None,
) -> Any: ...
@overload
def slice(
    x: Tensor | ArrayLike,
    /,
    *,
    starts: tuple[int, ...],
    sizes: tuple[int | None, ...],
    steps: tuple[int, ...] | None = None,
    name: str | None = None,
) -> Tensor: ...
@overload
def silu_multiply(
    gate: ArrayLike, up: ArrayLike, /, out: Array | None = None, *, to: str = "f32", where: Any = None
) -> Any: ...
@overload
def silu_multiply(
    gate: Tensor | ArrayLike, up: Tensor | ArrayLike, /, *, to: str = "f32", name: str | None = None
) -> Tensor: ...
@overload
def copy(x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def copy(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def cast(x: ArrayLike, /, out: Array | None = None, *, to: str, where: Any = None) -> Any: ...
@overload
def cast(x: Tensor | ArrayLike, /, *, to: str, name: str | None = None) -> Tensor: ...
@overload
def stop_gradient(x: ArrayLike, /, *, out: Array | None = None) -> Any: ...
@overload
def stop_gradient(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def rope(
    x: ArrayLike,
    positions: ArrayLike,
    table: ArrayLike,
    /,
    *,
    out: Array | None = None,
    heads: int,
    head_dim: int,
    pairing: str,
    inverse: bool = False,
) -> Any: ...
@overload
def rope(
    x: Tensor | ArrayLike,
    positions: Tensor | ArrayLike,
    table: Tensor | ArrayLike,
    /,
    *,
    heads: int,
    head_dim: int,
    pairing: str,
    inverse: bool = False,
    name: str | None = None,
) -> Tensor: ...
@overload
def rope_multi(
    x: ArrayLike,
    positions: ArrayLike,
    table: ArrayLike,
    /,
    *,
    out: Array | None = None,
    heads: int,
    head_dim: int,
    sections: tuple[int, ...],
    layout: str = "contiguous",
    pairing: str = "neox",
    inverse: bool = False,
) -> Any: ...
@overload
def rope_multi(
    x: Tensor | ArrayLike,
    positions: Tensor | ArrayLike,
    table: Tensor | ArrayLike,
    /,
    *,
    heads: int,
    head_dim: int,
    sections: tuple[int, ...],
    layout: str = "contiguous",
    pairing: str = "neox",
    inverse: bool = False,
    name: str | None = None,
) -> Tensor: ...
@overload
def rope_axial_2d(
    x: ArrayLike,
    positions: ArrayLike,
    table: ArrayLike,
    /,
    *,
    out: Array | None = None,
    heads: int,
    head_dim: int,
    pairing: str = "neox",
    inverse: bool = False,
) -> Any: ...
@overload
def rope_axial_2d(
    x: Tensor | ArrayLike,
    positions: Tensor | ArrayLike,
    table: Tensor | ArrayLike,
    /,
    *,
    heads: int,
    head_dim: int,
    pairing: str = "neox",
    inverse: bool = False,
    name: str | None = None,
) -> Tensor: ...
@overload
def rope_vision_2d(
    x: ArrayLike,
    positions: ArrayLike,
    table: ArrayLike,
    /,
    *,
    out: Array | None = None,
    heads: int,
    head_dim: int,
    pairing: str = "neox",
    inverse: bool = False,
) -> Any: ...
@overload
def rope_vision_2d(
    x: Tensor | ArrayLike,
    positions: Tensor | ArrayLike,
    table: Tensor | ArrayLike,
    /,
    *,
    heads: int,
    head_dim: int,
    pairing: str = "neox",
    inverse: bool = False,
    name: str | None = None,
) -> Tensor: ...
@overload
def head_norm_rope(
    x: ArrayLike,
    w: ArrayLike,
    positions: ArrayLike,
    table: ArrayLike,
    /,
    *,
    out: Array | None = None,
    heads: int,
    head_dim: int,
    eps: float,
    offset: float = 0.0,
) -> Any: ...
@overload
def head_norm_rope(
    x: Tensor | ArrayLike,
    w: Tensor | ArrayLike,
    positions: Tensor | ArrayLike,
    table: Tensor | ArrayLike,
    /,
    *,
    heads: int,
    head_dim: int,
    eps: float,
    offset: float = 0.0,
    name: str | None = None,
) -> Tensor: ...
@overload
def kv_cache_update(
    k_cache: ArrayLike,
    v_cache: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    positions: ArrayLike,
    slots: ArrayLike,
    block_table: ArrayLike,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    kv_heads: int,
    head_dim: int,
    ring: bool = False,
) -> None: ...
@overload
def kv_cache_update(
    k_cache: Tensor | ArrayLike,
    v_cache: Tensor | ArrayLike,
    k: Tensor | ArrayLike,
    v: Tensor | ArrayLike,
    positions: Tensor | ArrayLike,
    slots: Tensor | ArrayLike,
    block_table: Tensor | ArrayLike,
    /,
    *,
    kv_heads: int,
    head_dim: int,
    ring: bool = False,
    name: str | None = None,
) -> None: ...
@overload
def kv_cache_quantize(
    k_codes: ArrayLike,
    v_codes: ArrayLike,
    k_scales: ArrayLike,
    v_scales: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    positions: ArrayLike,
    slots: ArrayLike,
    block_table: ArrayLike,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    kv_heads: int,
    head_dim: int,
    ring: bool = False,
) -> None: ...
@overload
def kv_cache_quantize(
    k_codes: Tensor | ArrayLike,
    v_codes: Tensor | ArrayLike,
    k_scales: Tensor | ArrayLike,
    v_scales: Tensor | ArrayLike,
    k: Tensor | ArrayLike,
    v: Tensor | ArrayLike,
    positions: Tensor | ArrayLike,
    slots: Tensor | ArrayLike,
    block_table: Tensor | ArrayLike,
    /,
    *,
    kv_heads: int,
    head_dim: int,
    ring: bool = False,
    name: str | None = None,
) -> None: ...
@overload
def attention(
    q: ArrayLike,
    k_cache: ArrayLike,
    v_cache: ArrayLike,
    positions: ArrayLike,
    slots: ArrayLike,
    block_table: ArrayLike,
    /,
    *scales_and_extras: ArrayLike,
    out: Array | tuple[Array, ...] | None = None,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    length: int | Extent,
    causal: bool = True,
    window: int = 0,
    chunk: int = 0,
    cap: float = 0.0,
    lse: bool = False,
    extras: str = "",
    ring: bool = False,
    precision: str = "f32",
) -> Any: ...
@overload
def attention(
    q: Tensor | ArrayLike,
    k_cache: Tensor | ArrayLike,
    v_cache: Tensor | ArrayLike,
    positions: Tensor | ArrayLike,
    slots: Tensor | ArrayLike,
    block_table: Tensor | ArrayLike,
    /,
    *scales_and_extras: Tensor | ArrayLike,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    length: int | Extent,
    causal: bool = True,
    window: int = 0,
    chunk: int = 0,
    cap: float = 0.0,
    lse: bool = False,
    extras: str = "",
    ring: bool = False,
    precision: str = "f32",
    name: str | None = None,
) -> Tensor | tuple[Tensor, ...]: ...
@overload
def scaled_dot_product_attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    /,
    *others: ArrayLike,
    out: Array | tuple[Array, ...] | None = None,
    causal: bool = False,
    window: int = 0,
    chunk: int = 0,
    cap: float = 0.0,
    lse: bool = False,
    extras: str = "mask",
    scale: float | None = None,
    offset: int = 0,
) -> Any: ...
@overload
def scaled_dot_product_attention(
    q: Tensor | ArrayLike,
    k: Tensor | ArrayLike,
    v: Tensor | ArrayLike,
    /,
    *others: Tensor | ArrayLike,
    causal: bool = False,
    window: int = 0,
    chunk: int = 0,
    cap: float = 0.0,
    lse: bool = False,
    extras: str = "mask",
    scale: float | None = None,
    offset: int = 0,
    name: str | None = None,
) -> Tensor | tuple[Tensor, ...]: ...
@overload
def attention_gradient(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    dy: ArrayLike,
    lse: ArrayLike,
    delta: ArrayLike,
    /,
    *mask: ArrayLike,
    out: Array | tuple[Array, ...] | None = None,
    causal: bool = False,
    window: int = 0,
    chunk: int = 0,
    offset: int = 0,
    scale: float = 1.0,
) -> tuple[Any, Any, Any]: ...
@overload
def attention_gradient(
    q: Tensor | ArrayLike,
    k: Tensor | ArrayLike,
    v: Tensor | ArrayLike,
    dy: Tensor | ArrayLike,
    lse: Tensor | ArrayLike,
    delta: Tensor | ArrayLike,
    /,
    *mask: Tensor | ArrayLike,
    causal: bool = False,
    window: int = 0,
    chunk: int = 0,
    offset: int = 0,
    scale: float = 1.0,
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def hadamard(x: ArrayLike, /, *signs: ArrayLike, out: Array | None = None, signs_after: bool = False) -> Any: ...
@overload
def hadamard(
    x: Tensor | ArrayLike, /, *signs: Tensor | ArrayLike, signs_after: bool = False, name: str | None = None
) -> Tensor: ...
@overload
def turboquant_encode(
    x: ArrayLike, signs: ArrayLike, centroids: ArrayLike, /, *, out: Array | tuple[Array, ...] | None = None
) -> tuple[Any, Any]: ...
@overload
def turboquant_encode(
    x: Tensor | ArrayLike, signs: Tensor | ArrayLike, centroids: Tensor | ArrayLike, /, *, name: str | None = None
) -> tuple[Tensor, Tensor]: ...
@overload
def turboquant_decode(
    codes: ArrayLike, norms: ArrayLike, centroids: ArrayLike, /, *signs: ArrayLike, out: Array | None = None
) -> Any: ...
@overload
def turboquant_decode(
    codes: Tensor | ArrayLike,
    norms: Tensor | ArrayLike,
    centroids: Tensor | ArrayLike,
    /,
    *signs: Tensor | ArrayLike,
    name: str | None = None,
) -> Tensor: ...
@overload
def turboquant_attention(
    q: ArrayLike,
    k_cache: ArrayLike,
    v_cache: ArrayLike,
    positions: ArrayLike,
    slots: ArrayLike,
    block_table: ArrayLike,
    /,
    *norms_centroids_signs_extras: ArrayLike,
    out: Array | tuple[Array, ...] | None = None,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    length: int | Extent,
    causal: bool = True,
    window: int = 0,
    chunk: int = 0,
    cap: float = 0.0,
    lse: bool = False,
    extras: str = "",
    ring: bool = False,
) -> Any: ...
@overload
def turboquant_attention(
    q: Tensor | ArrayLike,
    k_cache: Tensor | ArrayLike,
    v_cache: Tensor | ArrayLike,
    positions: Tensor | ArrayLike,
    slots: Tensor | ArrayLike,
    block_table: Tensor | ArrayLike,
    /,
    *norms_centroids_signs_extras: Tensor | ArrayLike,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    length: int | Extent,
    causal: bool = True,
    window: int = 0,
    chunk: int = 0,
    cap: float = 0.0,
    lse: bool = False,
    extras: str = "",
    ring: bool = False,
    name: str | None = None,
) -> Tensor | tuple[Tensor, ...]: ...
@overload
def attention_mask(
    q_positions: ArrayLike,
    k_positions: ArrayLike,
    /,
    *,
    out: Array | None = None,
    causal: bool = True,
    window: int = 0,
    chunk: int = 0,
    offset: int = 0,
    to: str = "bool",
) -> Any: ...
@overload
def attention_mask(
    q_positions: Tensor | ArrayLike,
    k_positions: Tensor | ArrayLike,
    /,
    *,
    causal: bool = True,
    window: int = 0,
    chunk: int = 0,
    offset: int = 0,
    to: str = "bool",
    name: str | None = None,
) -> Tensor: ...
@overload
def attention_mask_tiles(mask: ArrayLike, /, *, out: Array | None = None, rows: int = 32, columns: int = 32) -> Any: ...
@overload
def attention_mask_tiles(
    mask: Tensor | ArrayLike, /, *, rows: int = 32, columns: int = 32, name: str | None = None
) -> Tensor: ...
@overload
def repeat_penalty(logits: ArrayLike, ids: ArrayLike, penalty: ArrayLike, /, *, out: Array | None = None) -> Any: ...
@overload
def repeat_penalty(
    logits: Tensor | ArrayLike, ids: Tensor | ArrayLike, penalty: Tensor | ArrayLike, /, *, name: str | None = None
) -> Tensor: ...
@overload
def sample(
    logits: ArrayLike,
    temperature: ArrayLike,
    top_k: ArrayLike,
    top_p: ArrayLike,
    min_p: ArrayLike,
    seed: ArrayLike,
    /,
    *,
    out: Array | None = None,
) -> Any: ...
@overload
def sample(
    logits: Tensor | ArrayLike,
    temperature: Tensor | ArrayLike,
    top_k: Tensor | ArrayLike,
    top_p: Tensor | ArrayLike,
    min_p: Tensor | ArrayLike,
    seed: Tensor | ArrayLike,
    /,
    *,
    name: str | None = None,
) -> Tensor: ...
@overload
def masked_sample(
    logits: ArrayLike,
    mask: ArrayLike,
    temperature: ArrayLike,
    top_k: ArrayLike,
    top_p: ArrayLike,
    min_p: ArrayLike,
    seed: ArrayLike,
    /,
    *,
    out: Array | None = None,
) -> Any: ...
@overload
def masked_sample(
    logits: Tensor | ArrayLike,
    mask: Tensor | ArrayLike,
    temperature: Tensor | ArrayLike,
    top_k: Tensor | ArrayLike,
    top_p: Tensor | ArrayLike,
    min_p: Tensor | ArrayLike,
    seed: Tensor | ArrayLike,
    /,
    *,
    name: str | None = None,
) -> Tensor: ...
@overload
def adam_update(
    p: ArrayLike,
    m: ArrayLike,
    v: ArrayLike,
    g: ArrayLike,
    lr: ArrayLike,
    step: ArrayLike,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-08,
    weight_decay: float = 0.0,
) -> None: ...
@overload
def adam_update(
    p: Tensor | ArrayLike,
    m: Tensor | ArrayLike,
    v: Tensor | ArrayLike,
    g: Tensor | ArrayLike,
    lr: Tensor | ArrayLike,
    step: Tensor | ArrayLike,
    /,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-08,
    weight_decay: float = 0.0,
    name: str | None = None,
) -> None: ...
@overload
def assign(state: ArrayLike, x: ArrayLike, /, *, out: Array | tuple[Array, ...] | None = None) -> None: ...
@overload
def assign(state: Tensor | ArrayLike, x: Tensor | ArrayLike, /, *, name: str | None = None) -> None: ...
@overload
def cross_entropy(
    logits: ArrayLike,
    target: ArrayLike,
    /,
    *,
    out: Array | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any: ...
@overload
def cross_entropy(
    logits: Tensor | ArrayLike,
    target: Tensor | ArrayLike,
    /,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    name: str | None = None,
) -> Tensor: ...
@overload
def dropout(x: ArrayLike, seed: ArrayLike, /, *, out: Array | None = None, p: float = 0.5) -> Any: ...
@overload
def dropout(
    x: Tensor | ArrayLike, seed: Tensor | ArrayLike, /, *, p: float = 0.5, name: str | None = None
) -> Tensor: ...
@overload
def cross_entropy_gradient(
    logits: ArrayLike,
    target: ArrayLike,
    dy: ArrayLike,
    /,
    *,
    out: Array | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any: ...
@overload
def cross_entropy_gradient(
    logits: Tensor | ArrayLike,
    target: Tensor | ArrayLike,
    dy: Tensor | ArrayLike,
    /,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    name: str | None = None,
) -> Tensor: ...
@overload
def mse_loss(x: ArrayLike, target: ArrayLike, /, *, out: Array | None = None, reduction: str = "mean") -> Any: ...
@overload
def mse_loss(
    x: Tensor | ArrayLike, target: Tensor | ArrayLike, /, *, reduction: str = "mean", name: str | None = None
) -> Tensor: ...
@overload
def l1_loss(x: ArrayLike, target: ArrayLike, /, *, out: Array | None = None, reduction: str = "mean") -> Any: ...
@overload
def l1_loss(
    x: Tensor | ArrayLike, target: Tensor | ArrayLike, /, *, reduction: str = "mean", name: str | None = None
) -> Tensor: ...
@overload
def binary_cross_entropy_with_logits(
    x: ArrayLike, target: ArrayLike, /, *, out: Array | None = None, reduction: str = "mean"
) -> Any: ...
@overload
def binary_cross_entropy_with_logits(
    x: Tensor | ArrayLike, target: Tensor | ArrayLike, /, *, reduction: str = "mean", name: str | None = None
) -> Tensor: ...
@overload
def softmax_sample(
    logits: ArrayLike,
    temperature: ArrayLike,
    top_k: ArrayLike,
    top_p: ArrayLike,
    min_p: ArrayLike,
    seed: ArrayLike,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    draws: int = 1,
) -> tuple[Any, Any]: ...
@overload
def softmax_sample(
    logits: Tensor | ArrayLike,
    temperature: Tensor | ArrayLike,
    top_k: Tensor | ArrayLike,
    top_p: Tensor | ArrayLike,
    min_p: Tensor | ArrayLike,
    seed: Tensor | ArrayLike,
    /,
    *,
    draws: int = 1,
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def uniform(seed: ArrayLike, /, *, out: Array | None = None, n: int = 1) -> Any: ...
@overload
def uniform(seed: Tensor | ArrayLike, /, *, n: int = 1, name: str | None = None) -> Tensor: ...
@overload
def logit_bias(logits: ArrayLike, ids: ArrayLike, bias: ArrayLike, /, *, out: Array | None = None) -> Any: ...
@overload
def logit_bias(
    logits: Tensor | ArrayLike, ids: Tensor | ArrayLike, bias: Tensor | ArrayLike, /, *, name: str | None = None
) -> Tensor: ...
@overload
def dry(
    logits: ArrayLike,
    ids: ArrayLike,
    multiplier: ArrayLike,
    base: ArrayLike,
    allowed_length: ArrayLike,
    /,
    *,
    out: Array | None = None,
) -> Any: ...
@overload
def dry(
    logits: Tensor | ArrayLike,
    ids: Tensor | ArrayLike,
    multiplier: Tensor | ArrayLike,
    base: Tensor | ArrayLike,
    allowed_length: Tensor | ArrayLike,
    /,
    *,
    name: str | None = None,
) -> Tensor: ...
@overload
def top_n_sigma(logits: ArrayLike, n_sigma: ArrayLike, /, *, out: Array | None = None) -> Any: ...
@overload
def top_n_sigma(logits: Tensor | ArrayLike, n_sigma: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def top_k_top_p(
    logits: ArrayLike, top_k: ArrayLike, top_p: ArrayLike, min_p: ArrayLike, /, *, out: Array | None = None
) -> Any: ...
@overload
def top_k_top_p(
    logits: Tensor | ArrayLike,
    top_k: Tensor | ArrayLike,
    top_p: Tensor | ArrayLike,
    min_p: Tensor | ArrayLike,
    /,
    *,
    name: str | None = None,
) -> Tensor: ...
@overload
def typical_p(logits: ArrayLike, p: ArrayLike, /, *, out: Array | None = None) -> Any: ...
@overload
def typical_p(logits: Tensor | ArrayLike, p: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def xtc(
    logits: ArrayLike, probability: ArrayLike, threshold: ArrayLike, seed: ArrayLike, /, *, out: Array | None = None
) -> Any: ...
@overload
def xtc(
    logits: Tensor | ArrayLike,
    probability: Tensor | ArrayLike,
    threshold: Tensor | ArrayLike,
    seed: Tensor | ArrayLike,
    /,
    *,
    name: str | None = None,
) -> Tensor: ...
@overload
def mirostat(logits: ArrayLike, mu: ArrayLike, /, *, out: Array | None = None) -> Any: ...
@overload
def mirostat(logits: Tensor | ArrayLike, mu: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def token_mask(logits: ArrayLike, mask: ArrayLike, /, *, out: Array | None = None) -> Any: ...
@overload
def token_mask(logits: Tensor | ArrayLike, mask: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def mirostat_update(
    mu: ArrayLike, logprob: ArrayLike, tau: ArrayLike, eta: ArrayLike, /, *, out: Array | None = None
) -> Any: ...
@overload
def mirostat_update(
    mu: Tensor | ArrayLike,
    logprob: Tensor | ArrayLike,
    tau: Tensor | ArrayLike,
    eta: Tensor | ArrayLike,
    /,
    *,
    name: str | None = None,
) -> Tensor: ...
@overload
def add(a: ArrayLike, b: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def add(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def subtract(a: ArrayLike, b: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def subtract(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def multiply(a: ArrayLike, b: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def multiply(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def divide(a: ArrayLike, b: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def divide(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def minimum(a: ArrayLike, b: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def minimum(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def maximum(a: ArrayLike, b: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def maximum(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def floor_divide(a: ArrayLike, b: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def floor_divide(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def remainder(a: ArrayLike, b: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def remainder(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def power(a: ArrayLike, b: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def power(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def negate(x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def negate(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def abs(x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def abs(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def exp(x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def exp(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def log(x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def log(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def sqrt(x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def sqrt(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def rsqrt(x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def rsqrt(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def square(x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def square(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def reciprocal(x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def reciprocal(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def tanh(x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def tanh(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def erf(x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def erf(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def sin(x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def sin(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def cos(x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def cos(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def tan(x: ArrayLike, /, *, out: Array | None = None) -> Any: ...
@overload
def tan(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def isnan(x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def isnan(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def ceil(x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def ceil(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def trunc(x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def trunc(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def floor(x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def floor(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def round(x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def round(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def equal(a: ArrayLike, b: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def equal(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def not_equal(a: ArrayLike, b: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def not_equal(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def less(a: ArrayLike, b: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def less(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def less_equal(a: ArrayLike, b: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def less_equal(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def greater(a: ArrayLike, b: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def greater(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def greater_equal(a: ArrayLike, b: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def greater_equal(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def where(condition: ArrayLike, a: ArrayLike, b: ArrayLike, /, out: Array | None = None) -> Any: ...
@overload
def where(
    condition: Tensor | ArrayLike, a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None
) -> Tensor: ...
@overload
def clip(x: ArrayLike, low: ArrayLike, high: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def clip(
    x: Tensor | ArrayLike, low: Tensor | ArrayLike, high: Tensor | ArrayLike, /, *, name: str | None = None
) -> Tensor: ...
@overload
def logical_and(a: ArrayLike, b: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def logical_and(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def logical_or(a: ArrayLike, b: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def logical_or(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def logical_xor(a: ArrayLike, b: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def logical_xor(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def logical_not(x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def logical_not(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def sigmoid(x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def sigmoid(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def silu(x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def silu(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def gelu(x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def gelu(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def gelu_erf(x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def gelu_erf(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def softcap(x: ArrayLike, /, out: Array | None = None, *, cap: float, where: Any = None) -> Any: ...
@overload
def softcap(x: Tensor | ArrayLike, /, *, cap: float, name: str | None = None) -> Tensor: ...
@overload
def log1p(x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def log1p(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def expm1(x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def expm1(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def softplus(x: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def softplus(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def relu(x: ArrayLike, /, *, out: Array | None = None) -> Any: ...
@overload
def relu(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def leaky_relu(x: ArrayLike, /, *, out: Array | None = None, negative_slope: float = 0.01) -> Any: ...
@overload
def leaky_relu(x: Tensor | ArrayLike, /, *, negative_slope: float = 0.01, name: str | None = None) -> Tensor: ...
@overload
def elu(x: ArrayLike, /, *, out: Array | None = None, alpha: float = 1.0) -> Any: ...
@overload
def elu(x: Tensor | ArrayLike, /, *, alpha: float = 1.0, name: str | None = None) -> Tensor: ...
@overload
def hard_swish(x: ArrayLike, /, *, out: Array | None = None) -> Any: ...
@overload
def hard_swish(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def mish(x: ArrayLike, /, *, out: Array | None = None) -> Any: ...
@overload
def mish(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def sigmoid_multiply(x: ArrayLike, gate: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def sigmoid_multiply(x: Tensor | ArrayLike, gate: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def gelu_multiply(gate: ArrayLike, up: ArrayLike, /, out: Array | None = None, *, where: Any = None) -> Any: ...
@overload
def gelu_multiply(gate: Tensor | ArrayLike, up: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def sum(
    x: ArrayLike,
    /,
    *,
    out: Array | None = None,
    axis: int | tuple[int, ...] | None = None,
    axes: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    dtype: Any = None,
    where: Any = None,
    initial: Any = None,
) -> Any: ...
@overload
def sum(
    x: Tensor | ArrayLike,
    /,
    *,
    axes: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    name: str | None = None,
) -> Tensor: ...
@overload
def mean(
    x: ArrayLike,
    /,
    *,
    out: Array | None = None,
    axis: int | tuple[int, ...] | None = None,
    axes: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    dtype: Any = None,
    where: Any = None,
) -> Any: ...
@overload
def mean(
    x: Tensor | ArrayLike,
    /,
    *,
    axes: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    name: str | None = None,
) -> Tensor: ...
@overload
def prod(
    x: ArrayLike,
    /,
    *,
    out: Array | None = None,
    axis: int | tuple[int, ...] | None = None,
    axes: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    dtype: Any = None,
    where: Any = None,
    initial: Any = None,
) -> Any: ...
@overload
def prod(
    x: Tensor | ArrayLike,
    /,
    *,
    axes: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    name: str | None = None,
) -> Tensor: ...
@overload
def max(
    x: ArrayLike,
    /,
    *,
    out: Array | None = None,
    axis: int | tuple[int, ...] | None = None,
    axes: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    where: Any = None,
    initial: Any = None,
) -> Any: ...
@overload
def max(
    x: Tensor | ArrayLike,
    /,
    *,
    axes: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    name: str | None = None,
) -> Tensor: ...
@overload
def min(
    x: ArrayLike,
    /,
    *,
    out: Array | None = None,
    axis: int | tuple[int, ...] | None = None,
    axes: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    where: Any = None,
    initial: Any = None,
) -> Any: ...
@overload
def min(
    x: Tensor | ArrayLike,
    /,
    *,
    axes: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    name: str | None = None,
) -> Tensor: ...
@overload
def dot(a: ArrayLike, b: ArrayLike, /, *, out: Array | None = None) -> Any: ...
@overload
def dot(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def argmax(
    x: ArrayLike,
    /,
    *,
    out: Array | None = None,
    axis: int | None = -1,
    keepdims: bool = False,
    nan_first: bool = True,
    to: str = "i32",
) -> Any: ...
@overload
def argmax(
    x: Tensor | ArrayLike,
    /,
    *,
    axis: int | None = -1,
    keepdims: bool = False,
    nan_first: bool = True,
    to: str = "i32",
    name: str | None = None,
) -> Tensor: ...
@overload
def argmin(
    x: ArrayLike,
    /,
    *,
    out: Array | None = None,
    axis: int | None = -1,
    keepdims: bool = False,
    nan_first: bool = True,
    to: str = "i32",
) -> Any: ...
@overload
def argmin(
    x: Tensor | ArrayLike,
    /,
    *,
    axis: int | None = -1,
    keepdims: bool = False,
    nan_first: bool = True,
    to: str = "i32",
    name: str | None = None,
) -> Tensor: ...
@overload
def max_with_index(
    x: ArrayLike,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    axis: int = -1,
    keepdims: bool = False,
    to: str = "i32",
) -> tuple[Any, Any]: ...
@overload
def max_with_index(
    x: Tensor | ArrayLike, /, *, axis: int = -1, keepdims: bool = False, to: str = "i32", name: str | None = None
) -> tuple[Tensor, Tensor]: ...
@overload
def concat(*tensors: ArrayLike, out: Array | None = None, axis: int = 0) -> Any: ...
@overload
def concat(*tensors: Tensor | ArrayLike, axis: int = 0, name: str | None = None) -> Tensor: ...
@overload
def split(
    x: ArrayLike, /, *, out: Array | tuple[Array, ...] | None = None, sizes: tuple[int, ...], axis: int = 0
) -> Any: ...
@overload
def split(
    x: Tensor | ArrayLike, /, *, sizes: tuple[int, ...], axis: int = 0, name: str | None = None
) -> Tensor | tuple[Tensor, ...]: ...
@overload
def broadcast_to(x: ArrayLike, /, *, out: Array | None = None, shape: tuple[int | None, ...]) -> Any: ...
@overload
def broadcast_to(x: Tensor | ArrayLike, /, *, shape: tuple[int | None, ...], name: str | None = None) -> Tensor: ...
@overload
def repeat(x: ArrayLike, /, *, out: Array | None = None, repeats: int, axis: int | None = None) -> Any: ...
@overload
def repeat(x: Tensor | ArrayLike, /, *, repeats: int, axis: int | None = None, name: str | None = None) -> Tensor: ...
@overload
def tile(x: ArrayLike, /, *, out: Array | None = None, reps: int | tuple[int, ...]) -> Any: ...
@overload
def tile(x: Tensor | ArrayLike, /, *, reps: int | tuple[int, ...], name: str | None = None) -> Tensor: ...
@overload
def repeat_tiled(x: ArrayLike, /, *, out: Array | None = None, heads: int, axis: int = 1) -> Any: ...
@overload
def repeat_tiled(x: Tensor | ArrayLike, /, *, heads: int, axis: int = 1, name: str | None = None) -> Tensor: ...
@overload
def pad(
    x: ArrayLike,
    /,
    *,
    out: Array | None = None,
    pad_width: int | tuple[int, int] | tuple[tuple[int, int], ...],
    mode: str = "constant",
    constant_values: float = 0,
) -> Any: ...
@overload
def pad(
    x: Tensor | ArrayLike,
    /,
    *,
    pad_width: int | tuple[int, int] | tuple[tuple[int, int], ...],
    mode: str = "constant",
    constant_values: float = 0,
    name: str | None = None,
) -> Tensor: ...
@overload
def take_along_axis(x: ArrayLike, indices: ArrayLike, /, *, out: Array | None = None, axis: int = -1) -> Any: ...
@overload
def take_along_axis(
    x: Tensor | ArrayLike, indices: Tensor | ArrayLike, /, *, axis: int = -1, name: str | None = None
) -> Tensor: ...
@overload
def scatter_add(
    x: ArrayLike, indices: ArrayLike, values: ArrayLike, /, *, out: Array | None = None, axis: int = -1
) -> Any: ...
@overload
def scatter_add(
    x: Tensor | ArrayLike,
    indices: Tensor | ArrayLike,
    values: Tensor | ArrayLike,
    /,
    *,
    axis: int = -1,
    name: str | None = None,
) -> Tensor: ...
@overload
def put(x: ArrayLike, indices: ArrayLike, values: ArrayLike, /, *, out: Array | None = None, axis: int = -1) -> Any: ...
@overload
def put(
    x: Tensor | ArrayLike,
    indices: Tensor | ArrayLike,
    values: Tensor | ArrayLike,
    /,
    *,
    axis: int = -1,
    name: str | None = None,
) -> Tensor: ...
@overload
def one_hot(indices: ArrayLike, /, *, out: Array | None = None, num_classes: int, to: str = "f32") -> Any: ...
@overload
def one_hot(
    indices: Tensor | ArrayLike, /, *, num_classes: int, to: str = "f32", name: str | None = None
) -> Tensor: ...
@overload
def conv2d(
    x: ArrayLike,
    w: ArrayLike,
    /,
    *,
    out: Array | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] | tuple[tuple[int, int], ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
) -> Any: ...
@overload
def conv2d(
    x: Tensor | ArrayLike,
    w: Tensor | ArrayLike,
    /,
    *,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] | tuple[tuple[int, int], ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
    name: str | None = None,
) -> Tensor: ...
@overload
def conv1d(
    x: ArrayLike,
    w: ArrayLike,
    /,
    *,
    out: Array | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] | tuple[tuple[int, int], ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
) -> Any: ...
@overload
def conv1d(
    x: Tensor | ArrayLike,
    w: Tensor | ArrayLike,
    /,
    *,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] | tuple[tuple[int, int], ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
    name: str | None = None,
) -> Tensor: ...
@overload
def conv_transpose2d(
    x: ArrayLike,
    w: ArrayLike,
    /,
    *,
    out: Array | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] | tuple[tuple[int, int], ...] = 0,
    output_padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
) -> Any: ...
@overload
def conv_transpose2d(
    x: Tensor | ArrayLike,
    w: Tensor | ArrayLike,
    /,
    *,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] | tuple[tuple[int, int], ...] = 0,
    output_padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
    name: str | None = None,
) -> Tensor: ...
@overload
def pool2d(
    x: ArrayLike,
    /,
    *,
    out: Array | None = None,
    kernel: int | tuple[int, int],
    mode: str = "max",
    stride: int | tuple[int, int] | None = None,
    padding: int | tuple[int, ...] | tuple[tuple[int, int], ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    include_pad: bool = True,
) -> Any: ...
@overload
def pool2d(
    x: Tensor | ArrayLike,
    /,
    *,
    kernel: int | tuple[int, int],
    mode: str = "max",
    stride: int | tuple[int, int] | None = None,
    padding: int | tuple[int, ...] | tuple[tuple[int, int], ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    include_pad: bool = True,
    name: str | None = None,
) -> Tensor: ...
@overload
def im2col(
    x: ArrayLike,
    /,
    *,
    out: Array | None = None,
    patch: int | tuple[int, int],
    stride: int | tuple[int, int] | None = None,
    padding: int | tuple[int, ...] | tuple[tuple[int, int], ...] = 0,
    dilation: int | tuple[int, ...] = 1,
) -> Any: ...
@overload
def im2col(
    x: Tensor | ArrayLike,
    /,
    *,
    patch: int | tuple[int, int],
    stride: int | tuple[int, int] | None = None,
    padding: int | tuple[int, ...] | tuple[tuple[int, int], ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    name: str | None = None,
) -> Tensor: ...
@overload
def resample(
    x: ArrayLike, first: ArrayLike, weights: ArrayLike, /, *, out: Array | None = None, axis: int = -1
) -> Any: ...
@overload
def resample(
    x: Tensor | ArrayLike,
    first: Tensor | ArrayLike,
    weights: Tensor | ArrayLike,
    /,
    *,
    axis: int = -1,
    name: str | None = None,
) -> Tensor: ...
@overload
def resize_nearest(x: ArrayLike, /, *, out: Array | None = None, scale: int | tuple[int, int]) -> Any: ...
@overload
def resize_nearest(x: Tensor | ArrayLike, /, *, scale: int | tuple[int, int], name: str | None = None) -> Tensor: ...
@overload
def resize_bilinear(
    x: ArrayLike,
    /,
    *,
    out: Array | None = None,
    size: tuple[int, int],
    antialias: bool = True,
    align_corners: bool = False,
) -> Any: ...
@overload
def resize_bilinear(
    x: Tensor | ArrayLike,
    /,
    *,
    size: tuple[int, int],
    antialias: bool = True,
    align_corners: bool = False,
    name: str | None = None,
) -> Tensor: ...
@overload
def resize_bicubic(
    x: ArrayLike,
    /,
    *,
    out: Array | None = None,
    size: tuple[int, int],
    antialias: bool = True,
    align_corners: bool = False,
) -> Any: ...
@overload
def resize_bicubic(
    x: Tensor | ArrayLike,
    /,
    *,
    size: tuple[int, int],
    antialias: bool = True,
    align_corners: bool = False,
    name: str | None = None,
) -> Tensor: ...
@overload
def flip(x: ArrayLike, /, *, out: Array | None = None, axis: int | tuple[int, ...] | None = None) -> Any: ...
@overload
def flip(x: Tensor | ArrayLike, /, *, axis: int | tuple[int, ...] | None = None, name: str | None = None) -> Tensor: ...
@overload
def roll(
    x: ArrayLike,
    /,
    *,
    out: Array | None = None,
    shift: int | tuple[int, ...],
    axis: int | tuple[int, ...] | None = None,
) -> Any: ...
@overload
def roll(
    x: Tensor | ArrayLike,
    /,
    *,
    shift: int | tuple[int, ...],
    axis: int | tuple[int, ...] | None = None,
    name: str | None = None,
) -> Tensor: ...
@overload
def tril(x: ArrayLike, /, *, out: Array | None = None, k: int = 0) -> Any: ...
@overload
def tril(x: Tensor | ArrayLike, /, *, k: int = 0, name: str | None = None) -> Tensor: ...
@overload
def triu(x: ArrayLike, /, *, out: Array | None = None, k: int = 0) -> Any: ...
@overload
def triu(x: Tensor | ArrayLike, /, *, k: int = 0, name: str | None = None) -> Tensor: ...
@overload
def arange(start: ArrayLike, step: ArrayLike, /, *, out: Array | None = None, size: int) -> Any: ...
@overload
def arange(start: Tensor | ArrayLike, step: Tensor | ArrayLike, /, *, size: int, name: str | None = None) -> Tensor: ...
@overload
def spatial_merge_2x2(x: ArrayLike, /, *, out: Array | None = None) -> Any: ...
@overload
def spatial_merge_2x2(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def moe_softmax_topk(
    logits: ArrayLike, /, *, out: Array | tuple[Array, ...] | None = None, top_k: int, normalize: bool = True
) -> tuple[Any, Any]: ...
@overload
def moe_softmax_topk(
    logits: Tensor | ArrayLike, /, *, top_k: int, normalize: bool = True, name: str | None = None
) -> tuple[Tensor, Tensor]: ...
@overload
def moe_route(
    logits: ArrayLike,
    /,
    *others: ArrayLike,
    out: Array | tuple[Array, ...] | None = None,
    top_k: int,
    score: str = "softmax",
    groups: int = 1,
    top_groups: int = 1,
    group_top: int = 2,
    normalize: bool = True,
    expert_scale: bool = False,
    renormalize: bool = False,
    scale: float = 1.0,
) -> tuple[Any, Any]: ...
@overload
def moe_route(
    logits: Tensor | ArrayLike,
    /,
    *others: Tensor | ArrayLike,
    top_k: int,
    score: str = "softmax",
    groups: int = 1,
    top_groups: int = 1,
    group_top: int = 2,
    normalize: bool = True,
    expert_scale: bool = False,
    renormalize: bool = False,
    scale: float = 1.0,
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def quantized_matmul_grouped(x: ArrayLike, w: ArrayLike, experts: ArrayLike, /, *, out: Array | None = None) -> Any: ...
@overload
def quantized_matmul_grouped(
    x: Tensor | ArrayLike, w: Tensor | ArrayLike, experts: Tensor | ArrayLike, /, *, name: str | None = None
) -> Tensor: ...
@overload
def moe_weighted_reduce(y: ArrayLike, weights: ArrayLike, /, *terms: ArrayLike, out: Array | None = None) -> Any: ...
@overload
def moe_weighted_reduce(
    y: Tensor | ArrayLike, weights: Tensor | ArrayLike, /, *terms: Tensor | ArrayLike, name: str | None = None
) -> Tensor: ...
@overload
def matmul_grouped(x: ArrayLike, w: ArrayLike, experts: ArrayLike, /, *, out: Array | None = None) -> Any: ...
@overload
def matmul_grouped(
    x: Tensor | ArrayLike, w: Tensor | ArrayLike, experts: Tensor | ArrayLike, /, *, name: str | None = None
) -> Tensor: ...
@overload
def moe_gate(
    x: ArrayLike,
    norm: ArrayLike,
    router: ArrayLike,
    scale: ArrayLike,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    top_k: int,
    eps: float,
    renormalize: bool = True,
) -> tuple[Any, Any]: ...
@overload
def moe_gate(
    x: Tensor | ArrayLike,
    norm: Tensor | ArrayLike,
    router: Tensor | ArrayLike,
    scale: Tensor | ArrayLike,
    /,
    *,
    top_k: int,
    eps: float,
    renormalize: bool = True,
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def moe_experts(
    x: ArrayLike,
    gate: ArrayLike,
    up: ArrayLike,
    down: ArrayLike,
    experts: ArrayLike,
    weights: ArrayLike,
    /,
    *,
    out: Array | None = None,
    act: str = "silu",
) -> Any: ...
@overload
def moe_experts(
    x: Tensor | ArrayLike,
    gate: Tensor | ArrayLike,
    up: Tensor | ArrayLike,
    down: Tensor | ArrayLike,
    experts: Tensor | ArrayLike,
    weights: Tensor | ArrayLike,
    /,
    *,
    act: str = "silu",
    name: str | None = None,
) -> Tensor: ...
@overload
def matmul_grouped_transposed(
    x: ArrayLike, w: ArrayLike, experts: ArrayLike, /, *, out: Array | None = None
) -> Any: ...
@overload
def matmul_grouped_transposed(
    x: Tensor | ArrayLike, w: Tensor | ArrayLike, experts: Tensor | ArrayLike, /, *, name: str | None = None
) -> Tensor: ...
@overload
def quantized_matmul_grouped_transposed(
    x: ArrayLike, w: ArrayLike, experts: ArrayLike, /, *, out: Array | None = None
) -> Any: ...
@overload
def quantized_matmul_grouped_transposed(
    x: Tensor | ArrayLike, w: Tensor | ArrayLike, experts: Tensor | ArrayLike, /, *, name: str | None = None
) -> Tensor: ...
@overload
def matmul_grouped_weights(
    x: ArrayLike, dy: ArrayLike, experts: ArrayLike, /, *, out: Array | None = None, n_experts: int
) -> Any: ...
@overload
def matmul_grouped_weights(
    x: Tensor | ArrayLike,
    dy: Tensor | ArrayLike,
    experts: Tensor | ArrayLike,
    /,
    *,
    n_experts: int,
    name: str | None = None,
) -> Tensor: ...
@overload
def argsort(
    x: ArrayLike, /, *, out: Array | None = None, axis: int = -1, descending: bool = False, to: str = "i32"
) -> Any: ...
@overload
def argsort(
    x: Tensor | ArrayLike, /, *, axis: int = -1, descending: bool = False, to: str = "i32", name: str | None = None
) -> Tensor: ...
@overload
def sort(x: ArrayLike, /, *, out: Array | None = None, axis: int = -1, descending: bool = False) -> Any: ...
@overload
def sort(x: Tensor | ArrayLike, /, *, axis: int = -1, descending: bool = False, name: str | None = None) -> Tensor: ...
@overload
def top_k(
    x: ArrayLike,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    k: int,
    axis: int = -1,
    largest: bool = True,
    to: str = "i32",
) -> tuple[Any, Any]: ...
@overload
def top_k(
    x: Tensor | ArrayLike, /, *, k: int, axis: int = -1, largest: bool = True, to: str = "i32", name: str | None = None
) -> tuple[Tensor, Tensor]: ...
@overload
def searchsorted(
    a: ArrayLike, v: ArrayLike, /, *, out: Array | None = None, side: str = "left", to: str = "i32"
) -> Any: ...
@overload
def searchsorted(
    a: Tensor | ArrayLike, v: Tensor | ArrayLike, /, *, side: str = "left", to: str = "i32", name: str | None = None
) -> Tensor: ...
@overload
def unique(x: ArrayLike, /, *, out: Array | tuple[Array, ...] | None = None) -> tuple[Any, Any, Any]: ...
@overload
def unique(x: Tensor | ArrayLike, /, *, name: str | None = None) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def outer(a: ArrayLike, b: ArrayLike, /, *, out: Array | None = None) -> Any: ...
@overload
def outer(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def triangular_solve(
    a: ArrayLike, b: ArrayLike, /, *, out: Array | None = None, lower: bool = True, unit_diagonal: bool = False
) -> Any: ...
@overload
def triangular_solve(
    a: Tensor | ArrayLike,
    b: Tensor | ArrayLike,
    /,
    *,
    lower: bool = True,
    unit_diagonal: bool = False,
    name: str | None = None,
) -> Tensor: ...
@overload
def cholesky(a: ArrayLike, /, *, out: Array | None = None) -> Any: ...
@overload
def cholesky(a: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def cumsum(
    x: ArrayLike, /, *, out: Array | None = None, axis: int = -1, reverse: bool = False, to: str | None = None
) -> Any: ...
@overload
def cumsum(
    x: Tensor | ArrayLike, /, *, axis: int = -1, reverse: bool = False, to: str | None = None, name: str | None = None
) -> Tensor: ...
@overload
def cumprod(
    x: ArrayLike, /, *, out: Array | None = None, axis: int = -1, reverse: bool = False, to: str | None = None
) -> Any: ...
@overload
def cumprod(
    x: Tensor | ArrayLike, /, *, axis: int = -1, reverse: bool = False, to: str | None = None, name: str | None = None
) -> Tensor: ...
@overload
def cummax(x: ArrayLike, /, *, out: Array | None = None, axis: int = -1, reverse: bool = False) -> Any: ...
@overload
def cummax(x: Tensor | ArrayLike, /, *, axis: int = -1, reverse: bool = False, name: str | None = None) -> Tensor: ...
@overload
def cummin(x: ArrayLike, /, *, out: Array | None = None, axis: int = -1, reverse: bool = False) -> Any: ...
@overload
def cummin(x: Tensor | ArrayLike, /, *, axis: int = -1, reverse: bool = False, name: str | None = None) -> Tensor: ...
@overload
def rms_norm_q8(
    x: ArrayLike,
    w: ArrayLike,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    eps: float,
    offset: float = 0.0,
    sums: tuple[tuple[int, int], ...],
    floats: bool = False,
) -> Any: ...
@overload
def rms_norm_q8(
    x: Tensor | ArrayLike,
    w: Tensor | ArrayLike,
    /,
    *,
    eps: float,
    offset: float = 0.0,
    sums: tuple[tuple[int, int], ...],
    floats: bool = False,
    name: str | None = None,
) -> Tensor | tuple[Tensor, ...]: ...
@overload
def residual_norm_q8(
    a: ArrayLike,
    b: ArrayLike,
    w: ArrayLike,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    eps: float,
    offset: float = 0.0,
    sums: tuple[tuple[int, int], ...],
    floats: bool = False,
) -> Any: ...
@overload
def residual_norm_q8(
    a: Tensor | ArrayLike,
    b: Tensor | ArrayLike,
    w: Tensor | ArrayLike,
    /,
    *,
    eps: float,
    offset: float = 0.0,
    sums: tuple[tuple[int, int], ...],
    floats: bool = False,
    name: str | None = None,
) -> Tensor | tuple[Tensor, ...]: ...
@overload
def silu_multiply_q8(
    gate: ArrayLike,
    up: ArrayLike,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    sums: tuple[tuple[int, int], ...],
    floats: bool = False,
) -> Any: ...
@overload
def silu_multiply_q8(
    gate: Tensor | ArrayLike,
    up: Tensor | ArrayLike,
    /,
    *,
    sums: tuple[tuple[int, int], ...],
    floats: bool = False,
    name: str | None = None,
) -> Tensor | tuple[Tensor, ...]: ...
@overload
def gelu_multiply_q8(
    gate: ArrayLike,
    up: ArrayLike,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
    sums: tuple[tuple[int, int], ...],
    floats: bool = False,
) -> Any: ...
@overload
def gelu_multiply_q8(
    gate: Tensor | ArrayLike,
    up: Tensor | ArrayLike,
    /,
    *,
    sums: tuple[tuple[int, int], ...],
    floats: bool = False,
    name: str | None = None,
) -> Tensor | tuple[Tensor, ...]: ...
@overload
def gated_delta_rule(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    g: ArrayLike,
    beta: ArrayLike,
    /,
    *state: ArrayLike,
    out: Array | tuple[Array, ...] | None = None,
    scale: float | None = None,
    l2_norm: bool = False,
) -> tuple[Any, Any]: ...
@overload
def gated_delta_rule(
    q: Tensor | ArrayLike,
    k: Tensor | ArrayLike,
    v: Tensor | ArrayLike,
    g: Tensor | ArrayLike,
    beta: Tensor | ArrayLike,
    /,
    *state: Tensor | ArrayLike,
    scale: float | None = None,
    l2_norm: bool = False,
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def delta_rule(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    beta: ArrayLike,
    /,
    *state: ArrayLike,
    out: Array | tuple[Array, ...] | None = None,
    scale: float | None = None,
    l2_norm: bool = False,
) -> tuple[Any, Any]: ...
@overload
def delta_rule(
    q: Tensor | ArrayLike,
    k: Tensor | ArrayLike,
    v: Tensor | ArrayLike,
    beta: Tensor | ArrayLike,
    /,
    *state: Tensor | ArrayLike,
    scale: float | None = None,
    l2_norm: bool = False,
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def gated_linear_attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    g: ArrayLike,
    /,
    *state: ArrayLike,
    out: Array | tuple[Array, ...] | None = None,
    scale: float | None = None,
) -> tuple[Any, Any]: ...
@overload
def gated_linear_attention(
    q: Tensor | ArrayLike,
    k: Tensor | ArrayLike,
    v: Tensor | ArrayLike,
    g: Tensor | ArrayLike,
    /,
    *state: Tensor | ArrayLike,
    scale: float | None = None,
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def delta_gates(
    alpha: ArrayLike,
    b: ArrayLike,
    a_log: ArrayLike,
    dt_bias: ArrayLike,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
) -> tuple[Any, Any]: ...
@overload
def delta_gates(
    alpha: Tensor | ArrayLike,
    b: Tensor | ArrayLike,
    a_log: Tensor | ArrayLike,
    dt_bias: Tensor | ArrayLike,
    /,
    *,
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def delta_chunk_kkt(k: ArrayLike, g: ArrayLike, beta: ArrayLike, /, *, out: Array | None = None) -> Any: ...
@overload
def delta_chunk_kkt(
    k: Tensor | ArrayLike, g: Tensor | ArrayLike, beta: Tensor | ArrayLike, /, *, name: str | None = None
) -> Tensor: ...
@overload
def delta_chunk_wu(
    t: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    g: ArrayLike,
    beta: ArrayLike,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
) -> tuple[Any, Any]: ...
@overload
def delta_chunk_wu(
    t: Tensor | ArrayLike,
    k: Tensor | ArrayLike,
    v: Tensor | ArrayLike,
    g: Tensor | ArrayLike,
    beta: Tensor | ArrayLike,
    /,
    *,
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def delta_chunk_state(
    k: ArrayLike,
    u: ArrayLike,
    w: ArrayLike,
    g: ArrayLike,
    state: ArrayLike,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
) -> tuple[Any, Any, Any]: ...
@overload
def delta_chunk_state(
    k: Tensor | ArrayLike,
    u: Tensor | ArrayLike,
    w: Tensor | ArrayLike,
    g: Tensor | ArrayLike,
    state: Tensor | ArrayLike,
    /,
    *,
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def delta_chunk_output(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    h: ArrayLike,
    g: ArrayLike,
    /,
    *,
    out: Array | None = None,
    scale: float = 1.0,
) -> Any: ...
@overload
def delta_chunk_output(
    q: Tensor | ArrayLike,
    k: Tensor | ArrayLike,
    v: Tensor | ArrayLike,
    h: Tensor | ArrayLike,
    g: Tensor | ArrayLike,
    /,
    *,
    scale: float = 1.0,
    name: str | None = None,
) -> Tensor: ...
@overload
def selective_scan(
    x: ArrayLike,
    dt: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike,
    d: ArrayLike,
    /,
    *state: ArrayLike,
    out: Array | tuple[Array, ...] | None = None,
) -> tuple[Any, Any]: ...
@overload
def selective_scan(
    x: Tensor | ArrayLike,
    dt: Tensor | ArrayLike,
    a: Tensor | ArrayLike,
    b: Tensor | ArrayLike,
    c: Tensor | ArrayLike,
    d: Tensor | ArrayLike,
    /,
    *state: Tensor | ArrayLike,
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def mamba2_ssd(
    x: ArrayLike,
    dt: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike,
    d: ArrayLike,
    /,
    *state: ArrayLike,
    out: Array | tuple[Array, ...] | None = None,
) -> tuple[Any, Any]: ...
@overload
def mamba2_ssd(
    x: Tensor | ArrayLike,
    dt: Tensor | ArrayLike,
    a: Tensor | ArrayLike,
    b: Tensor | ArrayLike,
    c: Tensor | ArrayLike,
    d: Tensor | ArrayLike,
    /,
    *state: Tensor | ArrayLike,
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def rwkv6_time_mix(
    r: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    w: ArrayLike,
    u: ArrayLike,
    /,
    *state: ArrayLike,
    out: Array | tuple[Array, ...] | None = None,
) -> tuple[Any, Any]: ...
@overload
def rwkv6_time_mix(
    r: Tensor | ArrayLike,
    k: Tensor | ArrayLike,
    v: Tensor | ArrayLike,
    w: Tensor | ArrayLike,
    u: Tensor | ArrayLike,
    /,
    *state: Tensor | ArrayLike,
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def rwkv7_time_mix(
    r: ArrayLike,
    w: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    /,
    *state: ArrayLike,
    out: Array | tuple[Array, ...] | None = None,
) -> tuple[Any, Any]: ...
@overload
def rwkv7_time_mix(
    r: Tensor | ArrayLike,
    w: Tensor | ArrayLike,
    k: Tensor | ArrayLike,
    v: Tensor | ArrayLike,
    a: Tensor | ArrayLike,
    b: Tensor | ArrayLike,
    /,
    *state: Tensor | ArrayLike,
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def gated_delta_rule_gradient(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    g: ArrayLike,
    beta: ArrayLike,
    state: ArrayLike,
    dy: ArrayLike,
    dstate: ArrayLike,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
) -> tuple[Any, Any, Any, Any, Any, Any]: ...
@overload
def gated_delta_rule_gradient(
    q: Tensor | ArrayLike,
    k: Tensor | ArrayLike,
    v: Tensor | ArrayLike,
    g: Tensor | ArrayLike,
    beta: Tensor | ArrayLike,
    state: Tensor | ArrayLike,
    dy: Tensor | ArrayLike,
    dstate: Tensor | ArrayLike,
    /,
    *,
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]: ...
@overload
def gated_linear_attention_gradient(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    g: ArrayLike,
    state: ArrayLike,
    dy: ArrayLike,
    dstate: ArrayLike,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
) -> tuple[Any, Any, Any, Any, Any]: ...
@overload
def gated_linear_attention_gradient(
    q: Tensor | ArrayLike,
    k: Tensor | ArrayLike,
    v: Tensor | ArrayLike,
    g: Tensor | ArrayLike,
    state: Tensor | ArrayLike,
    dy: Tensor | ArrayLike,
    dstate: Tensor | ArrayLike,
    /,
    *,
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]: ...
@overload
def selective_scan_gradient(
    x: ArrayLike,
    dt: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike,
    state: ArrayLike,
    dy: ArrayLike,
    dstate: ArrayLike,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
) -> tuple[Any, Any, Any, Any, Any, Any]: ...
@overload
def selective_scan_gradient(
    x: Tensor | ArrayLike,
    dt: Tensor | ArrayLike,
    a: Tensor | ArrayLike,
    b: Tensor | ArrayLike,
    c: Tensor | ArrayLike,
    state: Tensor | ArrayLike,
    dy: Tensor | ArrayLike,
    dstate: Tensor | ArrayLike,
    /,
    *,
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]: ...
@overload
def rwkv6_gradient(
    r: ArrayLike,
    w: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    state: ArrayLike,
    dy: ArrayLike,
    dstate: ArrayLike,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
) -> tuple[Any, Any, Any, Any, Any]: ...
@overload
def rwkv6_gradient(
    r: Tensor | ArrayLike,
    w: Tensor | ArrayLike,
    k: Tensor | ArrayLike,
    v: Tensor | ArrayLike,
    state: Tensor | ArrayLike,
    dy: Tensor | ArrayLike,
    dstate: Tensor | ArrayLike,
    /,
    *,
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]: ...
@overload
def rwkv7_gradient(
    r: ArrayLike,
    w: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    state: ArrayLike,
    dy: ArrayLike,
    dstate: ArrayLike,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
) -> tuple[Any, Any, Any, Any, Any, Any, Any]: ...
@overload
def rwkv7_gradient(
    r: Tensor | ArrayLike,
    w: Tensor | ArrayLike,
    k: Tensor | ArrayLike,
    v: Tensor | ArrayLike,
    a: Tensor | ArrayLike,
    b: Tensor | ArrayLike,
    state: Tensor | ArrayLike,
    dy: Tensor | ArrayLike,
    dstate: Tensor | ArrayLike,
    /,
    *,
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]: ...
@overload
def triangular_inverse(a: ArrayLike, /, *, out: Array | None = None) -> Any: ...
@overload
def triangular_inverse(a: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def conv1d_depthwise_causal(x: ArrayLike, w: ArrayLike, /, *, out: Array | None = None) -> Any: ...
@overload
def conv1d_depthwise_causal(x: Tensor | ArrayLike, w: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor: ...
@overload
def ssm_conv(
    x: ArrayLike,
    w: ArrayLike,
    state: ArrayLike,
    /,
    *bias: ArrayLike,
    out: Array | tuple[Array, ...] | None = None,
    activation: str = "silu",
) -> tuple[Any, Any]: ...
@overload
def ssm_conv(
    x: Tensor | ArrayLike,
    w: Tensor | ArrayLike,
    state: Tensor | ArrayLike,
    /,
    *bias: Tensor | ArrayLike,
    activation: str = "silu",
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def short_conv(
    b: ArrayLike,
    c: ArrayLike,
    x: ArrayLike,
    w: ArrayLike,
    state: ArrayLike,
    /,
    *,
    out: Array | tuple[Array, ...] | None = None,
) -> tuple[Any, Any]: ...
@overload
def short_conv(
    b: Tensor | ArrayLike,
    c: Tensor | ArrayLike,
    x: Tensor | ArrayLike,
    w: Tensor | ArrayLike,
    state: Tensor | ArrayLike,
    /,
    *,
    name: str | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def slot_rows(positions: ArrayLike, slots: ArrayLike, /, *, out: Array | None = None, n_slots: int) -> Any: ...
@overload
def slot_rows(
    positions: Tensor | ArrayLike, slots: Tensor | ArrayLike, /, *, n_slots: int, name: str | None = None
) -> Tensor: ...
@overload
def conv_slots(
    x: ArrayLike,
    w: ArrayLike,
    state: ArrayLike,
    rows: ArrayLike,
    /,
    *bias: ArrayLike,
    out: Array | None = None,
    activation: str = "none",
) -> Any: ...
@overload
def conv_slots(
    x: Tensor | ArrayLike,
    w: Tensor | ArrayLike,
    state: Tensor | ArrayLike,
    rows: Tensor | ArrayLike,
    /,
    *bias: Tensor | ArrayLike,
    activation: str = "none",
    name: str | None = None,
) -> Tensor: ...
@overload
def short_conv_slots(
    x: ArrayLike, w: ArrayLike, state: ArrayLike, rows: ArrayLike, /, *, out: Array | None = None
) -> Any: ...
@overload
def short_conv_slots(
    x: Tensor | ArrayLike,
    w: Tensor | ArrayLike,
    state: Tensor | ArrayLike,
    rows: Tensor | ArrayLike,
    /,
    *,
    name: str | None = None,
) -> Tensor: ...
@overload
def gated_delta_slots(
    qkv: ArrayLike,
    alpha: ArrayLike,
    beta: ArrayLike,
    a: ArrayLike,
    dt: ArrayLike,
    state: ArrayLike,
    rows: ArrayLike,
    /,
    *,
    out: Array | None = None,
    groups: int,
    tiled: bool = False,
) -> Any: ...
@overload
def gated_delta_slots(
    qkv: Tensor | ArrayLike,
    alpha: Tensor | ArrayLike,
    beta: Tensor | ArrayLike,
    a: Tensor | ArrayLike,
    dt: Tensor | ArrayLike,
    state: Tensor | ArrayLike,
    rows: Tensor | ArrayLike,
    /,
    *,
    groups: int,
    tiled: bool = False,
    name: str | None = None,
) -> Tensor: ...
@overload
def dplr_slots(
    r: ArrayLike,
    w: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    state: ArrayLike,
    rows: ArrayLike,
    /,
    *,
    out: Array | None = None,
) -> Any: ...
@overload
def dplr_slots(
    r: Tensor | ArrayLike,
    w: Tensor | ArrayLike,
    k: Tensor | ArrayLike,
    v: Tensor | ArrayLike,
    a: Tensor | ArrayLike,
    b: Tensor | ArrayLike,
    state: Tensor | ArrayLike,
    rows: Tensor | ArrayLike,
    /,
    *,
    name: str | None = None,
) -> Tensor: ...
@overload
def rwkv6_slots(
    r: ArrayLike,
    w: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    u: ArrayLike,
    state: ArrayLike,
    rows: ArrayLike,
    /,
    *,
    out: Array | None = None,
) -> Any: ...
@overload
def rwkv6_slots(
    r: Tensor | ArrayLike,
    w: Tensor | ArrayLike,
    k: Tensor | ArrayLike,
    v: Tensor | ArrayLike,
    u: Tensor | ArrayLike,
    state: Tensor | ArrayLike,
    rows: Tensor | ArrayLike,
    /,
    *,
    name: str | None = None,
) -> Tensor: ...
@overload
def selective_scan_slots(
    x: ArrayLike,
    dt: ArrayLike,
    b: ArrayLike,
    c: ArrayLike,
    a: ArrayLike,
    d: ArrayLike,
    bias: ArrayLike,
    state: ArrayLike,
    rows: ArrayLike,
    /,
    *,
    out: Array | None = None,
) -> Any: ...
@overload
def selective_scan_slots(
    x: Tensor | ArrayLike,
    dt: Tensor | ArrayLike,
    b: Tensor | ArrayLike,
    c: Tensor | ArrayLike,
    a: Tensor | ArrayLike,
    d: Tensor | ArrayLike,
    bias: Tensor | ArrayLike,
    state: Tensor | ArrayLike,
    rows: Tensor | ArrayLike,
    /,
    *,
    name: str | None = None,
) -> Tensor: ...
@overload
def ssd_slots(
    xbc: ArrayLike,
    dt: ArrayLike,
    a: ArrayLike,
    d: ArrayLike,
    bias: ArrayLike,
    state: ArrayLike,
    rows: ArrayLike,
    /,
    *,
    out: Array | None = None,
    groups: int,
) -> Any: ...
@overload
def ssd_slots(
    xbc: Tensor | ArrayLike,
    dt: Tensor | ArrayLike,
    a: Tensor | ArrayLike,
    d: Tensor | ArrayLike,
    bias: Tensor | ArrayLike,
    state: Tensor | ArrayLike,
    rows: Tensor | ArrayLike,
    /,
    *,
    groups: int,
    name: str | None = None,
) -> Tensor: ...
