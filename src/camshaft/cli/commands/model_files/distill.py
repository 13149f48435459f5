"""`camshaft distill-quantize`: quantize a model with scales that are learned from a text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from camshaft.cli import options
from camshaft.cli.command import Bar, command, print_json

if TYPE_CHECKING:
    from camshaft.train.trainer import Progress

_Out = Annotated[
    Path, typer.Argument(metavar="OUT", help="Output file, or folder of MLX; created once it is complete.")
]
_Type = Annotated[
    str, typer.Argument(metavar="TYPE", help="Q4_0, Q2_K, ...; an unknown type lists all; AFFINE3 for MLX.")
]
_Data = Annotated[Path, typer.Option(metavar="FILE", help="A text to learn from; its last tenth is held out.")]
_Steps = Annotated[int, typer.Option(metavar="N", min=1, help="Steps of learning.")]
_Batch = Annotated[int, typer.Option(metavar="N", min=1, help="Pieces of text of a step.")]
_Length = Annotated[int, typer.Option(metavar="N", min=2, help="Tokens of a piece.")]
_Seed = Annotated[int, typer.Option(metavar="N", min=0, help="Gives the pieces of the text.")]


@command
def distill_quantize(
    model: options.Model,
    out: _Out,
    file_type: _Type,
    *,
    data: _Data,
    steps: _Steps = 100,
    batch: _Batch = 2,
    length: _Length = 128,
    rate: options.LearningRate = 1e-3,
    seed: _Seed = 0,
    pure: options.Pure = False,
    force: options.Force = False,
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """Quantize a model with scales that are learned from a text, so that it predicts as the full model does."""
    from camshaft.models.files.pull import resolve_model
    from camshaft.models.files.quantization_mix import mix_named
    from camshaft.train.tuning.distillation import DistillOptions
    from camshaft.train.tuning.distillation import distill_quantize as run
    from camshaft.train.tuning.distilling.affine import affine_bits

    if affine_bits(file_type) is None:
        mix_named(file_type)
    given = DistillOptions(steps, batch, length, rate, seed=seed)
    path = Path(model)
    if not path.is_dir():
        with Bar(f"pulling {model}") as progress:
            path = resolve_model(model, progress)
    with Bar(f"learning {file_type.upper()}", unit="steps") as progress:

        def show(step: Progress, total: int) -> None:
            measured = "" if step.validation is None else f", held out {step.validation:.4f}"
            progress(step.step, total, f"KL {step.loss:.4f}{measured}")

        result = run(path, out, file_type, data, pure=pure, force=force, options=given, each=show, threads=threads)
    if json:
        print_json(result)
        return
    lost = 1 - result.kl_after / result.kl_before if result.kl_before else 0.0
    size, divergence = f"{result.nbytes / 1e6:.1f} MB", f"{result.kl_before:.4f} to {result.kl_after:.4f} nats a token"
    print(f"{result.path}: {size}; KL divergence {divergence} ({lost:.0%} less), {result.seconds:.0f} s")
