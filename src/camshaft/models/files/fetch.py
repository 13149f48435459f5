"""Runs a download program (pip, huggingface_hub) as a child process; progress is the file's size."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from camshaft.errors import DownloadError, reason_of
from camshaft.store.file_lock import work_folder

Progress = Callable[[int, int], None]
"""Called with (bytes so far, total bytes)."""

_POLL_S = 0.1
_PREFIX = ".pull-"
_RAISED = re.compile(r"^(?:[\w.]+(?:Error|Exception): )?(?:\[Errno -?\d+\] )?(?=.)")


@contextmanager
def workspace(folder: Path) -> Iterator[Path]:
    """A temporary folder inside `folder`, so that a finished file moves by one rename. Removed at the end; folders left by
    killed processes are removed first. Raises DownloadError if the disk cannot be written."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with work_folder(folder, _PREFIX) as made:
            yield made
    except OSError as error:
        reason = reason_of(error)
        raise DownloadError(f"cannot write in {folder}: {reason} (CAMSHAFT_CACHE_DIR moves the cache)") from error


def need_space(folder: Path, nbytes: int) -> None:
    """Raise DownloadError if the disk of `folder` has less than `nbytes` free."""
    free = shutil.disk_usage(folder).free
    if free < nbytes:
        raise DownloadError(
            f"{folder} has {free / 1e6:.0f} MB free and {nbytes / 1e6:.0f} MB are needed "
            "(CAMSHAFT_CACHE_DIR moves the cache)"
        )


def run_command(command: Sequence[str], folder: Path, nbytes: int, progress: Progress | None, **env: str) -> str:
    """Run `command` inside `folder` and return its standard output; report the size of the largest file as progress.

    The child's temporary files go to `folder` too. The child is ended before an exception leaves this function. Raises
    DownloadError with the child's error message if it fails."""
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    child_env = os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch)) | env
    with (folder / "stdout.txt").open("w+b") as out, (folder / "stderr.txt").open("w+b") as err:
        child = subprocess.Popen(command, cwd=folder, env=child_env, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        try:
            while child.poll() is None:
                if progress:
                    progress(min(_largest_nbytes(folder), nbytes), nbytes)
                time.sleep(_POLL_S)
        finally:
            _end(child)
        if child.returncode:
            err.seek(0)
            raise DownloadError(_error_line(err.read().decode("utf-8", "replace")) or f"status {child.returncode}")
        out.seek(0)
        return out.read().decode("utf-8", "replace")


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _largest_nbytes(folder: Path) -> int:
    """The size of the largest file: a sum would count twice what pip copies at the end."""
    largest = 0
    for where, _, names in os.walk(folder):
        for name in names:
            largest = max(largest, _nbytes_or_zero(os.path.join(where, name)))
    return largest


def _nbytes_or_zero(path: str) -> int:
    try:
        return os.path.getsize(path)
    except FileNotFoundError:  # renamed since the listing; the next poll counts it
        return 0


def _error_line(text: str) -> str:
    """The most useful line of a child's stderr: pip's first ERROR, else the last line, without a Python class and number."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return errors[0] if errors else _RAISED.sub("", lines[-1]) if lines else ""
