"""finetune(model, data, out): train LoRA adapters of a GGUF model on a JSONL file."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from camshaft.errors import PlanError, TrainingError
from camshaft.text.chat import ChatTemplate
from camshaft.train import checkpoint
from camshaft.train.data import Batches
from camshaft.train.optimizers import AdamW
from camshaft.train.schedules import cosine
from camshaft.train.trainer import Progress, Trainer
from camshaft.train.tuning.adapter_file import save_adapter
from camshaft.train.tuning.examples import IGNORED, arrays_of, read_examples
from camshaft.train.tuning.lora import LoraConfig, LoraModel
from camshaft.train.tuning.peft_folder import check_free, is_folder, module_names


@dataclass(frozen=True)
class FinetuneOptions:
    """How to fine-tune: `epochs` over the examples, or `steps` of `batch` examples; `micro_batches` as of train.Step.

    `lr` is the greatest learning rate, which rises over the first twentieth of the steps and falls as a cosine. Examples have at
    most `length` tokens. `seed` gives the order of examples and the adapters' first values.
    """

    epochs: int = 3
    steps: int | None = None
    batch: int = 4
    micro_batches: int = 1
    length: int = 512
    lr: float = 2e-4
    clip: float = 1.0
    weight_decay: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "micro_batches", "length", *(("steps",) if self.steps is not None else ())):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise PlanError(f"finetune: got {name}={value!r:.60}; wanted 1 or more")
        if self.batch % self.micro_batches:
            raise PlanError(
                f"finetune: got batch={self.batch} in micro_batches={self.micro_batches}; wanted a batch that divides"
            )


@dataclass(frozen=True)
class FinetuneResult:
    """The adapter, the number of examples and steps, the mean losses of the first and last tenth of this run's steps, the
    tokens that it learned from, and its seconds. The losses are None where no step was left to do."""

    path: Path
    n_examples: int
    n_steps: int
    first_loss: float | None
    last_loss: float | None
    n_tokens: int
    seconds: float


def finetune(
    model: str | Path,
    data: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    lora: LoraConfig | None = None,
    options: FinetuneOptions | None = None,
    folder: str | os.PathLike[str] | None = None,
    save_every: int = 50,
    resume: bool = False,
    force: bool = False,
    each: Callable[[Progress, int], None] = lambda progress, steps: None,
    backend: str | None = None,
    threads: int | None = None,
) -> FinetuneResult:
    """Trains adapters on the examples of a JSONL file and writes them to `out`: a GGUF adapter if that ends in .gguf, else a PEFT
    folder. train/tuning/examples.py has the lines.

    Checkpoints are in `folder`, by default `out`.checkpoints; `resume` goes on from the newest. `each(progress, steps)` is called
    after every step. Raises FormatError for data that cannot be learned, StoreError if `out` exists, unless `force`, or cannot be
    written, TrainingError as train.Trainer does.
    """
    given, target = options or FinetuneOptions(), Path(out)
    check_free(target, force)
    there = Path(folder) if folder is not None else target.with_name(target.name + ".checkpoints")
    last = checkpoint.newest(there)
    if last is not None and not resume:
        raise TrainingError(f"{last}: is there already; resume=True goes on from it; wanted that, or another folder")
    with LoraModel(model, lora) as tuned:
        if is_folder(target):
            module_names(tuned, tuned.names)  # raises before the training, not after it
        template = functools.cache(
            lambda: ChatTemplate.from_gguf(tuned.file.metadata, tuned.tokenizer.vocabulary.tokens)
        )
        arrays = arrays_of(read_examples(data, tuned.tokenizer, template, given.length))
        batches = Batches(arrays, given.batch, given.seed)
        steps = given.steps or given.epochs * batches.steps_per_epoch
        trainer = Trainer(
            tuned.loss,
            tuned.adapters(),
            AdamW(weight_decay=given.weight_decay),
            batches,
            lr=cosine(given.lr, steps, warmup=steps // 20),
            clip=given.clip,
            micro_batches=given.micro_batches,
            folder=there,
            save_every=save_every,
            backend=backend,
            threads=threads,
        )
        with trainer:
            first = trainer.resume() if resume else 0
            started = time.perf_counter()
            losses = trainer.run(steps, lambda progress: each(progress, steps))
            seconds = time.perf_counter() - started
            save_adapter(target, tuned, trainer.parameters)
    learned = sum(int((batches(n)[2] != IGNORED).sum()) for n in range(first, steps))
    tenth = max(len(losses) // 10, 1)
    first_loss, last_loss = (float(np.mean(part)) if part else None for part in (losses[:tenth], losses[-tenth:]))
    return FinetuneResult(target, len(arrays[0]), steps, first_loss, last_loss, learned, seconds)
