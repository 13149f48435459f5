"""Turn the exceptions of a command into a one-line message and an exit status."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import NoReturn, ParamSpec

import typer

from camshaft.errors import CamshaftError, StoreError
from camshaft.settings import setting

P = ParamSpec("P")

FAILED, INTERRUPTED = 2, 130
_MOVE = "CAMSHAFT_CACHE_DIR"


def command(function: Callable[P, None]) -> Callable[P, None]:
    """Decorate a command: a camshaft or OS error prints one line (status 2), Ctrl-C exits quietly (130), a closed pipe
    exits silently (1). Any other exception is a bug and keeps its traceback."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # prevents an error from the flush at exit
            raise typer.Exit(1) from None
        except (CamshaftError, OSError) as error:
            fail(error)
        except KeyboardInterrupt:
            print(file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None

    return wrapped


def fail(error: Exception) -> NoReturn:
    """Print `error` as one line on stderr and exit with status 2."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, StoreError) and _MOVE not in text and str(setting("cache_dir").absolute()) in text:
        text += f" ({_MOVE} moves the cache)"
    print("camshaft:", text, file=sys.stderr)
    raise typer.Exit(FAILED) from error
