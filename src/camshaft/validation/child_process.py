"""Run a Python module in a child process and exchange JSON lines with it; detect crashes and timeouts."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from types import TracebackType
from typing import IO, Any, Self

from camshaft.errors import BackendError
from camshaft.process import python_child
from camshaft.settings import settings

_START_TIMEOUT_S = 120.0
_END_TIMEOUT_S = 5.0


class ChildProcess:
    """`python -m MODULE` with this process's import path and cache folder, which ends when this process does.

    The child prints one line when it is ready, then answers requests. Raises BackendError, with the exit status, if it never
    gets ready; `what` describes its task in the message.
    """

    def __init__(self, module: str, what: str) -> None:
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path),
            "CAMSHAFT_CACHE_DIR": str(settings().cache_dir.absolute()),
            "CAMSHAFT_MEASURE": "0",
        }
        self._process = subprocess.Popen(
            python_child(module),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            text=True,
            encoding="utf-8",
            start_new_session=os.name != "nt",  # Ctrl-C on a terminal is for this process, which then ends its children
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._wait_until_ready(what)

    def _wait_until_ready(self, what: str) -> None:
        try:
            ready = self._lines.get(timeout=_START_TIMEOUT_S)
        except queue.Empty:
            ready = None
        except BaseException:  # on Ctrl-C, end the child
            self.end()
            raise
        if ready is None:
            message = f"cannot start a process that {what}: {self.death()}"
            self.end()
            raise BackendError(message)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    @property
    def returncode(self) -> int | None:
        """The exit status, or None while it runs; minus the signal number if a signal ended it."""
        return self._process.returncode

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def ask(self, request: dict[str, Any]) -> None:
        """Send a request."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the child has exited: `answer` reports that
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()

    def answer(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the next answer, or None if the child has exited. Raises queue.Empty on a timeout."""
        line = self._lines.get(timeout=timeout_s)
        return None if line is None else json.loads(line)

    def death(self) -> str:
        """Kill the child if it still runs; return its exit status or signal, with the last line of stderr."""
        self._process.kill()  # for a child that hung at startup
        code = self._process.wait()
        self._errors.seek(0)
        stderr = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        if code < 0:
            return signal.Signals(-code).name
        return f"exit status {code}" + (f" ({stderr[-1]})" if stderr else "")

    def finish(self) -> None:
        """Close stdin and wait for a normal exit for some seconds, in which the child flushes its store counters."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError, subprocess.TimeoutExpired):
            self._process.stdin.close()
            self._process.wait(_END_TIMEOUT_S)

    def end(self) -> None:
        """Kill the child and close its pipes; may be called again."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        self._errors.close()
