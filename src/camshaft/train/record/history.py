"""The history of a run: a line of JSON per step beside its checkpoints, so that a resumed run has the whole curve."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from camshaft.errors import FormatError
from camshaft.store.files import naming
from camshaft.train.trainer import Progress

FILE = "history.jsonl"


@dataclass(frozen=True)
class Point(Progress):
    """A finished step, and how many tokens it was learned from."""

    tokens: int = 0


class History:
    """The steps of a run, written to `folder`/history.jsonl as they come. A context manager.

    `done` steps are those that the run resumes after: the lines of later ones are dropped. Raises StoreError for a file that
    cannot be written and FormatError for a damaged line of a step that is done.
    """

    def __init__(self, folder: Path, done: int) -> None:
        self._path = folder / FILE
        self.points = _read(self._path, done)
        with naming(self._path, "cannot be written"):
            folder.mkdir(parents=True, exist_ok=True)
            self._file = open(self._path, "w", encoding="utf-8")  # noqa: SIM115 - close() closes it
        for point in self.points:
            self._write(point)

    def add(self, progress: Progress, tokens: int) -> Point:
        """Adds a step, and writes it."""
        point = Point(**asdict(progress), tokens=tokens)
        self.points.append(point)
        self._write(point)
        return point

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _write(self, point: Point) -> None:
        with naming(self._path, "cannot be written"):
            self._file.write(json.dumps(asdict(point)) + "\n")
            self._file.flush()


def _read(path: Path, done: int) -> list[Point]:
    """The steps up to number `done`. What follows, such as half a line of a process that was killed, is not read."""
    if not done or not path.exists():
        return []
    found: list[Point] = []
    with naming(path, "cannot be read"), open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if found and found[-1].step >= done:
                break
            found.append(_point(f"{path}, line {number}", line))
    return [point for point in found if point.step <= done]


def _point(where: str, line: str) -> Point:
    try:
        given: Any = json.loads(line)
        point = Point(**given)
    except (ValueError, TypeError):
        raise FormatError(
            f"{where}: got {line.strip()!r:.80}; wanted {', '.join(f.name for f in fields(Point))}"
        ) from None
    if type(point.step) is not int:
        raise FormatError(f"{where}: got the step {point.step!r:.40}; wanted an integer")
    return point
