"""`camshaft serve` beside llama-server: the same file and threads, many clients, interleaved rounds.

    python -m bench.serving.serve --llama-server PATH [--clients 1 4 16 64] [--rounds 2] [--prefix] [--json FILE] [--chart FILE]

PATH is llama.cpp's server, built from the sources that the package llama-cpp-python has in vendor/llama.cpp. Both servers have as
many slots as there are clients. Prompts have 256 words and a chat template, answers 64 tokens; every client asks `--each` times.
`--prefix` measures prompts of 1,564 words instead: all different, then with 1,500 in common. While one server works, the other is
idle.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from camshaft.models.files.pull import resolve_model
from camshaft.serve.load.chart import chart
from camshaft.serve.load.child import READY, serve_command, server
from camshaft.serve.load.report import Limits, LoadReport, report_of
from camshaft.serve.load.run import first_model, run_load
from camshaft.serve.load.stream import target_of
from camshaft.serve.load.workload import Workload

LLAMA_READY = r"listening on (http://[\d.:]+)"
LLAMA_PORT = 18190
PREFIX, PROMPT = 1500, 1564
Reports = dict[str, list[LoadReport]]


def commands(
    model: Path, llama_server: Path, slots: int, context: int, threads: int
) -> dict[str, tuple[list[str], str]]:
    """The command line of each server, and what it prints with its address."""
    own = serve_command(str(model), "--threads", str(threads), "--slots", str(slots), "--context", str(context))
    sizes = {"-np": slots, "-c": slots * context, "-t": threads, "-tb": threads, "--port": LLAMA_PORT}
    theirs = [str(llama_server), "-m", str(model), *(str(each) for pair in sizes.items() for each in pair)]
    return {"camshaft": (own, READY), "llama-server": (theirs, LLAMA_READY)}


def compare(given: Mapping[str, tuple[list[str], str]], workloads: Sequence[Workload], rounds: int) -> list[Reports]:
    """The reports of each server in each round, for each workload; each round has prompts of its own."""
    found: list[Reports] = [{name: [] for name in given} for _ in workloads]
    with ExitStack() as stack:
        urls = {name: stack.enter_context(server(*each))[0] for name, each in given.items()}
        for name, url in urls.items():
            measured(url, workloads[0].warm_up())
            print(f"{name} at {url}", file=sys.stderr, flush=True)
        for number in range(rounds):
            for workload, reports in zip(workloads, found, strict=True):
                for name, url in urls.items():
                    report = measured(url, of_round(workload, number))
                    reports[name].append(report)
                    first = f"first token p50 {report.first_token_s.p50:.3f} p95 {report.first_token_s.p95:.3f} s"
                    print(
                        f"{workload.name}, {name}: {report.tokens_per_s:.1f} tokens/s, {first}",
                        file=sys.stderr,
                        flush=True,
                    )
    return found


def of_round(workload: Workload, number: int) -> Workload:
    """The workload with the prompts of a round."""
    return Workload(**{**vars(workload), "seed": workload.seed + number})


def measured(url: str, workload: Workload) -> LoadReport:
    """The report of a load. Raises AnswerError if a request failed."""
    target = target_of(url)

    async def run() -> LoadReport:
        records = await run_load(target, workload, await first_model(target))
        return report_of(workload, records, Limits())

    report = asyncio.run(run())
    assert not report.failed, report.errors
    return report


def row(name: str, threads: int, reports: Reports) -> dict[str, Any]:
    """The figures of each round as JSON."""
    figures = ("tokens_per_s", "seconds", "prompt_tokens", "cached_tokens", "answer_tokens")
    times = ("first_token_s", "between_tokens_s", "answer_s")
    of = {
        side: [
            {key: getattr(each, key) for key in figures} | {key: vars(getattr(each, key)) for key in times}
            for each in rounds
        ]
        for side, rounds in reports.items()
    }
    return {"load": name, "threads": threads, "rounds": of}


def ratios(reports: Reports) -> tuple[float, float, float]:
    """camshaft's tokens per second and its p50 and p95 of the first token as parts of llama-server's: medians over rounds."""
    own, theirs = reports["camshaft"], reports["llama-server"]
    pairs = list(zip(own, theirs, strict=True))
    return (
        median(a.tokens_per_s / b.tokens_per_s for a, b in pairs),
        median(a.first_token_s.p50 / b.first_token_s.p50 for a, b in pairs),
        median(a.first_token_s.p95 / b.first_token_s.p95 for a, b in pairs),
    )


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-server", type=Path, required=True)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--clients", type=int, nargs="+", default=(1, 4, 16, 64))
    parser.add_argument("--each", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prefix", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--chart", type=Path)
    options = parser.parse_args()
    model, rows, drawn = resolve_model(options.model), [], {}
    for clients in [1] if options.prefix else options.clients:
        if options.prefix:
            loads = [
                Workload(2, 1, prompt_tokens=PROMPT, shared_tokens=n, answer_tokens=8, seed=10 * n) for n in (0, PREFIX)
            ]
            names, context = ["all different", f"{PREFIX} words in common"], 2048
        else:
            loads, names, context = [Workload(options.each * max(clients, 4), clients)], [f"{clients} clients"], 512
        given = commands(model, options.llama_server, clients, context, options.threads)
        for name, reports in zip(names, compare(given, loads, options.rounds), strict=True):
            rows.append(row(name, options.threads, reports))
            speed, p50, p95 = ratios(reports)
            print(
                f"{name}: {speed:.2f} times the tokens/s, first token p50 {p50:.2f} and p95 {p95:.2f} of llama-server's",
                flush=True,
            )
            drawn |= {f"{side}, {name}": rounds[-1].times for side, rounds in reports.items()}
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
        if options.chart:
            options.chart.write_text(chart("Share of requests and tokens within a time", drawn), "utf-8")


if __name__ == "__main__":
    main()
