"""`camshaft finetune` and `camshaft merge`: train adapters of a model, and write a model with them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from camshaft.cli import options
from camshaft.cli.command import Bar, command, print_json
from camshaft.errors import SettingError

if TYPE_CHECKING:
    from camshaft.train.trainer import Progress

# Below this share of an adapter's change, what rounding lost of it is said; Q4_1 in place left 0.06 and its model had learned
# nothing; converted to Q4_0 it was 0.91, to Q8_0 0.9997.
LEAST_LEFT = 0.95

_Data = Annotated[
    Path,
    typer.Argument(
        metavar="DATA",
        help="A JSONL file of lines with messages, prompt and completion, or text; see docs/training.md.",
    ),
]
_Adapter = Annotated[
    Path, typer.Argument(metavar="ADAPTER", help="An adapter, as 'camshaft finetune' writes it, or a PEFT folder.")
]
_Tuned = Annotated[Path, typer.Argument(metavar="OUT", help="NAME.gguf, or another name for a PEFT folder.")]
_Out = Annotated[Path, typer.Argument(metavar="OUT", help="Output file; created only once it is complete.")]
_Force = Annotated[bool, typer.Option("--force", help="Overwrite OUT if it exists.")]
_Method = Annotated[str, typer.Option(metavar="lora", help="What is trained: adapters of low rank beside the weights.")]
_Rank = Annotated[int, typer.Option(metavar="N", min=1, help="Rank of the adapters.")]
_Alpha = Annotated[float, typer.Option(metavar="X", help="The adapters' products are multiplied by alpha / rank.")]
_Target = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="A matrix that gets an adapter, or a pattern: attn_q, ffn_*; may be given several times."
    ),
]
_Epochs = Annotated[int, typer.Option(metavar="N", min=1, help="How often every example is learned.")]
_Steps = Annotated[int | None, typer.Option(metavar="N", min=1, help="The number of steps, in place of --epochs.")]
_Batch = Annotated[int, typer.Option(metavar="N", min=1, help="Examples of a step.")]
_Micro = Annotated[int, typer.Option(metavar="N", min=1, help="Parts in which a batch is computed, to save memory.")]
_Length = Annotated[int, typer.Option(metavar="N", min=2, help="The most tokens that an example may have.")]
_Rate = Annotated[float, typer.Option("--lr", metavar="X", help="The greatest learning rate.")]
_Seed = Annotated[int, typer.Option(metavar="N", min=0, help="Gives the order of examples and the first adapters.")]
_Folder = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Where checkpoints are written; default: OUT.checkpoints.")
]
_Every = Annotated[int, typer.Option(metavar="N", min=1, help="Steps between checkpoints.")]
_Resume = Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint.")]
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
    method: _Method = "lora",
    rank: _Rank = 8,
    alpha: _Alpha = 16.0,
    target: _Target = None,
    epochs: _Epochs = 3,
    steps: _Steps = None,
    batch: _Batch = 4,
    micro_batches: _Micro = 1,
    length: _Length = 512,
    rate: _Rate = 2e-4,
    seed: _Seed = 0,
    checkpoints: _Folder = None,
    save_every: _Every = 50,
    resume: _Resume = False,
    backend: _Backend = None,
    threads: options.Threads = None,
    force: _Force = False,
    json: options.Json = False,
) -> None:
    """Train an adapter of a model on examples.

    Prints the loss at each tenth of the steps; Ctrl-C saves a checkpoint, from which --resume goes on."""
    if method != "lora":
        raise SettingError(f"--method {method[:80]}: wanted lora")
    from camshaft.models.files.pull import resolve_model
    from camshaft.train.tuning.finetuning import FinetuneOptions
    from camshaft.train.tuning.finetuning import finetune as run
    from camshaft.train.tuning.lora import LoraConfig

    lora = LoraConfig(rank, alpha, tuple(target) if target else LoraConfig.targets, seed)
    given = FinetuneOptions(epochs, steps, batch, micro_batches, length, rate, seed=seed)
    with Bar(f"pulling {model}") as progress:
        path = resolve_model(model, progress)

    def show(progress: Progress, total: int) -> None:
        if progress.step == 1 or progress.step * 10 // total > (progress.step - 1) * 10 // total:
            print(f"camshaft: {progress} (of {total} steps)", file=sys.stderr, flush=True)

    result = run(
        path, data, out, lora=lora, options=given, folder=checkpoints, save_every=save_every, resume=resume, force=force,
        each=show, backend=backend, threads=threads,
    )  # fmt: skip
    if json:
        print_json(result)
        return
    done = f"{result.path}: {result.n_steps} steps on {result.n_examples} examples"
    if result.first_loss is None:
        print(f"{done}, as before; none was left to do")
        return
    losses = f"loss {result.first_loss:.3f} to {result.last_loss:.3f}"
    print(f"{done}; {losses}; {result.n_tokens} tokens learned in {result.seconds:.0f} s")


@command
def merge(
    model: options.Model,
    adapter: _Adapter,
    out: _Out,
    *,
    file_type: _Type = None,
    force: _Force = False,
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
