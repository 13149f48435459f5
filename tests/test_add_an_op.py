"""docs/add_an_op.md: the modules and their uses run as they stand there, and what the page says of them holds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from camshaft.lang import Tracer
from tests.support.quick import full

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "add_an_op.md").read_text("utf-8")
ROW, ROW_USE, MODULE, PER_ROW, USE, WRONG, VARIANT = re.findall(
    r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL
)

MODULES = {"softsign": ROW, "cosine_similarity": PER_ROW, "one_add": VARIANT}


def started(script: str, folder: Path, module: str = MODULE, **more: str) -> subprocess.CompletedProcess[str]:
    """A script that ran beside the page's modules, with the tests' store: proofs and kernels of equal text are found there."""
    for name, text in (MODULES | {"row_affine": module}).items():
        (folder / f"{name}.py").write_text(text, "utf-8")
    path = os.pathsep.join((str(ROOT / "src"), str(folder)))
    environment = os.environ | {"PYTHONPATH": path} | more
    return subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120)


def printed(script: str, folder: Path, **more: str) -> str:
    """What one that ended well printed."""
    done = started(script, folder, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout


CHECK = """
x, s = given
y = plan_run(x=x, scale=s)
z = x * s[:, None] + np.linspace(0, 1, 640, dtype=np.float32)
assert np.allclose(y, z / (1 + np.exp(-z)), rtol=1e-5, atol=1e-6)
"""


@pytest.mark.parametrize("backend", ["simd", full("scalar")])
def test_the_op_runs_and_is_right(backend: str, tmp_path: Path) -> None:
    keep = '    plan_run = lambda **given: plan.run(**given)["y"].copy()\n'
    check = "".join(f"    {line}\n" for line in CHECK.strip().splitlines())
    out = printed(USE + keep + check, tmp_path, CAMSHAFT_BACKEND=backend)
    assert "(7, 640)" in out
    assert "row_affine: row_affine/one_row_per_program" in out


@pytest.mark.parametrize("backend", ["simd", full("scalar")])
def test_the_row_runs_and_is_right(backend: str, tmp_path: Path) -> None:
    out = printed(ROW_USE, tmp_path, CAMSHAFT_BACKEND=backend)
    assert "[0.8 0.8 0.8]" in out
    assert "softsign: softsign/row_blocks" in out


NUMBER_PER_ROW = """
import camshaft
import cosine_similarity
import numpy as np

graph = camshaft.Graph()
x, y = (graph.input(name, (camshaft.Extent("rows", 8), 40), "f32") for name in "xy")
(z,) = graph.apply(cosine_similarity.OP, [x, y], {})
graph.output("z", z)
a, b = np.random.default_rng(1).normal(size=(2, 5, 40)).astype(np.float32)
with camshaft.compile(graph) as plan:
    print(plan.run(x=a, y=b)["z"].shape)
    assert np.allclose(plan.run(x=a, y=b)["z"], cosine_similarity.OP.reference((a, b), {})[0], atol=1e-6)
"""


@pytest.mark.full
def test_an_op_of_one_number_per_row_runs_and_is_right(tmp_path: Path) -> None:
    assert "(5,)" in printed(NUMBER_PER_ROW, tmp_path)


PARTS = """
from camshaft.graph.passes.decompose import decompose, parts_of, use_of
from tests.support.references import error_of, evaluated
import cosine_similarity, row_affine, softsign

for op in (softsign.OP, row_affine.OP, cosine_similarity.OP):
    for sample in op.samples():
        graph = decompose(use_of(op, sample))
        assert error_of(op, sample, lambda given: evaluated(graph, given, sample.extents)) <= 1, sample.name
    print(op.name, *parts_of(op))
"""


@pytest.mark.full
def test_the_decompositions_compute_the_ops(tmp_path: Path) -> None:
    lines = printed(f"import sys\nsys.path.append({str(ROOT)!r})\n{PARTS}", tmp_path).splitlines()
    assert lines[1:] == ["row_affine multiply add", "cosine_similarity multiply sum rsqrt"]


def test_a_wrong_row_is_an_error_that_names_the_sample(tmp_path: Path) -> None:
    wrong = ROW_USE.replace("import softsign", "import wrong as softsign")
    (tmp_path / "wrong.py").write_text(ROW.replace("k.abs(x)", "x"), "utf-8")
    done = started(wrong, tmp_path)
    assert done.returncode == 1
    assert "softsign of f16[3, 20]" in done.stderr.splitlines()[-1]
    assert "in sample" in done.stderr.splitlines()[-1]


ADDED = """
import camshaft
import numpy as np
import one_add

graph = camshaft.Graph()
x = graph.input("x", (3, 20), "f32")
graph.output("y", camshaft.add(x, x))
with camshaft.compile(graph) as plan:
    assert (plan.run(x=np.full((3, 20), 4, np.float32))["y"] == 8).all()
    print(plan.explain())
"""


def test_the_variant_is_validated_and_chosen(tmp_path: Path) -> None:
    assert "add: add/all_elements" in printed(ADDED, tmp_path)


def test_the_interpreter_names_the_line(tmp_path: Path) -> None:
    right, wrong = printed(WRONG, tmp_path).strip().splitlines()
    assert "programs=2" in right
    line = next(i for i, text in enumerate(MODULE.splitlines(), 1) if "out[row, c] =" in text)
    assert f"kernel one_row_per_program, line {line}: index 20 of" in wrong


def test_a_wrong_kernel_is_a_reason_and_not_the_end(tmp_path: Path) -> None:
    module = MODULE.replace("x[row, c] * s + shift[c]", "x[row, c] * s + shift[0]")
    assert module != MODULE
    done = started(USE, tmp_path, module)
    assert done.returncode == 1
    assert "row_affine" in done.stderr.splitlines()[-1]
    assert "one_row_per_program" in done.stderr.splitlines()[-1]


def test_the_words_of_the_table_exist() -> None:
    words = set(re.findall(r"\bk\.(\w+)", PAGE.split("## The kernel language")[1]))
    assert {"lanes", "accumulator", "tile"} <= words
    assert not {word for word in words if not hasattr(Tracer, word)}
