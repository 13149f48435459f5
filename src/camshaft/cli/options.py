"""Options that several commands share, and what they turn into. Only typer is imported before a command runs."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from camshaft.cli.progress import Bar, Notice
from camshaft.garbage import no_collection
from camshaft.models.catalog import DEFAULT_MODEL

if TYPE_CHECKING:
    from camshaft.generate.language_model import LanguageModel
    from camshaft.generate.sampling import Sampling

Model = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="A name (pulled on first use), hf:OWNER/REPO/FILE or the path of a .gguf."),
]
Backend = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Backend or device to run on (camshaft devices lists them); by default the best one proved here.",
    ),
]
Threads = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Workers; by default the cores this process may use.")
]
Context = Annotated[int, typer.Option(metavar="N", min=1, help="Most tokens a conversation can hold.")]
Activations = Annotated[
    str | None,
    typer.Option(metavar="auto|q8|f32", help="How activations are kept; f32 also keeps the KV cache in f32."),
]
KVCache = Annotated[
    str | None,
    typer.Option(
        metavar="auto|f16|bf16|f32|q8_0|q4_0",
        help="How keys and values are kept; auto is f16, or f32 with f32 activations; q8_0 and q4_0 take the least memory.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]
MaxTokens = Annotated[int, typer.Option("-n", "--max-tokens", metavar="N", min=1, help="Most tokens to generate.")]
Greedy = Annotated[bool, typer.Option("--greedy", help="Always take the likeliest token.")]
Temperature = Annotated[
    float | None, typer.Option(metavar="X", min=0.0, help="Flattens (over 1) or sharpens (under 1) the choice.")
]
TopK = Annotated[int | None, typer.Option(metavar="N", min=0, help="Choose among the N likeliest tokens; 0: all.")]
TopP = Annotated[
    float | None, typer.Option(metavar="X", help="Choose among the likeliest that make up X in sum: above 0, up to 1.")
]
MinP = Annotated[
    float | None, typer.Option(metavar="X", min=0.0, max=1.0, help="Drop what is under X times the likeliest.")
]
RepeatPenalty = Annotated[
    float | None,
    typer.Option(metavar="X", help="Over 1: makes tokens seen lately less likely. Above 0; 1 does nothing."),
]
Seed = Annotated[int | None, typer.Option(metavar="N", min=0, help="The same seed gives the same text.")]

DEFAULT_CONTEXT = 2048
# Commands hold one conversation: of the 8 that the library makes room for each layer's cache begins on huge pages of its own, and
# the first tokens took 246 MB and up to 0.4 s for them.
OWN_SESSIONS = 1

_BLAS_THREADS = "OPENBLAS_NUM_THREADS"

__all__ = ["DEFAULT_CONTEXT", "DEFAULT_MODEL"]


def sampling(**given: Any) -> Sampling:
    """Sampling from the options that were given; the others keep the library's defaults."""
    _import_numpy()
    from camshaft.generate.sampling import Sampling

    return Sampling(**_given(given))


def open_model(model: str, *, context: int, **given: Any) -> LanguageModel:
    """The model ready to run, pulled first (with a progress bar) if need be."""
    from camshaft.models.pull import resolve_model

    with Bar(f"pulling {model}") as progress:
        resolve_model(model, progress)
    _import_numpy()
    with Notice(f"preparing {model} for this machine (once) ..."), no_collection():
        from camshaft.generate.language_model import LanguageModel

        return LanguageModel(model, context=context, **{"sessions": OWN_SESSIONS} | _given(given))


def _import_numpy() -> None:
    """Imports NumPy with one thread of its BLAS library, which otherwise starts one per core and has them spin: 12 ms here. The
    commands that open a model multiply through it at most by one thread each; processes that they start choose for themselves."""
    if "numpy" in sys.modules or _BLAS_THREADS in os.environ:
        return
    os.environ[_BLAS_THREADS] = "1"
    try:
        importlib.import_module("numpy")
    finally:
        del os.environ[_BLAS_THREADS]


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
