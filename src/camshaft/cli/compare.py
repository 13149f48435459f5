"""`camshaft bench --compare`: camshaft beside its peers. A part of cli/bench.py."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from camshaft.cli.progress import Bar
from camshaft.cli.run import INTERRUPTED
from camshaft.cli.show import print_json
from camshaft.errors import SettingError
from camshaft.settings import thread_count


def threads_of(text: str | None) -> tuple[int, ...]:
    """'1,2' as numbers; 1 and 2 where nothing is said."""
    parts = (text or "1,2").split(",")
    if not all(part.strip().isdecimal() and int(part) >= 1 for part in parts):
        raise SettingError(f"--threads {text}: wanted numbers from 1 up, such as 1,2")
    return tuple(dict.fromkeys(thread_count(int(part)) for part in parts))


def run_comparison(
    *,
    only: str | None,
    quick: bool,
    threads: str | None,
    results_file: Path | None,
    markdown_file: Path | None,
    resume: bool,
    peer_python: str | None,
    at_most_s: float | None,
    json: bool,
) -> None:
    """Measures and prints; Ctrl-C ends it with what was measured by then, and status 130."""
    from camshaft.compare.compare import QUICK_ROUNDS, Options, compare, prepared
    from camshaft.compare.report import markdown
    from camshaft.compare.turns import MORE_ROUNDS, ROUNDS, Limits, starter

    if resume and results_file is None:
        raise SettingError("--resume: wanted with it --results FILE, whose rows are gone on with")
    for name, path in (("--results", results_file), ("--markdown", markdown_file)):
        _check_place(name, path)
    until = float("inf") if at_most_s is None else time.monotonic() + at_most_s
    limits = Limits(QUICK_ROUNDS, until) if quick else Limits(ROUNDS, until, MORE_ROUNDS)
    options = Options(only, threads_of(threads), limits, results_file, resume)
    results, interrupted = prepared(options), False
    try:
        compare(options, results, starter(peer_python or sys.executable), _watch)
    except KeyboardInterrupt:
        interrupted = True
    document = results.document()
    text = markdown(document)
    if markdown_file is not None:
        markdown_file.write_text(text, "utf-8")
    if json:
        print_json(document)
    else:
        print(text, end="")
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _check_place(name: str, path: Path | None) -> None:
    """SettingError where no file can be written: said before hours of measuring, not after."""
    if path is None:
        return
    if path.is_dir() or not path.parent.is_dir():
        raise SettingError(
            f"{name} {path}: {'is a folder' if path.is_dir() else 'its folder is not there'}; wanted a file"
        )


@contextmanager
def _watch(title: str) -> Iterator[Bar]:
    with Bar(title, unit="steps") as bar:
        yield bar
