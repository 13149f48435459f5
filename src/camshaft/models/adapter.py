"""LoRA adapters (Hu et al., 2021) of model files: y = x W^T + scale (x A^T) B^T, with A and B from a GGUF file as llama.cpp has
them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from camshaft.errors import FormatError, ModelError
from camshaft.formats.gguf.file import GGUFFile, GGUFTensor, open_gguf
from camshaft.formats.mapped import shown_value
from camshaft.formats.tensor import FileTensor
from camshaft.store.digest import digest_of

# The key of the digest of the model's header, which camshaft writes into the adapters that it trains.
BASE_DIGEST = "camshaft.base.header_digest"


@dataclass(frozen=True)
class Adapter:
    """An open adapter file: pairs of matrices A [rank, k] and B [n, rank] by the names of the matrices [n, k] that they change,
    and alpha; a product is multiplied by alpha / rank."""

    file: GGUFFile
    pairs: Mapping[str, tuple[GGUFTensor, GGUFTensor]]
    alpha: float
    architecture: str
    base_digest: str | None

    def scale(self, name: str) -> float:
        """What the product of a pair is multiplied by."""
        return self.alpha / self.pairs[name][0].shape[0]

    def check_base(
        self, tensors: Mapping[str, FileTensor], architecture: str, header_digest: Callable[[], str]
    ) -> None:
        """Raises FormatError unless the adapter is of the model with these tensors."""
        path = self.file.path
        if self.architecture != architecture:
            raise FormatError(f"{path}: is for {self.architecture!r:.60}; wanted an adapter for {architecture!r:.60}")
        for name, (a, b) in self.pairs.items():
            tensor, shape = tensors.get(f"{name}.weight"), (b.shape[0], a.shape[1])
            if tensor is None or tuple(tensor.shape) != shape:
                there = "no such weight" if tensor is None else str(list(tensor.shape))
                raise FormatError(f"{path}: changes {name}.weight {list(shape)}; the model has {there}")
        if self.base_digest is not None and self.base_digest != header_digest():
            raise FormatError(f"{path}: is of another model; wanted the one that it was trained on")


def open_adapter(path: str | os.PathLike[str]) -> Adapter:
    """Opens an adapter file. Raises FormatError for a damaged one, and for one that is no LoRA of pairs that fit."""
    file = open_gguf(path)
    try:
        kind = file.metadata.get("general.type"), file.metadata.get("adapter.type")
        if kind != ("adapter", "lora"):
            raise FormatError(f"{path}: is of {shown_value(kind)}; wanted a GGUF adapter of type lora")
        alpha = file.metadata.get("adapter.lora.alpha")
        if not isinstance(alpha, (int, float)) or not math.isfinite(alpha) or alpha <= 0:
            raise FormatError(f"{path}: adapter.lora.alpha is {shown_value(alpha)}; wanted a number above 0")
        digest = file.metadata.get(BASE_DIGEST)
        architecture = str(file.metadata.get("general.architecture"))
        return Adapter(file, _pairs(file), alpha, architecture, digest if isinstance(digest, str) else None)
    except BaseException:
        file.close()
        raise


def _pairs(file: GGUFFile) -> dict[str, tuple[GGUFTensor, GGUFTensor]]:
    found: dict[str, dict[str, GGUFTensor]] = {}
    for name, tensor in file.tensors.items():
        base, _, part = name.rpartition(".weight.lora_")
        if part not in ("a", "b") or len(tensor.shape) != 2:
            what = f"{shown_value(name)} {list(tensor.shape)}"
            raise FormatError(f"{file.path}: got the tensor {what}; wanted lora_a and lora_b of matrices")
        found.setdefault(base, {})[part] = tensor
    if not found or any(len(pair) != 2 or pair["a"].shape[0] != pair["b"].shape[1] for pair in found.values()):
        raise FormatError(f"{file.path}: has matrices that do not fit; wanted a pair of one rank for each weight")
    return {name: (pair["a"], pair["b"]) for name, pair in found.items()}


# What a user gives: adapter files, each with a strength or at 1.
Given = Iterable[str | os.PathLike[str] | tuple[str | os.PathLike[str], float]]


class Adapters:
    """Open adapters of one model, each with a strength that multiplies it.

    `tensors` are those of the model and, under names of their own, of the adapters."""

    def __init__(self, model: GGUFFile, given: Sequence[tuple[Adapter, float]] = ()) -> None:
        self.given, self.tensors = tuple(given), dict(model.tensors)
        for i, (adapter, _) in enumerate(self.given):
            for pair in adapter.pairs.values():
                self.tensors |= {name: replace(t, name=name) for t in pair for name in [constant_name(i, t)]}

    @property
    def digest(self) -> str:
        """Digest of what plans depend on: all but the numbers of the matrices."""
        return digest_of(
            (
                repr((strength, adapter.scale(name))),
                *((t.name, t.shape, t.format.name, t.offset, t.is_mapped) for t in pair),
            )
            for adapter, strength in self.given
            for name, pair in adapter.pairs.items()
        )

    def close(self) -> None:
        """Closes the files."""
        for adapter, _ in self.given:
            adapter.file.close()


def open_adapters(model: GGUFFile, given: Given, header_digest: Callable[[], str]) -> Adapters:
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
            if isinstance(strength, bool) or not isinstance(strength, (int, float)) or not math.isfinite(strength):
                raise ModelError(f"{path}: got the strength {strength!r:.60}; wanted a finite number")
            found.append((open_adapter(path), float(strength)))
            found[-1][0].check_base(model.tensors, str(model.metadata.get("general.architecture")), header_digest)
    except BaseException:
        Adapters(model, found).close()
        raise
    return Adapters(model, found)


def constant_name(i: int, tensor: GGUFTensor) -> str:
    """The name of the i-th adapter's tensor among those of the model."""
    return f"adapter.{i}.{tensor.name}"
