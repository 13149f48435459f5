"""finetune(model, data, out): train LoRA adapters, or the weights themselves, of a GGUF model on a JSONL file."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from camshaft.errors import PlanError, StoreError, TrainingError
from camshaft.generate.options import multiplies_bf16
from camshaft.models.files.pull import resolve_model
from camshaft.models.files.quantize import check_target
from camshaft.train import checkpoint
from camshaft.train.memory import anonymous_nbytes, fit, memory_by_kind
from camshaft.train.record.history import Point
from camshaft.train.record.recorder import Recorder, Records
from camshaft.train.trainer import Progress, Trainer
from camshaft.train.tuning.adapter_file import save_adapter
from camshaft.train.tuning.data.batches import RowBatches
from camshaft.train.tuning.method_options import ADAPTERS, WHOLE
from camshaft.train.tuning.methods.full import FullModel
from camshaft.train.tuning.methods.lora import LoraConfig, LoraModel
from camshaft.train.tuning.methods.table import batches_of, loss_of, validation_of
from camshaft.train.tuning.methods.tuned import TunedModel
from camshaft.train.tuning.methods.vectors import VectorModel
from camshaft.train.tuning.options import OPTIMIZERS, SCHEDULES, FinetuneOptions, FinetunePlan, FinetuneResult
from camshaft.train.tuning.peft_folder import check_free, check_storable, is_folder, module_names


def finetune(
    model: str | Path,
    data: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    lora: LoraConfig | None = None,
    options: FinetuneOptions | None = None,
    validation: str | os.PathLike[str] | None = None,
    folder: str | os.PathLike[str] | None = None,
    save_every: int = 50,
    resume: bool = False,
    force: bool = False,
    records: Records | None = None,
    each: Callable[[Point, int], None] = lambda point, steps: None,
    backend: str | None = None,
    threads: int | None = None,
) -> FinetuneResult:
    """Trains adapters on the examples of a JSONL file and writes them to `out`: a GGUF adapter if that ends in .gguf, else a PEFT
    folder; by the methods full, qat and embedding the model's own weights, and a GGUF model. docs/training.md has the lines.

    Of the file, which may be larger than memory, the places of lines are held; of pairs and similar texts all.
    Checkpoints are in `folder`, by default `out`.checkpoints; `resume` goes on from the newest, and warns if there is none.
    `each(point, steps)` is called after every step. With a `validation` file, of the same form as `data`, what has its lowest
    loss is written. Raises FormatError for data that cannot be learned, StoreError if `out` exists, unless `force`, or cannot be
    written, TrainingError as train.Trainer does.
    """
    given, target, records = options or FinetuneOptions(), Path(out), records or Records()
    _check_out(model, target, given, lora, force)
    records.check()
    there = Path(folder) if folder is not None else target.with_name(target.name + ".checkpoints")
    last = checkpoint.newest(there)
    if last is not None and not resume:
        raise TrainingError(f"{last}: is there already; resume=True goes on from it; wanted that, or another folder")
    if last is None and resume:
        warnings.warn(f"{there} has no checkpoint to go on from: training starts anew", stacklevel=2)
    with _opened(model, lora, given) as tuned:
        if isinstance(tuned, LoraModel) and is_folder(target):
            module_names(tuned, tuned.names)  # raises before the training, not after it
        run = _run(
            tuned, data, validation, given, folder=there, save_every=save_every, backend=backend, threads=threads
        )
        with run.trainer as trainer, trainer.alone():
            first = trainer.resume() if resume else 0
            started = time.perf_counter()
            facts = _facts(tuned, data, given, run)
            with Recorder(
                records, there, first, run.steps, target.name, facts, given.clip, lambda: trainer.step.plans
            ) as recorder:

                def shown(progress: Progress) -> None:
                    each(recorder.add(progress, run.batches.tokens(progress.step - 1)), run.steps)

                trainer.run(run.steps, shown)
                losses = recorder.losses
            seconds = time.perf_counter() - started
            _save(target, tuned, trainer.parameters if trainer.best_validation is None else trainer.best)
            return _result(target, run, first, losses, seconds)


def _result(target: Path, run: _Run, first: int, losses: list[float], seconds: float) -> FinetuneResult:
    """What a run that goes on after `first` steps has done, with the losses of all steps."""
    trainer, done = run.trainer, run.trainer.step.number
    best_step, lowest = trainer.best_validation or (None, None)
    return FinetuneResult(
        target,
        run.batches.n_examples,
        done,
        *_ends(losses),
        sum(map(run.batches.targets, range(first, done))),
        seconds,
        best_step,
        lowest,
        trainer.has_stopped_early,
        trainer.step.skipped,
        first,
    )


def _ends(losses: list[float]) -> tuple[float | None, float | None]:
    """The mean losses of the first and the last tenth of the steps; None of no steps."""
    tenth = max(len(losses) // 10, 1)
    first, last = (float(np.mean(part)) if part else None for part in (losses[:tenth], losses[-tenth:]))
    return first, last


def plan_finetune(
    model: str | Path,
    data: str | os.PathLike[str],
    *,
    lora: LoraConfig | None = None,
    options: FinetuneOptions | None = None,
    validation: str | os.PathLike[str] | None = None,
    backend: str | None = None,
    threads: int | None = None,
) -> FinetunePlan:
    """Compiles what `finetune` with these arguments would run, and says what memory that holds. Raises as `finetune`."""
    given, before = options or FinetuneOptions(), anonymous_nbytes()
    with _opened(model, lora, given) as tuned:
        run = _run(tuned, data, validation, given, backend=backend, threads=threads)
        with run.trainer as trainer:
            memory, after = memory_by_kind(trainer.plans()), anonymous_nbytes()
        rows, layers = run.batches, (tuned.recomputed, tuned.config.n_layers)
        sizes = rows.n_examples, rows.n_rows, rows.row_length
        return FinetunePlan(memory, *layers, *sizes, run.steps, _program_nbytes(memory, before, after))


def _program_nbytes(memory: Mapping[str, int], before: int | None, after: int | None) -> int | None:
    """By how much the process grew, without weights and parameters: nothing has touched the plan's other memory yet."""
    if before is None or after is None:
        return None
    return max(after - before - memory.get("weights", 0) - memory.get("parameters", 0), 0)


