"""Debug levels and instrumentation: the effect of each setting, and none on other plans."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from small_plans import X, graph, plan

import camshaft as cs
from camshaft.errors import SettingError, ValidationError, VerifyError
from camshaft.observe.instrument import InstrumentedSchedule, ReplacedKernel, interpret
from camshaft.plan.runtime.execute import BoundSchedule
from tests.support.quick import full

pytestmark = pytest.mark.usefixtures("known_peak")


@pytest.fixture(scope="module")
def wanted() -> np.ndarray:
    with plan() as made:
        return made.run(x=X)["y"].copy()


def edited(folder: Path, pattern: str, old: str, new: str) -> Path:
    """Changes the one dumped file of that pattern."""
    (path,) = folder.glob(pattern)
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")
    return path


def test_without_settings_a_plan_is_bound_as_ever() -> None:
    with plan() as made:
        assert type(made.bound) is BoundSchedule


def test_settings_are_read_when_a_plan_is_built_not_when_it_runs(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    with plan() as made:
        monkeypatch.setenv("CAMSHAFT_DEBUG", "2")
        made.run(x=X)
        assert capsys.readouterr().err == ""
    with plan() as made:
        monkeypatch.delenv("CAMSHAFT_DEBUG")
        capsys.readouterr()
        made.run(x=X)
        assert len(capsys.readouterr().err.splitlines()) == 1 + len(made.bound.schedule.thunks)


@pytest.mark.parametrize("level", range(6))
def test_each_level_says_what_the_one_before_says_and_more(
    level: int, monkeypatch: pytest.MonkeyPatch, capsys, wanted: np.ndarray
) -> None:
    monkeypatch.setenv("CAMSHAFT_DEBUG", str(level))
    monkeypatch.setattr("camshaft.observe.debug_output._printed", set())
    with plan() as made:
        assert np.array_equal(made.run(x=X)["y"], wanted)
    said = capsys.readouterr().err
    shown = [
        "camshaft: plan of 9 thunks (9 on host)" in said,
        "GB/s" in said and "of peak" in said,
        "not chosen:" in said,
        "define " in said,
        re.search(r"^camshaft: --- rms_norm\..*\.s$", said, re.MULTILINE) is not None,
    ]
    assert shown == [n < level for n in range(5)]


def test_a_dump_holds_schedule_ir_source_and_assembly_of_every_kernel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CAMSHAFT_DUMP", str(tmp_path / "dump"))
    for number in (1, 2):
        with plan() as made:
            stems = {p.stem for p in (tmp_path / "dump").glob("*.ll")}
            text = (tmp_path / "dump" / f"schedule-{number}.txt").read_text("utf-8")
            assert all(node.name in text for node in graph().nodes)
            assert all(stem in text for stem in stems)
            assert len(stems) == len({(t.op, id(t.entry)) for t in made.bound.schedule.thunks})
    for stem in stems:
        kinds = {p.suffix: p.read_text("utf-8") for p in (tmp_path / "dump").glob(f"{stem}.*")}
        assert set(kinds) == {".ll", ".ir", ".s"}
        assert "define void @kernel(" in kinds[".ll"]
        assert kinds[".ir"].startswith("kernel ")
        assert "kernel:" in kinds[".s"]


@pytest.mark.parametrize("backend", ["null", "null:wgsl", full("null:msl"), full("null:ptx"), full("null:c")])
def test_a_dump_speaks_each_backends_language(backend: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CAMSHAFT_DUMP", str(tmp_path))
    cs.compile(graph(1), backend=backend).close()
    suffix, word = {
        "null": ("ll", "define void"),
        "null:wgsl": ("wgsl", "@compute"),
        "null:msl": ("metal", "kernel void"),
        "null:ptx": ("ptx", ".entry"),
        "null:c": ("c", "int64_t"),
    }[backend]
    sources = [p.read_text("utf-8") for p in tmp_path.glob(f"*.{suffix}")]
    assert len(sources) >= 4
    assert all(word in text for text in sources)


def test_a_folder_that_takes_no_dump_is_named_with_its_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CAMSHAFT_DUMP", str(tmp_path / "file" / "dump"))
    with pytest.raises(SettingError, match=r"^CAMSHAFT_DUMP=.*dump: .*cannot be written"):
        cs.compile(graph(1))


def test_an_edited_kernel_runs_in_place_of_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys, wanted: np.ndarray
) -> None:
    monkeypatch.setenv("CAMSHAFT_DUMP", str(tmp_path))
    plan().close()
    monkeypatch.delenv("CAMSHAFT_DUMP")
    path = edited(tmp_path, "silu.*.ll", "define void @kernel(", "; by hand\ndefine void @kernel(")
    monkeypatch.setenv("CAMSHAFT_OVERRIDE", str(tmp_path))
    with plan() as made:
        replaced = [t for t in made.bound.schedule.thunks if isinstance(t.entry, ReplacedKernel)]
        assert [t.name for t in replaced] == ["blk.0.silu", "blk.1.silu"]
        assert f"silu/{replaced[0].variant}" in made.explain()
        assert f"replaced by {path.name}" in made.explain()
        assert "replaced 2 thunks of a plan: blk.0.silu, blk.1.silu" in capsys.readouterr().err
        for _ in range(2):
            assert np.array_equal(made.run(x=X)["y"], wanted)


def test_an_edited_kernel_that_is_wrong_is_found_in_its_first_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CAMSHAFT_DUMP", str(tmp_path))
    plan().close()
    monkeypatch.delenv("CAMSHAFT_DUMP")
    edited(tmp_path, "add.*.ll", "fadd contract", "fsub contract")
    monkeypatch.setenv("CAMSHAFT_OVERRIDE", str(tmp_path))
    with plan() as made, pytest.raises(ValidationError, match=r"thunk 'blk.0.add' \(add/\w+ on simd\) differs"):
        made.run(x=X)


@pytest.mark.full
def test_an_untouched_dump_replaces_nothing_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys
) -> None:
    monkeypatch.setenv("CAMSHAFT_DUMP", str(tmp_path))
    plan().close()
    monkeypatch.delenv("CAMSHAFT_DUMP")
    monkeypatch.setenv("CAMSHAFT_OVERRIDE", str(tmp_path))
    with plan() as made:
        assert type(made.bound) is BoundSchedule
        assert "no edited kernel in this plan" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("pattern", "old", "new", "message"),
    [
        (
            "silu.*.s",
            "kernel:",
            "other:",
            r"silu.*\.s was edited; only the LLVM IR \(.ll\) of CPU kernels can be replaced",
        ),
        full("silu.*.ir", "kernel ", "other ", "was edited; only the LLVM IR"),
        ("silu.*.ll", "@kernel(", "@other(", "does not define @kernel"),
    ],
)
def test_an_edit_that_cannot_be_used_is_an_error(
    pattern: str, old: str, new: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CAMSHAFT_DUMP", str(tmp_path))
    plan().close()
    monkeypatch.delenv("CAMSHAFT_DUMP")
    edited(tmp_path, pattern, old, new)
    monkeypatch.setenv("CAMSHAFT_OVERRIDE", str(tmp_path))
    with pytest.raises(SettingError, match=message):
        plan()


def test_interpreted_plans_compute_the_same_with_every_access_checked(
    monkeypatch: pytest.MonkeyPatch, wanted: np.ndarray
) -> None:
    monkeypatch.setenv("CAMSHAFT_INTERPRET", "1")
    with plan() as made:
        assert {t.kind for t in made.bound.schedule.thunks} == {"host"}
        assert np.allclose(made.run(x=X)["y"], wanted, rtol=1e-4, atol=1e-5)
        assert made.run(x=X[:4])["y"].shape == (4, 64)

        def broken(kernel, views, scalars, **options) -> None:
            interpret(kernel, [v[..., :-1].copy() for v in views], scalars, **options)

        monkeypatch.setattr("camshaft.observe.instrument.interpret", broken)
        with pytest.raises(VerifyError):
            made.run(x=X)


def test_what_is_not_of_the_kernel_language_is_not_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMSHAFT_INTERPRET", "1")
    with pytest.raises(SettingError, match=r"on null; only CPU plans can be interpreted"):
        plan(backend="null")
    with pytest.raises(
        SettingError, match=r"'blk.0.matmul' \(matmul/\w+\) calls another library; CAMSHAFT_BACKEND=simd"
    ):
        plan(backend="blas")


@pytest.mark.full
def test_a_traced_plan_writes_its_runs_when_the_process_ends(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from small_plans import X, plan\n"
        "with plan() as a, plan(1) as b:\n    a.run(x=X); a.run(x=X); b.run(x=X)\n"
    )
    here = Path(__file__).parent
    environment = {"CAMSHAFT_TRACE": str(path)} | {
        name: value
        for name, value in __import__("os").environ.items()
        if not name.startswith("CAMSHAFT_") or "CACHE" in name or "CHAINS" in name
    }
    environment["PYTHONPATH"] = str(here.parents[1] / "src")
    done = subprocess.run([sys.executable, "-c", script, str(here)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    trace = json.loads(path.read_text("utf-8"))
    bars = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["cat"] != "wait"]
    counts = {(e["pid"], e["name"]) for e in bars}
    assert {name for pid, name in counts if pid == 1} == {n.name for n in graph().nodes}
    assert {name for pid, name in counts if pid == 2} == {n.name for n in graph(1).nodes}
    programs = sum(e["args"]["programs"] for e in bars if (e["pid"], e["name"]) == (1, "blk.0.rms_norm"))
    assert programs == 2 * 2 * len(X)  # in two runs, by either worker for itself: it is small


def test_a_watched_schedule_shows_the_face_of_the_one_inside(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("CAMSHAFT_DEBUG", "2")
    with plan() as made:
        assert isinstance(made.bound, InstrumentedSchedule)
        inner = made.bound.inner
        for name in ("schedule", "memory_plan", "threads", "active"):
            assert getattr(made.bound, name) == getattr(inner, name)
        made.run(x=X[:3])
        assert set(made.bound.active.values()) == {3}
        capsys.readouterr()
        made.bound.run(0, 2)
        assert capsys.readouterr().err == "", "a part of a run is not told"
        assert made.profile(runs=1).runs == 1
