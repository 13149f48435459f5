"""The executor's timed form: what it stamps, that it computes the same, and that the ordinary form has none of it."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from plan_kernels import add, align, buffer, chain_plan, thunk

import camshaft as cs
from camshaft.backends.cpu.compile import assembly
from camshaft.errors import PlanError
from camshaft.extent import Extent
from camshaft.plan.buffers import Lifetime
from camshaft.plan.memory.arena import make_schedule
from camshaft.plan.runtime.execute import bind
from camshaft.plan.runtime.native.clock import clock_of
from camshaft.plan.runtime.native.executor import executor_ir
from camshaft.plan.runtime.native.os_wait import find_wait_row
from camshaft.plan.runtime.timed import SLACK_NS, clock
from camshaft.plan.schedule import Programs
from tests.support.compilers.cross import CrossTarget, assembly_for
from tests.support.devices.fake_device import FakeDevice, Fakes

pytestmark = pytest.mark.usefixtures("thunk_per_op")

ROW = find_wait_row()[0]
# Of the clock outside of the timed form: around a run, where it is alone too; where a wait gets long, and at its two ends; around
# the spin that is calibrated.
MOST_READS = 3 + 3 + 2


def function(name: str, text: str) -> list[str]:
    """The lines of one function of a module."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("define") and f"@{name}(" in line)
    return lines[start : lines.index("}", start)]


@pytest.mark.parametrize(("machine", "read"), [("x86_64", "cycle"), ("aarch64", "register"), ("riscv64", "steady")])
def test_only_the_timed_form_stamps(machine: str, read: str) -> None:
    ordinary, timed = (executor_ir(ROW, machine, timed=on) for on in (False, True))
    assert "stamps" not in ordinary
    short, long = function("walk", ordinary), function("walk", timed)
    assert not any(read in line for line in short)
    reads = [i for i, line in enumerate(long) if read in line]
    assert len(reads) == 3  # begin, start, end
    stores = [sum("store i64" in line for line in walk) for walk in (short, long)]
    assert stores[1] - stores[0] == 6


def test_the_ordinary_machine_code_reads_the_clock_per_run_and_in_long_waits_only() -> None:
    words = assembly(executor_ir(ROW, "x86_64")).split()
    assert "lfence" not in words
    assert words.count("rdtsc") <= MOST_READS
    # walk stands in the module three times: alone, and in the two that workers come through, of which LLVM keeps one
    assert assembly(executor_ir(ROW, "x86_64", timed=True)).count("rdtsc") >= 2 * 3


@pytest.mark.parametrize(
    ("triple", "cpu", "features", "reads"),
    [
        ("aarch64-unknown-linux-gnu", "cortex-a53", "neon", "cntvct_el0"),
        ("riscv64-unknown-linux-gnu", "generic-rv64", "a", "rdtime"),
    ],
)
def test_the_timed_form_reads_the_clocks_of_other_machines(triple: str, cpu: str, features: str, reads: str) -> None:
    target, machine = CrossTarget(triple, cpu, frozenset({features})), triple.split("-")[0]
    ordinary, timed = (assembly_for(target, executor_ir(ROW, machine, timed=on)).lower() for on in (False, True))
    assert ordinary.count(reads) <= MOST_READS
    assert timed.count(reads) >= 2 * 3


def test_a_machine_without_a_known_clock_is_refused() -> None:
    with pytest.raises(PlanError, match="no clock to time thunks by on s390x; there is one on x86_64"):
        clock_of("s390x")


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("rows", [1, 3, 7])
def test_a_timed_run_computes_the_same_and_stamps_in_order(threads: int, rows: int) -> None:
    plan, out, wanted = chain_plan(12, rows, threads)
    for _ in range(20):
        out[:] = 0
        run = plan.timed()
        assert np.array_equal(out, wanted)
    assert run.lanes == tuple(f"worker {i}" for i in range(threads))
    assert run.programs.sum(axis=0).tolist() == [rows] * 12
    assert np.array_equal(np.isnan(run.start), run.programs == 0)
    assert np.nanmin(run.end - run.start) >= 0
    ends, starts = np.nanmax(run.end, axis=0), np.nanmin(run.start, axis=0)
    assert (starts[1:] >= ends[:-1] - SLACK_NS).all(), "a thunk begins when the one that it waits for has ended"
    assert -SLACK_NS <= starts[0] <= ends[-1] <= run.total_ns + SLACK_NS
    assert (run.waited >= 0).all()
    assert run.waited.shape == (threads, 13)
    out[:] = 0
    plan.run()
    assert np.array_equal(out, wanted)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_thunk_without_programs_has_no_times(threads: int) -> None:
    tokens, total = Extent("tokens", 8), buffer("total", 8, Lifetime.IO)
    item = thunk("tick", "tick", (total.slice(),), writes=(total.slice(),), programs=Programs(1, ((tokens, 1),)))
    schedule, memory = make_schedule([item])
    plan = bind(schedule, memory, buffers={total: align(np.zeros(1, np.int64))}, threads=threads)
    plan.set_extent(tokens, 0)
    run = plan.timed()
    assert np.isnan(run.start).all()
    assert run.programs.sum() == 0
    plan.set_extent(tokens, 5)
    assert plan.timed().programs.sum() == 5


@pytest.mark.parametrize("threads", [1, 2])
def test_what_a_host_thunk_raises_is_raised_and_a_host_thunk_cannot_time(threads: int) -> None:
    io, plans = buffer("io", 8, Lifetime.IO), []
    steps = {ZeroDivisionError: lambda _: 1 // 0, PlanError: lambda _: plans[0].timed()}
    for error, step in steps.items():
        schedule, memory = make_schedule([thunk("inner", step, (io.slice(),), writes=(io.slice(),))])
        plans[:] = [bind(schedule, memory, buffers={io: align(np.zeros(1))}, threads=threads)]
        with pytest.raises(error):
            plans[0].timed()


def test_plans_timed_from_several_threads_keep_their_own_stamps() -> None:
    plans = [chain_plan(n, 3, 2) for n in (3, 9)]
    seen: list[bool] = []

    def work(n: int) -> None:
        plan, out, wanted = plans[n]
        for _ in range(50):
            run = plan.timed()
            seen.append(bool(run.programs.sum() == 3 * len(plan.schedule.thunks) and np.array_equal(out, wanted)))

    threads = [threading.Thread(target=work, args=(n,)) for n in (0, 1, 0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 200


def test_side_by_side_thunks_do_not_count_as_waiting() -> None:
    a, one = buffer("a", 64, Lifetime.IO), buffer("one", 64, Lifetime.IO)
    outs = [buffer(f"out{i}", 64, Lifetime.IO) for i in range(3)]
    schedule, memory = make_schedule([add(a.slice(), one.slice(), out.slice(), out.name) for out in outs])
    assert schedule.waits == (False, False, False)
    plan = bind(schedule, memory, buffers={b: align(np.ones(16, np.float32)) for b in (a, one, *outs)}, threads=1)
    assert plan.timed().waited[:, :3].sum() == 0


def test_the_clock_is_steady_and_in_nanoseconds() -> None:
    assert clock() is clock()
    assert 0.05 < clock().ns_per_tick < 200


@pytest.mark.parametrize("tick", [None, 1500])
def test_devices_time_their_own_thunks_or_say_that_they_have_no_clock(
    tick: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    Fakes(FakeDevice("fake:0", tick_ns=tick)).install(monkeypatch)
    graph = cs.Graph()
    x = graph.input("x", (5, 24), "f32")
    with graph.on("fake:0"):
        y = cs.silu(cs.silu(x))
    graph.output("y", cs.silu(y))
    with cs.compile(graph, backend="scalar", threads=2) as plan:
        given = np.random.default_rng(0).normal(size=(5, 24)).astype(np.float32)
        wanted = plan.run(x=given)["y"].copy()
        plan.outputs["y"][:] = 0
        run = plan.bound.timed()
        assert np.array_equal(plan.outputs["y"], wanted)
        away = [i for i, item in enumerate(plan.bound.schedule.thunks) if item.device == "fake:0"]
        assert len(away) == 4
        assert run.lanes == ("worker 0", "worker 1", "fake:0")
        assert run.clockless == (() if tick else ("fake:0",))
        spent = run.end[2, away] - run.start[2, away]
        assert np.allclose(spent, tick) if tick else np.isnan(spent).all()
        assert run.programs[:2].sum(axis=0)[[i for i in range(run.start.shape[1]) if i not in away]].all()
