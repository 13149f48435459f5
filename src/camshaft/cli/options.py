"""Command-line options shared by several commands, in groups that make the library's objects.

Imports neither NumPy nor the library at module level, to keep startup short."""

from __future__ import annotations

import importlib
import math
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from camshaft.cli.command import Bar, Notice
from camshaft.errors import SettingError
from camshaft.garbage import no_collection
from camshaft.models.files.catalog import DEFAULT_MODEL

if TYPE_CHECKING:
    from camshaft.generate.language_model import LanguageModel
    from camshaft.generate.options import GenerateOptions
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
System = Annotated[str | None, typer.Option(metavar="TEXT", help="A system message before the prompt.")]
Stop = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEXT", help="End the answer before this text; may be given several times.", show_default=False
    ),
]
Speculate = Annotated[
    str | None,
    typer.Option(
        metavar="ngram|MODEL|off",
        help="Draft tokens and check several at once, with the same answer: ngram repeats what the text had before, MODEL is a"
        " smaller model with the same vocabulary.",
        show_default=False,
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
_BIAS = re.compile(r"\s*(\d+)\s*([+-])(.+)")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}
_ESCAPE = re.compile(r"\\([nrt'\"\\])")

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

    adapter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH[:X]",
            help="Add a LoRA adapter (GGUF file or PEFT folder), times X (default 1); may be given several times.",
            show_default=False,
        ),
    ] = None

    def given(self, **others: Any) -> dict[str, Any]:
        """The arguments of LanguageModel: those that were given, and others."""
        given = _given(self)
        if "adapter" in given:
            given["adapters"] = [adapter_of(text) for text in given.pop("adapter")]
        return given | others

    def open(self, model: str, context: int = DEFAULT_CONTEXT, sessions: int = COMMAND_SESSIONS) -> LanguageModel:
        """Open a model for inference; pull it first, with a progress bar, if it is not in the cache."""
        pull(model)
        _import_numpy()
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
def speculation(speculate: str | None, running: ModelOptions, context: int) -> Iterator[str | LanguageModel | None]:
    """The option of the library that --speculate names; a draft model is open meanwhile, without the adapters."""
    if speculate in (None, "off", "ngram"):
        yield None if speculate == "off" else speculate
        return
    with replace(running, adapter=None).open(str(speculate), context) as draft:
        yield draft


def open_embedder(
    model: str, *, threads: int | None = None, context: int | None = None, pooling: str | None = None
) -> EmbeddingModel:
    """Open a model for vectors of texts; pull it first, as for inference."""
    pull(model)
    _import_numpy()
    from camshaft.generate.pooled.embedding_model import EmbeddingModel

    return EmbeddingModel(model, threads=threads, context=context, pooling=pooling)


def open_reranker(model: str, *, threads: int | None = None, context: int | None = None) -> Reranker:
    """Open a model that scores documents; pull it first, as for inference."""
    pull(model)
    _import_numpy()
    from camshaft.generate.pooled.reranker import Reranker

    return Reranker(model, threads=threads, context=context)


def adapter_of(text: str) -> tuple[str, float]:
    """PATH or PATH:X. SettingError where X is no number and no such file is there."""
    path, colon, strength = text.rpartition(":")
    if not colon or os.path.exists(text):
        return text, 1.0
    try:
        return path, float(strength)
    except ValueError:
        raise SettingError(f"--adapter {text}: no such file, and {strength!r:.60} is no number") from None


