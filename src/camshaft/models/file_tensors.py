"""The tensors of a model file: which layers lack one, and which change before a graph has them as constants.

A cached plan has such constants in it, so its key covers the tensors' bytes: another file may have the same header.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import reduce
from operator import xor

from camshaft.errors import ModelError
from camshaft.formats.tensor import FileTensor
from camshaft.store.files import digest_of

# What a layer may lack beside others: keys are the values too in some layers of Gemma 4, and ModernBERT's first layer begins
# with what the norm of embeddings gives.
_MAY_LACK = {"gemma4": "attn_v.weight", "modern-bert": "attn_norm.weight"}

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


# Scales of formats are those of single matrices: one layer may have a matrix in another format.
_LAYER_ENDS = (".weight", ".bias")


def check_layers(architecture: str, n_layers: int, names: Collection[str], start: str = "blk") -> None:
    """Raise ModelError if the file has fewer tensors than layers (a graph of that many layers takes long to fail), or if a layer
    lacks one tensor of another layer and has all its others. Nothing else notices that an optional tensor, such as a bias, is
    missing in one layer."""
    if n_layers > len(names):
        raise ModelError(f"the key '{architecture}.block_count' is {n_layers}; the file has {len(names)} tensors")
    layers = _parts_of_layers(n_layers, names, start)
    # Layers by the xor of their names' hashes: removing a name from it takes one step, however many tensors a layer has.
    sums = {reduce(xor, map(hash, parts), 0): layer for layer, parts in layers.items()}
    for total, layer in sums.items():
        for part in layers[layer]:
            other = sums.get(total ^ hash(part))
            if other is not None and part not in layers[other] and _MAY_LACK.get(architecture) != part:
                raise ModelError(
                    f"the file has no tensor '{start}.{other}.{part}', but layer {layer} has one and is equal otherwise; "
                    "convert the model again"
                )


def _parts_of_layers(n_layers: int, names: Collection[str], start: str) -> dict[int, set[str]]:
    """The names of each layer's tensors, behind the layer's number."""
    numbers, found = {str(n) for n in range(n_layers)}, dict[int, set[str]]()
    for name in names:
        if name.startswith(f"{start}.") and name.endswith(_LAYER_ENDS):
            number, _, part = name[len(start) + 1 :].partition(".")
            if number in numbers:
                found.setdefault(int(number), set()).add(part)
    return found
