"""The table of ops: the module of each. Graph functions, eager calls, tests and validation follow from it."""

from __future__ import annotations

import functools
from importlib import import_module
from typing import TYPE_CHECKING

from camshaft.errors import BackendError
from camshaft.process import ForkLock

if TYPE_CHECKING:
    from camshaft.ops.op import KernelVariant, Op

# Module below camshaft.ops -> its ops: one as OP, or the rows of a table OPS.
_MODULES = {
    "norm.rms_norm": "rms_norm",
    "norm.layer_norm": "layer_norm",
    "norm.residual_norm": "residual_norm",
    "norm.softmax": "softmax",
    "norm.log_softmax": "log_softmax",
    "norm.squares": "l2_norm norm_gate norm_add",
    "norm.channels": "group_norm layer_norm_2d",
    "norm.scale_mask_softmax": "scale_mask_softmax",
    "matmul.matmul": "matmul",
    "matmul.batch_invariant": "batch_invariant_matmul",
    "matmul.int16.rounded_matmul": "rounded_matmul",
    "quantize.quantize_activations": "quantize_activations",
    "quantized.matmul": "quantized_matmul",
    "quantized.transposed_matmul": "quantized_matmul_transposed",
    "quantized.gated_product": "gated_product",
    "quantized.dequantize": "dequantize",
    "codes.dequantize": "unpack_codes affine_dequantize minifloat_dequantize",
    "codes.matmul": "affine_matmul minifloat_matmul",
    "codes.grouped": "affine_matmul_grouped",
    "codes.quantize": "pack_codes affine_quantize quantize_dequantize_affine",
    "fft.complex": "real imag conj",
    "fft.transform": "fft_rows",
    "fft.fft": "fft ifft rfft irfft",
    "fft.audio": "stft mel_scale",
    "quantize.round_trip": "quantize_dequantize_gguf",
    "index.embedding": "embedding",
    "index.gather": "gather",
    "movement.transpose": "transpose",
    "movement.slice": "slice",
    "elementwise.silu_multiply": "silu_multiply",
    "elementwise.copy": "copy",
    "elementwise.cast": "cast",
    "elementwise.stop_gradient": "stop_gradient",
    "rope.rope": "rope",
    "rope.sections": "rope_multi rope_axial_2d rope_vision_2d",
    "rope.head_norm_rope": "head_norm_rope",
    "attention.kv_cache_update": "kv_cache_update",
    "attention.kv_cache_quantize": "kv_cache_quantize",
    "attention.attention": "attention",
    "masked.scaled_dot_product_attention": "scaled_dot_product_attention",
    "masked.gradient.attention_gradient": "attention_gradient",
    "turboquant.hadamard": "hadamard",
    "turboquant.encode": "turboquant_encode",
    "turboquant.decode": "turboquant_decode",
    "turboquant.attention": "turboquant_attention",
    "masked.mask": "attention_mask attention_mask_tiles",
    "sample.penalties.repeat_penalty": "repeat_penalty",
    "sample.sample": "sample",
    "sample.masked_sample": "masked_sample",
    "train.adam_update": "adam_update",
    "train.assign": "assign",
    "train.cross_entropy": "cross_entropy",
    "train.dropout": "dropout",
    "train.cross_entropy_gradient": "cross_entropy_gradient",
    "train.losses": "mse_loss l1_loss binary_cross_entropy_with_logits",
    "sample.softmax_sample": "softmax_sample",
    "sample.uniform": "uniform",
    "sample.penalties.logit_bias": "logit_bias",
    "sample.penalties.dry": "dry",
    "sample.filters.filters": "top_n_sigma top_k_top_p typical_p xtc mirostat token_mask",
    "sample.mirostat_update": "mirostat_update",
    "elementwise.binary": "add subtract multiply divide minimum maximum floor_divide remainder power",
    "elementwise.unary": "negate abs exp log sqrt rsqrt square reciprocal tanh erf sin cos tan "
    "isnan ceil trunc floor round",
    "elementwise.comparison": "equal not_equal less less_equal greater greater_equal where clip logical_and logical_or "
    "logical_xor logical_not",
    "elementwise.activation": "sigmoid silu gelu gelu_erf softcap log1p expm1 softplus relu leaky_relu elu "
    "hard_swish mish sigmoid_multiply gelu_multiply",
    "reduce.reduction": "sum mean prod max min dot",
    "reduce.argmax": "argmax argmin",
    "reduce.max_with_index": "max_with_index",
    "movement.concat_split": "concat split",
    "movement.broadcast": "broadcast_to repeat tile repeat_tiled",
    "movement.pad": "pad",
    "index.take_along_axis": "take_along_axis",
    "index.scatter": "scatter_add put",
    "index.one_hot": "one_hot",
    "vision.conv2d": "conv2d",
    "vision.other_convs": "conv1d conv_transpose2d",
    "vision.pool2d": "pool2d",
    "vision.im2col": "im2col",
    "vision.resample": "resample",
    "vision.resize": "resize_nearest resize_bilinear resize_bicubic",
    "movement.order": "flip roll tril triu arange spatial_merge_2x2",
    "experts.routing": "moe_softmax_topk moe_route",
    "experts.grouped": "quantized_matmul_grouped",
    "experts.weighted_reduce": "moe_weighted_reduce",
    "experts.plain": "matmul_grouped",
    "experts.blocks": "moe_gate moe_experts",
    "experts.gradient.transposed": "matmul_grouped_transposed quantized_matmul_grouped_transposed",
    "experts.gradient.weights": "matmul_grouped_weights",
    "sort.ordered": "argsort sort top_k",
    "index.searchsorted": "searchsorted",
    "sort.unique": "unique",
    "linalg.outer": "outer",
    "linalg.triangular": "triangular_solve",
    "linalg.cholesky": "cholesky",
    "scan.scan": "cumsum cumprod cummax cummin",
    "quantize.fused_quantize": "rms_norm_q8 residual_norm_q8 silu_multiply_q8 gelu_multiply_q8",
    "recurrent.delta_rule": "gated_delta_rule delta_rule gated_linear_attention",
    "recurrent.delta_chunks": "delta_gates delta_chunk_kkt delta_chunk_wu delta_chunk_state delta_chunk_output",
    "recurrent.state_space": "selective_scan mamba2_ssd",
    "recurrent.rwkv": "rwkv6_time_mix rwkv7_time_mix",
    "recurrent.gradient.delta_rule": "gated_delta_rule_gradient gated_linear_attention_gradient",
    "recurrent.gradient.selective_scan": "selective_scan_gradient",
    "recurrent.gradient.diagonal": "rwkv6_gradient rwkv7_gradient",
    "recurrent.triangular": "triangular_inverse",
    "recurrent.convolution": "conv1d_depthwise_causal ssm_conv short_conv",
    "slot_states.slot_rows": "slot_rows",
    "slot_states.convolution": "conv_slots short_conv_slots",
    "slot_states.delta_rule": "gated_delta_slots",
    "slot_states.diagonal": "dplr_slots rwkv6_slots",
    "slot_states.state_space": "selective_scan_slots ssd_slots",
}
# Modules whose ops are rows of one table.
TABLES: dict[str, tuple[str, ...]] = {module: tuple(rows.split()) for module, rows in _MODULES.items() if " " in rows}
_HOMES = {name: module for module, rows in _MODULES.items() for name in rows.split()}
NAMES = tuple(_HOMES)
# The op at which rewrite rules start -> the ops with these rules, so that a graph need not import all ops.
_RULES_AT = {
    "add": "residual_norm",
    "attention": "attention",
    "matmul": "matmul rounded_matmul",
    "quantized_matmul": "quantized_matmul",
    "quantized_matmul_grouped": "quantized_matmul_grouped",
    "quantized_matmul_transposed": "quantized_matmul_transposed",
    "rms_norm": "matmul rms_norm_q8",
    "residual_norm": "matmul residual_norm_q8",
    "silu_multiply": "matmul silu_multiply_q8",
    "gelu_multiply": "gelu_multiply_q8",
    "silu_multiply_q8": "gated_product",
    "gelu_multiply_q8": "gated_product",
}


