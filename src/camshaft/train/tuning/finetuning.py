"""finetune(model, data, out): train LoRA adapters of a GGUF model on a JSONL file."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from camshaft.errors import PlanError, TrainingError
from camshaft.text.chat import ChatTemplate
from camshaft.train import checkpoint
from camshaft.train.data import Batches
from camshaft.train.memory import memory_by_kind
from camshaft.train.optimizers import AdamW
from camshaft.train.record.history import Point
from camshaft.train.record.recorder import Recorder, Records
from camshaft.train.schedules import cosine
from camshaft.train.trainer import Progress, Trainer
from camshaft.train.tuning.adapter_file import save_adapter
from camshaft.train.tuning.examples import read_examples, read_pairs
from camshaft.train.tuning.lora import LoraConfig, LoraModel
from camshaft.train.tuning.options import FinetuneOptions, FinetunePlan, FinetuneResult
from camshaft.train.tuning.peft_folder import check_free, is_folder, module_names
from camshaft.train.tuning.preference import dpo_loss, pair_rows, with_reference
from camshaft.train.tuning.recomputation import fit
from camshaft.train.tuning.rows import IGNORED, Rows, one_each, packed
from camshaft.train.validation import Validation

Array = np.ndarray[Any, Any]


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
    folder. train/tuning/examples.py has the lines.

    Checkpoints are in `folder`, by default `out`.checkpoints; `resume` goes on from the newest. `each(point, steps)` is called
    after every step. With a `validation` file, of the same form as `data`, the adapters with its lowest loss are written.
    Raises FormatError for data that cannot be learned, StoreError if `out` exists, unless `force`, or cannot be
    written, TrainingError as train.Trainer does.
    """
    given, target, records = options or FinetuneOptions(), Path(out), records or Records()
    check_free(target, force)
    records.check()
    there = Path(folder) if folder is not None else target.with_name(target.name + ".checkpoints")
    last = checkpoint.newest(there)
    if last is not None and not resume:
        raise TrainingError(f"{last}: is there already; resume=True goes on from it; wanted that, or another folder")
    with LoraModel(model, lora) as tuned:
        if is_folder(target):
            module_names(tuned, tuned.names)  # raises before the training, not after it
        run = _run(
            tuned, data, validation, given, folder=there, save_every=save_every, backend=backend, threads=threads
        )
        with run.trainer as trainer:
            first = trainer.resume() if resume else 0
            started = time.perf_counter()
            facts = _facts(tuned, data, given, run)
            with Recorder(
                records, there, first, run.steps, target.name, facts, given.clip, lambda: trainer.step.plans
            ) as recorder:

                def shown(progress: Progress) -> None:
                    each(recorder.add(progress, run.tokens(progress.step)), run.steps)

                losses = trainer.run(run.steps, shown)
            seconds = time.perf_counter() - started
            save_adapter(target, tuned, trainer.parameters if trainer.best_validation is None else trainer.best)
            done, stopped, best = trainer.step.number, trainer.has_stopped_early, trainer.best_validation
    n_examples, batches = run.n_examples, run.batches
    learned = sum(int((batches(n)[2] != IGNORED).sum()) for n in range(first, done))
    tenth = max(len(losses) // 10, 1)
    first_loss, last_loss = (float(np.mean(part)) if part else None for part in (losses[:tenth], losses[-tenth:]))
    best_step, lowest = best or (None, None)
    return FinetuneResult(target, n_examples, done, first_loss, last_loss, learned, seconds, best_step, lowest, stopped)


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
    with LoraModel(model, lora) as tuned:
        run = _run(tuned, data, validation, options or FinetuneOptions(), backend=backend, threads=threads)
        with run.trainer as trainer:
            memory = memory_by_kind(trainer.plans())
        length = run.rows.ids.shape[-1]
        return FinetunePlan(
            memory, tuned.recomputed, tuned.config.n_layers, run.n_examples, len(run.rows.ids), length, run.steps
        )


@dataclass(frozen=True)
class _Run:
    trainer: Trainer
    batches: Batches
    rows: Rows
    n_examples: int
    steps: int

    def tokens(self, step: int) -> int:
        """The tokens of a step's batch."""
        return int(self.rows.counts[self.batches.chosen(step - 1)].sum())


def _run(
    model: LoraModel,
    data: str | os.PathLike[str],
    validation: str | os.PathLike[str] | None,
    given: FinetuneOptions,
    **options: Any,
) -> _Run:
    """The trainer of a model's adapters, and its data. `options` are those of Trainer."""
    if given.patience is not None and validation is None:
        raise PlanError(f"finetune: got patience={given.patience} without a validation file; wanted validation=FILE")
    where = {name: options[name] for name in ("backend", "threads") if name in options}
    n_examples, rows = _rows(model, data, given, **where)
    n_rows = len(rows.arrays[0])
    if given.batch > n_rows:
        what = f"rows that {n_examples} examples are packed into" if given.pack else "examples of the file"
        raise PlanError(f"finetune: got batches of {given.batch}; wanted 1 to the {n_rows} {what} (lower batch=)")
    batches = Batches(rows.arrays, given.batch, given.seed)
    steps = given.steps or given.epochs * batches.steps_per_epoch
    trainer = Trainer(
        dpo_loss(model, given.beta) if given.method == "dpo" else model.loss,
        model.adapters(),
        AdamW(weight_decay=given.weight_decay),
        batches,
        lr=cosine(given.lr, steps, warmup=steps // 20),
        clip=given.clip,
        micro_batches=given.micro_batches,
        validation=None if validation is None else _validation(model, validation, given, steps, **where),
        **options,
    )
    if given.memory is not None:
        fit(model, trainer.step, batches(0), given.memory)
    return _Run(trainer, batches, rows, n_examples, steps)


def _rows(model: LoraModel, path: str | os.PathLike[str], given: FinetuneOptions, **where: Any) -> tuple[int, Rows]:
    """The number of examples of a file, and their rows. `where` has the backend and the threads, for a reference."""
    template = functools.cache(lambda: ChatTemplate.from_gguf(model.file.metadata, model.tokenizer.vocabulary.tokens))
    if given.method == "dpo":
        pairs = read_pairs(path, model.tokenizer, template, given.length)
        return len(pairs), with_reference(model, pair_rows(pairs), given.batch // given.micro_batches, **where)
    examples = read_examples(path, model.tokenizer, template, given.length)
    return len(examples), packed(examples, given.length) if given.pack else one_each(examples)


def _validation(
    model: LoraModel, path: str | os.PathLike[str], given: FinetuneOptions, steps: int, **where: Any
) -> Validation:
    """The batches of a validation file in its order, weighted by their targets; the last is filled up with rows that do not
    count. Batches of pairs are weighted by pairs, and the last has fewer."""
    rows, size = _rows(model, path, given, **where)[1], given.batch // given.micro_batches
    every = given.validate_every or max(steps // 20, 1)
    if given.method == "dpo":
        batches = [tuple(a[i : i + size] for a in rows.arrays) for i in range(0, len(rows.ids), size)]
        return Validation(batches, every, given.patience, [float(len(batch[0])) for batch in batches])
    more = -len(rows.ids) % size
    ids, at, targets, *others = (np.concatenate([a, np.repeat(a[-1:], more, axis=0)]) for a in rows.arrays)
    if more:
        targets[-more:] = IGNORED
    batches = [tuple(a[i : i + size] for a in (ids, at, targets, *others)) for i in range(0, len(ids), size)]
    weights = [float((batch[2] != IGNORED).sum()) for batch in batches]
    return Validation(batches, every, given.patience, weights)


def _facts(model: LoraModel, data: str | os.PathLike[str], given: FinetuneOptions, run: _Run) -> dict[str, str]:
    """What a report says of a run under its title."""
    rows, share = run.rows, run.rows.counts.sum() / run.rows.ids.size
    return {
        "model": Path(model.file.path).name,
        "data": f"{Path(data).name}, {run.n_examples} examples",
        "rows": f"{len(rows.ids)} of {rows.ids.shape[-1]} tokens, {share:.0%} filled",
        "batch": str(given.batch) + (f" in {given.micro_batches} parts" if given.micro_batches > 1 else ""),
        "method": given.method + (f", beta {given.beta:g}" if given.method == "dpo" else ""),
        "adapters": f"rank {model.lora.rank}, alpha {model.lora.alpha:g}, {len(model.names)} matrices",
        "layers computed once more": f"{model.recomputed} of {model.config.n_layers}",
        "seed": str(given.seed),
    }
