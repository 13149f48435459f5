"""PEFT folders: LoRA adapters of Hugging Face models, read as those of GGUF files.

A folder has adapter_config.json and adapter_model.safetensors. What the configuration asks for beyond the sum
y = x W^T + scale (x A^T) B^T, or that with DoRA's magnitudes, is refused by name."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from camshaft.errors import FormatError, reason_of
from camshaft.formats.gguf.file import GGUFFile
from camshaft.formats.mapped import path_for_messages, require_ordinary_file, shown, shown_value
from camshaft.formats.safetensors import SafetensorsFile, open_safetensors
from camshaft.formats.tensor import FileTensor
from camshaft.models.adapters.adapter import BASE_DIGEST, Adapter
from camshaft.models.adapters.peft_names import Naming, file_name, module_name, naming_of, row_order
from camshaft.models.config import read_config
from camshaft.models.families import family_name

Array = np.ndarray[Any, Any]
Number = TypeVar("Number", int, float)
CONFIG, WEIGHTS, PREFIX = "adapter_config.json", "adapter_model.safetensors", "base_model.model."
PARTS = ("lora_A.weight", "lora_B.weight", "lora_magnitude_vector")
_PICKLED = "adapter_model.bin"
_MOST_CONFIG_NBYTES = 1 << 20  # files have 1 kB; with a pattern for each matrix of 100 layers 50 kB
_MOST_TENSORS = 1 << 14
_MOST_RANK, _MOST_ALPHA = 1 << 20, 1e9
_FORMATS = ("F32", "F16", "BF16")
# What changes the sum or the model, if it is there and not empty or false.
_REFUSED = (
    "use_qalora", "use_bdlora", "lora_bias", "modules_to_save", "layer_replication", "target_parameters",
    "trainable_token_indices", "alora_invocation_tokens", "arrow_config", "kasa_config", "velora_config",
    "monteclora_config", "lora_ga_config",
)  # fmt: skip
# The others, such as pissa and olora, change the model's weights before the adapter is trained.
_INITIALIZATIONS = (True, False, None, "gaussian", "eva", "orthogonal")


@dataclass(frozen=True)
class PeftConfig:
    """Rank and alpha of the matrices, by patterns of their modules before the general ones. `rooted`: rsLoRA's alpha / sqrt(r) in
    place of alpha / r. `dora`: modules have magnitudes."""

    rank: int
    alpha: float
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]
    rooted: bool
    dora: bool = False

    def rank_of(self, module: str) -> int:
        """The rank that a module's matrices should have."""
        return _first_match(self.ranks, module, self.rank)

    def scale_of(self, module: str) -> float:
        """Returns the factor of the product of a module's matrices."""
        rank = self.rank_of(module)
        return _first_match(self.alphas, module, self.alpha) / (math.sqrt(rank) if self.rooted else rank)


def open_folder(folder: str | os.PathLike[str], model: GGUFFile) -> Adapter:
    """Reads an adapter of a model from a PEFT folder into memory, with rows in the order of the model's file.

    Raises FormatError for a damaged one, one that is not a plain LoRA or DoRA, or matrices that the model does not have;
    MissingExtraError without the safetensors library."""
    architecture = family_name(model.metadata)
    naming = naming_of(architecture)
    sizes = read_config(model.metadata)
    config = read_peft_config(Path(folder, CONFIG))
    if not Path(folder, WEIGHTS).exists() and Path(folder, _PICKLED).exists():
        raise FormatError(f"{path_for_messages(folder)}: has {_PICKLED}, which may run code; wanted {WEIGHTS}")
    with open_safetensors(Path(folder, WEIGHTS)) as file:
        modules = _modules(file, naming, architecture)
        pairs, scales, magnitudes = {}, {}, {}
        for name, (module, parts) in modules.items():
            a, b, m = _checked(file.path, module, parts, config, model.tensors.get(f"{name}.weight"))
            order = row_order(naming, sizes, name, b.shape[0])
            pairs[name] = _held(a, f"{name}.weight.lora_a", None), _held(b, f"{name}.weight.lora_b", order)
            scales[name] = config.scale_of(module)
            if m is not None:
                magnitudes[name] = _held(m, f"{name}.weight.lora_m", order)
        digest = file.metadata.get(BASE_DIGEST)
    return Adapter(path_for_messages(folder), pairs, scales, architecture, digest, magnitudes=magnitudes)


