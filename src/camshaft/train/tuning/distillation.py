"""distill_quantize(model, out, type, data): quantize a model, then learn the blocks' scales and minima (DWQ).

A decoded block is linear in its scale d and, in formats that have one, its minimum m: w = d a - m b, with a and b from the codes
and sub-scales. These stay as they are; each d and m is multiplied by a number that is learned, so that the quantized model's
distribution of the next token comes near to the full model's (by KL divergence). The file keeps its size and formats.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from camshaft.errors import FormatError, PlanError, StoreError
from camshaft.formats.gguf.file import GGUFFile, open_gguf
from camshaft.formats.gguf.write import NewTensor, values_of, write_gguf
from camshaft.formats.mapped import path_for_messages
from camshaft.formats.tensor import FileTensor
from camshaft.graph import functions as f
from camshaft.graph.tensor import Tensor, graph_of
from camshaft.models.blocks.transformer import TokenBatch, WholeSequences
from camshaft.models.checkpoint import Checkpoint
from camshaft.models.decoder import decoder
from camshaft.models.files.quantize import check_target, quantize
from camshaft.store.file_lock import work_folder
from camshaft.train.data import Windows
from camshaft.train.optimizers import Adam
from camshaft.train.schedules import cosine
from camshaft.train.trainer import Progress, Trainer
from camshaft.train.tuning.methods.lora import TARGETS, LoraConfig, LoraModel
from camshaft.train.validation import Validation

Array = np.ndarray[Any, Any]
Factors = Mapping[str, Mapping[str, Any]]
_MATRIX = re.compile(rf"blk\.\d+\.({'|'.join(TARGETS)})\.weight")
_FIELDS = ("d", "m", "dmin")  # of a block's layout: the scale, and the minimum by its two names
_LEAST, _MOST = 0.25, 4.0  # what a factor may be: beyond it codes and scale no longer fit each other


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

    `data` is a text file. `each(progress, steps)` is called after every step. Raises FormatError as `quantize` and for a text
    that is too short, ModelError for mixtures of experts and recurrent models, StoreError if `out` cannot be written."""
    given, target, started = options or DistillOptions(), Path(out), time.perf_counter()
    check_target(Path(model), target, force)
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(work_folder(target.parent, ".distill-"))
        except OSError as error:
            raise StoreError(f"{path_for_messages(target)}: cannot be written: {error.strerror}") from error
        small = folder / "quantized.gguf"
        quantize(model, small, file_type, pure=pure, threads=threads)
        full = stack.enter_context(LoraModel(model, LoraConfig()))
        file = stack.enter_context(open_gguf(small))
        student = Student(full, file)
        learned, held_out = _windows(full, data, given)
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
    return DistillResult(target, target.stat().st_size, before, after, given.steps, time.perf_counter() - started)


