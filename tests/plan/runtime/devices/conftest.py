"""Two fake devices."""

from __future__ import annotations

import pytest

from tests.support.devices.fake_device import FakeDevice, Fakes


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    return Fakes(FakeDevice("fake:0"), FakeDevice("fake:1")).install(monkeypatch)
