"""Wrong kernels of an external package (tests/data/faulty) are detected, reported and never chosen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full  # tests/validation/test_proof.py has each fault in the quick run
ROOT = Path(__file__).parents[2]
SCRIPT = """
import json, sys
import numpy as np
import camshaft
from camshaft.validation import proof
from camshaft.validation.evidence import validation_cache
proof.SAMPLE_TIMEOUT_S = 3.0
import faulty_kernels

rng = np.random.default_rng(0)
x = rng.normal(size=(3, 37)).astype(np.float32)
a, b = rng.normal(size=(5, 9)).astype(np.float32), rng.normal(size=(9, 4)).astype(np.float32)
table = camshaft.table()
silu = table.choice("silu", x)
matmul = table.choice("matmul", a, b)
np.testing.assert_allclose(table.silu(x), x / (1 + np.exp(-x)), rtol=1e-5, atol=1e-6)
np.testing.assert_allclose(table.matmul(a, b), a @ b, rtol=1e-4, atol=1e-5)
graph = camshaft.Graph()
graph.output("y", camshaft.silu(graph.input("x", (3, 37), "f32")))
with camshaft.compile(graph, threads=1) as plan:
    plan.run(x=x)
    explained = plan.explain()
print(json.dumps({
    "chosen": [silu.variant.name, matmul.variant.name],
    "lost": {l.variant: l.reason for l in (*silu.losers, *matmul.losers)},
    "explained": explained,
    "failed": {v.variant: v.sample for v in validation_cache().results() if v.status == "failed"},
}))
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT / "tests" / "data" / "faulty")))
    environment = os.environ | {"PYTHONPATH": path, "CAMSHAFT_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


FOUND = {
    "wrong_in_last_ragged_element": "failed: error ",
    "writes_past_its_output": "wrote outside of its tensor",
    "hangs": "failed: hung: silent for 3 s in sample '",
    "crashes": "failed: twice crashed its process: ",
    "wrong_unless_k_is_n": "failed: error ",
}


def test_each_is_found_and_told_of_in_one_line_with_evidence(report: dict[str, dict[str, str]]) -> None:
    for name, words in FOUND.items():
        assert words in report["lost"][name]
        assert "\n" not in report["lost"][name]
        assert report["failed"][name], "the sample in which it was seen"


def test_far_too_much_memory_is_refused_or_the_end_of_a_child(report: dict[str, dict[str, str]]) -> None:
    assert report["lost"]["allocates_far_too_much"].startswith("failed: MemoryError: Unable to allocate 8.00 TiB")


def test_none_is_chosen_and_the_next_one_is(report: dict[str, list[str]]) -> None:
    assert not set(report["chosen"]) & {*FOUND, "allocates_far_too_much", "right_but_slow"}


def test_the_slow_one_lost_by_its_time(report: dict[str, dict[str, str]]) -> None:
    assert report["lost"]["right_but_slow"] == "estimated 1e+09 us"


def test_a_plan_says_which_were_passed_over(report: dict[str, str]) -> None:
    for name in {*FOUND} - {"wrong_unless_k_is_n"}:
        assert name in report["explained"]
