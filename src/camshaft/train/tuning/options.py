"""The options of finetune, and what it returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from camshaft.errors import PlanError

METHODS = ("lora", "dpo")
_OPTIONAL = ("steps", "validate_every", "patience", "memory")


@dataclass(frozen=True)
class FinetuneOptions:
    """How to fine-tune: `epochs` over the examples, or `steps` of `batch` rows; `micro_batches` as of train.Step.

    `lr` is the greatest learning rate, which rises over the first twentieth of the steps and falls as a cosine. Examples have at
    most `length` tokens; a row is an example or, with `pack`, as many as fit into `length` tokens. `seed` gives the order of
    rows and the adapters' first values. With a validation file its loss is measured every `validate_every` steps, by default
    a twentieth of all, and the run stops after `patience` of these in a row without a lower one. To hold at most `memory` bytes,
    gradients compute layers once more, which changes no bit; by default none.

    `method` "lora" learns answers, "dpo" preferences between two, with `beta` as in train/tuning/preference.py.
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
    beta: float = 0.1

    def __post_init__(self) -> None:
        given = [name for name in _OPTIONAL if getattr(self, name) is not None]
        for name in ("epochs", "batch", "micro_batches", "length", *given):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise PlanError(f"finetune: got {name}={value!r:.60}; wanted 1 or more")
        if self.method not in METHODS:
            raise PlanError(f"finetune: got method={self.method!r:.60}; wanted {' or '.join(METHODS)}")
        number = isinstance(self.beta, (int, float)) and not isinstance(self.beta, bool)
        if not number or not isfinite(self.beta) or self.beta <= 0:
            raise PlanError(f"finetune: got beta={self.beta!r:.60}; wanted a finite number above 0")
        if self.pack and self.method == "dpo":
            raise PlanError("finetune: got pack=True with the method dpo; wanted a row for each answer")
        if self.batch % self.micro_batches:
            raise PlanError(
                f"finetune: got batch={self.batch} in micro_batches={self.micro_batches}; wanted a batch that divides"
            )


@dataclass(frozen=True)
class FinetuneResult:
    """The adapter, the number of examples and steps done, the mean losses of the first and last tenth of this run's steps, the
    tokens that it learned from, and its seconds. The losses are None where no step was left to do.

    With a validation file, `best_step` has the lowest `best_validation`, and the adapter is that of this step."""

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


@dataclass(frozen=True)
class FinetunePlan:
    """What a run would need: bytes by kind, and how many of the layers gradients compute once more."""

    memory: Mapping[str, int]
    recomputed: int
    n_layers: int
    n_examples: int
    n_rows: int
    row_length: int
    n_steps: int
