"""The types of the ops as functions on tensors, camshaft.<op>. Written by scripts/stubs.py."""

from typing import Any, TypeAlias

import numpy as np

from camshaft.extent import Extent
from camshaft.graph.graph import Tensor

Array: TypeAlias = np.ndarray[Any, Any]

__all__ = [
    "abs",
    "add",
    "argmax",
    "argmin",
    "attention",
    "cast",
    "ceil",
    "clip",
    "concat",
    "copy",
    "cos",
    "divide",
    "dot",
    "embedding",
    "equal",
    "erf",
    "exp",
    "floor",
    "floor_divide",
    "gated_product",
    "gather",
    "gelu",
    "gelu_erf",
    "greater",
    "greater_equal",
    "isnan",
    "kv_cache_quantize",
    "kv_cache_update",
    "layer_norm",
    "less",
    "less_equal",
    "log",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "matmul",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "multiply",
    "negate",
    "not_equal",
    "outer",
    "power",
    "prod",
    "quantize_activations",
    "quantized_matmul",
    "reciprocal",
    "remainder",
    "repeat_penalty",
    "residual_norm",
    "residual_norm_q8",
    "rms_norm",
    "rms_norm_q8",
    "rope",
    "round",
    "rounded_matmul",
    "rsqrt",
    "sample",
    "sigmoid",
    "silu",
    "silu_multiply",
    "silu_multiply_q8",
    "sin",
    "softcap",
    "softmax",
    "split",
    "sqrt",
    "square",
    "subtract",
    "sum",
    "tanh",
    "transpose",
    "trunc",
    "where",
]

def rms_norm(
    x: Tensor | Array, w: Tensor | Array, /, *, eps: float, to: str = "f32", name: str | None = None
) -> Tensor:
    """y = x / sqrt(mean(x^2) + eps) * w."""

def layer_norm(
    x: Tensor | Array, w: Tensor | Array, b: Tensor | Array, /, *, eps: float, name: str | None = None
) -> Tensor:
    """y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * w + b."""

def residual_norm(
    a: Tensor | Array, b: Tensor | Array, w: Tensor | Array, /, *, eps: float, to: str = "f32", name: str | None = None
) -> tuple[Tensor, Tensor]:
    """s = a + b; y = s / sqrt(mean(s^2) + eps) * w."""

