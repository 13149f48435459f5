"""Extensions by an external package (tests/data/outside): a device, a kernel for an op, a dispatcher."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OUTSIDE = ROOT / "tests" / "data" / "outside"
HEAD = """
import numpy as np, camshaft
from camshaft.graph import functions as F
def add_plan(**how):
    graph = camshaft.Graph()
    a, b = (graph.input(n, (3, 7), "f32") for n in "ab")
    graph.output("y", F.add(a, b))
    return camshaft.compile(graph, threads=1, **how)
a = np.arange(21, dtype=np.float32).reshape(3, 7)
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder for the tests that may find there what another of them compiled."""
    return tmp_path_factory.mktemp("outside")


def run(body: str, cache: Path) -> str:
    """What a script prints that can import the package from outside."""
    path = os.pathsep.join((str(ROOT / "src"), str(OUTSIDE)))
    environment = os.environ | {"PYTHONPATH": path, "CAMSHAFT_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", HEAD + body], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.full
def test_a_device_comes_by_an_entry_point(cache: Path) -> None:
    out = run(
        """
print(camshaft.device("acme").name, [d.description for d in camshaft.devices() if d.name == "acme"])
import acme
with add_plan(backend="acme") as plan:
    assert np.array_equal(plan.run(a=a, b=a)["y"], a + a)
    print(plan.explain())
""",
        cache,
    )
    assert "acme ['the outside device']" in out
    assert "add/acme_acme" in out


@pytest.mark.full
def test_a_kernel_for_an_op_is_proved_and_chosen_when_it_is_the_fastest(cache: Path) -> None:
    out = run(
        """
with add_plan() as plan: print(plan.explain())
import acme, acme_kernels
with add_plan() as plan:
    assert np.array_equal(plan.run(a=a, b=a)["y"], a + a)
    print(plan.explain())
try: acme.register("simd", "acme")
except camshaft.CamshaftError as error: print(error)
""",
        cache,
    )
    before, after = out.split("add/acme_simd", 1)
    assert "add/row_blocks" in before
    assert "the fastest of" in after
    assert "add has a variant 'acme_simd' already" in after


@pytest.mark.full
def test_a_whole_dispatcher_takes_the_ops_it_knows(tmp_path) -> None:
    out = run(
        """
import acme
d = acme.Dispatcher()
graph = camshaft.Graph()
x, w, m = graph.input("x", (3, 8), "f32"), graph.input("w", (8,), "f32"), graph.input("m", (5, 8), "f32")
h = F.matmul(F.silu(F.rms_norm(x, w, eps=1e-5)), m, transpose_b=True)
graph.output("y", F.softmax(F.multiply(F.add(h, h), h)))
rng = np.random.default_rng(0)
given = {"x": rng.normal(size=(3, 8)), "w": rng.normal(size=8), "m": rng.normal(size=(5, 8))}
given = {k: v.astype(np.float32) for k, v in given.items()}
with camshaft.compile(graph, threads=1) as plan: want = plan.run(**given)["y"].copy()
with camshaft.compile(graph, threads=1, dispatcher=d) as plan:
    np.testing.assert_allclose(plan.run(**given)["y"], want, rtol=1e-4)
    print(d.calls)
    print(plan.explain())
graph = camshaft.Graph()
graph.output("y", F.copy(graph.input("x", (4,), "f32")))
with camshaft.compile(graph, threads=1, dispatcher=d) as plan:
    try: plan.run(x=np.zeros(4, np.float32))
    except camshaft.CamshaftError as error: print(error)
""",
        tmp_path,
    )
    assert "['rms_norm', 'silu', 'mul_mat', 'add', 'mul']" in out
    assert "(host)" in out
    assert "by the dispatcher numpy" in out
    assert "softmax/one_row_per_program" in out
    assert "numpy.copy: no copies today" in out


def test_what_an_entry_point_brings_is_checked(tmp_path) -> None:
    broken = tmp_path / "broken-1.0.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (broken / "entry_points.txt").write_text("[camshaft.backends]\nbroken = math:pi\n")
    out = run(
        f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
try: camshaft.device("cpu")
except camshaft.CamshaftError as error: print(error)
""",
        tmp_path,
    )
    assert "the entry point math:pi is a float; wanted a camshaft Backend" in out
