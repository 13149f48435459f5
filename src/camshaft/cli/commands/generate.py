"""`camshaft generate`: stream a model's answer to a prompt."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from camshaft.cli import options
from camshaft.cli.command import command, print_json
from camshaft.cli.sampling_options import SamplingOptions, of_model
from camshaft.errors import OtherArchitectureError, SettingError

if TYPE_CHECKING:
    from camshaft.generate.generation import Generation, TokenLogprob
    from camshaft.generate.grammar.grammar import Grammar
    from camshaft.generate.language_model import LanguageModel
    from camshaft.generate.options import GenerateOptions
    from camshaft.generate.speculation.speculator import Speculation
    from camshaft.generate.tools.calls import Delta
    from camshaft.generate.tools.reasoning import AnswerReader

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
        help="A picture before the prompt, or where the prompt has the model's marker; several times for several.",
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
    speculate: options.Speculate = None,
    prompt_cache: options.PromptCache = None,
    verbose: _Verbose = False,
    json: options.Json = False,
) -> None:
    """Generate text from a prompt and stream it. The prompt comes after the model, from -p or from --file."""
    if text is None and prompt is None and file is None and model is not None and _is_text(model):
        model, text = None, model
    said = _prompt_text(text, prompt, file, raw=raw)
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
            "--speculate": speculate not in (None, "off"),
            "--prompt-cache": prompt_cache is not None,
            "--context": context != options.DEFAULT_CONTEXT,
            "--verbose": verbose,
        }
        _answer_by_t5(name, said, wanted, running, [option for option, is_given in foreign.items() if is_given], json)
        return
    with lm, options.speculation(speculate, running, context) as drafts:
        wanted = of_model(wanted, lm).merge({"speculate": drafts, "prompt_cache": prompt_cache})
        reader = None if raw or grammar is not None else reader_of(lm)
        if reader is not None:
            wanted = wanted.merge({"shown_tokens": reader.marks})
        generation = _begun(lm, said, wanted, system, image or ())
        if json:
            for _ in generation:
                pass
            print_json(_report(lm, generation, reader, with_logprobs=logprobs is not None))
        else:
            stream(generation, reader)
        if verbose:
            _print_timings(lm, generation)


def _begun(
    lm: LanguageModel, said: str, wanted: GenerateOptions, system: str | None, images: Sequence[str]
) -> Generation:
    """The answer to a prompt with its pictures, after a system message if there is one."""
    if system is None:
        return lm.generate(said, wanted, images=images)
    from camshaft.generate.vision.prompts import content_of

    asked = {"role": "user", "content": content_of(said, images)}
    return lm.generate(options=wanted, messages=[{"role": "system", "content": system}, asked])


def _answer_by_t5(
    name: str,
    said: str,
    wanted: GenerateOptions,
    running: options.ModelOptions,
    foreign: Sequence[str],
    json: bool,
) -> None:
    """Answer by a model with an encoder and a decoder. Raises SettingError for an option of others, as in `foreign`."""
    from camshaft.generate.text_to_text.text_to_text_model import TextToTextModel

    given = running.given()
    of_class = {key: given.pop(key) for key in ("threads", "activations") if key in given}
    unknown = [*foreign, *(f"--{'adapter' if key == 'adapters' else key.replace('_', '-')}" for key in given)]
    if unknown:
        raise SettingError(f"{unknown[0]}, which a model with an encoder and a decoder has not")
    with TextToTextModel(name, **of_class) as model:
        generation = model.generate(said, wanted)
        if not json:
            stream(generation)
            return
        text = "".join(generation)
        facts = {"prompt_tokens": generation.prompt_tokens, "tokens": generation.tokens}
        print_json({"model": name, **facts, "finish_reason": generation.finish_reason, "text": text})


def reader_of(lm: LanguageModel) -> AnswerReader | None:
    """What tells the channels of an answer apart, of models that answer in channels, as gpt-oss does. ModelError if the model has
    no chat template."""
    from camshaft.generate.tools.reasoning import channel_reader

    return channel_reader(lm.chat_template)


def _deltas(pieces: Iterable[str], reader: AnswerReader) -> Iterator[Delta]:
    for piece in pieces:
        yield from reader.push(piece)
    yield from reader.finish()


def _told_apart(pieces: Iterable[str], reader: AnswerReader) -> Iterator[str]:
    """The pieces of the answer proper; thoughts go to stderr, as they arrive."""
    is_thinking = False
    for delta in _deltas(pieces, reader):
        if delta.thought:
            print(delta.thought, end="", file=sys.stderr, flush=True)
            is_thinking = True
        elif delta.text:
            if is_thinking:
                print("\n", file=sys.stderr, flush=True)
            is_thinking = False
            yield delta.text
    if is_thinking:
        print(file=sys.stderr, flush=True)


def stream(pieces: Iterable[str], reader: AnswerReader | None = None) -> None:
    """Print text pieces as they arrive: of an answer in channels its thoughts on stderr. End the last line, even if an error
    interrupts it."""
    last = ""
    try:
        for last in pieces if reader is None else _told_apart(pieces, reader):
            sys.stdout.write(last)
            sys.stdout.flush()
    except Exception:
        if last and not last.endswith("\n"):
            print(flush=True)
        raise
    if not last.endswith("\n"):
        print(flush=True)


def _grammar(schema: str | None, schema_file: Path | None, regex: str | None, file: Path | None) -> Grammar | None:
    """The form that at most one of these options gives to the answer."""
    from camshaft.generate.grammar.grammar import Grammar

    of_file = Grammar.lark if file is not None and file.suffix == ".lark" else Grammar.gbnf
    makers = {
        "--json-schema": (schema, Grammar.json_schema),
        "--json-schema-file": (schema_file, lambda path: Grammar.json_schema(_text_of(path))),
        "--regex": (regex, Grammar.regex),
        "--grammar-file": (file, lambda path: of_file(_text_of(path))),
    }
    given = {name: (value, make) for name, (value, make) in makers.items() if value is not None}
    if len(given) > 1:
        raise SettingError(f"{' and '.join(given)} are given; wanted one of them")
    return next((make(value) for value, make in given.values()), None)


def _text_of(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise SettingError(f"{path} is no UTF-8 text: {error}") from None


def _is_text(argument: str) -> bool:
    """Whether a single argument is a prompt rather than a model: stdin, or a text with a blank, which no model's name has."""
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


