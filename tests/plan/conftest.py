"""Lets the tests of plan/ import their helpers by name, and ends them with a traceback when workers hang."""

import faulthandler
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

PATIENCE_S = 240


@pytest.fixture(autouse=True)
def end_a_hang() -> Iterator[None]:
    """A lost wake would hang in native code, where no Python timeout reaches."""
    faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
