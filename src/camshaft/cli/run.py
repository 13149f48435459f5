"""How a command ends: one line and a status for each kind of failure. Wraps every command of this folder."""

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
    """A command whose errors are one line on stderr (status 2), whose Ctrl-C is quiet (130) and which a closed pipe
    ends without a word. Anything else is a bug of ours and keeps its traceback."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the flush at exit complains
            raise typer.Exit(1) from None
        except (CamshaftError, OSError) as error:
            fail(error)
        except KeyboardInterrupt:
            print(file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None

    return wrapped


def fail(error: Exception) -> NoReturn:
    """Print `error` as one line and end with status 2."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, StoreError) and _MOVE not in text and str(setting("cache_dir").absolute()) in text:
        text += f" ({_MOVE} moves the cache)"
    print("camshaft:", text, file=sys.stderr)
    raise typer.Exit(FAILED) from error
