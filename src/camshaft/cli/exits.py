"""How the command line ends: Ctrl-C at any moment, and output that cannot be written.

Ctrl-C ends the process at once while Python imports and exits, when an exception would be printed as a traceback or ignored.
While a command runs, it raises KeyboardInterrupt, so that temporary files are removed.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal imports enum, 3 ms in which Ctrl-C would print a traceback
import os
import sys

TYPE_CHECKING = False  # typing takes 10 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

FAILED, CLOSED_PIPE, INTERRUPTED = 2, 1, 130
_RETRY_S = 0.01


def _leave(number: int, frame: object) -> None:
    os._exit(128 + number)


def leave_on_interrupt() -> None:
    """Let Ctrl-C end the process with status 130, without a word. Does nothing where Ctrl-C is ignored, as under nohup."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _leave)


class RaisesInterrupts:  # a context manager without contextlib, which is slow to import
    """A context in which Ctrl-C raises KeyboardInterrupt, where `leave_on_interrupt` was called before."""

    def __enter__(self) -> None:
        self._active = _signal.getsignal(_signal.SIGINT) is _leave
        if self._active:
            sys.unraisablehook = _unraisable
            _signal.signal(_signal.SIGINT, _signal.default_int_handler)

    def __exit__(self, *raised: object) -> None:
        if self._active:
            _signal.signal(_signal.SIGINT, _leave)


def _unraisable(fault: Any) -> None:
    """Interrupt again after a KeyboardInterrupt in a destructor or callback, where Python prints and drops exceptions."""
    if not issubclass(fault.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(fault)
        return
    import threading

    again = threading.Timer(_RETRY_S, _interrupt_main)
    again.daemon = True
    again.start()


def _interrupt_main() -> None:
    """Interrupt the main thread, and on POSIX also the system call in which it waits."""
    import _thread
    import threading

    if sys.platform == "win32":
        _thread.interrupt_main()
    else:
        _signal.pthread_kill(threading.main_thread().ident, _signal.SIGINT)


def status_of(run: Callable[[], object]) -> Any:
    """Call `run`, flush stdout and return the exit status: that of a SystemExit, 1 for a closed pipe, 130 for Ctrl-C, and
    2 after one line on stderr for an output that cannot be written."""
    status: Any = 0
    try:
        try:
            run()
        except SystemExit as end:
            status = end.code
        if sys.stdout is not None:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        discard_output()
        return CLOSED_PIPE
    except OSError as error:
        from camshaft.errors import reason_of

        discard_output()
        print(f"camshaft: stdout: {reason_of(error)}", file=sys.stderr)
        return FAILED
    finally:
        leave_on_interrupt()
    return status


def discard_output() -> None:
    """Send what is still buffered for stdout to the null device: the flush at exit must not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