def _opened(model: str | Path, lora: LoraConfig | None, given: FinetuneOptions) -> TunedModel:
    """The model with what a method learns of it. PlanError for options of adapters where it learns none."""
    if lora is not None and given.method in WHOLE:
        raise PlanError(f"finetune: got {lora} for the method {given.method}; wanted it for {', '.join(ADAPTERS)}")
    if given.method == "embedding":
        return VectorModel(model, given.targets, given.file_type)
    if given.method in WHOLE:
        return FullModel(model, given.targets, given.file_type, rounds=given.method == "qat")
    return LoraModel(model, lora)


def _check_out(model: str | Path, target: Path, given: FinetuneOptions, lora: LoraConfig | None, force: bool) -> None:
    """Raises StoreError for what is there already or cannot be written, FormatError for the model itself, and DoRA in a file."""
    if given.method not in WHOLE:
        check_storable(target, lora is not None and lora.dora)
        check_free(target, force)
        return
    if is_folder(target):
        raise StoreError(f"{target}: the method {given.method} writes a model; wanted a name that ends in .gguf")
    check_target(Path(resolve_model(str(model))), target, force)


def _save(target: Path, model: TunedModel, parameters: Any) -> None:
    if isinstance(model, FullModel):
        model.save(target, parameters)
    elif isinstance(model, LoraModel):
        save_adapter(target, model, parameters)


@dataclass(frozen=True)
class _Run:
    trainer: Trainer
    batches: RowBatches
    steps: int


