"""What a test needs of the machine: skipped without it by hand, failed in CI, where everything is installed."""

from __future__ import annotations

import os

import pytest


def require(condition: object, reason: str) -> None:
    """Skips the test, or fails it where CI=true, unless the condition holds."""
    if not condition:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
