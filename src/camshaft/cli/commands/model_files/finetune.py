"""`camshaft finetune` and `camshaft merge`: train adapters of a model, and write a model with them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from camshaft.cli import options
from camshaft.cli.command import Bar, command, print_columns, print_json, size
from camshaft.cli.tuning_options import LearningOptions
from camshaft.errors import count

if TYPE_CHECKING:
    from camshaft.train.record.history import Point
    from camshaft.train.tuning.options import FinetunePlan, FinetuneResult

# Warn if less than this share of an adapter's change survives rounding. Q4_1 in place kept 0.06, and the model had learned
# nothing; conversion to Q4_0 kept 0.91, to Q8_0 0.9997.
LEAST_LEFT = 0.95

_Data = Annotated[
    Path,
    typer.Argument(
        metavar="DATA",
        help="A JSONL file of lines with messages, prompt and completion, or text; docs/training.md has those of each method.",
    ),
]
_Adapter = Annotated[
    Path, typer.Argument(metavar="ADAPTER", help="An adapter, as 'camshaft finetune' writes it, or a PEFT folder.")
]
_Tuned = Annotated[Path, typer.Argument(metavar="OUT", help="NAME.gguf; for an adapter another name is a PEFT folder.")]
_Folder = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Where checkpoints are written; default: OUT.checkpoints.")
]
_Every = Annotated[int, typer.Option(metavar="N", min=1, help="Steps between checkpoints.")]
_Resume = Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint.")]
_Validation = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Examples that are not learned; what has their lowest loss is written."),
]
_Plan = Annotated[bool, typer.Option("--plan", help="Show the memory that the run needs, and train nothing.")]
_Report = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write an HTML page: losses, learning rate, gradient norm, speed, memory."),
]
_TensorBoard = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write TensorBoard's event files there.")]
_Backend = Annotated[str | None, typer.Option(metavar="NAME", help="Backend or device to train on.")]
_Type = Annotated[
    str | None,
    typer.Option("--type", metavar="TYPE", help="Format of the changed weights, such as F16; default: their own."),
]


@command
def finetune(
    model: options.Model,
    data: _Data,
    out: _Tuned,
    *,
    learning: LearningOptions,
    validation: _Validation = None,
    checkpoints: _Folder = None,
    save_every: _Every = 50,
    resume: _Resume = False,
    plan: _Plan = False,
    report: _Report = None,
    tensorboard: _TensorBoard = None,
    backend: _Backend = None,
    threads: options.Threads = None,
    force: options.Force = False,
    json: options.Json = False,
) -> None:
    """Train an adapter of a model on examples, or the model itself.

    Shows loss, tokens per second and the time left on a terminal, else a line at each tenth of the steps. Ctrl-C saves a
    checkpoint, from which --resume continues."""
    from camshaft.models.files.pull import resolve_model
    from camshaft.train.record.recorder import Records
    from camshaft.train.tuning.finetuning import finetune as run
    from camshaft.train.tuning.finetuning import plan_finetune

    lora, given = learning.made()
    with Bar(f"pulling {model}") as progress:
        path = resolve_model(model, progress)
    how: dict[str, Any] = {
        "lora": lora, "options": given, "validation": validation, "backend": backend, "threads": threads,
    }  # fmt: skip
    if plan:
        _print_plan(plan_finetune(path, data, **how), json)
        return
    with Bar("training", unit="steps") as progress:
        result = run(
            path, data, out, folder=checkpoints, save_every=save_every, resume=resume, force=force,
            records=Records(report, tensorboard), each=Shown(progress), **how,
        )  # fmt: skip
    if json:
        print_json(result)
    else:
        print(_summary(result))


def _print_plan(found: Any, json: bool) -> None:
    if json:
        print_json(found)
    else:
        print_columns(_plan_rows(found), right=frozenset({1}))


def _plan_rows(plan: FinetunePlan) -> list[tuple[str, str]]:
    held, rows = sum(plan.memory.values()), [(kind, size(nbytes)) for kind, nbytes in plan.memory.items()]
    if plan.program_nbytes is not None:
        rows += [("what --memory counts", size(held)), ("program, about", size(plan.program_nbytes))]
    rows += [("memory in all", size(held + (plan.program_nbytes or 0)))]
    rows += [("layers recomputed", f"{plan.recomputed} of {plan.n_layers}")]
    return [*rows, ("rows", f"{plan.n_rows} of {plan.row_length} tokens"), ("steps", str(plan.n_steps))]


class Shown:
    """Shows steps on a bar: the loss, and from the second step on the speed and the time left, as the first one compiles."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._seconds: list[float] = []
        self._validation: float | None = None

    def __call__(self, point: Point, total: int) -> None:
        self._seconds.append(point.seconds)
        self._validation = point.validation if point.validation is not None else self._validation
        parts = [f"loss {point.loss:.4f}", f"lr {point.lr:.3g}"]
        parts += [f"validation {self._validation:.4f}"] if self._validation is not None else []
        timed = self._seconds[1:]
        if timed and point.seconds > 0:
            left = sum(timed) / len(timed) * (total - point.step)
            parts += [f"{point.tokens / point.seconds:.0f} tokens/s", f"{_clock(left)} left"]
        self._bar(point.step, total, ", ".join(parts))


def _clock(seconds: float) -> str:
    whole = round(seconds)
    return (
        f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}" if whole >= 3600 else f"{whole // 60}:{whole % 60:02}"
    )


def _summary(result: FinetuneResult) -> str:
    done = f"{result.path}: {count(result.n_steps, 'step')} on {count(result.n_examples, 'example')}"
    if result.stopped_early:
        done += ", stopped early"
    if result.n_skipped:
        done += f", {result.n_skipped} skipped as gradients overflowed f16"
    if result.first_loss is None or result.resumed_after == result.n_steps:
        return f"{done}, as before; none was left to do"
    losses = f"loss {result.first_loss:.3f} to {result.last_loss:.3f}"
    since = f" after step {result.resumed_after}" if result.resumed_after else ""
    if result.best_validation is not None:
        losses += f"; validation {result.best_validation:.3f} after step {result.best_step}"
    return f"{done}; {losses}; {count(result.n_tokens, 'token')} learned in {result.seconds:.0f} s{since}"


@command
def merge(
    model: options.Model,
    adapter: _Adapter,
    out: options.Out,
    *,
    file_type: _Type = None,
    force: options.Force = False,
) -> None:
    """Write a copy of a model with an adapter added to its weights."""
    from camshaft.models.files.pull import resolve_model
    from camshaft.train.tuning.adapter_file import merge as run

    with Bar(f"pulling {model}") as progress:
        path = resolve_model(model, progress)
    with Bar("merging", unit="tensors") as progress:
        left = run(path, adapter, out, file_type=file_type, force=force, progress=progress)
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB")
    if left < LEAST_LEFT:
        lost = f"rounding left {left:.0%} of the adapter's change"
        print(f"camshaft: {lost}; --type Q8_0 or F16 keeps it", file=sys.stderr)
