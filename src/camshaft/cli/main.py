"""The command-line application: registers the commands, handles usage errors, signals and standard streams."""

from __future__ import annotations

import functools
import importlib
import io
import os
import re
import signal
import sys
import warnings
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from camshaft.cli.exits import FAILED, INTERRUPTED
from camshaft.cli.terminal import protect_streams
from camshaft.version import __version__

# click's UsageError; some versions of typer bundle their own copy of click.
_UsageError: Any = typer.BadParameter.__base__


# click names its own types: "'two' is not a valid int range".
_KIND = re.compile(r"a valid (int|float)(?:eger)?(?: range)?\b")
_RANGE = re.compile(r" is not in the range (?:(\S+?)<=)?x(?:([<>])=(\S+))?(?=[,;.]|$)")
_MEANT = re.compile(r"(?:\. Did you mean (.+)\?| \(Possible options?: (.+)\))$")


class _Group(TyperGroup):
    """A command group that has commands of two words, and reports a usage error in one line on stderr."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        words = " ".join(args[:2])
        return (words, self.commands[words], args[2:]) if words in self.commands else super().resolve_command(ctx, args)

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
    """The error in one line with a pointer to the help; the full help if no command was given."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return str(error.format_message())
    text = " ".join(error.format_message().split()).rstrip(".")
    text = _KIND.sub(lambda found: "a whole number" if found[1] == "int" else "a number", text)
    text = _MEANT.sub(lambda found: f" (did you mean {found[1] or found[2]}?)", _RANGE.sub(_wanted, text))
    path = error.ctx.command_path if error.ctx else "camshaft"
    return f"camshaft: {text[:1].lower()}{text[1:]}; see '{path} --help'"


def _wanted(limits: re.Match[str]) -> str:
    """'; wanted 1 to 8' for click's ' is not in the range 1<=x<=8'."""
    least, sign, limit = limits.groups()
    if least is not None:
        return f"; wanted {least} to {limit}" if limit else f"; wanted {least} or more"
    return f"; wanted {limit} or {'more' if sign == '>' else 'less'}"


# Command -> the module of commands/ with a function of that name, in the order of the help; `cache` is an app. The second word
# of a command stands where the first one's command has a model.
COMMANDS = {
    "pull": "model_files.models",
    "models": "model_files.models",
    "show": "model_files.show",
    "generate": "inference.generate",
    "chat": "inference.chat",
    "embed": "inference.embed",
    "rerank": "inference.rerank",
    "transcribe": "inference.transcribe",
    "serve": "serving.serve",
    "batch": "serving.batch",
    "bench": "machine.bench",
    "bench serve": "serving.bench_serve",
    "perplexity": "model_files.measures",
    "plan": "machine.plan",
    "profile": "machine.plan",
    "tune": "machine.tune",
    "imatrix": "model_files.measures",
    "quantize": "model_files.models",
    "distill-quantize": "model_files.distill",
    "convert": "model_files.convert",
    "finetune": "model_files.finetune",
    "merge": "model_files.finetune",
    "devices": "machine.doctor",
    "doctor": "machine.doctor",
    "ops": "machine.ops",
    "cache": "machine.cache",
}


def make_app(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """Return an app with the commands of these names. Imports only their modules."""
    # Plain help and tracebacks: rich would add 0.1 s to startup and draw boxes around errors.
    application = typer.Typer(
        name="camshaft",
        cls=_Group,
        help="Run language models from GGUF files, with kernels compiled for this machine.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},  # inherited by the commands
        callback=_top,  # without a callback, an app with one command would not take the command's name
    )
    for name in names:
        module = importlib.import_module(f"camshaft.cli.commands.{COMMANDS[name]}")
        if name == "cache":
            application.add_typer(module.app, name=name)
        else:
            application.command(name)(getattr(module, re.sub("[ -]", "_", name)))
    return application


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
    return _full_app()


@functools.cache
def _full_app() -> typer.Typer:
    return make_app()


def _stop(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _open_closed_streams() -> None:
    """Replace each closed standard stream with the null device, so that no other file gets its descriptor."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - for the whole process


def _warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning as one line, without file name and line number."""
    return f"camshaft: {message}\n"


def main() -> None:
    """Run the command named in sys.argv."""
    warnings.formatwarning = _warning
    _open_closed_streams()
    for name in ("SIGTERM", "SIGHUP"):  # exit by an exception, like Ctrl-C, so that temporary files are removed
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _stop)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # print "?" for characters that the terminal cannot encode
            stream.reconfigure(errors="replace")
    protect_streams()
    words = sys.argv[1:3]
    names = [name for name in (" ".join(words), *words[:1]) if name in COMMANDS][:1]
    app = make_app(names) if names else _full_app()  # importing one command saves 15 ms
    app(prog_name="camshaft")
