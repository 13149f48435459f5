"""Backends that installed packages bring: one with faults is an error, or a row with the reason, that says whose they are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from camshaft.backends import installed, registry
from camshaft.backends.device import Backend, DeviceInfo
from camshaft.backends.registry import backends, device, devices
from camshaft.errors import BackendError


def fail(*_: object) -> NoReturn:
    raise ZeroDivisionError("division by zero")


def install(patch: pytest.MonkeyPatch, load: Any) -> None:
    point = SimpleNamespace(value="evil:B", load=load)
    patch.setattr(installed, "entry_points", lambda group: [point])
    patch.setattr(registry, "_devices", {})
    patch.setattr(registry, "backends", backends.__wrapped__)


def evil(**how: Any) -> Backend:
    parts = {"absent": lambda: None, "make": fail, "devices": lambda: (DeviceInfo("evil", "evil", "x"),)}
    return Backend("evil", ("evil", "simd"), **parts | how)


def test_an_entry_point_that_does_not_load_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fail)
    with pytest.raises(BackendError, match=r"^the entry point evil:B failed: ZeroDivisionError: division by zero$"):
        device("cpu")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (evil(), "backend 'evil' failed: ZeroDivisionError: division by zero"),
        (evil(absent=fail), "backend 'evil' failed: ZeroDivisionError: division by zero"),
        (evil(make=lambda suffix: None), "backend 'evil' made NoneType as the device ''; wanted a camshaft Device"),
    ],
)
def test_a_device_that_cannot_be_made_says_whose_it_is(
    row: Backend, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, lambda: row)
    with pytest.raises(BackendError, match=f"^{words}$"):
        device("evil")
    assert device("cpu").name == "cpu"


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        (fail, "failed: ZeroDivisionError"),
        (lambda: 3, "failed: TypeError"),
        (lambda: [3], "listed 3 among its devices"),
    ],
)
def test_devices_are_listed_beside_one_that_cannot_be(listed: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, lambda: evil(devices=listed))
    *_, last = found = devices()
    assert (last.name, len(found) > 1) == ("evil", True)
    assert words in (last.absent or "")
