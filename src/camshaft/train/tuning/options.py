"""The options of finetune, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from camshaft.errors import PlanError
from camshaft.train.adam_8bit import AdamW8bit
from camshaft.train.optimizers import SGD, Adafactor, AdamW, Lion, Optimizer
from camshaft.train.schedules import Schedule, constant, cosine, linear, warmup_stable_decay
from camshaft.train.tuning.method_options import METHODS, OPTIONS, refuse_others

OPTIMIZERS: Mapping[str, Callable[[float], Optimizer]] = {
    "adamw": lambda decay: AdamW(weight_decay=decay),
    "adamw8bit": lambda decay: AdamW8bit(weight_decay=decay),
    "adafactor": lambda decay: Adafactor(weight_decay=decay),
    "lion": lambda decay: Lion(weight_decay=decay),
    "sgd": lambda decay: SGD(momentum=0.9, weight_decay=decay),
}
SCHEDULES: Mapping[str, Callable[[float, int, int], Schedule]] = {
    "cosine": lambda peak, steps, warmup: cosine(peak, steps, warmup=warmup),
    "linear": lambda peak, steps, warmup: linear(peak, steps, warmup=warmup),
    "constant": lambda peak, steps, warmup: constant(peak, warmup=warmup),
    "wsd": lambda peak, steps, warmup: warmup_stable_decay(peak, steps, warmup=warmup, decay=max(steps // 5, 1)),
}
_NAMES: Mapping[str, Any] = {
    "method": METHODS,
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
    "compute": ("f32", "bf16", "f16"),
    "activations": (None, "f32", "q8", "bf16"),
}
_COUNTS = ("epochs", "batch", "micro_batches", "length")
_OPTIONAL = ("steps", "validate_every", "patience", "memory")


@dataclass(frozen=True)
class FinetuneOptions:
    """How to fine-tune: `epochs` over the examples, or `steps` of `batch` rows; `micro_batches` as of train.Step.

    `lr` is the greatest learning rate of the `schedule`: it rises over the first twentieth of the steps, then falls as a
    "cosine", "linear", over the last fifth ("wsd"), or not ("constant"). Examples have at most `length` tokens; a row is an
    example or, with `pack`, as many as fit into `length` tokens. `seed` gives the order of rows and the adapters'
    first values. With a validation file its loss is measured every `validate_every` steps, by default a twentieth of all, and
    the run stops after `patience` of these in a row without a lower one. To hold at most `memory` bytes, gradients compute
    layers once more, which changes no bit; by default none.

    `compute` is the dtype of what gradients need of the forward pass, as of train.Step, and `activations` its "f32", the default,
    "q8" or, on a CPU with AMX, "bf16", of the method lora.

    `method` "lora" learns answers by adapters, "dpo" preferences between two, with `beta` as in
    train/tuning/methods/preference.py. "full" learns the model's own tensors whose names match `targets`, "qat" those too, as
    they will be rounded to `file_type`, that of the model to write (FullModel). "embedding" learns the tensors of an embedding
    model by similar texts, whose cosines are divided by `temperature` (train/tuning/methods/vectors.py). An option that the
    method does not have is a PlanError; train/tuning/method_options.py has the table, and the defaults of these.
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
    pack: bool = False
    validate_every: int | None = None
    patience: int | None = None
    memory: int | None = None
    method: str = "lora"
    beta: float | None = None
    temperature: float | None = None
    optimizer: str = "adamw"
    schedule: str = "cosine"
    targets: tuple[str, ...] = ("*",)
    file_type: str | None = None
    compute: str = "f32"
    activations: str | None = None

    def __post_init__(self) -> None:
        given = [name for name in _OPTIONAL if getattr(self, name) is not None]
        for name in (*_COUNTS, *given):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise PlanError(f"finetune: got {name}={value!r:.60}; wanted 1 or more")
        for name, known in _NAMES.items():
            if getattr(self, name) not in known:
                raise PlanError(
                    f"finetune: got {name}={getattr(self, name)!r:.60}; wanted {', '.join(filter(None, known))}"
                )
        refuse_others(self.method, {name: value for name, value in vars(self).items() if name in OPTIONS})
        for name in ("beta", "temperature"):
            if getattr(self, name) is None and self.method in OPTIONS[name].methods:
                object.__setattr__(self, name, OPTIONS[name].default)
        for name in ("beta", "temperature", "lr"):
            value = getattr(self, name)
            if value is None:
                continue
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not isfinite(value) or value < 0 or (name != "lr" and not value):
                least = "from 0 on" if name == "lr" else "above 0"
                raise PlanError(f"finetune: got {name}={value!r:.60}; wanted a finite number {least}")
        if self.method == "qat" and self.file_type is None:
            raise PlanError("finetune: got the method qat without a type; wanted the one to round to, such as Q4_0")
        if self.batch % self.micro_batches:
            raise PlanError(
                f"finetune: got batch={self.batch} with micro_batches={self.micro_batches}; wanted a multiple of these"
            )


@dataclass(frozen=True)
class FinetuneResult:
    """The adapter or model, the number of examples and steps done, and the mean losses of the first and last tenth of the steps.
    `n_tokens` were learned from in `seconds`: by the steps after `resumed_after`, those of before an interruption. `n_skipped` of
    the steps changed nothing, as their gradients overflowed f16. The losses are None without a step in the run's history.

    With a validation file, `best_step` has the lowest `best_validation`, and what is written is that of this step."""

    path: Path
    n_examples: int
    n_steps: int
    first_loss: float | None
    last_loss: float | None
    n_tokens: int
    seconds: float
    best_step: int | None = None
    best_validation: float | None = None
    stopped_early: bool = False
    n_skipped: int = 0
    resumed_after: int = 0


@dataclass(frozen=True)
class FinetunePlan:
    """What a run would need: bytes by kind, and how many of the layers gradients recompute. `program_nbytes` is what the
    process took beside them while it planned: the tokenizer, the graph, compiled code; None where the system does not say."""

    memory: Mapping[str, int]
    recomputed: int
    n_layers: int
    n_examples: int
    n_rows: int
    row_length: int
    n_steps: int
    program_nbytes: int | None = None
