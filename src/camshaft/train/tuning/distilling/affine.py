"""Students of affine codes as MLX has them, w = code scale + bias by groups of a row, written as a folder for mlx-lm.

Layers' matrices have the codes that were asked for, whose scales and biases are learned; embeddings and the output have 8 bits.

What is learned are factors f of scales and g of biases that do not pull at each other: with the middle code c and scale and
bias s and b of MLX, w = f s (code - c) + (g - 1) s + b + c s. Biases move in steps of a scale, as they may be 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from camshaft.errors import FormatError
from camshaft.formats.blocks import BLOCK_FORMATS
from camshaft.formats.mapped import path_for_messages, shown
from camshaft.formats.safetensors_folder import SafetensorsFolder
from camshaft.formats.tensor import FileTensor
from camshaft.graph import functions as f
from camshaft.graph.graph import Graph
from camshaft.graph.tensor import Tensor
from camshaft.models.adapters.peft_names import module_name, naming_of, row_order
from camshaft.models.files.mlx_folder import Quantization, write_folder
from camshaft.ops import get
from camshaft.ops.codes.repack import AffineWeights
from camshaft.train.tuning.distilling.blocks import MATRIX
from camshaft.train.tuning.distilling.student import LEAST, MOST, Factors, Part, Student
from camshaft.train.tuning.methods.lora import LoraModel

Array = np.ndarray[Any, Any]
GROUPS = (64, 32)  # the first that divides all rows
OTHER_BITS = 8
TYPES = ("AFFINE2", "AFFINE3", "AFFINE4", "AFFINE5", "AFFINE6", "AFFINE8")
_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"


def affine_bits(file_type: str) -> int | None:
    """The bits of a type such as AFFINE3; None for a type of GGUF files. FormatError for bits that MLX does not have."""
    name = file_type.upper()
    if name.startswith("AFFINE") and name not in TYPES:
        raise FormatError(f"no affine type {file_type!r}; wanted one of {', '.join(TYPES)}")
    return int(name[-1]) if name in TYPES else None


class AffineStudent(Student):
    """The model of a folder in Hugging Face's layout, of which `full` is the conversion.

    FormatError for a folder whose weights are quantized already, for rows that no group divides, and for families whose
    matrices have other names or shapes than the folder's."""

    def __init__(self, full: LoraModel, folder: Path, bits: int) -> None:
        self._folder = folder
        self._naming = naming_of(full.config.architecture)
        if self._naming.transposed:
            raise FormatError(f"{path_for_messages(folder)}: has matrices [k, n]; wanted [n, k], as MLX has them")
        tensors = full.file.tensors
        learned = [name for name in tensors if MATRIX.fullmatch(name)]
        others = [name for name in (_EMBEDDING, _HEAD) if name in tensors]
        sizes = {tensors[name].shape[1] for name in (*learned, *others)}
        group = next((g for g in GROUPS if not any(size % g for size in sizes)), None)
        if group is None:
            raise FormatError(
                f"{path_for_messages(folder)}: has rows of {sorted(sizes)}; wanted multiples of {GROUPS[-1]}"
            )
        self._bits, self._group = bits, group
        self._dtype = _scales_dtype(folder)
        self._learned = {name: self._quantized(tensors[name], bits) for name in learned}
        self._others = {name: self._quantized(tensors[name], OTHER_BITS) for name in others}
        rounded = {name: _read_as(tensors[name], weights) for name, weights in self._others.items()}
        parts = {name: _parts(name, weights) for name, weights in self._learned.items()}
        super().__init__(full, {**tensors, **rounded}, parts)

    def _quantized(self, tensor: FileTensor, bits: int) -> AffineWeights:
        """The codes of MLX's own quantization, with scales and biases rounded as they will be written."""
        attrs = {"bits": bits, "group_size": self._group}
        codes, scales, biases = get("affine_quantize").reference((tensor.dequantize(),), attrs)
        scales, biases = (np.asarray(a).astype(self._dtype).astype(np.float32) for a in (scales, biases))
        return AffineWeights(codes, scales, biases, bits, self._group)

    def write(self, path: Path, factors: Factors) -> None:
        """Writes the folder: the scales and biases times these factors, and all else as the model's folder has it."""
        weights = dict(self._others)
        for name, found in self._learned.items():
            weights[name] = learned(found, factors[name])
        modules = {self._module(name): self._in_order(name, w) for name, w in weights.items()}
        write_folder(self._folder, path, Quantization(modules, self._bits, self._group, self._dtype))

    def _module(self, name: str) -> str:
        """The path of the matrix's module. FormatError for one that the folder does not have under that name."""
        stem = name.removesuffix(".weight")
        with SafetensorsFolder(self._folder) as file:
            embeddings = [n for n in file.tensors if n.endswith(("embed_tokens.weight", "wte.weight"))]
            found = (
                embeddings[0] if stem == "token_embd" and embeddings else f"{module_name(self._naming, stem)}.weight"
            )
            if found not in file.tensors:
                raise FormatError(f"{file.path}: has no {shown(found)}, which {shown(name)} should be")
        return found.removesuffix(".weight")

    def _in_order(self, name: str, weights: AffineWeights) -> AffineWeights:
        """The weights with their rows in the folder's order."""
        order = row_order(self._naming, self.full.config, name.removesuffix(".weight"), len(weights.codes))
        rows = slice(None) if order is None else np.argsort(order)
        codes, scales, biases = (a[rows] for a in (weights.codes, weights.scales, weights.biases))
        return AffineWeights(codes, scales, biases, weights.bits, weights.group_size)


