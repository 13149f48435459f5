"""convert(folder, out, type): a model in Hugging Face's layout becomes a GGUF file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from camshaft.errors import FormatError, ModelError
from camshaft.formats.bits import Bytes, Floats
from camshaft.formats.blocks import BLOCK_FORMATS, BlockFormat
from camshaft.formats.gguf.write import NewTensor, Raw, encoded_value, write_gguf
from camshaft.formats.mapped import path_for_messages, shown
from camshaft.formats.safetensors_folder import SafetensorsFolder
from camshaft.models.convert.architecture import Architecture
from camshaft.models.convert.architectures import architecture_of, completed
from camshaft.models.convert.families.encoders import pooling_keys
from camshaft.models.convert.hub_config import HubConfig, read_config
from camshaft.models.convert.images.mmproj import mmproj_of
from camshaft.models.convert.keys import model_keys
from camshaft.models.convert.packed.weights import Weights, read_weights
from camshaft.models.convert.tensors import Part, layer_numbers, parts
from camshaft.models.convert.vocabularies.vocabulary import tokenizer_keys
from camshaft.models.families import FAMILIES
from camshaft.models.files.chosen_formats import formats_of
from camshaft.models.files.quantization_mix import mix_named
from camshaft.models.files.quantize import Progress, check_out, in_order
from camshaft.models.speech.ggml import convert_ggml, is_ggml
from camshaft.process import thread_count
from camshaft.store.files import remove_unfinished

_PART_ELEMENTS = 1 << 20
_QUANTIZATION_VERSION = 2


@dataclass(frozen=True)
class ConversionResult:
    """The file written, its architecture, size in bytes, and the number of tensors per format."""

    path: Path
    architecture: str
    nbytes: int
    n_tensors: Mapping[str, int]


def convert(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    file_type: str | None = None,
    *,
    mmproj: bool = False,
    force: bool = False,
    threads: int | None = None,
    progress: Progress = lambda done, total: None,
) -> ConversionResult:
    """Write the model of a folder (config.json, safetensors, tokenizer), or a file of whisper.cpp, as a GGUF file.

    `file_type` is a name of MIXES; None keeps most weights' type (F32, F16 or BF16). Vectors, norms and routing are F32.
    `mmproj`: write the vision encoder and projector, the second file of a model that sees images, with matrices of F32, F16,
    BF16 or Q8_0. `force`: overwrite `out`; `progress(done, total)` counts elements. The file appears only once it is complete.

    Raises ModelError for an architecture without a conversion and for values that make no sense, FormatError for damaged files,
    StoreError if `out` cannot be written, MissingExtraError without the safetensors library."""
    source, target = Path(folder), Path(out)
    if source.is_file() and not mmproj and is_ggml(source):
        if file_type is not None:
            raise FormatError(
                f"{path_for_messages(source)}: keeps its formats; wanted no TYPE, and camshaft quantize after it"
            )
        check_out(target, force)
        name, n_tensors = convert_ggml(source, target)
        return ConversionResult(target, name, target.stat().st_size, n_tensors)
    if not source.is_dir():
        raise FormatError(
            f"{path_for_messages(source)}: is not a folder; wanted one with config.json and safetensors files, or a ggml-*.bin"
        )
    check_out(target, force)
    config = read_config(source)
    if mmproj:
        return _convert_vision(source, target, config, file_type, thread_count(threads), progress)
    row = architecture_of(config)
    config = completed(config, row)
    with SafetensorsFolder(source) as file:
        weights = read_weights(file.tensors, config)
        mix = mix_named(file_type or weights.usual_format)
        found = tuple(parts(config, row, weights.shapes))
        values = metadata(source, config, row, mix.file_type)
        values |= layer_numbers(config, row, weights.tensors, weights.load)
        _check_layers(config, row, found, values)
        formats = formats_of(_described(found, values), mix)
        remove_unfinished(target.parent)
        _write(target, values, found, formats, weights, thread_count(threads), progress)
    return _result(target, row.name, formats)


def _check_layers(config: HubConfig, row: Architecture, found: tuple[Part, ...], values: Mapping[str, Any]) -> None:
    """Raise ModelError if the number of layers differs from config.json: additional ones would not run."""
    if row.encoder_decoder is not None:
        return
    wanted = values[f"{row.name}.block_count"]
    there = {int(part.name.split(".")[1]) for part in found if part.name.startswith("blk.")}
    if there != {*range(wanted)}:
        raise ModelError(f"{config.path}: names {wanted} layers; the folder has tensors of {len(there)}")


def _convert_vision(
    folder: Path, target: Path, config: HubConfig, file_type: str | None, threads: int, progress: Progress
) -> ConversionResult:
    with SafetensorsFolder(folder) as file:
        weights = read_weights(file.tensors, config)
        projector, values, found, formats = mmproj_of(folder, config, weights.shapes, file_type or weights.usual_format)
        remove_unfinished(target.parent)
        _write(target, values, found, formats, weights, threads, progress)
    return _result(target, f"clip ({projector})", formats)


def _result(target: Path, architecture: str, formats: Mapping[str, BlockFormat]) -> ConversionResult:
    names = [form.name for form in formats.values()]
    return ConversionResult(target, architecture, target.stat().st_size, {n: names.count(n) for n in sorted({*names})})


def _described(found: tuple[Part, ...], values: Mapping[str, Any]) -> SimpleNamespace:
    """The tensors and metadata in the form of an open file."""
    tensors = {part.name: SimpleNamespace(shape=part.shape, format=BLOCK_FORMATS["F32"]) for part in found}
    arrays = {key: np.array(value) if isinstance(value, list) else value for key, value in values.items()}
    return SimpleNamespace(tensors=tensors, metadata=arrays)


def metadata(folder: Path, config: HubConfig, row: Architecture, file_type: int) -> dict[str, Any]:
    """All keys of the file with their values."""
    model, is_encoder = row.encoder_decoder, row.name in FAMILIES and FAMILIES[row.name].encoder
    tokenizer = tokenizer_keys(folder, config, encoder=is_encoder)
    name = config.get("_name_or_path") or folder.absolute().name
    n_tokens = len(tokenizer["tokenizer.ggml.tokens"])
    keys = model_keys(config, row, n_tokens) if model is None else model.keys(config, folder, n_tokens)
    keys |= pooling_keys(folder, config) if is_encoder else {}
    more = {} if model is None else {f"tokenizer.ggml.{key}": value for key, value in model.flags.items()}
    return {
        "general.architecture": row.name,
        "general.type": "model",
        "general.name": str(name).rstrip("/").rpartition("/")[2],
        "general.file_type": file_type,
        "general.quantization_version": _QUANTIZATION_VERSION,
        **{f"{row.name}.{key}": value for key, value in keys.items()},
        **tokenizer,
        **more,
    }


def _write(
    target: Path,
    values: Mapping[str, Any],
    found: tuple[Part, ...],
    formats: Mapping[str, BlockFormat],
    weights: Weights,
    threads: int,
    progress: Progress,
) -> None:
    total, done = sum(int(np.prod(part.shape, dtype=np.int64)) for part in found), 0

    with ThreadPoolExecutor(threads) as pool:

        def written(part: Part) -> Iterator[Bytes]:
            nonlocal done
            numbers = part.made(weights.load).reshape(-1)
            form = formats[part.name]
            step = _PART_ELEMENTS // form.block_size * form.block_size
            slices = [numbers[first : first + step] for first in range(0, numbers.size, step)]
            for one, piece in zip(
                slices, in_order(pool, [partial(_encoded, part, form, s) for s in slices]), strict=True
            ):
                yield piece
                done += one.size
                progress(done, total)

        tensors = [NewTensor(part.name, part.shape, formats[part.name], partial(written, part)) for part in found]
        raw: dict[str, Raw] = {key: encoded_value(value) for key, value in values.items()}
        write_gguf(target, raw, tensors)


def _encoded(part: Part, form: BlockFormat, values: Floats) -> Bytes:
    try:
        return form.quantize(values.reshape(-1, form.block_size))
    except FormatError as error:
        raise FormatError(f"tensor {shown(part.name)}: {error}") from None
