"""LoRA adapters (Hu et al., 2021) of model files: y = x W^T + scale (x A^T) B^T, with A and B from a GGUF file as llama.cpp has
them, or from a PEFT folder, which may be of DoRA."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self, TypeGuard

import numpy as np

from camshaft.errors import FormatError, ModelError
from camshaft.formats.gguf.file import GGUFFile, open_gguf
from camshaft.formats.mapped import path_for_messages, shown, shown_value
from camshaft.formats.tensor import FileTensor
from camshaft.store.files import digest_of

# The key of the digest of the model, which camshaft writes into the adapters that it trains.
BASE_DIGEST = "camshaft.base.digest"
# Products are multiplied in f32.
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Adapter:
    """An open adapter: pairs of matrices A [rank, k] and B [n, rank] by the names of the matrices [n, k] that they change, and
    what their products are multiplied by. Of a stack of experts' matrices both are stacks. `file` is None if they are in memory.
    A context manager.

    `magnitudes` [n] are of DoRA (models/adapters/dora.py): all matrices have one, or none has."""

    path: str
    pairs: Mapping[str, tuple[FileTensor, FileTensor]]
    scales: Mapping[str, float]
    architecture: str
    base_digest: str | None
    file: GGUFFile | None = None
    magnitudes: Mapping[str, FileTensor] = field(default_factory=dict)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file."""
        if self.file is not None:
            self.file.close()

    def check_base(
        self, tensors: Mapping[str, FileTensor], architecture: str, base_digests: Callable[[], Collection[str]]
    ) -> None:
        """Raises FormatError unless the adapter is of the model with these tensors and one of the digests."""
        path = self.path
        if self.architecture != architecture:
            raise FormatError(f"{path}: is for {shown(self.architecture)}; wanted an adapter for {shown(architecture)}")
        for name, (a, b) in self.pairs.items():
            tensor, shape = tensors.get(f"{name}.weight"), (*b.shape[:-1], a.shape[-1])
            if tensor is None or tuple(tensor.shape) != shape:
                there = "no such weight" if tensor is None else str(list(tensor.shape))
                raise FormatError(f"{path}: changes {shown(f'{name}.weight')} {list(shape)}; the model has {there}")
        if self.base_digest is not None and self.base_digest not in base_digests():
            raise FormatError(f"{path}: is of another model; wanted the one that it was trained on")


def open_adapter(path: str | os.PathLike[str], model: GGUFFile | None = None) -> Adapter:
    """Opens an adapter file, or the PEFT folder of an adapter of `model`.

    Raises FormatError for a damaged one, and for one that is not a LoRA of pairs that fit; MissingExtraError for a folder without
    the safetensors library."""
    if not isinstance(path, (str, os.PathLike)) or not os.path.isdir(path):  # isdir takes file descriptors too
        return _open_file(path)
    if model is None:
        raise FormatError(f"{path_for_messages(path)}: is a folder; wanted a GGUF adapter, or its model too")
    from camshaft.models.adapters.peft import open_folder  # not needed for files

    return open_folder(path, model)


def _open_file(path: str | os.PathLike[str]) -> Adapter:
    file = open_gguf(path)
    path = file.path
    try:
        kind = file.metadata.get("general.type"), file.metadata.get("adapter.type")
        if not all(isinstance(part, str) for part in kind) or kind != ("adapter", "lora"):
            words = ("missing" if part is None else shown_value(part) for part in kind)
            is_of = "its general.type is {} and its adapter.type {}".format(*words)
            raise FormatError(f"{path}: {is_of}; wanted a GGUF adapter of type lora")
        alpha = file.metadata.get("adapter.lora.alpha")
        if not _is_number(alpha) or not math.isfinite(alpha) or alpha <= 0:
            raise FormatError(f"{path}: adapter.lora.alpha is {shown_value(alpha)}; wanted a number above 0")
        digest = file.metadata.get(BASE_DIGEST)
        base, architecture = digest if isinstance(digest, str) else None, str(file.metadata.get("general.architecture"))
        pairs = _pairs(file)
        scales = {name: alpha / a.shape[-2] for name, (a, _) in pairs.items()}
        return Adapter(file.path, pairs, scales, architecture, base, file)
    except BaseException:
        file.close()
        raise


def _pairs(file: GGUFFile) -> dict[str, tuple[FileTensor, FileTensor]]:
    found: dict[str, dict[str, FileTensor]] = {}
    for name, tensor in file.tensors.items():
        base, _, part = name.rpartition(".weight.lora_")
        if part not in ("a", "b") or len(tensor.shape) not in (2, 3):
            what = f"{shown_value(name)} {list(tensor.shape)}"
            raise FormatError(f"{file.path}: got the tensor {what}; wanted lora_a and lora_b of matrices")
        found.setdefault(base, {})[part] = tensor
    if not found:
        raise FormatError(f"{file.path}: has no tensors; wanted lora_a and lora_b of matrices")
    for base, pair in found.items():
        _check_pair(f"{file.path}: {shown(base)}", pair)
    return {name: (pair["a"], pair["b"]) for name, pair in found.items()}


