"""`camshaft bench serve`: measure a server under load."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from camshaft.cli import options
from camshaft.cli.command import Bar, Notice, command, print_columns, print_json
from camshaft.cli.commands.serving.arguments import DEFAULT_SLOTS, Slots
from camshaft.errors import SettingError, count

if TYPE_CHECKING:
    from camshaft.serve.load.report import Limits, LoadReport
    from camshaft.serve.load.stream import Target
    from camshaft.serve.load.workload import Workload

_Model = Annotated[
    str | None,
    typer.Argument(metavar="MODEL", help="The model to serve here; with --url, its name there.", show_default=False),
]
_Url = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="A server that runs already, such as http://127.0.0.1:8080; OpenAI's interface.",
        show_default=False,
    ),
]
_KeyFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="With --url: the first line of FILE is the API key.", show_default=False),
]
_Chart = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw the times into an SVG file.", show_default=False)
]
_ROWS = {"first_token_s": "first token", "between_tokens_s": "between tokens", "answer_s": "whole answer"}


@dataclasses.dataclass(frozen=True)
class LoadOptions:
    """What the clients request."""

    clients: Annotated[
        list[int] | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Clients that ask at once (default 1); several times for several loads.",
            show_default=False,
        ),
    ] = None
    rate: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="In place of clients: X requests per second at random times.", show_default=False
        ),
    ] = None
    requests: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Requests in all; default: 4 for each client, 32 at least.", show_default=False
        ),
    ] = None
    prompt_tokens: Annotated[int, typer.Option(metavar="N", min=1, help="Words of a prompt, each about a token.")] = 256
    shared_tokens: Annotated[int, typer.Option(metavar="N", min=0, help="Words with which all prompts begin.")] = 0
    answer_tokens: Annotated[int, typer.Option(metavar="N", min=1, help="Tokens of an answer.")] = 64
    ignore_eos: Annotated[
        bool, typer.Option(help="Ask for answers of full length, by a field that OpenAI itself refuses.")
    ] = True
    completions: Annotated[bool, typer.Option("--completions", help="Texts to continue in place of chats.")] = False
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed gives the same prompts and times.")] = 0
    first_token_limit: Annotated[
        float, typer.Option(metavar="S", min=0, help="Goodput: seconds to the first token of a good answer.")
    ] = 2.0
    between_limit: Annotated[
        float, typer.Option(metavar="S", min=0, help="Goodput: mean seconds between tokens of a good answer.")
    ] = 0.2

    def workloads(self) -> list[Workload]:
        """The loads to measure in turn. Raises SettingError."""
        from camshaft.serve.load.workload import Workload

        if self.rate is not None and self.clients:
            raise SettingError("--clients and --rate are given; wanted one of them")
        common = {
            name: getattr(self, name)
            for name in ("prompt_tokens", "shared_tokens", "answer_tokens", "ignore_eos", "seed")
        }
        common["chat"] = not self.completions
        if self.rate is not None:
            return [Workload(self.requests or 32, None, self.rate, **common)]
        return [Workload(self.requests or max(32, 4 * n), n, **common) for n in self.clients or [1]]

    @property
    def limits(self) -> Limits:
        """When an answer is good."""
        from camshaft.serve.load.report import Limits

        return Limits(self.first_token_limit, self.between_limit)


@command
def bench_serve(
    model: _Model = None,
    *,
    url: _Url = None,
    api_key_file: _KeyFile = None,
    load: LoadOptions,
    running: options.ModelOptions,
    context: options.Context = options.DEFAULT_CONTEXT,
    slots: Slots = DEFAULT_SLOTS,
    chart: _Chart = None,
    json: options.Json = False,
) -> None:
    """Measure how fast a server answers many clients: a model served here in a process of its own, or the server at --url."""
    from camshaft.serve.load.stream import target_of

    workloads = load.workloads()
    if chart is not None and not chart.parent.is_dir():
        raise SettingError(f"--chart {chart}: there is no folder {chart.parent}")
    if url is None and model is not None and "://" in model:
        raise SettingError(f"{model} is an address; wanted a model, or --url {model}")
    with ExitStack() as stack:
        if url is None:
            model = model or options.DEFAULT_MODEL
            url = stack.enter_context(_served(model, running, context, slots))
            model = None
        target = target_of(url, _key(api_key_file))
        reports = asyncio.run(_measure(target, model, workloads, load.limits))
    if chart is not None:
        _draw(chart, target.url, reports)
    if json:
        print_json({"url": target.url, "loads": [report.json for report in reports]})
    else:
        _print(reports)


@contextmanager
def _served(model: str, running: options.ModelOptions, context: int, slots: int) -> Iterator[str]:
    """The address of a server of the model, in a process of its own."""
    from camshaft.generate.measures.benchmark import as_arguments
    from camshaft.models.files.pull import resolve_model
    from camshaft.serve.load.child import serve_command, server

    with Bar(f"pulling {model}") as progress:
        path = resolve_model(model, progress)
    given = {**vars(running), "context": context, "slots": slots}
    with ExitStack() as stack:
        with Notice(f"starting a server of {model} ..."):
            address, _ = stack.enter_context(server(serve_command(str(path), *as_arguments(given))))
        yield address


async def _measure(target: Target, model: str | None, workloads: list[Workload], limits: Limits) -> list[LoadReport]:
    """The report of each load, after a warm-up with other prompts."""
    from camshaft.serve.load.report import report_of
    from camshaft.serve.load.run import first_model, run_load

    name = model if model is not None else await first_model(target)
    reports = []
    for workload in workloads:
        warm_up = workload.warm_up()
        report_of(warm_up, await run_load(target, warm_up, name), limits)  # a server that answers nothing ends here
        with Bar(f"measuring {workload.name}", unit="requests") as progress:
            reports.append(report_of(workload, await run_load(target, workload, name, progress), limits))
    return reports


def _key(file: Path | None) -> str | None:
    if file is None:
        return None
    from camshaft.formats.texts import read_text

    lines = read_text(file).split()
    if not lines:
        raise SettingError(f"{file} has no API key")
    return lines[0]


def _draw(file: Path, url: str, reports: list[LoadReport]) -> None:
    from camshaft.serve.load.chart import chart

    title = f"Share of requests and tokens within a time, {url}"
    file.write_text(chart(title, {report.workload.name: report.times for report in reports}), "utf-8")


def _print(reports: list[LoadReport]) -> None:
    from camshaft.serve.load.chart import shown

    titles = ("load", "answers", "failed", "tokens/s", "answers/s", "goodput/s", "time", "p50", "p95", "p99")
    rows: list[tuple[object, ...]] = [titles]
    for report in reports:
        whole = len(report.times["answer_s"])
        rates = (f"{rate:.4g}" for rate in (report.tokens_per_s, report.answers_per_s, report.goodput_per_s))
        first: tuple[object, ...] = (report.workload.name, whole, report.failed, *rates)
        for name, title in _ROWS.items():
            each = getattr(report, name)
            rows.append((*first, title, shown(each.p50), shown(each.p95), shown(each.p99)))
            first = ("",) * len(first)
    print_columns(rows, right=frozenset({1, 2, 3, 4, 5, 7, 8, 9}))
    for report in reports:
        for error, n in report.errors.items():
            print(f"{report.workload.name}: {count(n, 'request')} failed: {error}")
    if not any(report.prompt_tokens for report in reports):
        print("the server says no numbers of tokens; pieces of answers are counted")