@dataclass(frozen=True)
class SamplingOptions:
    """How to pick tokens; None keeps the library's default."""

    greedy: Annotated[bool, typer.Option("--greedy", help="Always pick the most probable token.")] = False
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature",
            "--temp",
            metavar="X",
            min=0.0,
            help="Sampling temperature: below 1 sharpens, above 1 flattens.",
        ),
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
    typical_p: Annotated[
        float | None,
        typer.Option(
            "--typical",
            "--typical-p",
            metavar="X",
            help="Sample from the tokens nearest to the expected surprise; 1: all.",
        ),
    ] = None
    top_n_sigma: Annotated[
        float | None,
        typer.Option(metavar="X", help="Drop logits more than X standard deviations below the greatest; -1: none."),
    ] = None
    xtc_probability: Annotated[
        float | None,
        typer.Option(metavar="X", help="How often to drop all tokens above --xtc-threshold but the least; 0: never."),
    ] = None
    xtc_threshold: Annotated[
        float | None, typer.Option(metavar="X", help="The probability from which XTC drops tokens; default: 0.1.")
    ] = None
    repeat_penalty: Annotated[
        float | None,
        typer.Option(metavar="X", help="Above 1: make recently generated tokens less probable; 1: no effect."),
    ] = None
    repeat_last_n: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens that count as recent; 0: none, -1: all; default: 64.")
    ] = None
    presence_penalty: Annotated[
        float | None, typer.Option(metavar="X", help="Subtract X from the logits of recent tokens.")
    ] = None
    frequency_penalty: Annotated[
        float | None, typer.Option(metavar="X", help="Subtract X for each time that a token is among the recent ones.")
    ] = None
    dry_multiplier: Annotated[
        float | None,
        typer.Option(metavar="X", help="Penalty (DRY) of tokens that would go on with a repetition; 0: none."),
    ] = None
    dry_base: Annotated[
        float | None, typer.Option(metavar="X", help="DRY: factor for each further token; default: 1.75.")
    ] = None
    dry_allowed_length: Annotated[
        int | None, typer.Option(metavar="N", help="DRY: shorter repetitions are free; default: 2.")
    ] = None
    dry_penalty_last_n: Annotated[
        int | None, typer.Option(metavar="N", help="DRY: tokens to look at; 0: none, -1: all; default: 64.")
    ] = None
    dry_sequence_breaker: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="DRY: no repetition goes across TEXT; several times for several, in place of the defaults; none: no text.",
            show_default=False,
        ),
    ] = None
    mirostat: Annotated[
        int | None,
        typer.Option(metavar="0|2", help="2: hold the surprise of tokens near --mirostat-ent, without other filters."),
    ] = None
    mirostat_lr: Annotated[float | None, typer.Option(metavar="X", help="How fast mirostat learns; default: 0.1.")] = (
        None
    )
    mirostat_ent: Annotated[
        float | None, typer.Option(metavar="X", help="The surprise that mirostat aims at, in bits; default: 5.")
    ] = None
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOKEN(+/-)BIAS",
            help="Add a number to the logit of a token id, such as 15043+1 or 15043-inf; may be given several times.",
            show_default=False,
        ),
    ] = None
    seed: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Random seed; the same seed gives the same text.")
    ] = None

    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Never draw the model's end tokens.")] = False

    def generate(self, **others: Any) -> GenerateOptions:
        """The library's options of generating with this sampling, for `of_model`."""
        _import_numpy()
        from camshaft.generate.options import GenerateOptions
        from camshaft.generate.sampling.parameters import Sampling

        given = _given(self)
        others["ignore_eos"] = given.pop("ignore_eos")
        breakers, biases = given.pop("dry_sequence_breaker", None), given.pop("logit_bias", None)
        if breakers:
            given["dry_sequence_breakers"] = _breakers(breakers)
        if biases:
            given["logit_bias"] = _biases(biases)
        return GenerateOptions(sampling=Sampling(**given), **others)


def of_model(options: GenerateOptions, lm: LanguageModel) -> GenerateOptions:
    """The options for one model: with ignore_eos, its end tokens are never drawn, as in llama.cpp."""
    if not options.ignore_eos:
        return options
    never = dict.fromkeys(lm.tokenizer.eos_ids, -math.inf)
    return options.merge({"logit_bias": {**options.sampling.logit_bias, **never}})


def _breakers(texts: Sequence[str]) -> tuple[str, ...]:
    """The texts after the last "none", with escapes such as \\n replaced."""
    last = max((i + 1 for i, text in enumerate(texts) if text == "none"), default=0)
    return tuple(_ESCAPE.sub(lambda found: _ESCAPES[found[1]], text) for text in texts[last:])


def _biases(texts: Sequence[str]) -> dict[int, float]:
    """Biases by token id from texts such as 15043+1; those of one token add up."""
    biases: dict[int, float] = {}
    for text in texts:
        found = _BIAS.fullmatch(text)
        try:
            number = float(found[3]) if found else math.nan
        except ValueError:
            number = math.nan
        if found is None or math.isnan(number):
            raise SettingError(
                f"--logit-bias {text!r}; wanted TOKEN+BIAS or TOKEN-BIAS, such as 15043+1.5 or 15043-inf"
            )
        token = int(found[1])
        biases[token] = biases.get(token, 0.0) + (number if found[2] == "+" else -number)
    return biases


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
