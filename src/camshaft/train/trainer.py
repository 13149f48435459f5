"""train.Trainer: the loop around a step: batches in order, the learning rate, checkpoints, and going on where a run stopped."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from camshaft.errors import PlanError, StoreError, TrainingError
from camshaft.plan.execution_plan import ExecutionPlan
from camshaft.train import checkpoint
from camshaft.train.optimizers import Optimizer
from camshaft.train.step.step import Step
from camshaft.train.validation import PREFIX, Best, Validation, best_of


@dataclass(frozen=True)
class Progress:
    """A finished step: its number from 1, the loss before its update, the rate, the gradients' norm before clipping, seconds,
    and the validation loss after it where there was one. `skipped` of the steps so far changed nothing, as gradients overflowed
    f16; the norm of such a step is not finite."""

    step: int
    loss: float
    lr: float
    gradient_norm: float
    seconds: float
    validation: float | None = None
    skipped: int = field(default=0, kw_only=True)

    def __str__(self) -> str:
        norm = f"gradient norm {self.gradient_norm:.3g}" + (f", {self.skipped} skipped" if self.skipped else "")
        said = f"step {self.step}: loss {self.loss:.4f}, lr {self.lr:.3g}, {norm}, {self.seconds:.3f} s"
        return said if self.validation is None else f"{said}, validation {self.validation:.4f}"


class Trainer:
    """Trains parameters: `Trainer(loss, parameters, optimizer, data, lr=schedule).run(1000)`.

    `loss`, `parameters`, `optimizer` and the options that are not named here are those of train.Step. `data(n)` returns the batch
    of the step after `n` finished ones, a tuple of arrays: train.Batches, train.Windows, or a function of your own, which
    must return the same for the same `n` if runs are to be resumed. `lr` is a number or a function of `n`, such as train.cosine.

    With a `folder` a checkpoint is written after every `save_every` steps, at the end of `run` and on Ctrl-C; the newest
    `keep` of them stay. `resume` goes on from the newest. What follows is equal to the bit to a run that never stopped.

    With a `validation` the loss of its batches is measured too; `best` has the parameters with the lowest, and a run may stop
    early. Checkpoints have both. `about` says of what else a checkpoint must be, such as a model.
    """

    def __init__(
        self,
        loss: Callable[..., Any],
        parameters: Any,
        optimizer: Optimizer,
        data: Callable[[int], Any],
        *,
        lr: float | Callable[[int], float],
        folder: str | os.PathLike[str] | None = None,
        save_every: int | None = None,
        keep: int = 2,
        validation: Validation | None = None,
        about: str = "",
        **options: Any,
    ) -> None:
        if not callable(data):
            raise PlanError(
                f"Trainer: got the data {data!r:.80}; wanted a function of the step, such as train.Batches(...)"
            )
        if not callable(lr) and (isinstance(lr, bool) or not isinstance(lr, (int, float))):
            raise PlanError(
                f"Trainer: got lr={lr!r:.80}; wanted a number, or a function of the step such as train.cosine(...)"
            )
        for name, value in (("save_every", save_every), ("keep", keep)):
            if value is not None and (type(value) is not int or value < 1):
                raise PlanError(f"Trainer: got {name}={value!r:.60}; wanted 1 or more")
        if save_every is not None and folder is None:
            raise PlanError(f"Trainer: got save_every={save_every} without a folder; wanted the folder for checkpoints")
        self.step = Step(loss, parameters, optimizer, **options)
        self._data, self._lr = data, lr
        self._folder, self._save_every, self._keep = None if folder is None else Path(folder), save_every, keep
        self._validation, self._best = validation, Best()
        self._is_alone, self._about = False, about

    def __repr__(self) -> str:
        return f"Trainer({self.step!r})"

    @property
    def parameters(self) -> Any:
        """The parameters: copies, in the structure of those that were given."""
        return self.step.parameters

    @property
    def averages(self) -> Any:
        """The moving averages of the parameters; see train.Step."""
        return self.step.averages

    @property
    def best(self) -> Any:
        """The parameters with the lowest validation loss. PlanError before the first validation."""
        if not self._best.measured:
            raise PlanError(
                "best: got a run without a validation so far; wanted Trainer(..., validation=Validation(...))"
            )
        return self.step.filled(self._best.parameters)

    @property
    def best_validation(self) -> tuple[int, float] | None:
        """The step with the lowest validation loss, and that loss; None before the first validation."""
        return (self._best.step, self._best.loss) if self._best.measured else None

    @property
    def has_stopped_early(self) -> bool:
        """Whether as many validations in a row as the validation's patience were not lower than the lowest."""
        patience = None if self._validation is None else self._validation.patience
        return patience is not None and self._best.misses >= patience

    def run(self, steps: int, each: Callable[[Progress], None] | None = None) -> list[float]:
        """Trains until `steps` steps are done in all, and returns the losses of those that this call did.

        `each` is called after every step; its errors end the run, with a checkpoint. The run ends before if
        `has_stopped_early`. Raises TrainingError where the loss or a gradient is not finite; the checkpoints stay, and the
        last good step gets one.
        """
        if type(steps) is not int or steps < 0:
            raise PlanError(f"run: got {steps!r:.60}; wanted a number of steps from 0 on")
        losses: list[float] = []
        with self.alone():
            self._refuse_later()
            try:
                self._validated()  # where a run was interrupted between a step and its validation
                for n in range(self.step.number, steps):
                    if self.has_stopped_early:
                        break
                    losses.append(self._one(n, each))
                    if self._save_every is not None and (n + 1) % self._save_every == 0 and n + 1 < steps:
                        self.save()
            except KeyboardInterrupt:
                if self._folder is not None:
                    self.save()
                raise
            except TrainingError as error:
                last = self._last_good()
                raise (error if last is None else TrainingError(f"{error}. The last checkpoint is {last}")) from error
            if losses and self._folder is not None:
                self.save()
        return losses

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Owns the folder during the block. TrainingError if another run does. `run` does so by itself."""
        if self._folder is None or self._is_alone:
            yield
            return
        with checkpoint.owned(self._folder):
            self._is_alone = True
            try:
                yield
            finally:
                self._is_alone = False

    def _last_good(self) -> Path | None:
        """The newest checkpoint after an error: of the last step whose loss was finite, or an earlier one if the disk is full."""
        if self._folder is None:
            return None
        number, last = self.step.number, checkpoint.newest(self._folder)
        if number and not self._is_due and (last is None or checkpoint.number_of(last) < number):
            try:
                return self.save()
            except StoreError as error:
                warnings.warn(f"no checkpoint of step {number}: {error}", stacklevel=3)
        return last

    def _refuse_later(self) -> None:
        """Makes the folder. TrainingError if it has a checkpoint of a later step, which would be taken for this run's."""
        if self._folder is None:
            return
        checkpoint.prepare(self._folder)
        last = checkpoint.newest(self._folder)
        if last is not None and checkpoint.number_of(last) > self.step.number:
            raise TrainingError(
                f"run: {last} is of a later step than {self.step.number}; wanted resume(), or another folder"
            )

    def _one(self, n: int, each: Callable[[Progress], None] | None) -> float:
        started = time.perf_counter()
        batch = self._data(n)
        rate = float(self._lr(n) if callable(self._lr) else self._lr)
        loss = self.step(*(batch if isinstance(batch, (tuple, list)) else (batch,)), lr=rate)
        seconds = time.perf_counter() - started
        validation = self._validated()
        if each is not None:
            try:
                each(
                    Progress(n + 1, loss, rate, self.step.gradient_norm, seconds, validation, skipped=self.step.skipped)
                )
            except Exception:  # such as a full disk where a report is written
                self._last_good()
                raise
        return loss

    def plans(self) -> list[ExecutionPlan]:
        """The plans of a run: of its steps and of its validation."""
        batch = self._data(0)
        self.step.plans_of(*(batch if isinstance(batch, (tuple, list)) else (batch,)))
        if self._validation is not None:
            self.step.plan_of_loss(*self._validation.batches[0])
        return self.step.plans

    @property
    def _is_due(self) -> bool:
        """Whether the validation after the last step was not done yet, or failed."""
        number, given = self.step.number, self._validation
        return given is not None and number > 0 and number % given.every == 0 and number != self._best.measured

    def _validated(self) -> float | None:
        """The validation loss, if one is due after this step."""
        if self._validation is None or not self._is_due:
            return None
        loss = self._validation.loss(self.step)
        self._best = self._best.after(loss, self.step)
        return loss

    def save(self) -> Path:
        """Writes a checkpoint now and returns its path. PlanError without a folder, StoreError if it cannot be written."""
        if self._folder is None:
            raise PlanError("save: got a Trainer without a folder; wanted Trainer(..., folder=PATH)")
        states = self.step.states | self._best.states
        return checkpoint.save(self._folder, self.step.number, states, self._order, self._keep)

    def resume(self) -> int:
        """Takes the states of the newest checkpoint, if the folder has one. Returns how many steps are done.

        Raises TrainingError for a checkpoint of other data, PlanError for one of other parameters or another optimizer.
        """
        if self._folder is None:
            raise PlanError("resume: got a Trainer without a folder; wanted Trainer(..., folder=PATH)")
        path = checkpoint.newest(self._folder)
        if path is not None:
            states = checkpoint.load(path, self._order)
            best = {name for name in states if self._validation is not None and name.startswith(PREFIX)}
            try:
                self.step.states = {name: a for name, a in states.items() if name not in best}
                self._best = best_of({name: states[name] for name in best})
            except PlanError as error:
                raise PlanError(f"{path}: {error}") from error
        return self.step.number

    @property
    def _order(self) -> str:
        """What a checkpoint notes of the data, where these say what they are, and `about`."""
        known = any("__str__" in vars(kind) for kind in type(self._data).__mro__[:-1])
        data = f"{type(self._data).__name__}: {self._data}" if known else "a function"
        return f"{data}; {self._about}" if self._about else data

    def close(self) -> None:
        """Releases the step's plans and their memory; parameters can still be read."""
        self.step.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
