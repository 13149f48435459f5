"""Adapters written as PEFT reads them: a folder with adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from camshaft.errors import FormatError, StoreError
from camshaft.formats.safetensors import write_safetensors
from camshaft.models.adapters.adapter import BASE_DIGEST
from camshaft.models.adapters.peft import CONFIG, PARTS, PREFIX, WEIGHTS
from camshaft.models.adapters.peft_names import module_name, naming_of, row_order
from camshaft.store.files import atomic_file, naming
from camshaft.train.tuning.methods.lora import LoraModel

Array = np.ndarray[Any, Any]
# Keys of the repository that a model was made from; general.base_model is the one that it was tuned from itself.
_SOURCES = ("general.source.huggingface.repository", "general.source.repo_url", "general.repo_url")
_HUB = "https://huggingface.co/"


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Whether an adapter of this name is a PEFT folder: all but GGUF files are."""
    return Path(path).suffix.lower() != ".gguf"


def check_free(target: Path, force: bool) -> None:
    """Raises StoreError if an adapter is there already, unless `force`, or something else is."""
    if is_folder(target) and target.exists() and not target.is_dir():
        raise StoreError(f"{target}: is a file; wanted a folder for a PEFT adapter, or a name that ends in .gguf")
    if not is_folder(target) and target.is_dir():
        raise StoreError(f"{target}: is a folder; wanted the path of a GGUF file")
    if not is_folder(target) and not target.absolute().parent.is_dir():
        raise StoreError(f"{target}: the folder {target.parent} does not exist")
    there = [target / CONFIG, target / WEIGHTS] if is_folder(target) else [target]
    if not force and any(path.exists() for path in there):
        raise StoreError(f"{target}: exists already; force=True replaces it")


def check_storable(target: Path, is_dora: bool) -> None:
    """Raises FormatError for DoRA's magnitudes in a GGUF file."""
    if is_dora and not is_folder(target):
        raise FormatError(
            f"{target}: GGUF adapters hold no magnitudes of DoRA; wanted the name of a folder, for PEFT's form"
        )


def module_names(model: LoraModel, names: Iterable[str]) -> dict[str, str]:
    """The paths of the Hugging Face modules of matrices. FormatError for those of families whose names are not known."""
    known = naming_of(model.config.architecture)
    found = {name: module_name(known, name) for name in names}
    if unknown := [name for name, module in found.items() if module is None]:
        raise FormatError(f"PEFT has no module for {unknown[0]:.60}; wanted {', '.join(known.modules)}")
    return {name: str(module) for name, module in found.items()}


def save_folder(folder: Path, model: LoraModel, adapters: Mapping[str, Mapping[str, Array]]) -> None:
    """Writes adapters of a model. While the folder has a configuration, the weights are those of it. FormatError where some
    matrices have magnitudes and others have not."""
    modules = module_names(model, adapters)
    tensors: dict[str, Array] = {}
    for name, parts in adapters.items():
        if ("m" in parts) != model.lora.dora:
            came, wanted = ("m", "without") if "m" in parts else ("no m", "with")
            raise FormatError(
                f"{folder}: the adapter of {name:.60} has {came}; wanted one {wanted} it, as dora={model.lora.dora}"
            )
        order = row_order(naming_of(model.config.architecture), model.config, name, parts["b"].shape[0])
        rows = slice(None) if order is None else np.argsort(order)
        found = parts["a"], parts["b"][rows], *([parts["m"][rows]] if "m" in parts else [])
        tensors |= {f"{PREFIX}{modules[name]}.{end}": _f32(array) for end, array in zip(PARTS, found, strict=False)}
    config = json.dumps(_config(model, modules, adapters), indent=2)
    with naming(folder, "cannot be written"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG).unlink(missing_ok=True)
    write_safetensors(folder / WEIGHTS, tensors, {"format": "pt", BASE_DIGEST: model.digest})
    with atomic_file(folder / CONFIG, durable=True, private=False) as file:
        file.write(f"{config}\n".encode())


def _config(
    model: LoraModel, modules: Mapping[str, str], adapters: Mapping[str, Mapping[str, Array]]
) -> dict[str, Any]:
    """adapter_config.json. Matrices of another rank than the first one's are in rank_pattern."""
    ranks = {name: int(pair["a"].shape[0]) for name, pair in adapters.items()}
    rank, alpha = next(iter(ranks.values()), model.lora.rank), float(model.lora.alpha)
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": _repository(model.file.metadata),
        "inference_mode": True,
        "r": rank,
        "lora_alpha": int(alpha) if alpha.is_integer() else alpha,
        "lora_dropout": float(model.lora.dropout),
        "target_modules": _targets(model, modules),
        "rank_pattern": {modules[name]: r for name, r in ranks.items() if r != rank},
        "alpha_pattern": {},
        "use_rslora": model.lora.rslora,
        "use_dora": model.lora.dora,
        "bias": "none",
        "modules_to_save": None,
        "fan_in_fan_out": naming_of(model.config.architecture).transposed,
        "init_lora_weights": True,
    }


def _targets(model: LoraModel, modules: Mapping[str, str]) -> list[str]:
    """What PEFT should change: the ends of names, such as q_proj, if all modules with them have an adapter; else whole names."""
    known, chosen = naming_of(model.config.architecture), set(modules.values())
    every = [m for name in model.file.tensors if (m := module_name(known, name.removesuffix(".weight")))]
    short = {m.rpartition(".")[2] for m in chosen}
    whole = all(m in chosen for m in every if m.rpartition(".")[2] in short)
    return sorted(short if whole else chosen)


def _repository(metadata: Mapping[str, Any]) -> str | None:
    """The Hugging Face repository of the model, where its file says so."""
    found = (value for key in _SOURCES if isinstance(value := metadata.get(key), str) and value)
    return next((value.removeprefix(_HUB) for value in found), None)


def _f32(array: Array) -> Array:
    return np.ascontiguousarray(array, np.float32)
