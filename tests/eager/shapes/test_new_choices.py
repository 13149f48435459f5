"""What the choice for a new shape reads: files and settings once, not once per variant."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from camshaft import ops
from camshaft.eager.array_op import ArrayOp
from camshaft.eager.shapes.shaped_call import node_of
from camshaft.ops.op import NodeSpec
from camshaft.selection import measurements as stored
from camshaft.settings import setting
from camshaft.store import store
from camshaft.tune import jobs


def product(rows: int, depth: int, columns: int) -> NodeSpec:
    """A product of f32 matrices."""
    arrays = [np.empty((rows, depth), np.float32), np.empty((depth, columns), np.float32)]
    return node_of(ops.get("matmul"), arrays, {})


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often a choice looks for the store and for a measured site."""
    counts = {"stores": 0, "sites": 0}
    form_of = stored.form_of

    def of_store(field: str) -> Any:
        counts["stores"] += field == "cache_dir"
        return setting(field)

    def of_site(node: NodeSpec) -> str:
        counts["sites"] += 1
        return form_of(node)

    monkeypatch.setattr(store, "setting", of_store)
    monkeypatch.setattr(stored, "form_of", of_site)
    return counts


def test_a_choice_for_a_new_shape_looks_once(counted: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMSHAFT_MEASURE", "1")
    monkeypatch.setattr(jobs, "_record", jobs._Record())
    monkeypatch.setattr("atexit.register", lambda *_: None)
    monkeypatch.setattr(stored.Measurements, "has", lambda self, op: True)
    table_op = ArrayOp(ops.get("matmul"), "simd")
    table_op.choices.select(product(17, 33, 40))
    monkeypatch.setattr("camshaft.process.available_cores", lambda: pytest.fail("reads the control groups' files"))
    node = product(18, 34, 41)
    counted.update(stores=0, sites=0)
    choice = table_op.choices.select(node)
    assert len(choice.losers) > 2
    assert counted["stores"] <= 4
    assert counted["sites"] <= 1
    assert len(jobs._record.used) == 2
