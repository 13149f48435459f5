"""`camshaft bench`: measure a model's prompt and generation speed and its time to first token."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from camshaft.cli import options
from camshaft.cli.command import Bar, command, print_columns, print_json

_GenerateTokens = Annotated[int, typer.Option(min=2, metavar="N", help="Tokens to generate.")]
_Repeat = Annotated[int, typer.Option(min=1, metavar="N", help="Runs per measurement; prints median, min and max.")]
_Sequences = Annotated[int, typer.Option(min=1, metavar="N", help="Also measure N sequences generated in one batch.")]
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
    prompt_tokens: options.PromptTokens = 512,
    generate_tokens: _GenerateTokens = 128,
    repeat: _Repeat = 5,
    sequences: _Sequences = 1,
    *,
    running: options.ModelOptions,
    json: options.Json = False,
) -> None:
    """Measure how fast a model runs.

    Measures prompt processing, generation, and the time from process start to the first token."""
    report = _measure(model, prompt_tokens, generate_tokens, repeat, sequences, running)
    if json:
        print_json(report)
    else:
        _print(report)


def _measure(
    model: str, prompt_tokens: int, generate_tokens: int, repeat: int, sequences: int, running: options.ModelOptions
) -> dict[str, Any]:
    """Measure the model and return the settings and the results."""
    from camshaft.generate.measures.benchmark import benchmark, benchmark_together, first_token

    context = max(options.DEFAULT_CONTEXT, prompt_tokens + generate_tokens + 1)
    with running.open(model, context, sessions=max(8, sequences)) as lm:
        with Bar(f"measuring {model}", unit="runs") as progress:
            speed = benchmark(lm, prompt_tokens, generate_tokens, repeat, progress)
        if sequences > 1:
            with Bar(f"measuring {sequences} sequences", unit="runs") as progress:
                speed |= benchmark_together(lm, sequences, generate_tokens, repeat, progress)
        identity = {"model": lm.name, "backend": lm.backend, "threads": lm.threads}
    with Bar("measuring the first token", unit="runs") as progress:
        first = first_token(model, repeat, progress, **vars(running))
    settings = {
        "prompt_tokens": prompt_tokens,
        "generate_tokens": generate_tokens,
        "repeat": repeat,
        "sequences": sequences,
    }
    return identity | settings | speed | first


def _print(report: dict[str, object]) -> None:
    from camshaft.generate.measures.benchmark import Spread

    print("{model}, backend {backend}, threads {threads}".format_map(report))
    rows: list[tuple[object, ...]] = [("", "median", "min", "max")]
    for name, title in _ROWS.items():
        spread = report.get(name)
        if isinstance(spread, Spread):
            rows.append((title, *(f"{value:.4g}" for value in (spread.median, spread.min, spread.max))))
    print_columns(rows, right=frozenset({1, 2, 3}))
