"""The types of the ops as functions on tensors of a graph. Written by scripts/stubs.py."""

from numpy.typing import ArrayLike

from camshaft.extent import Extent
from camshaft.graph.tensor import Tensor

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
) -> Tensor:
    """y = x / sqrt(mean(x^2) + eps) * (w + offset)."""

def layer_norm(
    x: Tensor | ArrayLike,
    w: Tensor | ArrayLike,
    b: Tensor | ArrayLike,
    /,
    *,
    eps: float,
    axis: int = -1,
    name: str | None = None,
) -> Tensor:
    """y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * w + b."""

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
) -> tuple[Tensor, Tensor]:
    """s = a + b; y = s / sqrt(mean(s^2) + eps) * (w + offset)."""

def softmax(x: Tensor | ArrayLike, /, *, axis: int = -1, name: str | None = None) -> Tensor:
    """y = exp(x - max(x)) / sum(exp(x - max(x)))."""

def log_softmax(x: Tensor | ArrayLike, /, *, axis: int = -1, name: str | None = None) -> Tensor:
    """y = x - max(x) - log(sum(exp(x - max(x))))."""

def l2_norm(x: Tensor | ArrayLike, /, *, eps: float = 1e-06, axis: int = -1, name: str | None = None) -> Tensor:
    """y = x / sqrt(sum(x^2) + eps)."""

def norm_gate(
    x: Tensor | ArrayLike,
    w: Tensor | ArrayLike,
    z: Tensor | ArrayLike,
    /,
    *,
    eps: float,
    offset: float = 0.0,
    name: str | None = None,
) -> Tensor:
    """y = x / sqrt(mean(x^2) + eps) * (w + offset) * z / (1 + exp(-z))."""

def norm_add(
    x: Tensor | ArrayLike,
    w: Tensor | ArrayLike,
    residual: Tensor | ArrayLike,
    /,
    *,
    eps: float,
    offset: float = 0.0,
    name: str | None = None,
) -> Tensor:
    """y = residual + x / sqrt(mean(x^2) + eps) * (w + offset)."""

def group_norm(
    x: Tensor | ArrayLike,
    w: Tensor | ArrayLike,
    b: Tensor | ArrayLike,
    /,
    *,
    groups: int,
    eps: float = 1e-05,
    name: str | None = None,
) -> Tensor:
    """y = (x - mean) / sqrt(mean((x - mean)^2) + eps) * w[c] + b[c] over each group of channels of [N, C, ..]."""

def layer_norm_2d(
    x: Tensor | ArrayLike,
    w: Tensor | ArrayLike,
    b: Tensor | ArrayLike,
    /,
    *,
    eps: float = 1e-05,
    name: str | None = None,
) -> Tensor:
    """y = (x - mean) / sqrt(mean((x - mean)^2) + eps) * w[c] + b[c] over channels of [N, C, ..]."""

def scale_mask_softmax(
    x: Tensor | ArrayLike, mask: Tensor | ArrayLike, /, *, scale: float = 1.0, name: str | None = None
) -> Tensor:
    """y = softmax(scale x + mask); a boolean mask is True where an element counts."""

def matmul(
    a: Tensor | ArrayLike,
    b: Tensor | ArrayLike,
    /,
    *,
    transpose_b: bool = False,
    to: str = "f32",
    precision: str = "f32",
    name: str | None = None,
) -> Tensor:
    """out[.., i, j] = sum_k a[.., i, k] b[.., k, j]."""

def batch_invariant_matmul(x: Tensor | ArrayLike, w: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y[i, j] = sum_k x[i, k] w[j, k], a row's bits the same for any number of rows."""

def rounded_matmul(
    a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, transpose_b: bool, name: str | None = None
) -> Tensor:
    """out[.., i, j] = sum_k a[.., i, k] b[.., j, k], operands in int16 where that is faster."""

def quantize_activations(
    x: Tensor | ArrayLike, /, *, group: int = 32, zero: int = 0, name: str | None = None
) -> Tensor:
    """d = max|x| / 127 over 32 k; q = round(x / d)."""

def quantized_matmul(x: Tensor | ArrayLike, w: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y[t, n] = sum_k x[t, k] dequantize(w)[n, k]."""

def quantized_matmul_transposed(x: Tensor | ArrayLike, w: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y[t, k] = sum_n x[t, n] dequantize(w)[n, k]."""

def gated_product(
    x: Tensor | ArrayLike,
    gate: Tensor | ArrayLike,
    up: Tensor | ArrayLike,
    /,
    *,
    sums: tuple[tuple[int, int], ...],
    act: str = "silu",
    name: str | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """q8 of act(x Wg) * (x Wu); act is silu or gelu."""

def dequantize(x: Tensor | ArrayLike, /, *, to: str = "f32", name: str | None = None) -> Tensor:
    """y[.., c] = the number that x stores for it."""

def unpack_codes(codes: Tensor | ArrayLike, /, *, code: str = "u4", to: str = "f32", name: str | None = None) -> Tensor:
    """y[r, c] = the number that code c of row r stands for."""

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
) -> Tensor:
    """y[r, c] = code[r, c] scale[r, g] + bias[r, g], g = c // group_size."""

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
) -> Tensor:
    """y[r, c] = number(code[r, c]) scale[r // group_rows, c // group_size] global_scale."""

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
) -> Tensor:
    """y[t, r] = sum_c x[t, c] (code[r, c] scale[r, g] + bias[r, g]), g = c // group_size."""

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
) -> Tensor:
    """y[t, r] = sum_c x[t, c] minifloat_dequantize(codes, scales, global_scale)[r, c]."""

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
) -> Tensor:
    """y[t, s, r] = sum_c x[t, (s,) c] affine_dequantize(codes, scales, biases)[experts[t, s], r, c]."""

