"""Settings that must stand before NumPy is imported: one BLAS thread, so that the reference does not fight the workers."""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.assertion import rewrite
from _pytest.mark.expression import Expression
from platformdirs import user_cache_path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# No background process measures kernels after a test, so that every test sees the cost models' choices.
os.environ["CAMSHAFT_MEASURE"] = "0"
# Nor does one write weights, but in tests/generate/memory/test_weight_cache.py.
os.environ["CAMSHAFT_KEEP_WEIGHTS"] = "0"
# Kernels and measurements of tests lie apart from the user's: what earlier programs measured here decides no test.
os.environ.setdefault("CAMSHAFT_CACHE_DIR", str(user_cache_path("camshaft-tests") / "cache"))
# Tests start hundreds of Pythons, and each takes 0.1 to 0.3 s longer without byte code; this one and each worker, which compile
# the tests too, 10 s. Where it may not be written into the tree, it is written into the cache folder.
if sys.dont_write_bytecode and sys.pycache_prefix is None:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(user_cache_path("camshaft-tests") / "bytecode")
    sys.dont_write_bytecode = False

SLOWEST = 6  # ops in the summary


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    """Examples of a property; `--hypothesis-profile=full` has six times as many. Properties that compile plans take a fifth."""
    from hypothesis import settings  # here, as pytest rewrites its asserts for 3 s where byte code is not written yet
    from hypothesis.internal.conjecture import providers

    settings.register_profile("quick", max_examples=25, deadline=None)
    settings.register_profile("full", max_examples=150, deadline=None)
    settings.load_profile("quick")
    providers.is_local_module_file = lambda path: (
        False
    )  # it would parse all modules for their constants: 4 s in each worker
    gc.disable()  # until the tests are collected: what is made meanwhile lives on


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Of the whole run's workers the second writes the tests' byte code from the last module on, while the others import them
    from the first on: where there is none yet, each takes 5 s for all of it."""
    config = session.config
    if os.environ.get("PYTEST_XDIST_WORKER") != "gw1" or config.args_source is not config.ArgsSource.TESTPATHS:
        return
    for path in sorted(Path(__file__).parent.rglob("test_*.py"), reverse=True):
        if pytest_ignore_collect(path, config):
            continue
        cached = rewrite.get_cache_dir(path) / f"{path.stem}{rewrite.PYC_TAIL}"
        if rewrite._read_pyc(path, cached) is not None:  # there from an earlier run, or by another worker
            return
        cached.parent.mkdir(parents=True, exist_ok=True)
        found, code = rewrite._rewrite_test(path, config)
        rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, found, cached)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out the modules of oracles where no test with that mark is wanted: they import torch and more for 5 s."""
    name, marks = collection_path.name, config.getoption("markexpr")
    return True if "oracle" in name and name.startswith("test_") and "not oracle" in marks else None


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Iterator[None]:
    """Leaves out what `-m` deselects by its parameters, before it becomes an item: of 26,000 the quick run has 9,000."""
    yield
    if not metafunc.config.getoption("markexpr"):
        return
    wanted = Expression.compile(metafunc.config.getoption("markexpr"))
    of_all = {mark.name for mark in metafunc.definition.iter_markers()}
    of_all |= {"hypothesis"} if getattr(metafunc.function, "is_hypothesis_test", False) else set()
    kept = []
    for call in metafunc._calls:
        names = of_all.union(mark.name for mark in call.marks)
        if wanted.evaluate(lambda name, /, _names=names, **_: name in _names):
            kept.append(call)
    metafunc._calls[:] = kept or metafunc._calls[:1]  # a function without any call would be a test without parameters


@pytest.fixture(scope="session", autouse=True)
def variants_are_believed() -> Iterator[None]:
    """Plans and calls take variants without validating them, but where a folder or a module says otherwise."""
    from tests.support.how_to_validate import believing

    with believing():
        yield


@pytest.fixture(scope="session", autouse=True)
def llvm_is_stored() -> Iterator[None]:
    """What LLVM makes of a text is in the store of all tests, also for a test with a cache folder of its own."""
    from tests.support.compilers.stored import llvm_stored

    with llvm_stored():
        yield


@pytest.fixture(scope="session", autouse=True)
def more_workers_than_cores() -> Iterator[None]:
    """Plans have as many workers as a test wants, also on a machine with fewer cores."""
    from camshaft import process as module

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "limit_to_cores", False)
        yield


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """The garbage collector looks seldom, and never at tests and modules, which live on: in ops and graph it takes half."""
    gc.enable()
    gc.freeze()
    gc.set_threshold(10_000, 20, 40)


@pytest.fixture(scope="module")
def thunk_per_op() -> Iterator[None]:
    """Elementwise ops stay single, for tests that count thunks and name them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAMSHAFT_CHAINS", "0")
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A row per device of the table test: how many claims were proved, and which are absent and why. Then the slowest ops."""
    rows: dict[str, dict[str, str]] = {}
    for report in terminalreporter.stats.get("passed", ()):
        for key, value in report.user_properties:
            if key == "claim":
                rows.setdefault(value[0], {})[value[1]] = value[2]
    for name, variant_cases in sorted(rows.items()):
        absent = {case: why for case, why in variant_cases.items() if why != "proved"}
        terminalreporter.write_line(f"{name}: {len(variant_cases) - len(absent)} kernels proved, {len(absent)} absent")
        for case, why in sorted(absent.items()):
            terminalreporter.write_line(f"  {case}: {why}")
    slowest = seconds_by_op(terminalreporter).most_common(SLOWEST)
    if slowest:
        terminalreporter.write_line(f"slowest ops: {', '.join(f'{name} {n:.1f} s' for name, n in slowest)}")


def seconds_by_op(terminalreporter: pytest.TerminalReporter) -> Counter[str]:
    """What tests whose first or second parameter is an op took, in sum."""
    from camshaft.ops import NAMES

    seconds: Counter[str] = Counter()
    for report in terminalreporter.stats.get("passed", ()):
        parameters = report.nodeid.partition("[")[2].split("-")[:2]
        for name in set(parameters).intersection(NAMES):
            seconds[name] += report.duration
    return seconds
