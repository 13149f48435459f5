"""Adapter files as llama.cpp reads them (GGUF, general.type adapter), and models with an adapter added to their weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from camshaft.errors import FormatError, ModelError
from camshaft.formats.blocks import BLOCK_FORMATS, BlockFormat
from camshaft.formats.gguf.file import GGUFTensor, open_gguf
from camshaft.formats.gguf.write import NewTensor, floating, text, values_of, write_gguf
from camshaft.formats.mapped import shown_value
from camshaft.generate.header_cache import open_model_file
from camshaft.models.quantize import check_target
from camshaft.train.lora import Adapters, LoraModel

Array = np.ndarray[Any, Any]
_DIGEST = "camshaft.base.header_digest"
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class AdapterFile:
    """The matrices of an adapter by the names of those that they change, what their product is multiplied by, and its base."""

    matrices: Adapters
    scale: float
    architecture: str
    base_digest: str | None


def save_adapter(path: str | os.PathLike[str], model: LoraModel, adapters: Mapping[str, Mapping[str, Array]]) -> None:
    """Writes trained adapters of a model, atomically. Raises StoreError if the file cannot be written."""
    f32 = BLOCK_FORMATS["F32"]
    values = {
        "general.type": text("adapter"),
        "general.architecture": text(model.config.architecture),
        "adapter.type": text("lora"),
        "adapter.lora.alpha": floating(model.lora.alpha),
        _DIGEST: text(model.digest),
    }
    tensors = [
        NewTensor(f"{name}.weight.lora_{part}", array.shape, f32, _bytes_of(array))
        for name, pair in adapters.items()
        for part, array in (("a", pair["a"]), ("b", pair["b"]))
    ]
    write_gguf(Path(path), values, tensors)


def load_adapter(path: str | os.PathLike[str]) -> AdapterFile:
    """Reads an adapter file. Raises FormatError for a damaged one, and for one that is no LoRA of pairs that fit."""
    with open_gguf(path) as file:
        kind = file.metadata.get("general.type"), file.metadata.get("adapter.type")
        if kind != ("adapter", "lora"):
            raise FormatError(f"{path}: is of {shown_value(kind)}; wanted a GGUF adapter of type lora")
        alpha = file.metadata.get("adapter.lora.alpha")
        if not isinstance(alpha, (int, float)) or not np.isfinite(alpha) or alpha <= 0:
            raise FormatError(f"{path}: adapter.lora.alpha is {shown_value(alpha)}; wanted a number above 0")
        matrices: Adapters = {}
        for name, tensor in file.tensors.items():
            base, _, part = name.rpartition(".weight.lora_")
            if part not in ("a", "b") or len(tensor.shape) != 2:
                raise FormatError(
                    f"{path}: got the tensor {shown_value(name)} {list(tensor.shape)}; wanted lora_a and lora_b"
                )
            matrices.setdefault(base, {})[part] = tensor.dequantize()
        ranks = {
            pair["a"].shape[0] for pair in matrices.values() if len(pair) == 2 and len(pair["a"]) == pair["b"].shape[1]
        }
        if len(ranks) != 1 or any(len(pair) != 2 or len(pair["a"]) not in ranks for pair in matrices.values()):
            raise FormatError(f"{path}: has matrices that do not fit; wanted a pair of one rank for each weight")
        digest = file.metadata.get(_DIGEST)
        architecture = str(file.metadata.get("general.architecture"))
        return AdapterFile(matrices, alpha / ranks.pop(), architecture, digest if isinstance(digest, str) else None)


def merge(
    model: str | os.PathLike[str],
    adapter: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    file_type: str | None = None,
    force: bool = False,
    progress: Progress = lambda done, total: None,
) -> float:
    """Writes a copy of a GGUF model whose weights have the adapter added: W + scale B A.

    Changed weights keep their format, or get the plain or block format `file_type`, such as F16. Returns the share of the change
    that the rounding left, <written - before, change> / <change, change>: to few bits it may round most weights back. `force`
    overwrites `out`; `progress(done, total)` counts tensors. Raises FormatError for an adapter of another model, an unknown
    format or one that cannot be written; StoreError if `out` cannot be written.
    """
    changes, given = load_adapter(adapter), None
    if file_type is not None:
        given = BLOCK_FORMATS.get(file_type.upper())
        if given is None:
            raise FormatError(f"merge: got the format {file_type!r:.60}; wanted one such as F16, Q8_0 or Q4_K")
    with open_gguf(model) as file:
        check_target(Path(model), Path(out), force)
        _check_base(os.fspath(adapter), changes, file.tensors, file.metadata.get("general.architecture"))
        if changes.base_digest is not None and changes.base_digest != _digest_of(model):
            raise FormatError(f"{adapter}: is of another model than {model}; wanted the one that it was trained on")
        products: list[tuple[float, float]] = []

        def counted(written: float, change: float) -> None:
            products.append((written, change))
            progress(len(products), len(file.tensors))

        tensors = [_merged(t, changes, given, counted) for t in file.tensors.values()]
        write_gguf(Path(out), values_of(file.metadata), tensors)
    written, change = np.sum(products, axis=0)
    return float(written / change) if change else 1.0


def _digest_of(model: str | os.PathLike[str]) -> str:
    opened = open_model_file(model)
    opened.file.close()
    return opened.digest


def _check_base(name: str, changes: AdapterFile, tensors: Mapping[str, GGUFTensor], architecture: object) -> None:
    if changes.architecture != architecture:
        raise FormatError(f"{name}: is for {changes.architecture!r:.60}; wanted an adapter for {architecture!r:.60}")
    for base, pair in changes.matrices.items():
        tensor = tensors.get(f"{base}.weight")
        shape = len(pair["b"]), pair["a"].shape[1]
        if tensor is None or tuple(tensor.shape) != shape:
            there = "no such weight" if tensor is None else str(list(tensor.shape))
            raise FormatError(f"{name}: changes {base}.weight {list(shape)}; the model has {there}")


def _merged(
    tensor: GGUFTensor, changes: AdapterFile, given: BlockFormat | None, counted: Callable[[float, float], None]
) -> NewTensor:
    """The tensor to write; `counted` gets the products of its change with what is written of it and with itself."""
    pair = changes.matrices.get(tensor.name.removesuffix(".weight"))
    if pair is None:

        def unchanged() -> Iterator[Any]:
            yield tensor.data()
            counted(0.0, 0.0)

        return NewTensor(tensor.name, tensor.shape, tensor.format, unchanged)
    wanted = given or tensor.format

    def parts() -> Iterator[Any]:
        change = np.float32(changes.scale) * (pair["b"] @ pair["a"])
        before = tensor.dequantize()
        values = (before + change).reshape(-1, wanted.block_size)
        try:
            data = wanted.quantize(values)
        except (FormatError, ModelError) as error:
            raise FormatError(f"{tensor.name}: {error}; wanted another format for what changes, such as F16") from None
        yield data
        written = wanted.dequantize(data).reshape(change.shape) - before
        counted(float(np.vdot(written, change)), float(np.vdot(change, change)))

    return NewTensor(tensor.name, tensor.shape, wanted, parts)


def _bytes_of(array: Array) -> Callable[[], Iterator[Any]]:
    def parts() -> Iterator[Any]:
        yield np.ascontiguousarray(array, "<f4").reshape(-1).view(np.uint8)

    return parts