def pack_codes(x: Tensor | ArrayLike, /, *, code: str = "u4", name: str | None = None) -> Tensor:
    """codes[r, c] = the code of the number nearest to x[r, c]."""

def affine_quantize(
    w: Tensor | ArrayLike, /, *, bits: int = 4, group_size: int = 64, name: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """codes, scales, biases of w[r, c] = code[r, c] scale[r, g] + bias[r, g], g = c // group_size."""

def quantize_dequantize_affine(
    w: Tensor | ArrayLike,
    scales: Tensor | ArrayLike,
    biases: Tensor | ArrayLike,
    /,
    *,
    bits: int = 4,
    group_size: int = 64,
    name: str | None = None,
) -> Tensor:
    """y = clip(round((w - bias) / scale), 0, 2^bits - 1) scale + bias, by groups of columns."""

def real(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = the real part of x."""

def imag(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = the imaginary part of x."""

def conj(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = x with its imaginary part negated."""

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
) -> Tensor:
    """y[r, f] = scale sum_t x[r, t] exp(-2 pi sqrt(-1) f t / n), + where inverse."""

def fft(
    x: Tensor | ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str | None = None, name: str | None = None
) -> Tensor:
    """y[f] = s sum_t x[t] exp(-2 pi sqrt(-1) f t / n)."""

def ifft(
    x: Tensor | ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str | None = None, name: str | None = None
) -> Tensor:
    """y[t] = s sum_f x[f] exp(2 pi sqrt(-1) f t / n)."""

def rfft(
    x: Tensor | ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str | None = None, name: str | None = None
) -> Tensor:
    """fft of real x, f up to n / 2; real at 0 and n / 2."""

def irfft(
    x: Tensor | ArrayLike, /, *, n: int | None = None, axis: int = -1, norm: str | None = None, name: str | None = None
) -> Tensor:
    """ifft where x[n - f] = conj x[f], a real result."""

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
) -> Tensor:
    """y[f, t] = sum_j window[j] x[t hop_length + j] exp(-2 pi sqrt(-1) f j / n_fft), f up to n_fft / 2."""

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
) -> Tensor:
    """y[m, t] = sum_f filters[m, f] x[f, t], triangles that are evenly spaced in mel."""

def quantize_dequantize_gguf(x: Tensor | ArrayLike, /, *, format: str = "Q4_0", name: str | None = None) -> Tensor:
    """y = dequantize(quantize(x)) in a GGUF format."""

def embedding(
    ids: Tensor | ArrayLike, table: Tensor | ArrayLike, /, *, to: str | None = None, name: str | None = None
) -> Tensor:
    """y[t] = table[ids[t]]."""

def gather(x: Tensor | ArrayLike, rows: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y[i] = x[rows[i]]."""

def transpose(x: Tensor | ArrayLike, /, *, axes: tuple[int, ...] | None = None, name: str | None = None) -> Tensor:
    """y = x with its axes permuted."""

def slice(
    x: Tensor | ArrayLike,
    /,
    *,
    starts: tuple[int, ...],
    sizes: tuple[int | None, ...],
    steps: tuple[int, ...] | None = None,
    name: str | None = None,
) -> Tensor:
    """y[i, ..] = x[start + i step, ..]."""

def silu_multiply(
    gate: Tensor | ArrayLike, up: Tensor | ArrayLike, /, *, to: str = "f32", name: str | None = None
) -> Tensor:
    """y = gate / (1 + exp(-gate)) * up."""

def copy(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = x."""

def cast(x: Tensor | ArrayLike, /, *, to: str, name: str | None = None) -> Tensor:
    """y = x in another dtype."""

def stop_gradient(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = x, a constant to derivatives."""

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
) -> Tensor:
    """(a, b) -> (a cos - b sin, a sin + b cos), the angle from table[position]."""

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
) -> Tensor:
    """(a, b) -> (a cos - b sin, a sin + b cos), the angle from table[position of the pair's section]."""

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
) -> Tensor:
    """(a, b) -> (a cos - b sin, a sin + b cos), the angle from table[row] in a head's first half, else table[column]."""

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
) -> Tensor:
    """(a, b) -> (a cos - b sin, a sin + b cos), the angle from table[x] in a head's first half, else table[y]."""

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
) -> Tensor:
    """rope with NeoX pairs of y[h] = x[h] / sqrt(mean(x[h]^2) + eps) * (w + offset), h a head."""

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
) -> None:
    """K[table[s, p // 16], :, :, p % 16] = k; V[table[s, p // 16], :, p % 16] = v."""

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
) -> None:
    """as kv_cache_update, each 32 of a head as d q: Q8_0 or Q4_0."""

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
) -> Tensor | tuple[Tensor, ...]:
    """softmax(scale q K^T) V over keys 0..position of the token's slot, or those that the options let it see."""

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
) -> Tensor | tuple[Tensor, ...]:
    """softmax(scale q K^T + mask) V per head of [batch, heads, length, size]."""

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
) -> tuple[Tensor, Tensor, Tensor]:
    """P = exp(scale q K^T - lse), dS = scale P (dy V^T - delta); dq = dS K, dk = dS^T q, dv = P^T dy."""

