"""Traces: required fields of Chrome's format, bars inside their run, waits in between."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from small_plans import X, plan

from camshaft.observe import trace as traces
from camshaft.observe.trace import TraceFile, profile_trace

pytestmark = pytest.mark.usefixtures("known_peak")

# Of each phase of event: field, type, and whether it must be there ("Trace Event Format").
SCHEMA = {
    "M": {"name": str, "pid": int, "tid": int, "args": dict},
    "X": {"name": str, "cat": str, "ts": float, "dur": float, "pid": int, "tid": int, "args": dict},
}


def check(document: dict) -> list[dict]:
    """The events of a document that keeps to the format."""
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["displayTimeUnit"] in ("ms", "ns")
    named: set[tuple[int, int]] = set()
    for event in document["traceEvents"]:
        fields = SCHEMA[event["ph"]]
        assert set(event) == {"ph", *fields}
        assert all(isinstance(event[name], kind) for name, kind in fields.items()), event
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert isinstance(event["args"]["name"], str)
            named.add((event["pid"], event["tid"]))
        else:
            assert event["dur"] >= 0
            assert event["ts"] >= -0.1
            assert (event["pid"], event["tid"]) in named, "a lane has a name before it has events"
    return document["traceEvents"]


def test_a_trace_has_a_bar_for_each_lanes_part_of_each_thunk() -> None:
    profiles = {}
    for layers in (2, 1):
        with plan(layers) as made:
            made.run(x=X)
            profiles[f"{layers} layers"] = made.profile(runs=3)
    events = check(profile_trace(profiles))
    for number, (title, found) in enumerate(profiles.items(), start=1):
        mine = [e for e in events if e["pid"] == number]
        assert mine[0]["args"]["name"] == title
        bars = [e for e in mine if e["ph"] == "X" and e["cat"] != "wait"]
        assert len(bars) == (found.timeline.programs > 0).sum()
        assert sum(e["args"]["programs"] for e in bars) == found.timeline.programs.sum()
        assert {(e["args"]["thunk"], e["name"], e["cat"]) for e in bars} == {
            (i, row.name, f"{row.op}/{row.variant}") for i, row in enumerate(found.thunks)
        }
        ends = max(e["ts"] + e["dur"] for e in mine if e["ph"] == "X")
        assert ends * 1e3 <= found.timeline.total_ns + 1000
        waits = [e for e in mine if e["ph"] == "X" and e["cat"] == "wait"]
        assert len(waits) == (found.timeline.waited > 0).sum()


def test_bars_and_waits_of_a_lane_do_not_overlap() -> None:
    with plan(threads=2) as made:
        made.run(x=X)
        events = check(profile_trace({"run": made.profile(runs=2)}))
    for lane in (0, 1):
        spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X" and e["tid"] == lane)
        assert spans
        for (_, end), (start, _) in itertools.pairwise(spans):
            assert start >= end - 0.002


def test_a_trace_of_many_runs_is_bounded_and_says_what_it_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "MOST_EVENTS", 50)
    file = TraceFile(tmp_path / "trace.json")
    with plan(threads=1) as made:
        made.run(x=X)
        number = file.plan()
        for n in range(20):
            file.add(made.bound.timed(), made.bound.schedule, number, n == 0)
    file.write()
    document = json.loads((tmp_path / "trace.json").read_text("utf-8"))
    dropped = document.pop("otherData")["dropped events"]
    events = check(document)
    assert len(events) == 50
    assert dropped >= 20 * 9 + 2 - 50
    starts = [e["ts"] for e in events if e["ph"] == "X" and e["cat"] != "wait"]
    assert np.all(np.diff(starts) > 0), "runs follow each other on one scale of time"


def test_a_trace_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    file = TraceFile(tmp_path / "absent" / "trace.json")
    with pytest.warns(UserWarning, match="CAMSHAFT_TRACE=.*cannot be written: no such file"):
        file.write()
    file.path.parent.mkdir()
    file.write()
