"""The command decorator, which groups options and reports errors; printing; progress bars."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import json
import os
import re
import shutil
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, get_type_hints

import typer

from camshaft.cli.exits import CLOSED_PIPE, FAILED, INTERRUPTED, RaisesInterrupts, discard_output
from camshaft.cli.terminal import escaped, unescaped
from camshaft.errors import CamshaftError, StoreError, count, reason_of
from camshaft.settings import setting

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

# A keyword of the library in a message: `raw=True`, `context=`, `top_p=2`.
_KEYWORD = re.compile(r"\b([a-z_]+)=(?:True\b|(?=(\S?)))")
# The class of the library whose field an option is.
_OWNER = re.compile(r"^(?:GenerateOptions|Sampling) (?=--)")
_SESSIONS = re.compile(r"\bsessions=")  # slots of a server
_MOVE = "CAMSHAFT_CACHE_DIR"


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command: a camshaft or OS error prints one line (status 2), Ctrl-C exits quietly (130), a closed pipe
    exits silently (1). Any other exception is a bug and keeps its traceback.

    A parameter whose type is a dataclass becomes an option per field, and the command gets the dataclass."""
    parameters, groups = _flattened(function)

    @functools.wraps(function)
    def wrapped(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in dataclasses.fields(group)})
        try:
            with RaisesInterrupts():
                function(**given)
            sys.stdout.flush()
        except BrokenPipeError:
            discard_output()
            raise typer.Exit(CLOSED_PIPE) from None
        except (CamshaftError, OSError) as error:
            fail(error, wrapped.__annotations__)
        except KeyboardInterrupt:
            print(file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None

    vars(wrapped)["__signature__"] = inspect.Signature(parameters)
    wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapped


def _flattened(function: Callable[..., None]) -> tuple[list[inspect.Parameter], dict[str, type[Any]]]:
    """The function's parameters with those of a dataclass type replaced by its fields, and these types by name."""
    hints = get_type_hints(function, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, type[Any]] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if not dataclasses.is_dataclass(hints[name]):
            parameters.append(_keyword(name, parameter.default, hints[name]))
            continue
        groups[name] = group = hints[name]
        types = get_type_hints(group, include_extras=True)
        parameters += [_keyword(field.name, field.default, types[field.name]) for field in dataclasses.fields(group)]
    return parameters, groups


def _keyword(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def fail(error: Exception, options: Iterable[str] = ()) -> NoReturn:
    """Print `error` as one line on stderr and exit with status 2."""
    text = one_line(error, options)
    if isinstance(error, StoreError) and _MOVE not in text and str(setting("cache_dir").absolute()) in text:
        text += f" ({_MOVE} moves the cache)"
    print("camshaft:", text, file=sys.stderr)
    raise typer.Exit(FAILED) from error


def one_line(error: Exception, options: Iterable[str] = ()) -> str:
    """The error's message in one line.

    The library's hints name keywords (`raise context=`); those that are `options` of the command become its options, others are
    left out."""
    from camshaft.hints import hints_for  # its expressions take 0.6 ms to compile

    known = frozenset(options)
    text = " ".join(_words(error).split()) or type(error).__name__
    text = hints_for(_SESSIONS.sub("slots=", text) if "slots" in known else text, known)
    return _OWNER.sub("", _KEYWORD.sub(lambda found: _option(found) if found[1] in known else found[0], text))


def _words(error: Exception) -> str:
    """The error's text; of a system call the file, if there is one, and the system's reason, without its number."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {reason_of(error)}"
    return reason_of(error)


def _option(keyword: re.Match[str]) -> str:
    """`--raw` for `raw=True`, `--context` for `context=`, `--top-p=` before a value."""
    has_value = keyword[2] and keyword[2] not in ",;:.)"
    return "--" + keyword[1].replace("_", "-") + ("=" if has_value else "")


def print_json(value: object) -> None:
    """Print `value`, which may contain dataclasses, as one JSON object on one line."""
    print(json.dumps(plain(value)))


def plain(value: object) -> Any:
    """Convert `value` to JSON types: dataclasses, mappings, sets, enums, paths. Raises TypeError for anything else."""
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(plain(item) for item in value)
    if isinstance(value, Sequence):
        return [plain(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no place in JSON: {value!r}")


def print_columns(rows: Sequence[Sequence[object]], *, right: frozenset[int] = frozenset()) -> None:
    """Print `rows` as aligned columns, two spaces apart; the columns in `right` are right-aligned."""
    texts = [[str(cell) for cell in row] for row in rows]
    if not texts:
        return
    widths = [max(len(row[i]) for row in texts) for i in range(len(texts[0]))]
    for row in texts:
        cells = [text.rjust(widths[i]) if i in right else text.ljust(widths[i]) for i, text in enumerate(row)]
        print("  ".join(cells).rstrip())


def print_tree(value: object, indent: int = 0) -> None:
    """Print nested mappings as indented `name  value` lines with long values wrapped, and lists of mappings as columns."""
    items = plain(value)
    width = max((len(name) for name, item in items.items() if not _is_nested(item)), default=0)
    for name, item in items.items():
        if not _is_nested(item):
            _print_wrapped(" " * indent + name.ljust(width) + "  ", _cell(item))
            continue
        print(" " * indent + name)
        if isinstance(item, dict):
            print_tree(item, indent + 2)
        else:
            titles = [title for title in item[0] if any(row[title] is not None for row in item)]
            rows = [[_cell(row[title]) for title in titles] for row in item]
            print_columns([[" " * indent + " ", *row] for row in (titles, *rows)])


def size(nbytes: int) -> str:
    """`nbytes` as text, such as "98.4 MB"."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= factor:
            return f"{nbytes / factor:.1f} {unit}"
    return count(nbytes, "byte")


def _is_nested(item: Any) -> bool:
    """True for a non-empty mapping, or a list of mappings with the same keys."""
    if isinstance(item, list):
        return bool(item) and all(isinstance(row, dict) and row and row.keys() == item[0].keys() for row in item)
    return isinstance(item, dict) and bool(item)


def _print_wrapped(start: str, text: str) -> None:
    columns = max(shutil.get_terminal_size().columns, 60)
    wrapper = textwrap.TextWrapper(columns, start, " " * len(start), break_long_words=False, break_on_hyphens=False)
    print(wrapper.fill(text))


def _cell(item: Any) -> str:
    if item is None:
        return "unknown"
    if isinstance(item, bool):
        return "yes" if item else "no"
    if isinstance(item, list):
        return " ".join(_cell(each) for each in item) if item else "none"
    if isinstance(item, dict):
        return ", ".join(f"{name} {_cell(each)}" for name, each in item.items()) if item else "none"
    return f"{item:.4g}" if isinstance(item, float) else str(item)


class Bar:
    """A context manager called with (done, total): a progress bar on a terminal, otherwise a line at the start and at each
    tenth of the work. Bytes have the line at the start only. A third argument is said behind the numbers.

    Imports rich (0.1 s) only when a bar is shown."""

    def __init__(self, title: str, *, unit: str = "bytes") -> None:
        self._title, self._unit = title, unit
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._started = False
        self._tenths = 0  # printed

    def __enter__(self) -> Bar:
        return self

    def __call__(self, done: int, total: int, note: str = "") -> None:
        if not self._started:
            self._started = True
            self._start(total)
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, note=note)
        elif self._unit != "bytes" and total and done * 10 // total > self._tenths:
            self._tenths = done * 10 // total
            progress = f"{done} of {total} {self._unit}" + (f", {note}" if note else "")
            print(f"camshaft: {self._title}: {progress}", file=sys.stderr, flush=True)

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        if self._progress is not None:
            self._progress.stop()  # also restores the cursor

    def _start(self, total: int) -> None:
        if not sys.stderr.isatty():
            size = f"{total / 1e6:.0f} MB" if self._unit == "bytes" else count(total, self._unit.removesuffix("s"))
            print(f"camshaft: {self._title} ({size})", file=sys.stderr, flush=True)
            return
        from rich import progress
        from rich.console import Console

        right = (
            (progress.DownloadColumn(), progress.TransferSpeedColumn(), progress.TimeRemainingColumn())
            if self._unit == "bytes"
            else (
                progress.MofNCompleteColumn(),
                progress.TimeElapsedColumn(),
                progress.TextColumn("{task.fields[note]}"),
            )
        )
        columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), *right)
        self._progress = progress.Progress(*columns, console=Console(file=unescaped(sys.stderr)), transient=True)
        self._task = self._progress.add_task(escaped(self._title), total=total, note="")
        self._progress.start()


class Notice:
    """A context manager that shows one line on a terminal if its block takes longer than `after_s` seconds."""

    def __init__(self, text: str, after_s: float = 1.5) -> None:
        self._text, self._timer = text, threading.Timer(after_s, self._show)
        self._timer.daemon = True
        self._shown = False

    def __enter__(self) -> None:
        if sys.stderr.isatty():
            self._timer.start()

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._timer.cancel()
        if self._timer.is_alive():
            self._timer.join()
        if self._shown:
            print("\r" + " " * len(self._text) + "\r", end="", file=unescaped(sys.stderr), flush=True)

    def _show(self) -> None:
        self._shown = True
        print(self._text, end="", file=sys.stderr, flush=True)
