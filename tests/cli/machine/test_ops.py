"""`camshaft ops`: the table, one op in detail, JSON, the Markdown page, unknown names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from camshaft import ops
from camshaft.validation.cases import case_of
from camshaft.validation.evidence import ValidationResult, validation_cache
from tests.support.quick import full


@pytest.fixture(autouse=True)
def evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """softmax is proved on the CPU and failed as one element at a time."""
    monkeypatch.setenv("CAMSHAFT_CACHE_DIR", str(tmp_path / "cache"))
    op = ops.get("softmax")
    name = op.variants[0].name
    right = ValidationResult("softmax", name, "simd", "proved", None, 2.5e-15, 1e-12, "5x33", 9, 0.25)
    wrong = ValidationResult(
        "softmax", name, "scalar", "failed", "error 1 above 1e-12 in sample '1'", 1.0, 1e-12, "1", 1, 0.5
    )
    validation_cache().add({case_of(op, op.variants[0], v.backend): v for v in (right, wrong)})


@pytest.mark.full
def test_json_has_every_op_in_full(cli: Any) -> None:
    rows = {row["name"]: row for row in json.loads(cli("ops", "--json").stdout)["ops"]}
    assert tuple(rows) == ops.NAMES
    softmax = rows["softmax"]
    assert softmax["formula"] == ops.get("softmax").formula
    assert (softmax["dtypes"], softmax["rows"]) == (["f16", "bf16", "f32", "f64"], ["mlx/softmax"])
    found = {s["backend"]: s for s in softmax["statuses"]}
    assert (found["simd"]["status"], found["simd"]["max_error"], found["simd"]["sample"]) == ("proved", 2.5e-15, "5x33")
    assert found["scalar"]["reason"] == "error 1 above 1e-12 in sample '1'"
    assert all(s["reason"] for row in rows.values() for s in row["statuses"] if s["status"] == "absent")


@pytest.mark.parametrize("columns", [80, full(120)])
def test_the_table_has_a_line_for_each_op_and_fits(cli: Any, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    head, *lines, note = cli("ops").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(ops.NAMES)
    assert max(map(len, (head, *lines))) <= columns
    assert "doctor" in note


def test_one_op_in_full(cli: Any) -> None:
    lines = cli("ops", "softmax").stdout.splitlines()
    assert lines[0] == f"softmax: {ops.get('softmax').formula}"
    rows = [line.split() for line in lines]
    name = ops.get("softmax").variants[0].name
    assert [name, "simd", "proved", "2.5e-15", "1e-12", "0.25"] in rows
    assert [name, "scalar", "failed", "1", "1e-12", "0.5"] in rows
    assert f"  {name} on scalar: error 1 above 1e-12 in sample '1'" in lines


@pytest.mark.full
def test_the_page_comes_out_as_it_is(cli: Any) -> None:
    assert cli("ops", "--markdown").stdout.startswith("# Ops\n")


@pytest.mark.parametrize("more", ["softmax", "--json"])
def test_the_page_has_all_ops_or_is_refused(cli: Any, more: str) -> None:
    done = cli("ops", more, "--markdown")
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"{more} with it; wanted it alone" in done.stderr


@pytest.mark.parametrize("names", [["sofmax"], ["softmax", "nothing"], [""], ["../secret\x1b[31m"], ["a" * 5000]])
def test_a_name_that_no_op_has_is_one_line(cli: Any, names: list[str]) -> None:
    result = cli("ops", *names)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("camshaft: no op '")
    assert len(line) < 200
    assert "\x1b" not in line
