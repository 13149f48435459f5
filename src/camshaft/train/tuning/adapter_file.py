"""Adapters written as llama.cpp reads them (GGUF, general.type adapter) or as PEFT does (a folder), and models with one added to
their weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from camshaft.errors import FormatError, ModelError
from camshaft.formats.blocks import BLOCK_FORMATS, BlockFormat
from camshaft.formats.gguf.file import GGUFTensor, open_gguf
from camshaft.formats.gguf.write import NewTensor, floating, text, values_of, write_gguf
from camshaft.generate.stored.header_cache import open_model_file
from camshaft.models.adapters.adapter import BASE_DIGEST, Adapter, open_adapter
from camshaft.models.adapters.dora import row_factors
from camshaft.models.files.quantize import check_target
from camshaft.train.tuning.methods.lora import LoraModel, Matrices
from camshaft.train.tuning.peft_folder import check_storable, is_folder, save_folder

Array = np.ndarray[Any, Any]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class AdapterFile:
    """The matrices `a` and `b` of an adapter, of DoRA `m` too, by the names of those that they change, and what each product is
    multiplied by."""

    matrices: Matrices
    scales: dict[str, float]
    architecture: str


def save_adapter(path: str | os.PathLike[str], model: LoraModel, adapters: Mapping[str, Mapping[str, Array]]) -> None:
    """Writes trained adapters of a model: a GGUF file, atomically, if the path ends in .gguf, and else a PEFT folder.

    Raises StoreError if it cannot be written, FormatError for a folder if PEFT's names of the matrices are not known, and for a
    file if the adapters are of DoRA."""
    if is_folder(path):
        save_folder(Path(path), model, adapters)
        return
    check_storable(Path(path), any("m" in parts for parts in adapters.values()))
    f32 = BLOCK_FORMATS["F32"]
    values = {
        "general.type": text("adapter"),
        "general.architecture": text(model.config.architecture),
        "adapter.type": text("lora"),
        "adapter.lora.alpha": floating(model.lora.plain_alpha),
        BASE_DIGEST: text(model.digest),
    }
    tensors = [
        NewTensor(f"{name}.weight.lora_{part}", array.shape, f32, _bytes_of(array))
        for name, pair in adapters.items()
        for part, array in (("a", pair["a"]), ("b", pair["b"]))
    ]
    write_gguf(Path(path), values, tensors)


def load_adapter(path: str | os.PathLike[str], model: str | os.PathLike[str] | None = None) -> AdapterFile:
    """Reads an adapter file, or a PEFT folder, for which the GGUF file of its model is needed.

    Raises FormatError for a damaged one, and for one that is not a LoRA of pairs that fit."""
    with ExitStack() as stack:
        file = None if model is None else stack.enter_context(open_gguf(model))
        adapter = stack.enter_context(open_adapter(path, file))
        matrices = {n: {"a": a.dequantize(), "b": b.dequantize()} for n, (a, b) in adapter.pairs.items()}
        for name, magnitude in adapter.magnitudes.items():
            matrices[name]["m"] = magnitude.dequantize()
        return AdapterFile(matrices, dict(adapter.scales), adapter.architecture)


def merge(
    model: str | os.PathLike[str],
    adapter: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    file_type: str | None = None,
    force: bool = False,
    progress: Progress = lambda done, total: None,
) -> float:
    """Writes a copy of a GGUF model whose weights have the adapter, a file or a PEFT folder, added: W + scale B A, of DoRA with
    its magnitudes.

    Changed weights keep their format, or get the plain or block format `file_type`, such as F16. Returns the share of the change
    that the rounding left, <written - before, change> / <change, change>: to few bits it may round most weights back. `force`
    overwrites `out`; `progress(done, total)` counts tensors. Raises FormatError for an adapter of another model, an unknown
    format or one that cannot be written; StoreError if `out` cannot be written.
    """
    given = None
    if file_type is not None:
        given = BLOCK_FORMATS.get(file_type.upper())
        if given is None:
            raise FormatError(f"merge: got the format {file_type!r:.60}; wanted one such as F16, Q8_0 or Q4_K")
    with open_gguf(model) as file, open_adapter(adapter, file) as change:
        check_target(Path(model), Path(out), force)
        digests = _digests_of(model)
        change.check_base(file.tensors, str(file.metadata.get("general.architecture")), lambda: digests)
        products: list[tuple[float, float]] = []

        def counted(written: float, wanted: float) -> None:
            products.append((written, wanted))
            progress(len(products), len(file.tensors))

        tensors = [_merged(t, change, given, counted) for t in file.tensors.values()]
        write_gguf(Path(out), values_of(file.metadata) | {BASE_DIGEST: text(digests[0])}, tensors)
    written, wanted = np.sum(products, axis=0)
    return float(written / wanted) if wanted else 1.0


def _digests_of(model: str | os.PathLike[str]) -> list[str]:
    """The digest of a model and, if it was merged with an adapter, that of the first model: several may be merged in turn."""
    opened = open_model_file(model)
    with opened.file:
        first = opened.file.metadata.get(BASE_DIGEST)
        return [*([first] if isinstance(first, str) else []), opened.base_digest]


def _merged(
    tensor: GGUFTensor, adapter: Adapter, given: BlockFormat | None, counted: Callable[[float, float], None]
) -> NewTensor:
    """The tensor to write; `counted` gets the products of its change with what is written of it and with itself."""
    name = tensor.name.removesuffix(".weight")
    if name not in adapter.pairs:

        def unchanged() -> Iterator[Any]:
            yield tensor.data()
            counted(0.0, 0.0)

        return NewTensor(tensor.name, tensor.shape, tensor.format, unchanged)
    wanted = given or tensor.format

    def parts() -> Iterator[Any]:
        before = tensor.dequantize()
        change = _change_of(adapter, name, before)
        values = (before + change).reshape(-1, wanted.block_size)
        try:
            data = wanted.quantize(values)
        except (FormatError, ModelError) as error:
            raise FormatError(f"{tensor.name}: {error}; wanted another format for what changes, such as F16") from None
        yield data
        written = wanted.dequantize(data).reshape(change.shape) - before
        counted(float(np.vdot(written, change)), float(np.vdot(change, change)))

    return NewTensor(tensor.name, tensor.shape, wanted, parts)


def _change_of(adapter: Adapter, name: str, weight: Array) -> Array:
    """What an adapter adds to a weight [n, k]."""
    a, b = (t.dequantize() for t in adapter.pairs[name])
    change: Array = np.float32(adapter.scales[name]) * (b @ a)
    if name in adapter.magnitudes:
        changed = weight + change
        change = row_factors(adapter.magnitudes[name].dequantize(), changed)[:, None] * changed - weight
    return change


def _bytes_of(array: Array) -> Callable[[], Iterator[Any]]:
    def parts() -> Iterator[Any]:
        yield np.ascontiguousarray(array, "<f4").reshape(-1).view(np.uint8)

    return parts
