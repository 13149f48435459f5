"""What a test needs of the machine: skipped without it by hand, failed in CI, where everything is installed."""

from __future__ import annotations

import os

import pytest

from camshaft.backends.cpu.compile import host_target
from camshaft.backends.cpu.features import names
from camshaft.emit.target import LEVELS


def require(condition: object, reason: str) -> None:
    """Skips the test, or fails it where CI=true, unless the condition holds."""
    if not condition:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


def require_level(level: str) -> None:
    """Skips the test where the CPU is below a level of features: nothing that could be installed."""
    missing = LEVELS[level].features - names(host_target().features)
    if missing:
        pytest.skip(f"this CPU has no {', '.join(sorted(missing))}")
