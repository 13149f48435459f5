"""`camshaft bench`: how fast a model runs here."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from camshaft.cli import options
from camshaft.cli.compare import run_comparison, threads_of
from camshaft.cli.progress import Bar
from camshaft.cli.run import command
from camshaft.cli.show import print_columns, print_json
from camshaft.errors import SettingError

_PromptTokens = Annotated[int, typer.Option(min=1, metavar="N", help="Length of the prompt.")]
_GenerateTokens = Annotated[int, typer.Option(min=2, metavar="N", help="Tokens to generate.")]
_Repeat = Annotated[int, typer.Option(min=1, metavar="N", help="Runs of each; median, least and most are shown.")]
_Sequences = Annotated[int, typer.Option(min=1, metavar="N", help="Also measure N sequences generating together.")]
_Threads = Annotated[
    str | None, typer.Option(metavar="N", help="Workers; with --compare one number or several, such as 1,2.")
]
_Compare = Annotated[bool, typer.Option("--compare", help="Measure beside other libraries instead, a table of rows.")]
_Only = Annotated[
    str | None,
    typer.Option(metavar="GROUPS", help="With --compare: only these, such as models,executor; a wrong one lists all."),
]
_Quick = Annotated[bool, typer.Option("--quick", help="With --compare: 2 rounds instead of 5.")]
_Results = Annotated[
    Path | None, typer.Option("--results", metavar="FILE", help="With --compare: keep the rows there, as JSON.")
]
_Markdown = Annotated[
    Path | None, typer.Option("--markdown", metavar="FILE", help="With --compare: write the table there.")
]
_Resume = Annotated[
    bool, typer.Option("--resume", help="With --compare: go on with the rows that --results FILE holds.")
]
_PeerPython = Annotated[
    str | None, typer.Option(metavar="PYTHON", help="With --compare: the Python that has the other libraries.")
]
_AtMost = Annotated[
    float | None, typer.Option("--at-most", metavar="S", min=0.0, help="With --compare: begin nothing after S seconds.")
]
# What each form of the command reads and the other does not.
_ALONE = ("model", "prompt_tokens", "generate_tokens", "repeat", "sequences", "backend", "activations", "kv_cache")
_COMPARING = ("only", "quick", "results", "markdown", "resume", "peer_python", "at_most")
_ROWS = {
    "prompt_tokens_per_s": "prompt, tokens/s",
    "generated_tokens_per_s": "generating, tokens/s",
    "together_tokens_per_s": "together, tokens/s in all",
    "first_token_cold_s": "first token, cold, s",
    "first_token_warm_s": "first token, warm, s",
}


@command
def bench(
    model: options.Model = options.DEFAULT_MODEL,
    prompt_tokens: _PromptTokens = 512,
    generate_tokens: _GenerateTokens = 128,
    repeat: _Repeat = 5,
    sequences: _Sequences = 1,
    backend: options.Backend = None,
    threads: _Threads = None,
    activations: options.Activations = None,
    kv_cache: options.KVCache = None,
    json: options.Json = False,
    *,
    compare: _Compare = False,
    only: _Only = None,
    quick: _Quick = False,
    results: _Results = None,
    markdown: _Markdown = None,
    resume: _Resume = False,
    peer_python: _PeerPython = None,
    at_most: _AtMost = None,
) -> None:
    """Measure how fast a model runs, or much beside other libraries.

    Prompt processing, generation, and the time from the start of a process to the first token of its text.
    With --compare a table of rows instead: models, products, norms and more, each by camshaft and its peers in turn."""
    _refuse_unread(locals())
    if compare:
        run_comparison(
            only=only,
            quick=quick,
            threads=threads,
            results_file=results,
            markdown_file=markdown,
            resume=resume,
            peer_python=peer_python,
            at_most_s=at_most,
            json=json,
        )
        return
    given = {"backend": backend, "activations": activations, "kv_cache": kv_cache}
    report = _measured(model, prompt_tokens, generate_tokens, repeat, sequences, given | {"threads": _one(threads)})
    if json:
        print_json(report)
    else:
        _print(report)


def _measured(
    model: str, prompt_tokens: int, generate_tokens: int, repeat: int, sequences: int, given: Mapping[str, Any]
) -> dict[str, Any]:
    """What was asked and what came out, for the model opened as `given` says."""
    from camshaft.generate.benchmark import benchmark, benchmark_together, first_token

    context = max(options.DEFAULT_CONTEXT, prompt_tokens + generate_tokens + 1)
    with options.open_model(model, context=context, sessions=max(8, sequences), **given) as lm:
        with Bar(f"measuring {model}", unit="runs") as progress:
            speed = benchmark(lm, prompt_tokens, generate_tokens, repeat, progress)
        if sequences > 1:
            with Bar(f"measuring {sequences} sequences", unit="runs") as progress:
                speed |= benchmark_together(lm, sequences, generate_tokens, repeat, progress)
        who = {"model": lm.name, "backend": lm.backend, "threads": lm.threads}
    with Bar("measuring the first token", unit="runs") as progress:
        first = first_token(model, repeat, progress, **given)
    asked = {
        "prompt_tokens": prompt_tokens,
        "generate_tokens": generate_tokens,
        "repeat": repeat,
        "sequences": sequences,
    }
    return who | asked | speed | first


def _refuse_unread(given: Mapping[str, object]) -> None:
    """SettingError for an argument that this form of the command would not read: it measures for long before that shows."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(bench).parameters.items()}
    comparing = bool(given["compare"])
    for name in _ALONE if comparing else _COMPARING:
        if given[name] != defaults[name]:
            shown = "MODEL" if name == "model" else f"--{name.replace('_', '-')}"
            why = (
                "it has no meaning with --compare; leave it out"
                if comparing
                else "it goes with --compare; wanted that too"
            )
            raise SettingError(f"{shown} {given[name]}: {why}")


def _one(text: str | None) -> int | None:
    """A number of threads, None where none was asked for. SettingError for several."""
    if text is None:
        return None
    numbers = threads_of(text)
    if len(numbers) > 1:
        raise SettingError(f"--threads {text}: wanted one number; several go with --compare")
    return numbers[0]


def _print(report: dict[str, object]) -> None:
    from camshaft.generate.benchmark import Spread

    print("{model}, backend {backend}, threads {threads}".format_map(report))
    rows: list[tuple[object, ...]] = [("", "median", "min", "max")]
    for name, title in _ROWS.items():
        spread = report.get(name)
        if isinstance(spread, Spread):
            rows.append((title, *(f"{value:.4g}" for value in (spread.median, spread.min, spread.max))))
    print_columns(rows, right=frozenset({1, 2, 3}))
