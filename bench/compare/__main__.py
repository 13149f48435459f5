"""`python -m bench.compare`: compare camshaft with other libraries."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from camshaft.cli.command import INTERRUPTED, Bar, command, print_json
from camshaft.errors import SettingError
from camshaft.process import thread_count


def threads_of(text: str | None) -> tuple[int, ...]:
    """Parse text such as '1,2'; the default is 1 and 2."""
    parts = (text or "1,2").split(",")
    if not all(part.strip().isdecimal() and int(part) >= 1 for part in parts):
        raise SettingError(f"--threads {text}: wanted numbers from 1 up, such as 1,2")
    return tuple(dict.fromkeys(thread_count(int(part)) for part in parts))


_Only = Annotated[str | None, typer.Option(metavar="GROUPS", help="Run only these groups, such as models,executor.")]
_Quick = Annotated[bool, typer.Option("--quick", help="Run 2 rounds instead of 5.")]
_Threads = Annotated[str | None, typer.Option(metavar="N", help="Numbers of worker threads, such as 1,2.")]
_Results = Annotated[Path | None, typer.Option("--results", metavar="FILE", help="Store the rows as JSON.")]
_Markdown = Annotated[Path | None, typer.Option("--markdown", metavar="FILE", help="Write the tables as Markdown.")]
_Resume = Annotated[bool, typer.Option("--resume", help="Continue with the rows in --results FILE.")]
_PeerPython = Annotated[str | None, typer.Option(metavar="PYTHON", help="The Python that has the peer libraries.")]
_AtMost = Annotated[
    float | None, typer.Option("--at-most", metavar="S", min=0.0, help="Start no measurement after S seconds.")
]


@command
def compare(
    only: _Only = None,
    quick: _Quick = False,
    threads: _Threads = None,
    results: _Results = None,
    markdown: _Markdown = None,
    resume: _Resume = False,
    peer_python: _PeerPython = None,
    at_most: _AtMost = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare camshaft with other libraries on models, matrix products, norms and more, in interleaved rounds.

    Ctrl-C reports what was measured so far and exits with status 130."""
    results_file, markdown_file, at_most_s = results, markdown, at_most
    from bench.compare.compare import QUICK_ROUNDS, Options, measure_groups, prepared
    from bench.compare.interleaved import MORE_ROUNDS, ROUNDS, Limits, starter
    from bench.compare.report import markdown_of

    if resume and results_file is None:
        raise SettingError("--resume: wanted together with --results FILE, whose rows it continues")
    for name, path in (("--results", results_file), ("--markdown", markdown_file)):
        _check_place(name, path)
    until = float("inf") if at_most_s is None else time.monotonic() + at_most_s
    limits = Limits(QUICK_ROUNDS, until) if quick else Limits(ROUNDS, until, MORE_ROUNDS)
    options = Options(only, threads_of(threads), limits, results_file, resume)
    found, interrupted = prepared(options), False
    try:
        measure_groups(options, found, starter(peer_python or sys.executable), _watch)
    except KeyboardInterrupt:
        interrupted = True
    document = found.document()
    text = markdown_of(document)
    if markdown_file is not None:
        markdown_file.write_text(text, "utf-8")
    if json:
        print_json(document)
    else:
        print(text, end="")
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _check_place(name: str, path: Path | None) -> None:
    """Raise SettingError for an output path that cannot be written, before spending hours on measuring."""
    if path is None:
        return
    if path.is_dir() or not path.parent.is_dir():
        raise SettingError(
            f"{name} {path}: {'is a folder' if path.is_dir() else 'its folder does not exist'}; wanted a file"
        )


@contextmanager
def _watch(title: str) -> Iterator[Bar]:
    with Bar(title, unit="steps") as bar:
        yield bar


app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
app.command()(compare)

if __name__ == "__main__":
    app(prog_name="python -m bench.compare")