def _run(
    model: TunedModel,
    data: str | os.PathLike[str],
    validation: str | os.PathLike[str] | None,
    given: FinetuneOptions,
    **options: Any,
) -> _Run:
    """The trainer of a model's parameters, and its data. `options` are those of Trainer."""
    for name in ("patience", "validate_every"):
        value = getattr(given, name)
        if value is not None and validation is None:
            raise PlanError(f"finetune: got {name}={value} without a validation file; wanted validation=FILE")
    where = {name: options[name] for name in ("backend", "threads") if name in options}
    _check_activations(given, where.get("backend"))
    batches = batches_of(model, data, given, **where)
    if given.batch > batches.n_rows:
        what = f"rows that {batches.n_examples} examples are packed into" if given.pack else "examples of the file"
        raise PlanError(
            f"finetune: got batches of {given.batch}; wanted 1 to the {batches.n_rows} {what} (lower batch=)"
        )
    steps = given.steps or given.epochs * batches.steps_per_epoch
    trainer = Trainer(
        loss_of(model, given),
        model.parameters(),
        OPTIMIZERS[given.optimizer](given.weight_decay),
        batches,
        lr=SCHEDULES[given.schedule](given.lr, steps, steps // 20),
        clip=given.clip,
        micro_batches=given.micro_batches,
        validation=None if validation is None else validation_of(model, validation, given, steps, **where),
        about=_about(model, given),
        compute=given.compute,
        activations=given.activations or "f32",
        seed=given.seed if isinstance(model, LoraModel) and model.lora.dropout else None,
        **options,
    )
    if given.memory is not None:
        fit(model, trainer.step, batches(0), given.memory)
    return _Run(trainer, batches, steps)


def _check_activations(given: FinetuneOptions, backend: str | None) -> None:
    """Raises PlanError for bf16 where products of bf16 would be slower than those of f32."""
    if given.activations == "bf16" and not multiplies_bf16(backend, gpus=False):
        raise PlanError("finetune: got activations='bf16' for a processor without AMX; wanted f32 or q8")


def _about(model: TunedModel, given: FinetuneOptions) -> str:
    """What a checkpoint notes beside the data: a run goes on with the model and the method with which it began."""
    said = f"{given.method} of the model {model.digest[:16]}" + (
        "" if given.compute == "f32" else f" in {given.compute}"
    )
    if isinstance(model, LoraModel):
        said += ", DoRA" if model.lora.dora else ""
        said += f", {given.activations}" if given.activations in ("q8", "bf16") else ""
        said += f", dropout {model.lora.dropout:g}" if model.lora.dropout else ""
        return f"{said}, scale {model.lora.scale:g}" + (f", beta {given.beta:g}" if given.method == "dpo" else "")
    return f"{said} to {given.file_type or 'its own types'}"


def _facts(model: TunedModel, data: str | os.PathLike[str], given: FinetuneOptions, run: _Run) -> dict[str, str]:
    """What a report says of a run under its title."""
    rows = run.batches
    share = rows.n_tokens / (rows.n_rows * rows.row_length * rows.per_row)
    learned = f"{len(model.names)} tensors, written as {given.file_type or 'F16, or as they are'}"
    if isinstance(model, LoraModel):
        kind = ("DoRA, " if model.lora.dora else "") + ("rsLoRA, " if model.lora.rslora else "")
        learned = f"{kind}rank {model.lora.rank}, alpha {model.lora.alpha:g}, {len(model.names)} matrices"
        learned += f", dropout {model.lora.dropout:g}" if model.lora.dropout else ""
    return {
        "model": Path(model.file.path).name,
        "data": f"{Path(data).name}, {rows.n_examples} examples",
        "rows": f"{rows.n_rows} of {rows.row_length} tokens, {share:.0%} filled",
        "batch": str(given.batch) + (f" in {given.micro_batches} parts" if given.micro_batches > 1 else ""),
        "method": given.method + (f", beta {given.beta:g}" if given.method == "dpo" else ""),
        "optimizer": f"{given.optimizer}, schedule {given.schedule}",
        "computed in": given.compute,
        "adapters" if isinstance(model, LoraModel) else "learned": learned,
        "layers recomputed": f"{model.recomputed} of {model.config.n_layers}",
        "seed": str(given.seed),
    }
