"""The null device: plans and the text of their kernels without hardware, in every language; nothing runs."""

from __future__ import annotations

import numpy as np
import pytest

import camshaft as cs
from camshaft.backends.null.device import DIALECTS
from camshaft.backends.registry import device
from camshaft.errors import BackendError

TOKENS = cs.Extent("tokens", 16)
W = np.ones(48, np.float32)
# A line that only text of the language has.
SIGNS = {"llvm": "define void @", "wgsl": "@compute @workgroup_size(64)", "msl": "kernel void", "ptx": ".visible .entry",
         "c": "void kernel(const int64_t *args, int64_t first, int64_t last)"}  # fmt: skip


def block(place: str | None = None) -> cs.Graph:
    graph = cs.Graph()
    x = graph.input("x", (TOKENS, 48), "f32")
    with graph.on(place):
        h = cs.rms_norm(x, W, eps=1e-5)
    graph.output("y", cs.add(cs.silu(h), x))
    return graph


@pytest.mark.parametrize("language", DIALECTS)
def test_a_plan_has_the_text_of_its_kernels(language: str) -> None:
    with cs.compile(block(), backend=f"null:{language}", strict=True) as plan:
        thunks = plan.bound.schedule.thunks
        kernels = [t.entry for t in thunks if t.kind == "kernel"]
        assert {t.device for t in thunks} == {f"null:{language}"}
        assert len(kernels) == 2  # the norm, and the chain of silu and add
        assert all(SIGNS[language] in kernel.text for kernel in kernels)
        assert f"arena on null:{language}, " in plan.explain()


def test_running_is_refused_in_one_line() -> None:
    with (
        cs.compile(block(), backend="null") as plan,
        pytest.raises(BackendError, match="null plans and emits, and never runs"),
    ):
        plan.run(x=np.zeros((16, 48), np.float32))
    with pytest.raises(BackendError, match="stores no bytes"):
        device("null").allocate(64).read()


def test_a_part_of_a_plan_may_be_null() -> None:
    with cs.compile(block("null:wgsl"), backend="simd") as plan:
        names = [t.name for t in plan.bound.schedule.thunks]
        assert names == ["x → null:wgsl", "rms_norm", "rms_norm → host", "add"]


def test_an_unknown_language_is_refused_by_name() -> None:
    with pytest.raises(BackendError, match=r"no device null:cobol; wanted null, or null: and one of llvm, wgsl"):
        cs.compile(block(), backend="null:cobol")


def test_a_kernel_that_the_language_lacks_is_refused_with_the_reason() -> None:
    graph = cs.Graph()
    graph.output("y", cs.copy(graph.input("x", (4, 8), "f64")))
    with pytest.raises(BackendError, match=r"row_blocks \(null:wgsl\): .*WGSL has no 64-bit floats"):
        cs.compile(graph, backend="null:wgsl", strict=True)
    with cs.compile(graph, backend="null:wgsl") as plan:
        assert [t.device for t in plan.bound.schedule.thunks] == ["host"]
