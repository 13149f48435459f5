"""TensorBoard's event files, through tensorboardX (extra `tensorboard`)."""

from __future__ import annotations

import os
from typing import Any, Self

from camshaft.errors import MissingExtraError, StoreError
from camshaft.store.files import reason
from camshaft.train.record.history import Point

TAGS = {
    "loss/training": "loss",
    "loss/validation": "validation",
    "learning rate": "lr",
    "gradient norm": "gradient_norm",
}


class Events:
    """Writes the steps of a run to a folder that TensorBoard reads. A context manager.

    After a resumption the steps from `done` on are written anew, and TensorBoard drops the older ones. Raises MissingExtraError
    without tensorboardX, StoreError if the folder cannot be written.
    """

    def __init__(self, folder: str | os.PathLike[str], done: int) -> None:
        try:
            self._writer: Any = self.check()(os.fspath(folder), purge_step=done + 1 if done else None)
        except OSError as error:
            raise StoreError(f"{os.fspath(folder)}: cannot be written: {reason(error)}") from error

    @staticmethod
    def check() -> Any:
        """The class of the library's writer. MissingExtraError without the library."""
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise MissingExtraError("tensorboardX", "tensorboard", "writing TensorBoard's event files") from None
        return SummaryWriter

    def add(self, point: Point) -> None:
        """Writes a step."""
        for tag, name in TAGS.items():
            value = getattr(point, name)
            if value is not None:
                self._writer.add_scalar(tag, value, point.step)
        if point.seconds > 0:
            self._writer.add_scalar("tokens per second", point.tokens / point.seconds, point.step)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._writer.close()
