"""distill_quantize(model, out, type, data): quantize a model, then learn the scales and biases of its groups (DWQ).

A decoded block of a GGUF file is linear in its scale d and, in formats that have one, its minimum m: w = d a - m b, with a and b
from the codes and sub-scales; affine weights are code scale + bias. Codes and sub-scales stay as they are; each scale, minimum or
bias is multiplied by a number that is learned, so that the quantized model's distribution of the next token comes near to the
full model's (by KL divergence). The file keeps its size and formats.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from camshaft.errors import FormatError, PlanError, StoreError, reason_of
from camshaft.formats.gguf.file import open_gguf
from camshaft.formats.mapped import path_for_messages
from camshaft.formats.texts import read_text
from camshaft.models.convert.convert import convert
from camshaft.models.files.mlx_folder import check_folder
from camshaft.models.files.quantize import check_target, quantize
from camshaft.store.file_lock import work_folder
from camshaft.train.data import Windows
from camshaft.train.optimizers import Adam
from camshaft.train.schedules import cosine
from camshaft.train.trainer import Progress, Trainer
from camshaft.train.tuning.distilling.affine import AffineStudent, affine_bits
from camshaft.train.tuning.distilling.blocks import BlockStudent
from camshaft.train.tuning.distilling.student import Student
from camshaft.train.tuning.methods.lora import LoraConfig, LoraModel
from camshaft.train.validation import Validation

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class DistillOptions:
    """`steps` of `batch` windows of `length` tokens; `lr` is Adam's greatest rate for the factors, which start at 1.

    The last tenth of the text is held out: `held_out` windows of it measure the divergence, after each tenth of the steps."""

    steps: int = 100
    batch: int = 2
    length: int = 128
    lr: float = 1e-3
    held_out: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "length", "held_out"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise PlanError(f"distill_quantize: got {name}={value!r:.60}; wanted 1 or more")


@dataclass(frozen=True)
class DistillResult:
    """The file, its size, and the KL divergence per token from the full model on text that was held out, before and after."""

    path: Path
    nbytes: int
    kl_before: float
    kl_after: float
    n_steps: int
    seconds: float


def distill_quantize(
    model: str | Path,
    out: str | os.PathLike[str],
    file_type: str,
    data: str | os.PathLike[str],
    *,
    pure: bool = False,
    force: bool = False,
    options: DistillOptions | None = None,
    each: Callable[[Progress, int], None] = lambda progress, steps: None,
    backend: str | None = None,
    threads: int | None = None,
) -> DistillResult:
    """Writes a model in the formats of `file_type`, as `quantize` does, with scales and minima that are learned from a text.

    With AFFINE3, or 2, 4, 5, 6 or 8 in place of the 3, `model` is a folder in Hugging Face's layout, and `out` will be one as
    mlx-lm loads it: codes of so many bits for the matrices of layers, of 8 for embeddings and the output.

    `data` is a text file. `each(progress, steps)` is called after every step. Raises FormatError as `quantize` and for a text
    that is too short, StoreError if `out` cannot be written."""
    given, target, started = options or DistillOptions(), Path(out), time.perf_counter()
    if affine_bits(file_type) is None:
        check_target(Path(model), target, force)
    else:
        check_folder(target, force)
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(work_folder(target.parent, ".distill-"))
        except OSError as error:
            raise StoreError(f"{path_for_messages(target)}: cannot be written: {reason_of(error)}") from error
        student = _student(stack, folder, Path(model), file_type, pure, threads)
        learned, held_out = _windows(student.full, data, given)
        validation = Validation([(ids,) for ids in held_out], max(given.steps // 10, 1))
        rate = cosine(given.lr, given.steps, warmup=given.steps // 20)
        parts = student.loss, student.factors(), Adam(), lambda n: learned(n)[:1]
        trainer = stack.enter_context(
            Trainer(*parts, lr=rate, clip=1.0, validation=validation, backend=backend, threads=threads)
        )
        before = validation.loss(trainer.step)
        trainer.run(given.steps, lambda progress: each(progress, given.steps))
        best = trainer.best_validation
        is_better = best is not None and best[1] < before
        after = best[1] if best is not None and is_better else before
        student.write(target, trainer.best if is_better else student.factors())
    nbytes = sum(p.stat().st_size for p in _files(target))
    return DistillResult(target, nbytes, before, after, given.steps, time.perf_counter() - started)


def _files(path: Path) -> list[Path]:
    """The file, or those of a folder."""
    return sorted(path.iterdir()) if path.is_dir() else [path]


def _student(stack: ExitStack, folder: Path, model: Path, file_type: str, pure: bool, threads: int | None) -> Student:
    """The full model and its quantized one, made in a folder."""
    bits = affine_bits(file_type)
    if bits is None:
        small = folder / "quantized.gguf"
        quantize(model, small, file_type, pure=pure, threads=threads)
        full = stack.enter_context(LoraModel(model, LoraConfig()))
        return BlockStudent(full, stack.enter_context(open_gguf(small)))
    if pure:
        raise PlanError(f"distill_quantize: got pure for the type {file_type}; wanted it for types of GGUF files")
    if not model.is_dir():
        name = path_for_messages(model)
        raise FormatError(f"{name}: is not a folder; wanted a model in Hugging Face's layout for the type {file_type}")
    whole = folder / "full.gguf"
    convert(model, whole, threads=threads)
    return AffineStudent(stack.enter_context(LoraModel(whole, LoraConfig())), model, bits)


def _windows(model: LoraModel, path: str | os.PathLike[str], given: DistillOptions) -> tuple[Windows, list[Array]]:
    """Windows of the first nine tenths of a text, and batches of one held-out window each."""
    ids = np.array(model.tokenizer.encode(read_text(path), add_special=False), np.int32)
    held = len(ids) // 10
    wanted = 10 * (given.length + 1)
    if len(ids) < wanted:
        raise FormatError(
            f"{os.fspath(path)}: has {len(ids)} tokens; wanted {wanted} or more for windows of {given.length}"
        )
    later = ids[len(ids) - held :]
    starts = np.unique(np.linspace(0, held - given.length, given.held_out).astype(int))
    held_out = [later[None, s : s + given.length] for s in starts]
    return Windows(ids[: len(ids) - held], given.length, given.batch, given.seed), held_out