class Student:
    """A quantized model whose matrices' blocks have factors for their scales and minima, beside the full model."""

    def __init__(self, full: LoraModel, file: GGUFFile) -> None:
        self._full, self._file = full, file
        self._parts = {
            name: parts_of(tensor)
            for name, tensor in file.tensors.items()
            if _MATRIX.fullmatch(name) and _fields(tensor)
        }
        if not self._parts:
            raise FormatError(
                f"{path_for_messages(file.path)}: has no matrix of layers in blocks with a scale; wanted a type such as Q4_0"
            )

    def factors(self) -> dict[str, dict[str, Array]]:
        """Factors of 1 by matrix and field, f32 [rows, blocks]."""
        return {
            name: {
                field: np.ones((p.shape[0], p.shape[1] // p.format.block_size), np.float32)
                for field, p in parts.items()
            }
            for name, parts in self._parts.items()
        }

    def loss(self, factors: Factors, ids: Tensor) -> Tensor:
        """The mean over the tokens of `ids` [batch, length] of KL(full || quantized), in nats."""
        graph = graph_of(ids)
        wanted = f.log_softmax(self._logits(Checkpoint(self._full.file.tensors, graph), ids, 0))
        student = Learned(self._file.tensors, graph, self._parts, factors)
        found = f.log_softmax(self._logits(student, ids, self._full.config.n_layers))
        divergence = f.sum(f.exp(wanted) * (wanted - found), axes=1)
        made: Tensor = f.mean(divergence)
        return made

    def write(self, path: Path, factors: Factors) -> None:
        """Writes the file with its blocks' scales and minima multiplied. StoreError if it cannot be written."""
        tensors = [
            NewTensor(t.name, t.shape, t.format, _data_of(t, factors.get(t.name, {})))
            for t in self._file.tensors.values()
        ]
        write_gguf(path, values_of(self._file.metadata), tensors)

    def _logits(self, checkpoint: Checkpoint, ids: Tensor, recomputed: int) -> Tensor:
        full, (batch, length) = self._full, ids.spec.bounds
        graph = graph_of(ids)
        positions = graph.constant("positions", np.tile(np.arange(length, dtype=np.int32), batch))
        ropes = full.rotations(graph, length)
        tokens = TokenBatch(ids.reshape((batch * length,)), positions, None, ropes, recomputed=recomputed)
        return decoder(full.config, checkpoint, tokens, [WholeSequences(length)] * full.config.n_layers)


class Learned(Checkpoint):
    """The file's tensors, where matrices with factors are sums of their decoded parts times these."""

    def __init__(
        self,
        tensors: Mapping[str, FileTensor],
        graph: Any,
        parts: Mapping[str, Mapping[str, FileTensor]],
        factors: Factors,
    ) -> None:
        super().__init__(tensors, graph)
        self._parts, self._factors = parts, factors

    def linear(self, x: Tensor, name: str, n: int, *, bias: bool = False) -> Tensor:
        factors = self._factors.get(f"{name}.weight")
        if factors is None:
            return super().linear(x, name, n, bias=bias)
        weight: Tensor | None = None
        for field, part in self._parts[f"{name}.weight"].items():
            spec = self.tensors[f"{name}.weight"]
            constant = Checkpoint({part.name: part}, self.graph).tensor(part.name, *spec.shape)
            blocks = f.dequantize(constant).reshape((*factors[field].shape, part.format.block_size))
            scaled = blocks * factors[field].reshape((*factors[field].shape, 1))
            weight = scaled if weight is None else weight + scaled
        assert weight is not None
        y: Tensor = f.matmul(x, weight.reshape((n, -1)), transpose_b=True, name=name)
        return f.add(y, self.vector(f"{name}.bias", n), name=f"{name}.bias") if bias else y


def _fields(tensor: FileTensor) -> list[str]:
    """The names of a block's f16 scale and minimum; none for formats without an f16 scale."""
    layout = tensor.format.layout
    known: Mapping[str, Any] = {} if layout is None or tensor.format.is_plain else layout.fields or {}
    found = [name for name in _FIELDS if name in known and known[name][0] == np.dtype("<f2")]
    return found if "d" in found else []


def parts_of(tensor: FileTensor) -> dict[str, FileTensor]:
    """The tensor by fields: blocks in which the others are zero. Their decoded sum is the tensor."""
    fields = _fields(tensor)

    def part(field: str) -> FileTensor:
        def read() -> Array:
            blocks = np.array(tensor.data().reshape(-1, tensor.format.block_nbytes))
            records = tensor.format.records(blocks)
            for other in fields:
                if other != field:
                    records[other] = 0
            return records.view(np.uint8).reshape(-1)

        return FileTensor(f"{tensor.name}.{field}", tensor.shape, tensor.format, tensor.nbytes, read, tensor.path)

    return {field: part(field) for field in fields}


def _data_of(tensor: FileTensor, factors: Mapping[str, Array]) -> Callable[[], Iterator[Array]]:
    def parts() -> Iterator[Array]:
        if not factors:
            yield tensor.data()
            return
        records = tensor.format.records(np.array(tensor.data().reshape(-1, tensor.format.block_nbytes)))
        for field, factor in factors.items():
            scales = records[field].astype(np.float32) * np.clip(factor.reshape(-1), _LEAST, _MOST)
            records[field] = scales.astype(np.float16)
        yield records.view(np.uint8).reshape(-1)

    return parts


def _windows(model: LoraModel, path: str | os.PathLike[str], given: DistillOptions) -> tuple[Windows, list[Array]]:
    """Windows of the first nine tenths of a text, and batches of one held-out window each."""
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{os.fspath(path)}: cannot be read: {error}") from None
    ids = np.array(model.tokenizer.encode(text, add_special=False), np.int32)
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