def hadamard(
    x: Tensor | ArrayLike, /, *signs: Tensor | ArrayLike, signs_after: bool = False, name: str | None = None
) -> Tensor:
    """y = H x / sqrt(d), H the Walsh-Hadamard matrix; signs multiply before, or after with `signs_after`."""

def turboquant_encode(
    x: Tensor | ArrayLike, signs: Tensor | ArrayLike, centroids: Tensor | ArrayLike, /, *, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """codes of the centroids nearest to H (s x) / |x|, packed, and the norms |x|, of rows of x."""

def turboquant_decode(
    codes: Tensor | ArrayLike,
    norms: Tensor | ArrayLike,
    centroids: Tensor | ArrayLike,
    /,
    *signs: Tensor | ArrayLike,
    name: str | None = None,
) -> Tensor:
    """y = centroid[code] norm / sqrt(d), still rotated; with signs x = s (H y) / sqrt(d)."""

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
) -> Tensor | tuple[Tensor, ...]:
    """softmax(scale q K^T) V over a paged cache of TurboQuant codes of K and V, or of V."""

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
) -> Tensor:
    """key j <= p, and j > p - window, for positions p = q_positions + offset: true, or 0 and -inf elsewhere."""

def attention_mask_tiles(
    mask: Tensor | ArrayLike, /, *, rows: int = 32, columns: int = 32, name: str | None = None
) -> Tensor:
    """per tile of a mask: 0 if all is masked, 1 if mixed, 2 if all is open, so that the mask need not be read."""

def repeat_penalty(
    logits: Tensor | ArrayLike, ids: Tensor | ArrayLike, penalty: Tensor | ArrayLike, /, *, name: str | None = None
) -> Tensor:
    """y = l > 0 ? l / penalty : l * penalty for the tokens in ids, else l."""

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
) -> Tensor:
    """y ~ softmax(logits / temperature) over the tokens that top_k, top_p and min_p keep."""

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
) -> Tensor:
    """as sample, of the tokens i whose bit i % 32 of word i // 32 of the mask is 1."""

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
) -> None:
    """m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; p -= lr (decay p + (m / c1) / (sqrt(v / c2) + eps)), c = 1 - b^step."""

def assign(state: Tensor | ArrayLike, x: Tensor | ArrayLike, /, *, name: str | None = None) -> None:
    """state = x."""

def cross_entropy(
    logits: Tensor | ArrayLike,
    target: Tensor | ArrayLike,
    /,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    name: str | None = None,
) -> Tensor:
    """y[r] = log(sum(exp(x[r]))) - x[r, target[r]]; their mean where not ignored, or sum."""

def dropout(x: Tensor | ArrayLike, seed: Tensor | ArrayLike, /, *, p: float = 0.5, name: str | None = None) -> Tensor:
    """y = x / (1 - p) where a random number from seed and the element's place is at least p, else 0."""

def cross_entropy_gradient(
    logits: Tensor | ArrayLike,
    target: Tensor | ArrayLike,
    dy: Tensor | ArrayLike,
    /,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    name: str | None = None,
) -> Tensor:
    """dx[r] = dy[r] (softmax(x[r]) - the smoothed target); 0 in ignored rows."""

def mse_loss(
    x: Tensor | ArrayLike, target: Tensor | ArrayLike, /, *, reduction: str = "mean", name: str | None = None
) -> Tensor:
    """(x - target)^2; their mean, or sum."""

def l1_loss(
    x: Tensor | ArrayLike, target: Tensor | ArrayLike, /, *, reduction: str = "mean", name: str | None = None
) -> Tensor:
    """|x - target|; their mean, or sum."""

def binary_cross_entropy_with_logits(
    x: Tensor | ArrayLike, target: Tensor | ArrayLike, /, *, reduction: str = "mean", name: str | None = None
) -> Tensor:
    """ln(1 + e^x) - x target; their mean, or sum."""

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
) -> tuple[Tensor, Tensor]:
    """y, ln p = distinct tokens ~ softmax(logits / temperature) over the kept, and their log-probabilities."""

def uniform(seed: Tensor | ArrayLike, /, *, n: int = 1, name: str | None = None) -> Tensor:
    """y[r, i] = a random number between 0 and 1 from seed[r] and i."""

def logit_bias(
    logits: Tensor | ArrayLike, ids: Tensor | ArrayLike, bias: Tensor | ArrayLike, /, *, name: str | None = None
) -> Tensor:
    """y = logits + the bias of the tokens in ids."""

def dry(
    logits: Tensor | ArrayLike,
    ids: Tensor | ArrayLike,
    multiplier: Tensor | ArrayLike,
    base: Tensor | ArrayLike,
    allowed_length: Tensor | ArrayLike,
    /,
    *,
    name: str | None = None,
) -> Tensor:
    """y = l - multiplier base^(L - allowed_length) for tokens that came after the last L >= allowed_length ids before."""

