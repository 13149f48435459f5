"""Which operations of tests/data/ops.tsv each op answers: the table that says how far the list is done.

A row is named 'seed/name'. It stands here once its whole meaning is computed: dtypes, forms, and the gradient if it asks for one.
"""

from __future__ import annotations

_CASTS, _REDUCTIONS = "mlx/elementwise", "dispatch/kernel_reduction_simd"
ANSWERS: dict[str, tuple[str, ...]] = {
    "rms_norm": ("trueno/dispatch_rms_norm", "mlx/rms_norm"),
    "matmul": ("mlx/dense_gemm", "mlx/dense_gemv_bf16", "mlx/dense_mm_bf16/f16/f32_f32"),
    "quantized_matmul": ("trueno/dispatch_mul_mat", "rlx/dequant_matmul_gguf", "mlx/mul_mv_ext"),
    "embedding": ("mlx/embedding",),
    "residual_norm": ("mlx/fused_residual_norm",),
    "copy": ("mlx/copy",),
    "gather": ("mlx/gather",),
    "argmax": ("mlx/argmax", _REDUCTIONS),
    "softmax": ("mlx/softmax",),
    "rope": ("trueno/dispatch_rope",),
    "kv_cache_update": ("trueno/dispatch_copy",),
    "sample": ("rlx/sample (thunk variant)",),
    "attention": (
        "trueno/dispatch_attention",
        "mlx/flash_attn_vec",
        "mlx/flash_attn_vec_peer_port_f16",
        "mlx/sdpa",
        "mlx/sdpa_decode",
    ),
    "cast": (_CASTS,),
    "transpose": ("mlx/transpose",),
    "concat": ("mlx/feature_concat",),
    "split": ("mlx/qkv_split",),
    "softcap": ("mlx/softcap",),
    "add": ("trueno/dispatch_add", "mlx/add_bias_row_2d", _CASTS),
    "multiply": ("trueno/dispatch_mul", _CASTS),
    "silu": ("trueno/dispatch_silu",),
    "gelu": ("mlx/gelu",),
    "dot": ("dispatch/DotFn",),
    **dict.fromkeys(("sum", "mean", "max", "min", "prod", "argmin"), (_REDUCTIONS,)),
}


def rows_of(op: str) -> tuple[str, ...]:
    """The rows that an op answers."""
    return ANSWERS.get(op, ())
