"""Folders of quantized models as mlx-lm loads them: a model's folder in Hugging Face's layout with affine codes for some weights.

A weight is `.weight` u32 [n, k bits / 32], `.scales` and `.biases` [n, k / group]; config.json has the bits and the group, and
those of modules that have others (`quantization`). models/convert reads them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from camshaft.errors import StoreError
from camshaft.formats.safetensors import write_safetensors
from camshaft.formats.safetensors_folder import SafetensorsFolder, read_json
from camshaft.ops.codes.repack import AffineWeights
from camshaft.store.files import atomic_file, naming

CONFIG, WEIGHTS = "config.json", "model.safetensors"
# What is beside the weights of a model, and goes with them: tokenizers, templates and settings of generation.
_BESIDE = (
    "*token*",
    "vocab.json",
    "merges.txt",
    "generation_config.json",
    "chat_template*",
    "preprocessor_config.json",
)


@dataclass(frozen=True)
class Quantization:
    """Weights by module. Most have `bits` and groups of `group_size`; scales and biases are written in `dtype`."""

    modules: Mapping[str, AffineWeights]
    bits: int
    group_size: int
    dtype: np.dtype[Any]

    @property
    def config(self) -> dict[str, Any]:
        """Returns the quantization settings for config.json."""
        others = {name: w.attrs for name, w in self.modules.items() if w.bits != self.bits}
        return {"group_size": self.group_size, "bits": self.bits, **others}


def check_folder(target: Path, force: bool) -> None:
    """Raises StoreError if a folder cannot be made there, or if one with a model is there already, unless `force`."""
    if target.exists() and not target.is_dir():
        raise StoreError(f"{target}: is a file; wanted a folder for a model of affine weights")
    if not target.absolute().parent.is_dir():
        raise StoreError(f"{target}: the folder {target.parent} does not exist")
    if not force and any((target / name).exists() for name in (CONFIG, WEIGHTS)):
        raise StoreError(f"{target}: exists already; force=True replaces it")


def write_folder(source: Path, target: Path, given: Quantization) -> None:
    """Writes the model of folder `source` with these weights. While `target` has a config.json, its weights are those of it.

    StoreError if it cannot be written."""
    config = read_json(source / CONFIG) | {"quantization": given.config, "quantization_config": given.config}
    with naming(target, "cannot be written"):
        target.mkdir(exist_ok=True)
        (target / CONFIG).unlink(missing_ok=True)
        for path in {path for pattern in _BESIDE for path in source.glob(pattern) if path.is_file()}:
            shutil.copyfile(path, target / path.name)
    with SafetensorsFolder(source) as file:
        tensors: dict[str, np.ndarray[Any, Any]] = {}
        for name, tensor in file.tensors.items():
            weights = given.modules.get(name.removesuffix(".weight"))
            tensors |= {name: tensor.array()} if weights is None else _tensors(name, weights, given.dtype)
        write_safetensors(target / WEIGHTS, tensors, {"format": "mlx"})
    with atomic_file(target / CONFIG, durable=True, private=False) as out:
        out.write((json.dumps(config, indent=2) + "\n").encode())


def _tensors(name: str, weights: AffineWeights, dtype: np.dtype[Any]) -> dict[str, np.ndarray[Any, Any]]:
    module = name.removesuffix(".weight")
    numbers = {"scales": weights.scales, "biases": weights.biases}
    return {name: weights.codes.view(np.uint32)} | {f"{module}.{end}": a.astype(dtype) for end, a in numbers.items()}
