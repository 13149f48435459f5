"""Command-line options shared by several commands, in groups that make the library's objects.

Imports neither NumPy nor the library at module level, to keep startup short."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from camshaft.cli.command import Bar, Notice
from camshaft.errors import SettingError
from camshaft.models.files.catalog import DEFAULT_MODEL
from camshaft.process import no_collection

if TYPE_CHECKING:
    from camshaft.generate.language_model import LanguageModel
    from camshaft.generate.pooled.embedding_model import EmbeddingModel
    from camshaft.generate.pooled.reranker import Reranker

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A model name (pulled on first use), hf:OWNER/REPO/FILE, a .gguf path, or a folder with config.json and"
        " .safetensors files (converted on first use).",
    ),
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
PromptTokens = Annotated[int, typer.Option(min=1, metavar="N", help="Prompt length in tokens.")]
Chunks = Annotated[int | None, typer.Option(metavar="N", min=1, help="Maximum number of chunks; default: all.")]
Out = Annotated[Path, typer.Argument(metavar="OUT", help="Output file; created only once it is complete.")]
GgufOut = Annotated[Path, typer.Argument(metavar="OUT", help="The .gguf file; created only once it is complete.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite OUT if it exists.")]
Pure = Annotated[bool, typer.Option("--pure", help="Use one block format for every matrix, including the output.")]
LearningRate = Annotated[float, typer.Option("--lr", metavar="X", help="The greatest learning rate.")]
System = Annotated[str | None, typer.Option(metavar="TEXT", help="A system message before the prompt.")]
Stop = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEXT", help="End the answer before this text; may be given several times.", show_default=False
    ),
]
Speculate = Annotated[
    str,
    typer.Option(
        metavar="auto|ngram|MODEL|off",
        help="Draft tokens and check several at once, with the same answer: ngram repeats what the text had before, auto does so"
        " where that pays, MODEL is a smaller model with the same vocabulary.",
    ),
]
PromptCache = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|auto",
        help="Keep the processed prompt for later runs, and begin with what an earlier one processed: in FILE, or in the cache.",
        show_default=False,
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
            metavar="auto|q8|f32",
            help="Data type of activations; auto is q8, and bf16 for prompts on a CPU with AMX or an NVIDIA GPU. f32 "
            "also makes the KV cache f32 by default.",
        ),
    ] = None
    kv_cache: Annotated[
        str | None,
        typer.Option(
            metavar="auto|f16|bf16|f32|q8_0|q4_0",
            help="Data type of the KV cache; auto is f16, or f32 with f32 activations; q8_0 and q4_0 use the least memory.",
        ),
    ] = None

    adapter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH[:X]",
            help="Add a LoRA adapter (GGUF file or PEFT folder), times X (default 1); may be given several times.",
            show_default=False,
        ),
    ] = None

    mmproj: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The model's vision encoder, a second GGUF file, with which it sees images."),
    ] = None

    experts_resident: Annotated[
        float | None,
        typer.Option(
            metavar="GB",
            help="Memory for the experts of a mixture: the most used keep it, the others are read from a file when chosen.",
        ),
    ] = None

    mlock: Annotated[
        bool | None, typer.Option("--mlock", help="Keep all weights in memory: the system swaps none of them.")
    ] = None

    def given(self, **others: Any) -> dict[str, Any]:
        """The arguments of LanguageModel: those that were given, and others."""
        given = given_options(self)
        if "adapter" in given:
            given["adapters"] = [adapter_of(text) for text in given.pop("adapter")]
        return given | others

    def open(self, model: str, context: int = DEFAULT_CONTEXT, sessions: int = COMMAND_SESSIONS) -> LanguageModel:
        """Open a model for inference; pull it first, with a progress bar, if it is not in the cache."""
        pull(model)
        import_numpy()
        with preparing(model), no_collection():
            from camshaft.generate.language_model import LanguageModel

            return LanguageModel(model, **self.given(context=context, sessions=sessions))


def pull(model: str) -> None:
    """Pull a model, with a progress bar, if it is not in the cache. Raises ModelError if there is none."""
    from camshaft.models.files.pull import resolve_model

    with Bar(f"converting {model} (once)", unit="weights") if os.path.isdir(model) else Bar(f"pulling {model}") as bar:
        resolve_model(model, bar)


def preparing(model: str) -> Notice:
    """Says that a model is prepared, if that takes long."""
    return Notice(f"preparing {model} for this machine (once) ...")


@contextmanager
def speculation(speculate: str, running: ModelOptions, context: int) -> Iterator[str | LanguageModel | None]:
    """The option of the library that --speculate names; a draft model is open meanwhile, without the adapters."""
    if speculate in ("off", "auto", "ngram"):
        yield None if speculate == "off" else speculate
        return
    with replace(running, adapter=None).open(str(speculate), context) as draft:
        yield draft


def open_embedder(
    model: str, *, threads: int | None = None, context: int | None = None, pooling: str | None = None
) -> EmbeddingModel:
    """Open a model for vectors of texts; pull it first, as for inference."""
    pull(model)
    import_numpy()
    from camshaft.generate.pooled.embedding_model import EmbeddingModel

    return EmbeddingModel(model, threads=threads, context=context, pooling=pooling)


def open_reranker(model: str, *, threads: int | None = None, context: int | None = None) -> Reranker:
    """Open a model that scores documents; pull it first, as for inference."""
    pull(model)
    import_numpy()
    from camshaft.generate.pooled.reranker import Reranker

    return Reranker(model, threads=threads, context=context)


def adapter_of(text: str) -> tuple[str, float]:
    """PATH or PATH:X. SettingError where X is not a number and no such file is there."""
    path, colon, strength = text.rpartition(":")
    if not colon or os.path.exists(text):
        return text, 1.0
    try:
        return path, float(strength)
    except ValueError:
        raise SettingError(f"--adapter {text}: no such file, and {strength!r:.60} is not a number") from None


def import_numpy() -> None:
    """Import NumPy with a single BLAS thread: saves 12 ms, since OpenBLAS starts a spinning thread per core at import.
    Child processes are unaffected."""
    if "numpy" in sys.modules or _BLAS_THREADS in os.environ:
        return
    os.environ[_BLAS_THREADS] = "1"
    try:
        importlib.import_module("numpy")
    finally:
        del os.environ[_BLAS_THREADS]


def given_options(options: object) -> dict[str, Any]:
    """The fields of a group of options that were given, by name."""
    return {name: value for name, value in vars(options).items() if value is not None}