def _check_pair(what: str, pair: Mapping[str, FileTensor]) -> None:
    if len(pair) != 2:
        raise FormatError(f"{what} has lora_{next(iter(pair))} alone; wanted lora_a and lora_b")
    a, b = pair["a"].shape, pair["b"].shape
    if len(a) != len(b) or a[-2] != b[-1] or a[:-2] != b[:-2]:
        wanted = "[rank, k] and [n, rank], or stacks of as many"
        raise FormatError(f"{what} has lora_a {list(a)} and lora_b {list(b)}; wanted {wanted}")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


# What a user gives: adapter files and folders, each with a strength or at 1.
Given = Iterable[str | os.PathLike[str] | tuple[str | os.PathLike[str], float]]


class Adapters:
    """Open adapters of one model, each with a strength that multiplies it.

    `tensors` are those of the model and, under names of their own, of the adapters."""

    def __init__(self, model: GGUFFile, given: Sequence[tuple[Adapter, float]] = ()) -> None:
        self.given = tuple(given)
        self.tensors: dict[str, FileTensor] = dict(model.tensors)
        for i, (adapter, _) in enumerate(self.given):
            for name, pair in adapter.pairs.items():
                own = [replace(t, name=constant_name(i, t.name)) for t in pair]
                if name in adapter.magnitudes:
                    from camshaft.models.adapters.dora import factors_tensor  # here, as it imports the graph

                    made, weight = constant_name(i, factors_name(name)), model.tensors[f"{name}.weight"]
                    own.append(factors_tensor(made, adapter.magnitudes[name], weight, pair, adapter.scales[name]))
                self.tensors |= {t.name: t for t in own}

    @property
    def digest(self) -> str:
        """Digest of what plans depend on: all but the numbers of the matrices."""
        return digest_of(
            (
                repr((i, strength, adapter.scales[name], name in adapter.magnitudes)),
                *((t.name, t.shape, t.format.name, t.mapped and t.mapped[1]) for t in pair),
            )
            for i, (adapter, strength) in enumerate(self.given)
            for name, pair in adapter.pairs.items()
        )

    def close(self) -> None:
        """Closes the files."""
        for adapter, _ in self.given:
            adapter.close()


def open_adapters(model: GGUFFile, given: Given, base_digest: Callable[[], str]) -> Adapters:
    """Opens adapters of a model. Raises FormatError as `open_adapter` and for those of another model, ModelError for what is no
    list of files with strengths."""
    if isinstance(given, (str, bytes, os.PathLike)) or not isinstance(given, Iterable):
        raise ModelError(
            f"adapters came as {type(given).__name__}; wanted a list of files, or of pairs of a file and a strength"
        )
    found: list[tuple[Adapter, float]] = []
    try:
        for one in given:
            path, strength = one if isinstance(one, tuple) and len(one) == 2 else (one, 1.0)
            if not isinstance(path, (str, os.PathLike)):
                raise ModelError(f"an adapter came as {one!r:.60}; wanted a file, or a pair of a file and a strength")
            number = _strength(path, strength)
            found.append((open_adapter(path, model), number))
            found[-1][0].check_base(
                model.tensors, str(model.metadata.get("general.architecture")), lambda: [base_digest()]
            )
            _check_factors(*found[-1])
    except BaseException:
        Adapters(model, found).close()
        raise
    return Adapters(model, found)


def _strength(path: str | os.PathLike[str], given: object) -> float:
    """The number given. ModelError unless it is finite."""
    name = path_for_messages(path)
    if not _is_number(given):
        raise ModelError(f"{name}: got the strength {shown_value(given)}; wanted a finite number")
    try:
        number = float(given)
    except OverflowError:  # a whole number that no float holds
        number = math.inf
    if not math.isfinite(number):
        raise ModelError(f"{name}: got the strength {number}; wanted a finite number")
    return number


def _check_factors(adapter: Adapter, strength: float) -> None:
    """FormatError where a product would be multiplied by more than f32 holds, which gives no finite number."""
    scale = max(adapter.scales.values(), key=abs, default=0.0)
    if abs(strength * scale) > _LARGEST:
        what = f"the scale {scale:g} and the strength {strength:g} multiply products by {strength * scale:g}"
        raise FormatError(f"{adapter.path}: {what}; wanted at most {_LARGEST:g}, which f32 holds")


def constant_name(i: int, name: str) -> str:
    """The name of a tensor of the i-th adapter among those of the model."""
    return f"adapter.{i}.{name}"


def factors_name(name: str) -> str:
    """The name of DoRA's factors of a matrix."""
    return f"{name}.weight.dora"
