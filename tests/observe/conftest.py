"""Fixtures for tests of observe/: helpers importable by name, settings unset, one thunk per op."""

import sys
from pathlib import Path

import pytest

from camshaft.observe import instrument
from camshaft.observe import profile as profiles
from camshaft.settings import TABLE

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in TABLE:
        if row.variable != "CAMSHAFT_CACHE_DIR":
            monkeypatch.delenv(row.variable, raising=False)
    monkeypatch.setenv("CAMSHAFT_CHAINS", "0")


@pytest.fixture
def known_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """A roof that nobody has to measure."""
    from small_plans import PEAK

    for module in (profiles, instrument):
        monkeypatch.setattr(module, "machine_peak", lambda threads: PEAK)
