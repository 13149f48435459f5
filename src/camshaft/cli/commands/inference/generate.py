"""`camshaft generate`: stream a model's answer to a prompt."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from camshaft.cli import options
from camshaft.cli.answers import reader_of, show, stream
from camshaft.cli.command import command, print_json
from camshaft.cli.sampling_options import SamplingOptions, of_model
from camshaft.errors import OtherArchitectureError, SettingError

if TYPE_CHECKING:
    from camshaft.generate.generation import Generation
    from camshaft.generate.grammar.grammar import Grammar
    from camshaft.generate.language_model import LanguageModel
    from camshaft.generate.options import GenerateOptions

_Model = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL]",
        help="A model name (pulled on first use), hf:OWNER/REPO/FILE, or a .gguf path.",
        show_default=False,
    ),
]
_Text = Annotated[str | None, typer.Argument(metavar="[PROMPT]", help="The prompt.", show_default=False)]
_Prompt = Annotated[
    str | None, typer.Option("-p", "--prompt", metavar="TEXT", help="The prompt; - reads it from stdin.")
]
_File = Annotated[
    Path | None,
    typer.Option("-f", "--file", metavar="FILE", help="Read the prompt from a file; - reads it from stdin."),
]
_Images = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE",
        help="An image before the prompt, or where the prompt has the model's marker; several times for several.",
        show_default=False,
    ),
]
_Raw = Annotated[bool, typer.Option("--raw", help="Continue the prompt as is, without the model's chat template.")]
_Verbose = Annotated[bool, typer.Option("--verbose", help="Print token counts and rates on stderr at the end.")]
_Logprobs = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=0, help="With --json: each token's log probability, and those of the N most probable."
    ),
]
_JsonSchema = Annotated[
    str | None, typer.Option(metavar="SCHEMA", help="Answer with JSON that this JSON schema accepts; {}: any JSON.")
]
_JsonSchemaFile = Annotated[Path | None, typer.Option(metavar="FILE", help="The same, with the schema in a file.")]
_Regex = Annotated[
    str | None, typer.Option(metavar="EXPRESSION", help="Answer with a text that this expression matches.")
]
_GrammarFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Answer by a grammar: Lark's in a .lark file, else GBNF.")
]


@command
def generate(
    model: _Model = None,
    text: _Text = None,
    *,
    prompt: _Prompt = None,
    file: _File = None,
    image: _Images = None,
    system: options.System = None,
    max_tokens: options.MaxTokens = 128,
    stop: options.Stop = None,
    raw: _Raw = False,
    sampling: SamplingOptions,
    running: options.ModelOptions,
    context: options.Context = options.DEFAULT_CONTEXT,
    json_schema: _JsonSchema = None,
    json_schema_file: _JsonSchemaFile = None,
    regex: _Regex = None,
    grammar_file: _GrammarFile = None,
    logprobs: _Logprobs = None,
    speculate: options.Speculate = "auto",
    prompt_cache: options.PromptCache = None,
    verbose: _Verbose = False,
    json: options.Json = False,
) -> None:
    """Generate text from a prompt and stream it. The prompt comes after the model, from -p or from --file."""
    if text is None and prompt is None and file is None and model is not None and _is_text(model):
        model, text = None, model
    prompt_text = _prompt_text(text, prompt, file, raw=raw)
    if raw and system is not None:
        raise SettingError("--system needs the chat template, which --raw leaves out")
    if logprobs is not None and not json:
        raise SettingError("--logprobs needs --json")
    grammar = _grammar(json_schema, json_schema_file, regex, grammar_file)
    wanted = sampling.generate(
        max_tokens=max_tokens, stop=tuple(stop or ()), raw=raw, logprobs=logprobs, grammar=grammar
    )
    name = options.DEFAULT_MODEL if model is None else model
    try:
        lm = running.open(name, context)
    except OtherArchitectureError as error:
        if error.architecture != "t5":
            raise
        foreign = {
            "--image": bool(image),
            "--system": system is not None,
            "--speculate": speculate not in ("off", "auto"),
            "--prompt-cache": prompt_cache is not None,
            "--context": context != options.DEFAULT_CONTEXT,
            "--verbose": verbose,
        }
        _answer_by_t5(
            name, prompt_text, wanted, running, [option for option, is_given in foreign.items() if is_given], json
        )
        return
    with lm, options.speculation(speculate, running, context) as drafts:
        wanted = of_model(wanted, lm).merge({"speculate": drafts, "prompt_cache": prompt_cache})
        reader = None if raw or grammar is not None else reader_of(lm)
        if reader is not None:
            wanted = wanted.merge({"shown_tokens": reader.marks})
        generation = _begun(lm, prompt_text, wanted, system, image or ())
        show(lm, generation, reader, json=json, with_logprobs=logprobs is not None, verbose=verbose)


def _begun(
    lm: LanguageModel, prompt_text: str, wanted: GenerateOptions, system: str | None, images: Sequence[str]
) -> Generation:
    """Starts the answer to a prompt with its images, after a system message if there is one."""
    if system is None:
        return lm.generate(prompt_text, wanted, images=images) if images else lm.generate(prompt_text, wanted)
    from camshaft.generate.vision.prompts import content_of

    asked = {"role": "user", "content": content_of(prompt_text, images)}
    return lm.generate(options=wanted, messages=[{"role": "system", "content": system}, asked])


def _answer_by_t5(
    name: str,
    prompt_text: str,
    wanted: GenerateOptions,
    running: options.ModelOptions,
    foreign: Sequence[str],
    json: bool,
) -> None:
    """Answer by an encoder-decoder model. Raises SettingError for the options in `foreign`, which it does not have."""
    from camshaft.generate.text_to_text.text_to_text_model import TextToTextModel

    given = running.given()
    of_class = {key: given.pop(key) for key in ("threads", "activations") if key in given}
    unknown = [*foreign, *(f"--{'adapter' if key == 'adapters' else key.replace('_', '-')}" for key in given)]
    if unknown:
        raise SettingError(f"{unknown[0]}, which a model with an encoder and a decoder does not have")
    with TextToTextModel(name, **of_class) as model:
        generation = model.generate(prompt_text, wanted)
        if not json:
            stream(generation)
            return
        text = "".join(generation)
        facts = {"prompt_tokens": generation.prompt_tokens, "tokens": generation.tokens}
        print_json({"model": name, **facts, "finish_reason": generation.finish_reason, "text": text})


def _grammar(schema: str | None, schema_file: Path | None, regex: str | None, file: Path | None) -> Grammar | None:
    """The grammar of the answer, by at most one of these options."""
    from camshaft.formats.texts import read_text
    from camshaft.generate.grammar.grammar import Grammar

    of_file = Grammar.lark if file is not None and file.suffix == ".lark" else Grammar.gbnf
    makers = {
        "--json-schema": (schema, Grammar.json_schema),
        "--json-schema-file": (schema_file, lambda path: Grammar.json_schema(read_text(path))),
        "--regex": (regex, Grammar.regex),
        "--grammar-file": (file, lambda path: of_file(read_text(path))),
    }
    given = {name: (value, make) for name, (value, make) in makers.items() if value is not None}
    if len(given) > 1:
        raise SettingError(f"{' and '.join(given)} are given; wanted one of them")
    return next((make(value) for value, make in given.values()), None)


def _is_text(argument: str) -> bool:
    """Whether a single argument is a prompt rather than a model: stdin, or a text with a space, which no model name has."""
    return argument == "-" or (len(argument.split()) > 1 and not os.path.exists(argument))


def _prompt_text(argument: str | None, option: str | None, file: Path | None, *, raw: bool) -> str:
    """The prompt as valid Unicode: bytes that are not UTF-8 become U+FFFD."""
    given = [str(source) for source in (argument, option, file) if source is not None]
    if len(given) != 1:
        came = "more than one prompt" if given else "no prompt"
        wanted = "one after the model, by -p TEXT or by --file FILE"
        raise SettingError(f"{came}; wanted {wanted}; see 'camshaft generate --help'")
    if given[0] == "-" or file is not None:
        data = sys.stdin.buffer.read() if given[0] == "-" else Path(given[0]).read_bytes()
        data = data.removesuffix(b"\n").removesuffix(b"\r")  # the last line's end
        where = "stdin" if given[0] == "-" else given[0]
        if not data.strip():
            raise SettingError(f"the prompt is empty: {where} has no text")
    else:
        data = os.fsencode(given[0])
        if not data.strip() and not raw:
            raise SettingError("the prompt is empty")
    return data.decode("utf-8", "replace")
