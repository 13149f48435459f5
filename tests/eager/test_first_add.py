"""What a process's first call of an op imports and reads."""

from __future__ import annotations

import json
import subprocess
import sys

from camshaft import ops
from camshaft.dtypes import as_dtype
from camshaft.selection.measurements import Measurements
from camshaft.store.store import store

_FIRST = """
import json, sys, camshaft, numpy as np
a = np.ones(10, np.float32)
assert (camshaft.add(a, a) == 2).all()
print(json.dumps(sorted(sys.modules)))
"""
# 144 of camshaft; each takes up to 1 ms.
MOST_MODULES = 146


def test_a_first_add_imports_little() -> None:
    def imported() -> list[str]:
        child = subprocess.run([sys.executable, "-c", _FIRST], capture_output=True, text=True, check=True)
        found: list[str] = json.loads(child.stdout)
        return found

    imported()  # may prove and compile
    found = imported()
    assert len([name for name in found if name.startswith("camshaft")]) <= MOST_MODULES
    unneeded = {f"camshaft.emit.llvm.{name}" for name in ("module", "builder")}
    assert {"numpy.random", "concurrent.futures", "logging", *unneeded}.isdisjoint(found)


def test_an_op_says_its_first_sample_without_drawing_it() -> None:
    known = [op for op in ops.all_ops() if op.plain is not None]
    assert ops.get("add") in known
    for op in known:
        sample = next(iter(op.samples()))
        assert op.plain == (tuple(as_dtype(x.dtype) for x in sample.inputs), sample.attrs), op.name
        assert sample.specs is None


def test_rows_of_ops_that_were_not_measured_are_not_checked() -> None:
    fresh = Measurements(store())
    fresh._ops, fresh._document = frozenset({"matmul"}), {}
    assert not fresh.has(ops.get("add"))
    assert fresh._rows is None
