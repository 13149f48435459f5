"""Profiles: rows by thunk, op, part and layer, their sums, and work at the active extents."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from small_plans import DIM, PEAK, TOKENS, X, graph, plan

from camshaft.errors import SettingError
from camshaft.observe.profile import profile_of
from camshaft.observe.rows import active_node, layer_and_part, work_of
from tests.support.devices.profiled import profile_of_devices

pytestmark = pytest.mark.usefixtures("known_peak")


def test_a_profile_accounts_for_every_thunk_once() -> None:
    with plan() as made:
        wanted = made.run(x=X)["y"].copy()
        found = made.profile(x=X, runs=5, warmup=1)
        assert np.array_equal(made.run(keep=True)["y"], wanted), "what ran last is what a run gives"
    names = [thunk.name for thunk in made.bound.schedule.thunks]
    assert [row.name for row in found.thunks] == names
    assert (found.runs, found.threads, found.extents) == (5, 2, {"tokens": 9})
    for table in ("op", "part", "layer"):
        rows = found.by(table)
        assert sum(row.n_thunks for row in rows) == len(names)
        for figure in ("busy_ns", "share", "nbytes", "flops", "waited_ns", "n_waits"):
            assert sum(getattr(r, figure) for r in rows) == pytest.approx(sum(getattr(r, figure) for r in found.thunks))
    assert {row.name: row.n_thunks for row in found.by("part")}["matmul"] == 2
    assert [row.name for row in found.by("layer")] == ["blk.0", "blk.1", "output_norm"]
    assert sum(row.n_waits for row in found.thunks) == sum(made.bound.schedule.waits)
    assert [worker.name for worker in found.workers] == ["worker 0", "worker 1"]


def test_work_is_that_of_the_active_extents() -> None:
    with plan() as made:
        origin = next(o for o in made.origins if o.node.op.name == "matmul")
        for n in (1, 5, 9):
            made.run(x=X[:n])
            work = work_of(origin, made.bound.active)
            assert (work.flops, work.kind) == (2.0 * n * DIM * DIM, "f32")
            assert work.nbytes == 4 * (2 * n * DIM + DIM * DIM)
        assert active_node(origin.node.spec, {TOKENS: 3}).inputs[0].shape == (3, DIM)


def test_rates_and_shares_of_the_roof_follow_from_time_and_work() -> None:
    with plan(1, threads=1) as made:
        made.run(x=X)
        found = profile_of(made, [made.bound.timed()], PEAK)
        (row,) = [row for row in found.thunks if row.op == "matmul"]
        assert row.ns is not None
        assert row.gb_per_s == pytest.approx(row.nbytes / row.ns)
        assert row.gflop_per_s == pytest.approx(row.flops / row.ns)
        least_ns = max(row.nbytes / PEAK.read_bytes_per_s, row.flops / PEAK.f32_ops_per_s) * 1e9
        assert row.peak_share == pytest.approx(least_ns / row.ns)
        assert found.total_ns >= sum(r.busy_ns for r in found.thunks)
        assert row.share == pytest.approx(row.busy_ns / found.total_ns)


def test_a_node_of_several_thunks_spreads_its_work_over_them() -> None:
    with plan() as made:
        made.run(x=X)
        found = made.profile(runs=2)
        for origin in made.origins:
            whole = work_of(origin, made.bound.active)
            rows = found.thunks[origin.first : origin.last]
            assert sum(row.flops for row in rows) == pytest.approx(whole.flops)
            assert sum(row.nbytes for row in rows) == pytest.approx(whole.nbytes)


def test_a_thunk_of_every_worker_counts_once_and_its_time_is_one_workers() -> None:
    """Two workers run a norm whole, one after the other: ns is what one of them took, the span of both is no one's."""
    with plan() as made:
        made.run(x=X[:1])
        assert made.bound.schedule.thunks[0].replicated
        run = made.bound.timed()
        start, end = run.start.copy(), run.end.copy()
        start[:, 0], end[:, 0] = (100.0, 900.0), (200.0, 1200.0)
        found = profile_of(made, [replace(run, start=start, end=end)], PEAK)
        whole = work_of(made.origins[0], made.bound.active)
    row = found.thunks[0]
    assert (row.n_thunks, row.n_replicated, row.ns, row.busy_ns) == (1, 1, 200.0, 400.0)
    assert row.share == pytest.approx(400.0 / 2 / found.total_ns)
    assert (row.nbytes, row.flops) == (whole.nbytes, whole.flops)
    assert row.gb_per_s == pytest.approx(whole.nbytes / 200.0)


