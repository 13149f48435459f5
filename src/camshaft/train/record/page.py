"""A run as one self-contained HTML page: loss and validation, learning rate, gradient norm, tokens per second, memory by kind.

Templates, style and what scripts share are those of the profile's page (observe/pages).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from camshaft.observe.page import filled
from camshaft.store.files import atomic_file
from camshaft.train.record.history import Point

SCRIPTS = ("common.js", "curves.js", "training.js")
_COLUMNS = ("step", "loss", "validation", "lr", "gradient_norm", "tokens", "seconds")


def page(
    title: str,
    facts: Mapping[str, str],
    points: Sequence[Point],
    memory: Mapping[str, int],
    steps: int,
    clip: float | None,
) -> str:
    """The page's HTML. `facts` are listed under the title, `memory` are bytes by kind, `steps` how many the run has in all."""
    data = {
        "steps": steps,
        "clip": clip,
        "memory": dict(memory),
        "columns": {name: [_cell(getattr(point, name)) for point in points] for name in _COLUMNS},
    }
    return filled("training", SCRIPTS, title, facts, data)


def write_page(path: Path, text: str) -> None:
    """Writes a page, atomically. StoreError if it cannot be written."""
    with atomic_file(path) as file:
        file.write(text.encode())


def _cell(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.6g}")
