"""Command-line options shared by several commands, in groups that make the library's objects.

Imports neither NumPy nor the library at module level, to keep startup short."""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from camshaft.cli.command import Bar, Notice
from camshaft.garbage import no_collection
from camshaft.models.catalog import DEFAULT_MODEL

if TYPE_CHECKING:
    from camshaft.generate.language_model import LanguageModel
    from camshaft.generate.options import GenerateOptions

Model = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="A model name (pulled on first use), hf:OWNER/REPO/FILE, or a .gguf path."),
]
Threads = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Worker threads; default: the cores available to this process.")
]
Context = Annotated[int, typer.Option(metavar="N", min=1, help="Context length: maximum tokens per conversation.")]
MaxTokens = Annotated[
    int,
    typer.Option(
        "-n",
        "--max-tokens",
        metavar="N",
        min=-1,
        help="Maximum tokens to generate; -1: until the end or a full context.",
    ),
]
System = Annotated[str | None, typer.Option(metavar="TEXT", help="A system message before the prompt.")]
Stop = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEXT", help="End the answer before this text; may be given several times.", show_default=False
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]

DEFAULT_CONTEXT = 2048
# A command runs one conversation. The library's default of 8 sessions would reserve a cache for each:
# 246 MB more, and up to 0.4 s until the first token.
COMMAND_SESSIONS = 1

_BLAS_THREADS = "OPENBLAS_NUM_THREADS"

__all__ = ["DEFAULT_CONTEXT", "DEFAULT_MODEL"]


@dataclass(frozen=True)
class ModelOptions:
    """How to run a model; None keeps the library's default."""

    backend: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Backend or device to run on (see 'camshaft devices'); default: the best validated one.",
        ),
    ] = None
    threads: Threads = None
    activations: Annotated[
        str | None,
        typer.Option(
            metavar="auto|q8|f32", help="Data type of activations; f32 also makes the KV cache f32 by default."
        ),
    ] = None
    kv_cache: Annotated[
        str | None,
        typer.Option(
            metavar="auto|f16|bf16|f32|q8_0|q4_0",
            help="Data type of the KV cache; auto is f16, or f32 with f32 activations; q8_0 and q4_0 use the least memory.",
        ),
    ] = None

    def open(self, model: str, context: int = DEFAULT_CONTEXT, sessions: int = COMMAND_SESSIONS) -> LanguageModel:
        """Open a model for inference; pull it first, with a progress bar, if it is not in the cache."""
        from camshaft.models.pull import resolve_model

        with Bar(f"pulling {model}") as progress:
            resolve_model(model, progress)
        _import_numpy()
        with Notice(f"preparing {model} for this machine (once) ..."), no_collection():
            from camshaft.generate.language_model import LanguageModel

            return LanguageModel(model, context=context, sessions=sessions, **_given(self))


@dataclass(frozen=True)
class SamplingOptions:
    """How to pick tokens; None keeps the library's default."""

    greedy: Annotated[bool, typer.Option("--greedy", help="Always pick the most probable token.")] = False
    temperature: Annotated[
        float | None,
        typer.Option(metavar="X", min=0.0, help="Sampling temperature: below 1 sharpens, above 1 flattens."),
    ] = None
    top_k: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Sample from the N most probable tokens; 0: all.")
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option(metavar="X", help="Sample from the fewest tokens with total probability X (0 < X <= 1)."),
    ] = None
    min_p: Annotated[
        float | None,
        typer.Option(metavar="X", min=0.0, max=1.0, help="Drop tokens less probable than X times the best."),
    ] = None
    repeat_penalty: Annotated[
        float | None,
        typer.Option(metavar="X", help="Above 1: make recently generated tokens less probable; 1: no effect."),
    ] = None
    seed: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Random seed; the same seed gives the same text.")
    ] = None

    def generate(self, **others: Any) -> GenerateOptions:
        """The library's options of generating with this sampling."""
        _import_numpy()
        from camshaft.generate.options import GenerateOptions, Sampling

        return GenerateOptions(sampling=Sampling(**_given(self)), **others)


def _import_numpy() -> None:
    """Import NumPy with a single BLAS thread: saves 12 ms, since OpenBLAS starts a spinning thread per core at import.
    Child processes are unaffected."""
    if "numpy" in sys.modules or _BLAS_THREADS in os.environ:
        return
    os.environ[_BLAS_THREADS] = "1"
    try:
        importlib.import_module("numpy")
    finally:
        del os.environ[_BLAS_THREADS]


def _given(options: object) -> dict[str, Any]:
    return {name: value for name, value in vars(options).items() if value is not None}