def _scales_dtype(folder: Path) -> np.dtype[Any]:
    """bf16 where the folder's matrices are, else f16."""
    with SafetensorsFolder(folder) as file:
        formats = {t.format.name for t in file.tensors.values() if len(t.shape) > 1}
    if not formats <= {"F32", "F16", "BF16"}:
        raise FormatError(
            f"{path_for_messages(folder)}: has weights of {', '.join(sorted(formats))}; wanted a full model"
        )
    return np.dtype(ml_dtypes.bfloat16 if formats == {"BF16"} else np.float16)


def learned(weights: AffineWeights, factors: Mapping[str, Array]) -> AffineWeights:
    """The weights that factors of their `scales` and `biases` give."""
    scale, bias = (np.clip(factors[field], LEAST, MOST) for field in ("scales", "biases"))
    moved = weights.biases + weights.scales * (_middle(weights) * (1 - scale) + (bias - 1))
    return AffineWeights(weights.codes, weights.scales * scale, moved, weights.bits, weights.group_size)


def _middle(weights: AffineWeights) -> float:
    return float(2**weights.bits - 1) / 2


def _parts(name: str, weights: AffineWeights) -> dict[str, Part]:
    scales, middle = weights.scales, _middle(weights) * weights.scales

    def constant(what: str, values: Array) -> Callable[[Graph], Tensor]:
        return lambda graph: graph.constant(f"{name}.{what}", values[..., None])

    def centred(graph: Graph) -> Tensor:
        given = {"codes": weights.codes, "scales": scales, "middle": -middle}
        arrays = (graph.constant(f"{name}.{what}", values) for what, values in given.items())
        made: Tensor = f.affine_dequantize(*arrays, **weights.attrs)
        return made.reshape((*scales.shape, weights.group_size))

    rest = weights.biases + middle - scales
    shape = scales.shape[0], scales.shape[1]
    return {
        "scales": Part(shape, centred),
        "biases": Part(shape, constant("steps", scales)),
        "rest": Part(None, constant("rest", rest)),
    }


def _read_as(tensor: FileTensor, weights: AffineWeights) -> FileTensor:
    """The tensor with the numbers of its codes."""

    def read() -> Array:
        return weights.numbers().view(np.uint8).reshape(-1)

    nbytes = 4 * int(np.prod(tensor.shape))
    return FileTensor(tensor.name, tensor.shape, BLOCK_FORMATS["F32"], nbytes, read, tensor.path)