def _report(
    lm: LanguageModel, generation: Generation, reader: AnswerReader | None, *, with_logprobs: bool
) -> dict[str, object]:
    text = generation.text if reader is None else reader.text_of(generation.text)
    report: dict[str, object] = {
        "model": lm.name,
        "backend": lm.backend,
        "threads": lm.threads,
        "prompt_tokens": generation.prompt_tokens,
        "kept_tokens": generation.kept_tokens,
        "tokens": generation.tokens,
        "finish_reason": generation.finish_reason,
        "plans": lm.plans.origins,
        "text": text,
        "timings": vars(lm.timings) | vars(generation.timings),
    }
    if reader is not None:
        report["reasoning"] = reader.thought
    if generation.speculation is not None:
        counts = generation.speculation
        report["speculation"] = vars(counts) | {"acceptance": counts.acceptance}
    return report | {"logprobs": [_logprob(each) for each in generation.logprobs]} if with_logprobs else report


def _logprob(each: TokenLogprob) -> dict[str, object]:
    top = [{"id": t.id, "token": t.token, "logprob": t.logprob} for t in each.top]
    return {"id": each.id, "token": each.token, "logprob": each.logprob, "top": top}


def _print_timings(lm: LanguageModel, generation: Generation) -> None:
    times, n = generation.timings, generation.tokens
    rest_s = (n - 1) / times.generated_tokens_per_s if times.generated_tokens_per_s else 0.0
    rows = [
        ("model", f"opened in {lm.timings.load_s:.2f} s, prepared in {lm.timings.compile_s:.2f} s"),
        ("prompt", _rate(generation.prompt_tokens, times.first_token_s, times.prompt_tokens_per_s)),
        ("answer", f"{_rate(n, rest_s, times.generated_tokens_per_s)}, ended by {generation.finish_reason}"),
    ]
    if generation.kept_tokens:
        rows.insert(2, ("prompt", f"{generation.kept_tokens} of these tokens were kept"))
    if generation.speculation is not None:
        rows.append(("speculation", _speculation(generation.speculation)))
    for name, text in rows:
        print(f"camshaft: {name}: {text}", file=sys.stderr)


def _speculation(counts: Speculation) -> str:
    drafted = f"{counts.accepted} of {counts.drafted} drafted tokens accepted ({counts.acceptance:.0%})"
    return f"{drafted}, in {counts.runs} {'run' if counts.runs == 1 else 'runs'}"


def _rate(n: int, seconds: float, per_s: float) -> str:
    return f"{n} {'token' if n == 1 else 'tokens'} in {seconds:.2f} s, {per_s:.1f} tokens/s"
