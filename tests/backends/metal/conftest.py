"""The one GPU of a fake Metal."""

from __future__ import annotations

import pytest

from tests.support.devices.fake_metal import FakeDevice, FakeMetal, forget, install


@pytest.fixture
def fake(monkeypatch):
    """The one GPU of a fake Metal."""
    made = FakeDevice()
    with monkeypatch.context() as patch:
        install(patch, FakeMetal(made))
        yield made
    forget()