def top_n_sigma(logits: Tensor | ArrayLike, n_sigma: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """removes the tokens more than n_sigma standard deviations of the finite logits below the greatest (Tang et al., 2024)."""

def top_k_top_p(
    logits: Tensor | ArrayLike,
    top_k: Tensor | ArrayLike,
    top_p: Tensor | ArrayLike,
    min_p: Tensor | ArrayLike,
    /,
    *,
    name: str | None = None,
) -> Tensor:
    """keeps the tokens that sample's top_k, then top_p, then min_p keep at temperature 1."""

def typical_p(logits: Tensor | ArrayLike, p: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """keeps token i if those with a smaller |ln p + entropy| have at most the mass p together (Meister et al., 2022)."""

def xtc(
    logits: Tensor | ArrayLike,
    probability: Tensor | ArrayLike,
    threshold: Tensor | ArrayLike,
    seed: Tensor | ArrayLike,
    /,
    *,
    name: str | None = None,
) -> Tensor:
    """with the given probability, removes all tokens with p >= threshold but the least likely of them."""

def mirostat(logits: Tensor | ArrayLike, mu: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """removes the tokens with a surprise -log2 p above mu, but the likeliest (version 2; Basu et al., 2021)."""

def token_mask(logits: Tensor | ArrayLike, mask: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """removes the tokens i whose bit i % 32 of word i // 32 is 0."""

def mirostat_update(
    mu: Tensor | ArrayLike,
    logprob: Tensor | ArrayLike,
    tau: Tensor | ArrayLike,
    eta: Tensor | ArrayLike,
    /,
    *,
    name: str | None = None,
) -> Tensor:
    """y = mu - eta (-logprob / ln 2 - tau)."""

def add(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = a + b."""

def subtract(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = a - b."""

def multiply(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = a * b."""

def divide(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = a / b."""

def minimum(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = min(a, b), NaN where either is."""

def maximum(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = max(a, b), NaN where either is."""

def floor_divide(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = floor(a / b); of integers 0 where b is 0."""

def remainder(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = a - floor(a / b) b; of integers 0 where b is 0."""

def power(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = a^b; of integers to a negative power 0, but for 1 and -1."""

def negate(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = -x."""

def abs(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = |x|."""

def exp(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = e^x."""

def log(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = ln x."""

def sqrt(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = sqrt(x)."""

def rsqrt(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = 1 / sqrt(x)."""

def square(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = x^2."""

def reciprocal(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = 1 / x; of integers 0 but for 1 and -1."""

def tanh(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = tanh x."""

def erf(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = erf x."""

def sin(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = sin x."""

def cos(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = cos x."""

def tan(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = tan x."""

def isnan(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = whether x is NaN."""

def ceil(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = the least integer >= x."""

def trunc(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = the integer part of x."""

def floor(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = the greatest integer <= x."""

def round(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = the nearest integer, ties to even."""

def equal(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = a = b."""

def not_equal(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = a != b."""

def less(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = a < b."""

def less_equal(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = a <= b."""

def greater(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = a > b."""

def greater_equal(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = a >= b."""

def where(
    condition: Tensor | ArrayLike, a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None
) -> Tensor:
    """y = a where the condition holds, else b."""

def clip(
    x: Tensor | ArrayLike, low: Tensor | ArrayLike, high: Tensor | ArrayLike, /, *, name: str | None = None
) -> Tensor:
    """y = min(max(x, low), high)."""

def logical_and(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = a and b."""

def logical_or(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = a or b."""

def logical_xor(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = a or b, not both."""

def logical_not(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = not x."""

def sigmoid(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = 1 / (1 + exp(-x))."""

def silu(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = x / (1 + exp(-x))."""

def gelu(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""

def gelu_erf(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = x / 2 (1 + erf(x / sqrt(2)))."""

def softcap(x: Tensor | ArrayLike, /, *, cap: float, name: str | None = None) -> Tensor:
    """y = cap tanh(x / cap)."""

def log1p(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = ln(1 + x), exact near 0."""

def expm1(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = e^x - 1, exact near 0."""

def softplus(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = ln(1 + e^x)."""

def relu(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = max(x, 0)."""

def leaky_relu(x: Tensor | ArrayLike, /, *, negative_slope: float = 0.01, name: str | None = None) -> Tensor:
    """y = x, below 0 negative_slope x."""

def elu(x: Tensor | ArrayLike, /, *, alpha: float = 1.0, name: str | None = None) -> Tensor:
    """y = x, below 0 alpha (e^x - 1)."""

def hard_swish(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = x min(max(x / 6 + 1/2, 0), 1)."""

def mish(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = x tanh(ln(1 + e^x))."""

def sigmoid_multiply(x: Tensor | ArrayLike, gate: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = x / (1 + exp(-gate))."""

def gelu_multiply(gate: Tensor | ArrayLike, up: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = gate / 2 (1 + tanh(sqrt(2 / pi) (gate + 0.044715 gate^3))) up."""

def sum(
    x: Tensor | ArrayLike,
    /,
    *,
    axes: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    name: str | None = None,
) -> Tensor:
    """y = sum over axes of x."""

def mean(
    x: Tensor | ArrayLike,
    /,
    *,
    axes: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    name: str | None = None,
) -> Tensor:
    """y = sum over axes of x / their number."""

def prod(
    x: Tensor | ArrayLike,
    /,
    *,
    axes: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    name: str | None = None,
) -> Tensor:
    """y = product over axes of x."""

def max(
    x: Tensor | ArrayLike,
    /,
    *,
    axes: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    name: str | None = None,
) -> Tensor:
    """y = max over axes of x, NaN where there is one."""

def min(
    x: Tensor | ArrayLike,
    /,
    *,
    axes: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    name: str | None = None,
) -> Tensor:
    """y = min over axes of x, NaN where there is one."""

def dot(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y = sum_i a[i] b[i]."""

def argmax(
    x: Tensor | ArrayLike,
    /,
    *,
    axis: int | None = -1,
    keepdims: bool = False,
    nan_first: bool = True,
    to: str = "i32",
    name: str | None = None,
) -> Tensor:
    """y[r] = the least c with x[r, c] = max(x[r])."""

def argmin(
    x: Tensor | ArrayLike,
    /,
    *,
    axis: int | None = -1,
    keepdims: bool = False,
    nan_first: bool = True,
    to: str = "i32",
    name: str | None = None,
) -> Tensor:
    """y[r] = the least c with x[r, c] = min(x[r])."""

def max_with_index(
    x: Tensor | ArrayLike, /, *, axis: int = -1, keepdims: bool = False, to: str = "i32", name: str | None = None
) -> tuple[Tensor, Tensor]:
    """y, i = max of x along an axis and the least i with x[i] = y."""

def concat(*tensors: Tensor | ArrayLike, axis: int = 0, name: str | None = None) -> Tensor:
    """y = the tensors joined along an axis."""

def split(
    x: Tensor | ArrayLike, /, *, sizes: tuple[int, ...], axis: int = 0, name: str | None = None
) -> Tensor | tuple[Tensor, ...]:
    """y, z, .. = x split along an axis."""

def broadcast_to(x: Tensor | ArrayLike, /, *, shape: tuple[int | None, ...], name: str | None = None) -> Tensor:
    """y = x, repeated along axes of size 1 and new ones in front."""

def repeat(x: Tensor | ArrayLike, /, *, repeats: int, axis: int | None = None, name: str | None = None) -> Tensor:
    """y[.., i, ..] = x[.., floor(i / repeats), ..]; without an axis of the flat x."""

def tile(x: Tensor | ArrayLike, /, *, reps: int | tuple[int, ...], name: str | None = None) -> Tensor:
    """y[i, ..] = x[i mod n, ..]: x reps times along each axis."""

def repeat_tiled(x: Tensor | ArrayLike, /, *, heads: int, axis: int = 1, name: str | None = None) -> Tensor:
    """y[t, h] = x[t, h mod n]: the n heads of x one after the other, `heads` in all."""

def pad(
    x: Tensor | ArrayLike,
    /,
    *,
    pad_width: int | tuple[int, int] | tuple[tuple[int, int], ...],
    mode: str = "constant",
    constant_values: float = 0,
    name: str | None = None,
) -> Tensor:
    """y[i, ..] = x[i - before, ..] where that is in x, else a constant or what `mode` takes of x."""

def take_along_axis(
    x: Tensor | ArrayLike, indices: Tensor | ArrayLike, /, *, axis: int = -1, name: str | None = None
) -> Tensor:
    """y[.., i, ..] = x[.., indices[.., i, ..], ..]."""

def scatter_add(
    x: Tensor | ArrayLike,
    indices: Tensor | ArrayLike,
    values: Tensor | ArrayLike,
    /,
    *,
    axis: int = -1,
    name: str | None = None,
) -> Tensor:
    """y = x, then y[.., indices[.., i, ..], ..] += values[.., i, ..]."""

def put(
    x: Tensor | ArrayLike,
    indices: Tensor | ArrayLike,
    values: Tensor | ArrayLike,
    /,
    *,
    axis: int = -1,
    name: str | None = None,
) -> Tensor:
    """y = x, then y[.., indices[.., i, ..], ..] = values[.., i, ..], of duplicates the last."""

def one_hot(indices: Tensor | ArrayLike, /, *, num_classes: int, to: str = "f32", name: str | None = None) -> Tensor:
    """y[.., c] = 1 where c = indices[..], else 0."""

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
) -> Tensor:
    """y[n, o, i, j] = sum_(c, r, s) x[n, c, i stride + r dilation, j stride + s dilation] w[o, c, r, s]."""

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
) -> Tensor:
    """y[n, o, i] = sum_(c, r) x[n, c, i stride + r dilation] w[o, c, r]."""

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
) -> Tensor:
    """y[n, o, i stride + r dilation, j stride + s dilation] += x[n, c, i, j] w[c, o, r, s]."""

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
) -> Tensor:
    """y[n, c, i, j] = max or average over (r, s) of x[n, c, i stride + r dilation, j stride + s dilation]."""

def im2col(
    x: Tensor | ArrayLike,
    /,
    *,
    patch: int | tuple[int, int],
    stride: int | tuple[int, int] | None = None,
    padding: int | tuple[int, ...] | tuple[tuple[int, int], ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    name: str | None = None,
) -> Tensor:
    """y[(i, j), (c, r, s)] = x[c, i stride + r dilation, j stride + s dilation]."""

def resample(
    x: Tensor | ArrayLike,
    first: Tensor | ArrayLike,
    weights: Tensor | ArrayLike,
    /,
    *,
    axis: int = -1,
    name: str | None = None,
) -> Tensor:
    """y[.., i, ..] = sum_t weights[i, t] x[.., first[i] + t, ..]."""

def resize_nearest(x: Tensor | ArrayLike, /, *, scale: int | tuple[int, int], name: str | None = None) -> Tensor:
    """y[.., i, j] = x[.., floor(i / scale), floor(j / scale)]."""

def resize_bilinear(
    x: Tensor | ArrayLike,
    /,
    *,
    size: tuple[int, int],
    antialias: bool = True,
    align_corners: bool = False,
    name: str | None = None,
) -> Tensor:
    """y = x resized to `size` by triangle filters, wider where x shrinks."""

def resize_bicubic(
    x: Tensor | ArrayLike,
    /,
    *,
    size: tuple[int, int],
    antialias: bool = True,
    align_corners: bool = False,
    name: str | None = None,
) -> Tensor:
    """y = x resized to `size` by cubic filters, wider where x shrinks."""

def flip(x: Tensor | ArrayLike, /, *, axis: int | tuple[int, ...] | None = None, name: str | None = None) -> Tensor:
    """y = x with the order of its elements reversed along the axes, by default all."""

def roll(
    x: Tensor | ArrayLike,
    /,
    *,
    shift: int | tuple[int, ...],
    axis: int | tuple[int, ...] | None = None,
    name: str | None = None,
) -> Tensor:
    """y[.., i, ..] = x[.., (i - shift) mod n, ..]; without an axis of the flat x."""

def tril(x: Tensor | ArrayLike, /, *, k: int = 0, name: str | None = None) -> Tensor:
    """y[.., r, c] = x[.., r, c] where c - r <= k, else 0."""

def triu(x: Tensor | ArrayLike, /, *, k: int = 0, name: str | None = None) -> Tensor:
    """y[.., r, c] = x[.., r, c] where c - r >= k, else 0."""

def arange(start: Tensor | ArrayLike, step: Tensor | ArrayLike, /, *, size: int, name: str | None = None) -> Tensor:
    """y[i] = start + i step, for `size` elements."""

def spatial_merge_2x2(x: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y [ny nx, C] = x [ny, nx, C], one 2 x 2 block after the other, row-major within each."""

def moe_softmax_topk(
    logits: Tensor | ArrayLike, /, *, top_k: int, normalize: bool = True, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """p = softmax(logits[t]); experts[t] = the top_k greatest p; weights[t] = p[experts[t]], divided by their sum."""

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
) -> tuple[Tensor, Tensor]:
    """s = score(logits[t]); e = the top_k greatest s + bias in the best groups; weights[t] = scale s[e] / sum s[e]."""

def quantized_matmul_grouped(
    x: Tensor | ArrayLike, w: Tensor | ArrayLike, experts: Tensor | ArrayLike, /, *, name: str | None = None
) -> Tensor:
    """y[t, s, n] = sum_k x[t, (s,) k] dequantize(w)[experts[t, s], n, k]."""

def moe_weighted_reduce(
    y: Tensor | ArrayLike, weights: Tensor | ArrayLike, /, *terms: Tensor | ArrayLike, name: str | None = None
) -> Tensor:
    """out[t] = sum_s weights[t, s] y[t, s] + sum of terms [t], each times the sigmoid of the gate after it."""

def matmul_grouped(
    x: Tensor | ArrayLike, w: Tensor | ArrayLike, experts: Tensor | ArrayLike, /, *, name: str | None = None
) -> Tensor:
    """y[t, s, n] = sum_k x[t, (s,) k] w[experts[t, s], n, k]."""

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
) -> tuple[Tensor, Tensor]:
    """p = rms_norm(x) router^T; experts = the top_k greatest p; w = softmax(p[experts]) scale[experts], divided by their sum."""

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
) -> Tensor:
    """y[t] = sum_s weights[t, s] down_e (act(gate_e x[t]) * (up_e x[t])), e = experts[t, s]."""

def matmul_grouped_transposed(
    x: Tensor | ArrayLike, w: Tensor | ArrayLike, experts: Tensor | ArrayLike, /, *, name: str | None = None
) -> Tensor:
    """y[t, s, k] = sum_n x[t, s, n] w[experts[t, s], n, k]."""

def quantized_matmul_grouped_transposed(
    x: Tensor | ArrayLike, w: Tensor | ArrayLike, experts: Tensor | ArrayLike, /, *, name: str | None = None
) -> Tensor:
    """y[t, s, k] = sum_n x[t, s, n] dequantize(w)[experts[t, s], n, k]."""

def matmul_grouped_weights(
    x: Tensor | ArrayLike,
    dy: Tensor | ArrayLike,
    experts: Tensor | ArrayLike,
    /,
    *,
    n_experts: int,
    name: str | None = None,
) -> Tensor:
    """dw[e, n, k] = sum of dy[t, s, n] x[t, (s,) k] over the (t, s) with experts[t, s] = e."""

def argsort(
    x: Tensor | ArrayLike, /, *, axis: int = -1, descending: bool = False, to: str = "i32", name: str | None = None
) -> Tensor:
    """y[i] = the index of the element that i others precede; stable, NaN greatest."""

def sort(x: Tensor | ArrayLike, /, *, axis: int = -1, descending: bool = False, name: str | None = None) -> Tensor:
    """y[i] = the element that i others precede; NaN greatest."""

def top_k(
    x: Tensor | ArrayLike, /, *, k: int, axis: int = -1, largest: bool = True, to: str = "i32", name: str | None = None
) -> tuple[Tensor, Tensor]:
    """y, i = the k greatest (least) elements and their indexes; ties to the smaller index, NaN greatest."""

def searchsorted(
    a: Tensor | ArrayLike, v: Tensor | ArrayLike, /, *, side: str = "left", to: str = "i32", name: str | None = None
) -> Tensor:
    """y = the number of i with a[i] < v, or a[i] <= v if side is right."""

def unique(x: Tensor | ArrayLike, /, *, name: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """values, counts, number: the different values of x in order, padded to x's size with counts of 0."""

def outer(a: Tensor | ArrayLike, b: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y[i, j] = a[i] b[j]."""

def triangular_solve(
    a: Tensor | ArrayLike,
    b: Tensor | ArrayLike,
    /,
    *,
    lower: bool = True,
    unit_diagonal: bool = False,
    name: str | None = None,
) -> Tensor:
    """x = a^-1 b for triangular a; the other triangle is not read, nor the diagonal if it is unit."""

def cholesky(a: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """l lower triangular with l l^T = a."""

def cumsum(
    x: Tensor | ArrayLike, /, *, axis: int = -1, reverse: bool = False, to: str | None = None, name: str | None = None
) -> Tensor:
    """y[i] = sum over j <= i of x[j], or over j >= i if reverse."""

def cumprod(
    x: Tensor | ArrayLike, /, *, axis: int = -1, reverse: bool = False, to: str | None = None, name: str | None = None
) -> Tensor:
    """y[i] = product over j <= i of x[j], or over j >= i if reverse."""

def cummax(x: Tensor | ArrayLike, /, *, axis: int = -1, reverse: bool = False, name: str | None = None) -> Tensor:
    """y[i] = max over j <= i of x[j], or over j >= i if reverse; NaN from the first NaN on."""

def cummin(x: Tensor | ArrayLike, /, *, axis: int = -1, reverse: bool = False, name: str | None = None) -> Tensor:
    """y[i] = min over j <= i of x[j], or over j >= i if reverse; NaN from the first NaN on."""

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
) -> Tensor | tuple[Tensor, ...]:
    """q8 of y = x / sqrt(mean(x^2) + eps) * (w + offset)."""

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
) -> Tensor | tuple[Tensor, ...]:
    """q8 of s = a + b; y = s / sqrt(mean(s^2) + eps) * (w + offset)."""

def silu_multiply_q8(
    gate: Tensor | ArrayLike,
    up: Tensor | ArrayLike,
    /,
    *,
    sums: tuple[tuple[int, int], ...],
    floats: bool = False,
    name: str | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """q8 of y = gate / (1 + exp(-gate)) * up."""

def gelu_multiply_q8(
    gate: Tensor | ArrayLike,
    up: Tensor | ArrayLike,
    /,
    *,
    sums: tuple[tuple[int, int], ...],
    floats: bool = False,
    name: str | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """q8 of y = gate / 2 (1 + tanh(sqrt(2 / pi) (gate + 0.044715 gate^3))) up."""

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
) -> tuple[Tensor, Tensor]:
    """S = exp(g) S; d = beta (v - k.T S); S += outer(k, d); o = scale q.T S; the last S."""

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
) -> tuple[Tensor, Tensor]:
    """d = beta (v - k.T S); S += outer(k, d); o = scale q.T S; the last S."""

def gated_linear_attention(
    q: Tensor | ArrayLike,
    k: Tensor | ArrayLike,
    v: Tensor | ArrayLike,
    g: Tensor | ArrayLike,
    /,
    *state: Tensor | ArrayLike,
    scale: float | None = None,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """S = exp(g) S + outer(k, v); o = scale q.T S; the last S."""

def delta_gates(
    alpha: Tensor | ArrayLike,
    b: Tensor | ArrayLike,
    a_log: Tensor | ArrayLike,
    dt_bias: Tensor | ArrayLike,
    /,
    *,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """g = -exp(a_log) softplus(alpha + dt_bias), a log decay; beta = sigmoid(b)."""

def delta_chunk_kkt(
    k: Tensor | ArrayLike, g: Tensor | ArrayLike, beta: Tensor | ArrayLike, /, *, name: str | None = None
) -> Tensor:
    """A[i, j] = beta_i (k_i . k_j) exp(g_i - g_j) for i > j, else 0."""

def delta_chunk_wu(
    t: Tensor | ArrayLike,
    k: Tensor | ArrayLike,
    v: Tensor | ArrayLike,
    g: Tensor | ArrayLike,
    beta: Tensor | ArrayLike,
    /,
    *,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """u = T (beta v); w = T (beta exp(g) k)."""

def delta_chunk_state(
    k: Tensor | ArrayLike,
    u: Tensor | ArrayLike,
    w: Tensor | ArrayLike,
    g: Tensor | ArrayLike,
    state: Tensor | ArrayLike,
    /,
    *,
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """v' = u - w h; h = exp(g_last) h + k.T (exp(g_last - g) v'); v', h at chunk starts, the last h."""

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
) -> Tensor:
    """o = scale (exp(g) (q h) + tril(q k.T exp(g_i - g_j)) v'), diagonal included."""

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
) -> tuple[Tensor, Tensor]:
    """h = exp(dt a) h + dt x B; y = C . h + D x; the last h."""

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
) -> tuple[Tensor, Tensor]:
    """h = exp(dt a) h + outer(dt x, B); y = h C + D x, per head; the last h."""

def rwkv6_time_mix(
    r: Tensor | ArrayLike,
    k: Tensor | ArrayLike,
    v: Tensor | ArrayLike,
    w: Tensor | ArrayLike,
    u: Tensor | ArrayLike,
    /,
    *state: Tensor | ArrayLike,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """o = r.T (S + diag(u) outer(k, v)); S = diag(exp(w)) S + outer(k, v); the last S."""

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
) -> tuple[Tensor, Tensor]:
    """S = diag(exp(w)) S + outer(b, a.T S) + outer(k, v); o = r.T S; the last S."""

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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """dq = S do; r = G.T k; dv = beta r; dk = G d - exp(g) S dv; G = exp(g) (G - outer(k, dv)), backward."""

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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """G += outer(q, do); dq = S do; dk = G v; dv = G.T k; G = exp(g) G, backward."""

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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """G += C dy; dC += h dy; dB += dt x G; dx = dt B . G; ddt = x B . G + sum G h exp(dt a) a, backward."""

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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """dr = S do; dk = G v; dv = G.T k; dw = exp(w) sum_v G S; G = diag(exp(w)) G + outer(r, do)."""

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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """G += outer(r, do); dr = S' do; dk = G v; db = G (a.T S); G = diag(exp(w)) G + outer(a, G.T b)."""

def triangular_inverse(a: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """T = (I + A)^-1, A strictly lower."""

def conv1d_depthwise_causal(x: Tensor | ArrayLike, w: Tensor | ArrayLike, /, *, name: str | None = None) -> Tensor:
    """y[b, t, c] = sum_j w[c, j] x[b, t + j - (J - 1), c], zeros before."""

def ssm_conv(
    x: Tensor | ArrayLike,
    w: Tensor | ArrayLike,
    state: Tensor | ArrayLike,
    /,
    *bias: Tensor | ArrayLike,
    activation: str = "silu",
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """y[b, t, c] = silu(sum_j w[c, j] x[b, t + j - (J - 1), c] + bias[c]), the state before; the last J - 1 rows."""

def short_conv(
    b: Tensor | ArrayLike,
    c: Tensor | ArrayLike,
    x: Tensor | ArrayLike,
    w: Tensor | ArrayLike,
    state: Tensor | ArrayLike,
    /,
    *,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """y = c conv(b x), causal and depthwise, the state before; the last J - 1 rows of b x."""

def slot_rows(
    positions: Tensor | ArrayLike, slots: Tensor | ArrayLike, /, *, n_slots: int, name: str | None = None
) -> Tensor:
    """the first row of each slot, the one after its last, and whether the first has position 0."""

def conv_slots(
    x: Tensor | ArrayLike,
    w: Tensor | ArrayLike,
    state: Tensor | ArrayLike,
    rows: Tensor | ArrayLike,
    /,
    *bias: Tensor | ArrayLike,
    activation: str = "none",
    name: str | None = None,
) -> Tensor:
    """y[t, c] = act(sum_j w[j, c] x[t + j - (J - 1), c] + bias[c]), the slot's state before; the last J - 1 rows."""

def short_conv_slots(
    x: Tensor | ArrayLike,
    w: Tensor | ArrayLike,
    state: Tensor | ArrayLike,
    rows: Tensor | ArrayLike,
    /,
    *,
    name: str | None = None,
) -> Tensor:
    """y = c conv(b x), for x [b, c, x] and the slot's state before; the last J - 1 rows of b x."""

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
) -> Tensor:
    """S = exp(a softplus(alpha + dt)) S; S += outer(k, sigmoid(beta) (v - k.T S)); o = q.T S / sqrt(K), S of the slot."""

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
) -> Tensor:
    """S = diag(w) S + outer(b, a.T S) + outer(k, v); o = r.T S, S of the slot."""

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
) -> Tensor:
    """o = r.T (S + diag(u) outer(k, v)); S = diag(w) S + outer(k, v), S of the slot."""

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
) -> Tensor:
    """h = exp(s a) h + s x B; y = C . h + D x, s = softplus(dt + bias), h of the slot."""

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
) -> Tensor:
    """S = exp(s a) S + outer(B, s x); y = C.T S + D x, s = softplus(dt + bias), S of the slot."""
