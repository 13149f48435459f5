"""A server in a process of its own: started, waited for, and stopped at the end."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from camshaft.errors import ModelError
from camshaft.process import python_child

READY = r"serving .* at (http://\S+)/v1,"
STOP_S, POLL_S = 10.0, 0.05


def serve_command(model: str, *options: str) -> list[str]:
    """The command line of `camshaft serve` at any free port, which ends with this process."""
    return python_child("camshaft", "serve", model, "--port", "0", *options)


@contextmanager
def server(command: Sequence[str], ready: str = READY, *, log: Path | None = None) -> Iterator[tuple[str, int]]:
    """The address of a server, which is the first group of the regular expression `ready` in what it prints, and its process id.

    What it prints is in the file `log`. Raises ModelError if the process ends before that. The end of the block stops it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        printed = log or Path(folder) / "printed"
        with printed.open("wb") as file:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        try:
            yield _address(child, printed, ready), child.pid
        finally:
            child.terminate()
            try:
                child.wait(STOP_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _address(child: subprocess.Popen[bytes], printed: Path, ready: str) -> str:
    while True:
        status = child.poll()
        text = printed.read_text("utf-8", "replace")
        if found := re.search(ready, text):
            return found[1]
        if status is not None:
            lines = text.strip().splitlines()
            reason = lines[-1].removeprefix("camshaft: ") if lines else f"status {status}"
            raise ModelError(f"the server did not start: {reason}")
        time.sleep(POLL_S)
