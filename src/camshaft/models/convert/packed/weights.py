"""Reads a folder's tensors as float32; FP8 tensors are multiplied by their scales."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from camshaft.errors import FormatError, ModelError
from camshaft.formats.bits import Floats
from camshaft.formats.mapped import shown
from camshaft.formats.tensor import FileTensor
from camshaft.models.convert.hub_config import HubConfig
from camshaft.models.convert.packed.packings import Packed, Shape, find_packed

_SCALES = (".weight_scale_inv", ".weight_scale")
_UNUSED = (".input_scale", ".activation_scale", ".k_scale", ".v_scale", ".kv_scale")
# Endings of tensor names -> the quantization that they reveal, which is not read here.
_REFUSED = {".qweight": "neither GPTQ nor AWQ", ".absmax": "bitsandbytes"}
_WANTED = "bf16, f16, f32 or fp8 weights, GPTQ, AWQ, compressed-tensors, MLX or MXFP4"
_PLAIN = ("F32", "F16", "BF16", "F64")


@dataclass(frozen=True)
class Weights:
    """The tensors of a model. `scales` are by the name of their weight; `packed` are weights made of several tensors each."""

    tensors: Mapping[str, FileTensor]
    scales: Mapping[str, FileTensor] = field(default_factory=dict)
    packed: Mapping[str, Packed] = field(default_factory=dict)

    @property
    def shapes(self) -> dict[str, Shape]:
        """Shapes by name."""
        plain = {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}
        return plain | {name: packed.shape for name, packed in self.packed.items()}

    @property
    def usual_format(self) -> str:
        """The most frequent of F32, F16 and BF16, by bytes. FP8 counts as BF16, weights of fewer bits as their scales' format."""
        nbytes: dict[str, int] = {}
        for packed in self.packed.values():
            nbytes[packed.usual_format] = nbytes.get(packed.usual_format, 0) + math.prod(packed.shape)
        for tensor in self.tensors.values():
            name = tensor.format.name
            name = "BF16" if name.startswith("F8") else "F32" if name == "F64" else name
            nbytes[name] = nbytes.get(name, 0) + tensor.nbytes
        return max(nbytes, key=lambda name: nbytes[name])

    def load(self, name: str) -> Floats:
        """Returns a tensor as float32. Raises FormatError for scales of another shape."""
        if name in self.packed:
            return self.packed[name].numbers()
        tensor = self.tensors[name]
        values = tensor.dequantize()
        if name not in self.scales:
            return values
        scale = self.scales[name].dequantize()
        return values * _spread(scale, values.shape, f"{tensor.path}: tensor {shown(self.scales[name].name)}")


def read_weights(tensors: Mapping[str, FileTensor], config: HubConfig) -> Weights:
    """Pair weights with their scales. Raises ModelError for weights that are quantized in a way camshaft does not convert,
    FormatError for those whose scales are missing."""
    packed, used = find_packed(tensors, config)
    scales: dict[str, FileTensor] = {}
    kept: dict[str, FileTensor] = {}
    for name, tensor in tensors.items():
        if name in used:
            continue
        for end, kind in _REFUSED.items():
            if name.endswith(end):
                raise ModelError(f"{tensor.path}: {shown(name)} is quantized ({kind}); wanted {_WANTED}")
        scale = next((end for end in _SCALES if name.endswith(end)), None)
        if scale is not None:
            scales[name.removesuffix(scale) + ".weight"] = tensor
        elif not name.endswith(_UNUSED):
            kept[name] = tensor
    for name, tensor in kept.items():
        is_8_bits = tensor.format.name in ("F8_E4M3", "F8_E5M2")
        if is_8_bits != (name in scales) or not (is_8_bits or tensor.format.name in _PLAIN):
            what = f"{tensor.format.name} with{'' if name in scales else 'out'} a scale"
            raise ModelError(f"{tensor.path}: {shown(name)} is {what}; wanted bf16, f16, f32, or fp8 with a scale")
    lost = next((name for name in scales if name not in kept), None)
    if lost is not None:
        raise ModelError(f"{scales[lost].path}: has the scale of {shown(lost)}, but no such tensor")
    return Weights(kept, scales, packed)


def _spread(scale: Floats, shape: Shape, what: str) -> Floats:
    """Broadcasts scales of a whole matrix, of rows, or of blocks of 128 x 128 to every element."""
    if scale.size == 1:
        return scale.reshape(1, 1)
    n, k = shape
    if scale.shape in ((n,), (n, 1)):
        return scale.reshape(n, 1)
    rows, columns = (-(-size // 128) for size in shape)
    if scale.shape != (rows, columns):
        raise FormatError(
            f"{what} has shape {list(scale.shape)}; wanted one of a matrix, of {n} rows, or {[rows, columns]}"
        )
    return np.repeat(np.repeat(scale, 128, axis=0)[:n], 128, axis=1)[:, :k]
