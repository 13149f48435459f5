"""A CUDA device on a driver that is played."""

from __future__ import annotations

import pytest

from camshaft.backends.cuda import device as cuda
from tests.support.devices.played_cuda import played_driver


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """A fake driver in place of the real one; cached answers about it are dropped afterwards."""
    yield played_driver(monkeypatch, tmp_path)
    cuda.absent.cache_clear()


@pytest.fixture
def device(fake):
    return cuda.make(0)