@functools.cache
def get(name: str) -> Op:
    """The Op of that name. KeyError if there is none."""
    if name not in NAMES:
        raise KeyError(name)
    module = import_module(module_of(name))
    found: Op = module.OPS[name] if _HOMES[name] in TABLES else module.OP
    return found


def module_of(name: str) -> str:
    """The module that defines an op of the table."""
    return f"camshaft.ops.{_HOMES[name]}"


def group_of(name: str) -> str:
    """The table that an op is a row of; its own name if it is not a row; 'chain' for a chain of elementwise ops."""
    home = _HOMES.get(name, "")
    return home.rpartition(".")[2] if home in TABLES else name.partition(" ")[0]


def all_ops() -> tuple[Op, ...]:
    """Every op, in the table's order."""
    return tuple(get(name) for name in NAMES)


def with_rules_at(name: str) -> tuple[Op, ...]:
    """The ops whose rewrite rules start at a use of the op of that name, in the table's order."""
    return tuple(get(found) for found in _RULES_AT.get(name, "").split())


# op -> (variant, the module that registers it when imported)
_registered: dict[str, tuple[tuple[KernelVariant, str], ...]] = {}
_lock = ForkLock()


def has_registered() -> bool:
    """Whether any op has a registered variant."""
    return any(_registered.values())


