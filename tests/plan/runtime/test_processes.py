"""A plan and the process around it: exits and forks while it runs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.quick import full

PRELUDE = """
import os, sys, threading, time
import numpy as np
from plan_kernels import buffer, chain_plan, thunk, align
from camshaft.plan.runtime.execute import bind
from camshaft.plan.memory.arena import make_schedule
from camshaft.plan.buffers import Lifetime
"""


def run_script(script: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    """Runs Python with the tests' helpers on its path."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-X", "faulthandler", "-c", PRELUDE + script]
    return subprocess.run(command, env=env, timeout=timeout_s, capture_output=True, text=True, check=False)


# A thread that runs the plan again and again, and has run it once.
RUN_ON = """
started = threading.Event()
def work():
    while True:
        plan.run()
        started.set()
threading.Thread(target=work, daemon=True).start()
started.wait()
"""


@pytest.mark.parametrize("threads", [full(1), full(2), 5])
def test_exit_with_a_live_pool(threads: int) -> None:
    done = run_script(f"plan, out, wanted = chain_plan(20, 3, {threads}); plan.run(); print((out == wanted).all())")
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


@pytest.mark.parametrize("threads", [full(1), full(2), 5])
def test_exit_while_a_daemon_thread_is_in_a_run(threads: int) -> None:
    script = f"""
plan, out, wanted = chain_plan(300, 3000, {threads})
{RUN_ON}
print("leaving")
"""
    for _ in range(min(threads, 2)):
        done = run_script(script)
        assert (done.returncode, done.stdout, done.stderr) == (0, "leaving\n", "")


@pytest.mark.parametrize("threads", [full(1), 2])
def test_exit_while_a_daemon_thread_is_in_a_host_thunk(threads: int) -> None:
    script = f"""
io = buffer("io", 8, Lifetime.IO)
entered = threading.Event()
def nap(_):
    entered.set()
    time.sleep(0.2)
    print("rested", flush=True)
schedule, memory = make_schedule([thunk("nap", nap, (io.slice(),), writes=(io.slice(),))])
plan = bind(schedule, memory, buffers={{io: align(np.zeros(1))}}, threads={threads})
threading.Thread(target=plan.run, daemon=True).start()
entered.wait()
"""
    done = run_script(script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "rested\n", "")


@pytest.mark.full
def test_exit_by_an_exception_keeps_its_status() -> None:
    done = run_script("plan, *_ = chain_plan(5, 3, 2); plan.run(); sys.exit(3)")
    assert (done.returncode, done.stderr) == (3, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("threads", [full(1), full(2), 5])
def test_a_forked_child_runs_the_plan_and_so_does_its_parent(threads: int) -> None:
    script = f"""
plan, out, wanted = chain_plan(20, 3, {threads})
plan.run()
def good():
    for _ in range(100):
        out[:] = 0
        plan.run()
        assert np.array_equal(out, wanted)
    return True
child = os.fork()
if child == 0:
    good()
    grandchild = os.fork()
    if grandchild:
        assert os.waitpid(grandchild, 0)[1] == 0
    good()
    sys.exit(0)
print(good(), os.waitpid(child, 0)[1])
"""
    done = run_script(script)
    assert (done.returncode, done.stdout) == (0, "True 0\n"), done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("threads", [full(1), 2])
def test_fork_while_another_thread_is_in_a_run(threads: int) -> None:
    script = f"""
plan, out, wanted = chain_plan(300, 3000, {threads})
{RUN_ON}
for _ in range(3):
    child = os.fork()
    if child == 0:
        plan.run()
        os._exit(0 if np.array_equal(out, wanted) else 1)
    print(os.waitpid(child, 0)[1])
"""
    done = run_script(script)
    assert (done.returncode, done.stdout) == (0, "0\n0\n0\n"), done.stderr