def softmax(x: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = exp(x - max(x)) / sum(exp(x - max(x)))."""

def matmul(
    a: Tensor | Array, b: Tensor | Array, /, *, transpose_b: bool = False, to: str = "f32", name: str | None = None
) -> Tensor:
    """out[.., i, j] = sum_k a[.., i, k] b[.., k, j]."""

def rounded_matmul(a: Tensor | Array, b: Tensor | Array, /, *, transpose_b: bool, name: str | None = None) -> Tensor:
    """out[.., i, j] = sum_k a[.., i, k] b[.., j, k], operands in int16 where that is faster."""

def quantize_activations(x: Tensor | Array, /, *, group: int = 32, zero: int = 0, name: str | None = None) -> Tensor:
    """d = max|x| / 127 over 32 k; q = round(x / d)."""

def quantized_matmul(x: Tensor | Array, w: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y[t, n] = sum_k x[t, k] dequantize(w)[n, k]."""

def gated_product(
    x: Tensor | Array, gate: Tensor | Array, up: Tensor | Array, /, *, sums: str, name: str | None = None
) -> Tensor | tuple[Tensor, ...]:
    """q8 of silu(x Wg) * (x Wu)."""

def embedding(ids: Tensor | Array, table: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y[t] = table[ids[t]]."""

def gather(x: Tensor | Array, rows: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y[i] = x[rows[i]]."""

def transpose(x: Tensor | Array, /, *, axes: tuple[int, ...] | None = None, name: str | None = None) -> Tensor:
    """y = x with its axes permuted."""

def silu_multiply(gate: Tensor | Array, up: Tensor | Array, /, *, to: str = "f32", name: str | None = None) -> Tensor:
    """y = gate / (1 + exp(-gate)) * up."""

def copy(x: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = x."""

def cast(x: Tensor | Array, /, *, to: str, name: str | None = None) -> Tensor:
    """y = x in another dtype."""

def rope(
    x: Tensor | Array,
    positions: Tensor | Array,
    table: Tensor | Array,
    /,
    *,
    heads: int,
    head_dim: int,
    pairing: str,
    name: str | None = None,
) -> Tensor:
    """(a, b) -> (a cos - b sin, a sin + b cos), the angle from table[position]."""

def kv_cache_update(
    k_cache: Tensor | Array,
    v_cache: Tensor | Array,
    k: Tensor | Array,
    v: Tensor | Array,
    positions: Tensor | Array,
    slots: Tensor | Array,
    block_table: Tensor | Array,
    /,
    *,
    kv_heads: int,
    head_dim: int,
    name: str | None = None,
) -> None:
    """K[table[s, p // 16], :, :, p % 16] = k; V[table[s, p // 16], :, p % 16] = v."""

def kv_cache_quantize(
    k_codes: Tensor | Array,
    v_codes: Tensor | Array,
    k_scales: Tensor | Array,
    v_scales: Tensor | Array,
    k: Tensor | Array,
    v: Tensor | Array,
    positions: Tensor | Array,
    slots: Tensor | Array,
    block_table: Tensor | Array,
    /,
    *,
    kv_heads: int,
    head_dim: int,
    name: str | None = None,
) -> None:
    """as kv_cache_update, each 32 of a head as d q: Q8_0 or Q4_0."""

def attention(
    q: Tensor | Array,
    k_cache: Tensor | Array,
    v_cache: Tensor | Array,
    positions: Tensor | Array,
    slots: Tensor | Array,
    block_table: Tensor | Array,
    /,
    *scales: Tensor | Array,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    length: int | Extent,
    name: str | None = None,
) -> Tensor:
    """softmax(scale q K^T) V over keys 0..position of the token's slot."""

def repeat_penalty(
    logits: Tensor | Array, ids: Tensor | Array, penalty: Tensor | Array, /, *, name: str | None = None
) -> Tensor:
    """y = l > 0 ? l / penalty : l * penalty for the tokens in ids, else l."""

def sample(
    logits: Tensor | Array,
    temperature: Tensor | Array,
    top_k: Tensor | Array,
    top_p: Tensor | Array,
    min_p: Tensor | Array,
    seed: Tensor | Array,
    /,
    *,
    name: str | None = None,
) -> Tensor:
    """y ~ softmax(logits / temperature) over the tokens that top_k, top_p and min_p keep."""

def add(a: Tensor | Array, b: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = a + b."""

def subtract(a: Tensor | Array, b: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = a - b."""

def multiply(a: Tensor | Array, b: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = a * b."""

def divide(a: Tensor | Array, b: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = a / b."""

def minimum(a: Tensor | Array, b: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = min(a, b), NaN where either is."""

def maximum(a: Tensor | Array, b: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = max(a, b), NaN where either is."""

def floor_divide(a: Tensor | Array, b: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = floor(a / b); of integers 0 where b is 0."""

def remainder(a: Tensor | Array, b: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = a - floor(a / b) b; of integers 0 where b is 0."""

def power(a: Tensor | Array, b: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = a^b; of integers to a negative power 0, but for 1 and -1."""

def negate(x: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = -x."""

def abs(x: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = |x|."""

def exp(x: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = e^x."""

def log(x: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = ln x."""

def sqrt(x: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = sqrt(x)."""

def rsqrt(x: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = 1 / sqrt(x)."""

def square(x: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = x^2."""

def reciprocal(x: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = 1 / x."""

def tanh(x: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = tanh x."""

def sigmoid(x: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = 1 / (1 + exp(-x))."""

def silu(x: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = x / (1 + exp(-x))."""

def gelu(x: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""

def gelu_erf(x: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = x / 2 (1 + erf(x / sqrt(2)))."""

def softcap(x: Tensor | Array, /, *, cap: float, name: str | None = None) -> Tensor:
    """y = cap tanh(x / cap)."""

def erf(x: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = erf x."""

def sin(x: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = sin x."""

def cos(x: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = cos x."""

def isnan(x: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = whether x is NaN."""

def ceil(x: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = the least integer >= x."""

def trunc(x: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = the integer part of x."""

def floor(x: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = the greatest integer <= x."""

def round(x: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = the nearest integer, ties to even."""

def equal(a: Tensor | Array, b: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = a = b."""

def not_equal(a: Tensor | Array, b: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = a != b."""

def less(a: Tensor | Array, b: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = a < b."""

def less_equal(a: Tensor | Array, b: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = a <= b."""

def greater(a: Tensor | Array, b: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = a > b."""

def greater_equal(a: Tensor | Array, b: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = a >= b."""

def where(condition: Tensor | Array, a: Tensor | Array, b: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = a where the condition holds, else b."""

def clip(x: Tensor | Array, low: Tensor | Array, high: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = min(max(x, low), high)."""

def logical_and(a: Tensor | Array, b: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = a and b."""

def logical_or(a: Tensor | Array, b: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = a or b."""

def logical_xor(a: Tensor | Array, b: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = a or b, not both."""

def logical_not(x: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = not x."""

def sum(
    x: Tensor | Array, /, *, axes: int | tuple[int, ...] | None = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """y = sum over axes of x."""

def mean(
    x: Tensor | Array, /, *, axes: int | tuple[int, ...] | None = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """y = sum over axes of x / their number."""

def prod(
    x: Tensor | Array, /, *, axes: int | tuple[int, ...] | None = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """y = product over axes of x."""

def max(
    x: Tensor | Array, /, *, axes: int | tuple[int, ...] | None = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """y = max over axes of x, NaN where there is one."""

def min(
    x: Tensor | Array, /, *, axes: int | tuple[int, ...] | None = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """y = min over axes of x, NaN where there is one."""

def dot(a: Tensor | Array, b: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y = sum_i a[i] b[i]."""

def argmax(
    x: Tensor | Array,
    /,
    *,
    axis: int | None = -1,
    keepdims: bool = False,
    nan_first: bool = False,
    name: str | None = None,
) -> Tensor:
    """y[r] = the least c with x[r, c] = max(x[r])."""

def argmin(
    x: Tensor | Array,
    /,
    *,
    axis: int | None = -1,
    keepdims: bool = False,
    nan_first: bool = False,
    name: str | None = None,
) -> Tensor:
    """y[r] = the least c with x[r, c] = min(x[r])."""

def concat(*tensors: Tensor | Array, axis: int = 0, name: str | None = None) -> Tensor:
    """y = the tensors joined along an axis."""

def split(
    x: Tensor | Array, /, *, sizes: tuple[int, ...], axis: int = 0, name: str | None = None
) -> Tensor | tuple[Tensor, ...]:
    """y, z, .. = x split along an axis."""

def outer(a: Tensor | Array, b: Tensor | Array, /, *, name: str | None = None) -> Tensor:
    """y[i, j] = a[i] b[j]."""

def rms_norm_q8(
    x: Tensor | Array, w: Tensor | Array, /, *, eps: float, sums: str, floats: bool = False, name: str | None = None
) -> Tensor | tuple[Tensor, ...]:
    """q8 of y = x / sqrt(mean(x^2) + eps) * w."""

def residual_norm_q8(
    a: Tensor | Array,
    b: Tensor | Array,
    w: Tensor | Array,
    /,
    *,
    eps: float,
    sums: str,
    floats: bool = False,
    name: str | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """q8 of s = a + b; y = s / sqrt(mean(s^2) + eps) * w."""

def silu_multiply_q8(
    gate: Tensor | Array, up: Tensor | Array, /, *, sums: str, floats: bool = False, name: str | None = None
) -> Tensor | tuple[Tensor, ...]:
    """q8 of y = gate / (1 + exp(-gate)) * up."""