def variants_of(op: Op) -> tuple[KernelVariant, ...]:
    """The op's own variants, then the registered ones."""
    return op.variants + tuple(variant for variant, _ in _registered.get(op.name, ()))


def is_composite(op: Op) -> bool:
    """Whether an op has no kernels, so that graphs and eager calls compute it by the ops of its decomposition."""
    return op.decompose is not None and not variants_of(op)


def home_of(op: Op, variant: KernelVariant) -> str | None:
    """The module that registers a variant; None for the op's own variants."""
    return next((home for found, home in _registered.get(op.name, ()) if found.name == variant.name), None)


def register_variant(op: str, variant: KernelVariant, module: str | None = None) -> None:
    """Adds a way to compute an op of camshaft. Plans made later validate it like any other and choose it where it is the fastest.

    A child process that validates the variant imports `module` (by default the one that defines `variant.build`), which must then
    register it. Registering the same variant again changes nothing. BackendError for an unknown op, an invalid variant,
    a name that the op has already, or a module that cannot be imported by name because it is a script.
    """
    if op not in NAMES:
        raise BackendError(f"register_variant: no op {op!r}; wanted one of {', '.join(NAMES)}")
    _check_variant(variant)
    if module is not None and not isinstance(module, str):
        raise BackendError(f"register_variant: got the module {module!r:.80}; wanted its name")
    home = module or variant.build.__module__
    if home == "__main__":
        raise BackendError(
            f"register_variant: {variant.name} is defined in a script; wanted a module that can be imported"
        )
    with _lock:
        names = {v.name: v for v in variants_of(get(op))}
        if names.get(variant.name) is variant:
            return
        if variant.name in names:
            raise BackendError(f"register_variant: {op} has a variant {variant.name!r} already")
        _registered[op] = (*_registered.get(op, ()), (variant, home))


def _check_variant(variant: KernelVariant) -> None:
    """BackendError for a variant without a name or backends, or with names of devices instead of backends."""
    from camshaft.ops.op import KernelVariant  # here, because a spec alone needs no ops

    if not isinstance(variant, KernelVariant) or not isinstance(variant.name, str) or not variant.name:
        raise BackendError(f"register_variant: got {variant!r}; wanted a KernelVariant with a name")
    from camshaft.backends.registry import ALIASES  # here, because an op alone needs no devices

    for field in ("build", "supports", "cost"):
        if not callable(getattr(variant, field)):
            raise BackendError(
                f"register_variant: {variant.name} has the {field} {getattr(variant, field)!r:.80}; wanted a function"
            )
    names = variant.backends
    if not isinstance(names, (set, frozenset)) or not names or not all(isinstance(name, str) for name in names):
        raise BackendError(f"register_variant: {variant.name} is for {names!r}; wanted a frozenset of backends' names")
    for name in sorted(names):
        if name in ALIASES or ":" in name:
            backend = ALIASES.get(name, name.partition(":")[0])
            raise BackendError(
                f"register_variant: {variant.name} is for the device {name!r}; wanted its backend, {backend!r}"
            )
