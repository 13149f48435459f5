"""The tensors of a model file whose values are changed before a graph has them as constants.

A cached plan has such constants in it, so its key covers the tensors' bytes: another file may have the same header.
"""

from __future__ import annotations

from collections.abc import Mapping

from camshaft.formats.tensor import FileTensor
from camshaft.store.digest import digest_of

# Rotation factors, the convolution of patches, and the ends of the names of recurrent layers' tensors and of latent
# attention's in older files.
_NAMES = frozenset(
    {
        *("token_types.weight", "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"),
        *("v.patch_embd.weight", "v.patch_embd.weight.1"),
    }
)
_ENDS = (
    *(".attn_q_norm.weight", ".attn_k_norm.weight"),  # of all heads
    *(".ssm_a", ".ssm_d", ".ssm_norm.weight", ".shortconv.conv.weight", ".attn_kv_b.weight", ".attn_rel_b.weight"),
    *(f".time_mix_{part}.weight" for part in ("first", "lerp_fused", *(f"lerp_{each}" for each in "xwkvrg"))),
    *(f".channel_mix_lerp_{part}.weight" for part in "kr"),
    *(f".ssm_conv1d{part}.weight" for part in ("", "_q", "_k", "_v")),
)
# Convolutions and positions of an encoder of sound.
_NAMES |= {"enc.conv1.weight", "enc.conv2.weight", "enc.position_embd.weight"}


def is_converted(tensor: FileTensor) -> bool:
    """Whether a graph has changed values of a tensor: of vectors that are not f32, too."""
    is_narrow = len(tensor.shape) == 1 and (tensor.format.dtype is None or tensor.format.dtype.name != "f32")
    return is_narrow or is_rearranged(tensor.name)


def is_rearranged(name: str) -> bool:
    """Whether a graph has the values of a tensor of this name in another form, whatever their dtype is."""
    return name in _NAMES or name.endswith(_ENDS)


def is_multiplied(tensor: FileTensor) -> bool:
    """Whether a tensor is a matrix of floats that a product reads. Filters, positions and elementwise factors are not."""
    of_product = not is_rearranged(tensor.name) or tensor.name.endswith(".attn_kv_b.weight")
    return tensor.is_float_matrix and of_product and tensor.name != "position_embd.weight"


def converted_digest(tensors: Mapping[str, FileTensor]) -> str:
    """Digest of the bytes of all tensors that are converted."""
    return digest_of((t.name, t.data().tobytes()) for t in tensors.values() if is_converted(t))
