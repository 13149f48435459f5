"""A child process that is asked line by line in JSON, so that its crash or silence is an answer."""

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
from camshaft.settings import settings

_START_TIMEOUT_S = 120.0
_END_TIMEOUT_S = 5.0


class ChildProcess:
    """`python -m MODULE` with this process's paths and cache folder. It says a line when it is ready, then answers questions.

    BackendError, with how it ended, for one that never gets ready; `what` says what it is for.
    """

    def __init__(self, module: str, what: str) -> None:
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path),
            "CAMSHAFT_CACHE_DIR": str(settings().cache_dir.absolute()),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            text=True,
            encoding="utf-8",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._wait_until_ready(what)

    def _wait_until_ready(self, what: str) -> None:
        try:
            ready = self._lines.get(timeout=_START_TIMEOUT_S)
        except queue.Empty:
            ready = None
        except BaseException:  # Ctrl-C: nobody else would end it
            self.end()
            raise
        if ready is None:
            message = f"a process that {what} cannot be run: {self.death()}"
            self.end()
            raise BackendError(message)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    @property
    def returncode(self) -> int | None:
        """The exit status once it has ended; below zero the signal that ended it."""
        return self._process.returncode

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def ask(self, question: dict[str, Any]) -> None:
        """Sends a question."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it is gone: the reader finds that too
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()

    def answer(self, timeout_s: float) -> dict[str, Any] | None:
        """The next line it says, None when it died. queue.Empty when there is none in time."""
        line = self._lines.get(timeout=timeout_s)
        return None if line is None else json.loads(line)

    def death(self) -> str:
        """How it ended, with the last line of its complaint; ends it if it has not."""
        self._process.kill()  # for one that only hung at its start
        code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        if code < 0:
            return signal.Signals(-code).name
        return f"exit status {code}" + (f" ({said[-1]})" if said else "")

    def leave(self) -> None:
        """Lets it end by itself for a moment, so that it adds what it found in the store to the counts."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError, subprocess.TimeoutExpired):
            self._process.stdin.close()
            self._process.wait(_END_TIMEOUT_S)

    def end(self) -> None:
        """Ends it; twice is allowed."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        self._errors.close()