def read_peft_config(path: Path) -> PeftConfig:
    """Reads adapter_config.json. Raises FormatError for a damaged file, and for what no plain LoRA or DoRA has."""
    name = path_for_messages(path)
    require_ordinary_file(path)
    try:
        found = _json(path, name)
        _refuse(found, name)
        return _config(found, name)
    except RecursionError:  # of the parser, or of a value's repr in a message
        raise FormatError(f"{name}: is nested too deeply; wanted the configuration of an adapter") from None


def _json(path: Path, name: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:  # in the hub's cache it is a link
            data = file.read(_MOST_CONFIG_NBYTES + 1)
        if len(data) > _MOST_CONFIG_NBYTES:
            raise FormatError(
                f"{name}: has more than {_MOST_CONFIG_NBYTES} bytes; wanted the configuration of an adapter"
            )
        found = json.loads(data)
    except OSError as error:
        raise FormatError(f"{name}: cannot be read: {reason_of(error)}") from error
    except ValueError as error:  # UnicodeDecodeError is one
        raise FormatError(f"{name}: is not JSON: {shown(str(error))}") from error
    if not isinstance(found, dict):
        raise FormatError(f"{name}: has {shown_value(found)}; wanted an object")
    return found


def _config(found: Mapping[str, Any], name: str) -> PeftConfig:
    for key in ("use_rslora", "use_dora"):
        if not isinstance(found.get(key), bool | None):
            raise FormatError(f"{name}: {key} is {shown_value(found[key])}; wanted true or false")
    return PeftConfig(
        _rank(found.get("r"), f"{name}: r"),
        _alpha(found.get("lora_alpha"), f"{name}: lora_alpha"),
        {k: _rank(v, f"{name}: rank_pattern") for k, v in _patterns(found, "rank_pattern", name)},
        {k: _alpha(v, f"{name}: alpha_pattern") for k, v in _patterns(found, "alpha_pattern", name)},
        bool(found.get("use_rslora")),
        bool(found.get("use_dora")),
    )


def _refuse(config: Mapping[str, Any], name: str) -> None:
    """FormatError for an adapter that is not a plain LoRA or DoRA."""
    if config.get("peft_type") != "LORA":
        raise FormatError(f"{name}: peft_type is {shown_value(config.get('peft_type'))}; wanted 'LORA'")
    for key in _REFUSED:
        if config.get(key):
            raise FormatError(f"{name}: {key} is {shown_value(config[key])}; wanted a plain LoRA, without it")
    if config.get("bias", "none") != "none":
        raise FormatError(f"{name}: bias is {shown_value(config['bias'])}; wanted 'none'")
    start = config.get("init_lora_weights")
    if not any(start is known or (isinstance(start, str) and start == known) for known in _INITIALIZATIONS):
        wanted = "an initialization that leaves the model's weights as they are"
        raise FormatError(f"{name}: init_lora_weights is {shown_value(start)}; wanted {wanted}")


def _rank(value: object, what: str) -> int:
    if type(value) is not int or not 1 <= value <= _MOST_RANK:
        raise FormatError(f"{what} is {shown_value(value)}; wanted an integer of 1 or more")
    return value


def _alpha(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= _MOST_ALPHA:
        raise FormatError(f"{what} is {shown_value(value)}; wanted a number above 0")
    return float(value)


def _patterns(config: Mapping[str, Any], key: str, name: str) -> Iterable[tuple[str, Any]]:
    """The patterns of a key. FormatError unless they are ends of modules' names: PEFT takes regular expressions, and some
    take hours."""
    found = {} if config.get(key) is None else config[key]
    if not isinstance(found, dict):
        raise FormatError(f"{name}: {key} is {shown_value(found)}; wanted an object")
    for pattern in found:
        if not re.fullmatch(r"\^?[\w.]+", pattern, re.ASCII):
            raise FormatError(f"{name}: {key} has {shown(pattern)}; wanted names of modules, such as layers.0.q_proj")
    return found.items()


def _first_match(patterns: Mapping[str, Number], module: str, default: Number) -> Number:
    """The value of the first pattern that is the module's name or its end after a dot; with ^ it is the whole name."""
    return next((v for k, v in patterns.items() if module == k.removeprefix("^") or module.endswith(f".{k}")), default)


_Parts = dict[str, FileTensor]  # by the ends of their names


def _modules(file: SafetensorsFile, naming: Naming, architecture: str) -> dict[str, tuple[str, _Parts]]:
    """The module and its tensors by the names of the matrices in the model's file."""
    if not 1 <= len(file.tensors) <= _MOST_TENSORS:
        raise FormatError(f"{file.path}: has {len(file.tensors)} tensors; wanted 1 to {_MOST_TENSORS}")
    found: dict[str, _Parts] = {}
    for name, tensor in file.tensors.items():
        match = re.fullmatch(rf"{re.escape(PREFIX)}(.+)\.({'|'.join(map(re.escape, PARTS))})", name)
        if match is None or file_name(naming, match[1]) is None:
            one = f"{PREFIX}{module_name(naming, 'blk.0.' + next(iter(naming.modules)))}.lora_A.weight"
            raise FormatError(
                f"{file.path}: got the tensor {shown(name)}; wanted those of {architecture}, such as {one}"
            )
        found.setdefault(match[1], {})[match[2]] = tensor
    modules: dict[str, tuple[str, _Parts]] = {}
    for module, parts in found.items():
        name = str(file_name(naming, module))
        if name in modules:
            raise FormatError(f"{file.path}: {shown(module)} has {shown(modules[name][0])} too; wanted one of them")
        modules[name] = module, parts
    return modules


def _checked(
    path: str, module: str, parts: _Parts, config: PeftConfig, weight: FileTensor | None
) -> tuple[FileTensor, FileTensor, FileTensor | None]:
    """A, B and the magnitudes, if any. FormatError for others than the configuration asks for, of another rank, of formats
    without kernels, or that do not fit the model's matrix."""
    wanted = PARTS if config.dora else PARTS[:2]
    if set(parts) != set(wanted):
        raise FormatError(f"{path}: {shown(module)} has {', '.join(sorted(parts))}; wanted {', '.join(wanted)}")
    if weight is None or len(weight.shape) != 2:
        raise FormatError(f"{path}: changes {shown(module)}; the model has no such matrix")
    rank, (n, k) = config.rank_of(module), weight.shape
    for part, shape in zip(wanted, ((rank, k), (n, rank), (n,)), strict=False):
        if parts[part].shape != shape:
            came = f"{part} {list(parts[part].shape)}"
            raise FormatError(f"{path}: {shown(module)} has {came}; wanted {list(shape)}")
        if parts[part].format.name not in _FORMATS:
            what = f"{shown(parts[part].name)} is {parts[part].format.name}"
            raise FormatError(f"{path}: {what}; wanted {', '.join(_FORMATS)}")
    return parts[PARTS[0]], parts[PARTS[1]], parts.get(PARTS[2])


def _held(tensor: FileTensor, name: str, order: Array | None) -> FileTensor:
    """The tensor in memory under another name, with its rows in another order."""
    values = tensor.array() if order is None else tensor.array()[order]
    data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    data.flags.writeable = False
    return FileTensor(name, tensor.shape, tensor.format, tensor.nbytes, lambda: data, tensor.path)
