"""Command-line options for sampling, shared by several commands.

Imports neither NumPy nor the library at module level, to keep startup short."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from camshaft.cli.options import given_options, import_numpy
from camshaft.errors import SettingError

if TYPE_CHECKING:
    from camshaft.generate.language_model import LanguageModel
    from camshaft.generate.options import GenerateOptions

_BIAS = re.compile(r"\s*(\d+)\s*([+-])(.+)")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}
_ESCAPE = re.compile(r"\\([nrt'\"\\])")


@dataclass(frozen=True)
class SamplingOptions:
    """How to sample tokens; None keeps the library's default."""

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
        typer.Option(metavar="X", help="Penalty (DRY) of tokens that would continue a repetition; 0: none."),
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
        """Returns GenerateOptions with this sampling; pass them to `of_model`."""
        import_numpy()
        from camshaft.generate.options import GenerateOptions
        from camshaft.generate.sampling.parameters import Sampling

        given = given_options(self)
        others["ignore_eos"] = given.pop("ignore_eos")
        breakers, biases = given.pop("dry_sequence_breaker", None), given.pop("logit_bias", None)
        if breakers:
            given["dry_sequence_breakers"] = _breakers(breakers)
        if biases:
            given["logit_bias"] = _biases(biases)
        return GenerateOptions(sampling=Sampling(**given), **others)


def of_model(options: GenerateOptions, lm: LanguageModel) -> GenerateOptions:
    """Returns the options for a model: with ignore_eos its end tokens are never sampled, as in llama.cpp."""
    if not options.ignore_eos:
        return options
    never = dict.fromkeys(lm.tokenizer.eos_ids, -math.inf)
    return options.merge({"logit_bias": {**options.sampling.logit_bias, **never}})


def _breakers(texts: Sequence[str]) -> tuple[str, ...]:
    """The texts after the last "none", with escapes such as \\n replaced."""
    last = max((i + 1 for i, text in enumerate(texts) if text == "none"), default=0)
    return tuple(_ESCAPE.sub(lambda found: _ESCAPES[found[1]], text) for text in texts[last:])


def _biases(texts: Sequence[str]) -> dict[int, float]:
    """Parses biases by token id, such as 15043+1; several for one token are added."""
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
