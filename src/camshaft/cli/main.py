"""The app: its commands and what holds for all of them. The other files of this folder are one command each."""

from __future__ import annotations

import functools
import importlib
import io
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from camshaft.cli.run import FAILED, INTERRUPTED
from camshaft.version import __version__

# click's UsageError, which some versions of typer carry a copy of.
_UsageError: Any = typer.BadParameter.__base__


class _Group(TyperGroup):
    """The commands, with a usage error told in one line."""

    def main(self, *args: Any, **extra: Any) -> Any:
        try:
            status = super().main(*args, **extra | {"standalone_mode": False})
        except _UsageError as error:
            print(_one_line(error), file=sys.stderr)
            status = FAILED
        except typer.Abort:
            status = INTERRUPTED
        sys.exit(status)


def _one_line(error: Any) -> str:
    """What is wrong and where to look it up; the whole help where no command was named."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return str(error.format_message())
    text = " ".join(error.format_message().split()).rstrip(".")
    path = error.ctx.command_path if error.ctx else "camshaft"
    return f"camshaft: {text[:1].lower()}{text[1:]}; see '{path} --help'"


# Each is a file of this folder with a function of its name; `cache` has commands of its own.
COMMANDS = (
    *("pull", "models", "generate", "chat", "bench", "plan", "profile", "tune", "quantize", "devices", "doctor", "ops"),
    "cache",
)


def make_app(names: Sequence[str] = COMMANDS) -> typer.Typer:
    """The app with the commands of these names; only their files are imported."""
    # Plain help and tracebacks: rich's would add 0.1 s to the start and boxes to every error.
    made = typer.Typer(
        name="camshaft",
        cls=_Group,
        help="Run language models from GGUF files, with kernels compiled for this machine.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},  # commands inherit it
        callback=_top,  # without one, an app of one command would take no command's name
    )
    for name in names:
        module = importlib.import_module(f"camshaft.cli.{name}")
        if name == "cache":
            made.add_typer(module.app, name=name)
        else:
            made.command(name)(getattr(module, name))
    return made


def _print_version(wanted: bool) -> None:
    if wanted:
        print("camshaft", __version__)
        raise typer.Exit


def _top(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _whole()


@functools.cache
def _whole() -> typer.Typer:
    return make_app()


def _stop(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _open_closed_streams() -> None:
    """Gives a standard stream that the caller closed to the null device, before another file takes its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - for the whole process


def _warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """One line, without the place in camshaft that says it."""
    return f"camshaft: {message}\n"


def main() -> None:
    """Runs the command that sys.argv names, as a process of its own."""
    warnings.formatwarning = _warning
    _open_closed_streams()
    for name in ("SIGTERM", "SIGHUP"):  # unwound like Ctrl-C, so that temporary files go
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _stop)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show a character gets a "?"
            stream.reconfigure(errors="replace")
    asked = sys.argv[1:2]  # all commands are read for help and errors alone: 15 ms
    app = make_app(asked) if asked and asked[0] in COMMANDS else _whole()
    app(prog_name="camshaft")
