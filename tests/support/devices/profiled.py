"""The profile of a plan on two devices, of which one has no clock."""

from __future__ import annotations

import numpy as np
import pytest

import camshaft as cs
from camshaft.observe.profile import Profile
from tests.support.devices.fake_device import FakeDevice, Fakes


def profile_of_devices(monkeypatch: pytest.MonkeyPatch, tick_ns: int, runs: int) -> Profile:
    """The profile of a silu on a device without a clock, then one on a device whose clock says `tick_ns` for each thunk."""
    Fakes(FakeDevice("fake:0"), FakeDevice("fake:1", tick_ns=tick_ns)).install(monkeypatch)
    graph = cs.Graph()
    x = graph.input("x", (5, 24), "f32")
    for name in ("fake:0", "fake:1"):
        with graph.on(name):
            x = cs.silu(x)
    graph.output("y", x)
    with cs.compile(graph, backend="scalar", threads=1) as plan:
        plan.run(x=np.random.default_rng(5).normal(size=(5, 24)).astype(np.float32))
        return plan.profile(runs=runs)
