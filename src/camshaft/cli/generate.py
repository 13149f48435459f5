"""`camshaft generate`: stream a model's answer to a prompt."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from camshaft.cli import options
from camshaft.cli.run import command
from camshaft.cli.show import print_json

if TYPE_CHECKING:
    from camshaft.generate.language_model import Generation, LanguageModel

_Prompt = Annotated[str, typer.Option("-p", "--prompt", metavar="TEXT", help="The prompt; - reads it from stdin.")]
_Raw = Annotated[bool, typer.Option("--raw", help="Continue the prompt as is, without the model's chat template.")]


@command
def generate(
    model: options.Model = options.DEFAULT_MODEL,
    *,
    prompt: _Prompt,
    max_tokens: options.MaxTokens = 128,
    raw: _Raw = False,
    greedy: options.Greedy = False,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    repeat_penalty: options.RepeatPenalty = None,
    seed: options.Seed = None,
    backend: options.Backend = None,
    threads: options.Threads = None,
    context: options.Context = options.DEFAULT_CONTEXT,
    activations: options.Activations = None,
    kv_cache: options.KVCache = None,
    json: options.Json = False,
) -> None:
    """Generate text from a prompt and stream it."""
    sampling = options.sampling(
        greedy=greedy or None,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repeat_penalty=repeat_penalty,
        seed=seed,
    )
    text = _prompt_text(prompt)
    given = {"backend": backend, "threads": threads, "activations": activations, "kv_cache": kv_cache}
    with options.open_model(model, context=context, **given) as lm:
        generation = lm.generate(text, max_tokens=max_tokens, sampling=sampling, raw=raw)
        if json:
            pieces = "".join(generation)
            print_json(_report(lm, generation, pieces))
        else:
            stream(generation)


def stream(pieces: Iterable[str]) -> None:
    """Print text pieces as they arrive. End the last line, even if an error interrupts it."""
    last = ""
    try:
        for last in pieces:
            sys.stdout.write(last)
            sys.stdout.flush()
    except Exception:
        if last and not last.endswith("\n"):
            print(flush=True)
        raise
    if not last.endswith("\n"):
        print(flush=True)


def _prompt_text(prompt: str) -> str:
    """The prompt as valid Unicode: bytes that are not UTF-8 become U+FFFD."""
    data = sys.stdin.buffer.read() if prompt == "-" else os.fsencode(prompt)
    return data.decode("utf-8", "replace")


def _report(lm: LanguageModel, generation: Generation, text: str) -> dict[str, object]:
    load, run = lm.timings, generation.timings
    return {
        "model": lm.name,
        "backend": lm.backend,
        "threads": lm.threads,
        "prompt_tokens": generation.prompt_tokens,
        "tokens": generation.tokens,
        "plans": lm.plans.origins,
        "text": text,
        "timings": {
            "load_s": load.load_s,
            "compile_s": load.compile_s,
            "first_token_s": run.first_token_s,
            "prompt_tokens_per_s": run.prompt_tokens_per_s,
            "generated_tokens_per_s": run.generated_tokens_per_s,
        },
    }