def test_what_every_worker_repeats_takes_no_work_from_the_rest_of_its_node() -> None:
    """Of a node of two thunks, each 300 ns long, each has half of the work, though two workers ran the second."""
    with plan() as made:
        made.run(x=X)
        first = next(o.first for o in made.origins if made.bound.schedule.thunks[o.first].replicated)
        shared = next(i for i, thunk in enumerate(made.bound.schedule.thunks) if not thunk.replicated)
        run = made.bound.timed()
        start, end = np.zeros_like(run.start), np.zeros_like(run.end)
        end[:, first], end[0, shared], start[1, shared], end[1, shared] = 300.0, 300.0, np.nan, np.nan
        origin = replace(made.origins[0], first=min(first, shared), last=max(first, shared) + 1)
        assert origin.last - origin.first == 2
        found = profile_of(replace(made, origins=(origin,)), [replace(run, start=start, end=end)], PEAK)
    assert found.thunks[first].nbytes == found.thunks[shared].nbytes > 0


def test_the_report_is_json_with_every_table() -> None:
    with plan() as made:
        made.run(x=X)
        report = json.loads(made.profile(runs=2).json())
    assert {"ops", "parts", "layers", "thunks", "workers", "peak", "waited_share", "arena_nbytes", "notes"} <= set(
        report
    )
    assert report["thunks"][0]["name"] == "blk.0.rms_norm"
    assert {"ns", "share", "gb_per_s", "gflop_per_s", "peak_share", "waited_ns"} <= set(report["thunks"][0])
    assert report["peak"]["read_bytes_per_s"] == PEAK.read_bytes_per_s


def test_temporaries_are_placed_where_the_plan_has_them() -> None:
    with plan() as made:
        made.run(x=X)
        found = made.profile(runs=1)
        offsets = {b.name: (offset, b.nbytes) for b, offset in made.bound.memory_plan.offsets.items()}
    assert {p.name: (p.offset, p.nbytes) for p in found.placements} == offsets
    assert found.arena_nbytes["host"] >= max(p.offset + p.nbytes for p in found.placements)
    together = [
        (p, q)
        for i, p in enumerate(found.placements)
        for q in found.placements[i + 1 :]
        if p.first <= q.last and q.first <= p.last and p.offset < q.offset + q.nbytes and q.offset < p.offset + p.nbytes
    ]
    assert together == []


def test_a_device_without_a_clock_is_named_and_its_times_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    found = profile_of_devices(monkeypatch, tick_ns=2000, runs=3)
    assert found.notes == ("fake:0 has no clock for its thunks: their times are unknown",)
    times = {row.device: row.ns for row in found.thunks if row.op == "silu"}
    assert times["fake:0"] is None
    assert times["fake:1"] == pytest.approx(2000)
    assert found.peak is None, "no thunk runs on the CPU"


def test_a_run_over_its_roof_is_noted() -> None:
    with plan(threads=1) as made:
        made.run(x=X)
        run = made.bound.timed()
        assert profile_of(made, [run], PEAK).notes == ()
        (note,) = profile_of(made, [run], replace(PEAK, read_bytes_per_s=1e3)).notes
    assert (
        "above the measured peak of 0.0: operands came from a cache, or the peak was measured on a busy machine" in note
    )


def test_a_tables_name_and_the_number_of_runs_are_checked() -> None:
    with plan() as made:
        made.run(x=X)
        with pytest.raises(SettingError, match="0 runs after 3 warm-up runs; wanted 1 or more"):
            made.profile(runs=0)
        with pytest.raises(SettingError, match="a profile by 'model'; wanted thunk, op, part, layer"):
            made.profile(runs=1).by("model")


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("blk.3.attn_q", ("blk.3", "attn_q")),
        ("blk.3.attention/1", ("blk.3", "attention")),
        ("blk.12.attn_norm.q8", ("blk.12", "attn_norm.q8")),
        ("token_embd", ("token_embd", "token_embd")),
        ("model.7", ("model.7", "model.7")),
        ("x → fake:0", ("x → fake:0", "x → fake:0")),
    ],
)
def test_layers_and_parts_come_from_names(name: str, wanted: tuple[str, str]) -> None:
    assert layer_and_part(name) == wanted


def test_the_graph_of_these_tests_has_layers() -> None:
    assert [node.name for node in graph(1).nodes] == [
        "blk.0.rms_norm",
        "blk.0.matmul",
        "blk.0.add",
        "blk.0.silu",
        "output_norm",
    ]
