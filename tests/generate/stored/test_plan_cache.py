"""Cached plans give the results of compiled ones, and are invalidated when any dependency changes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from camshaft import LanguageModel, ops
from camshaft.errors import PlanError
from camshaft.generate import model_plans
from camshaft.generate.sampling.parameters import Sampling
from camshaft.generate.stored import plan_cache
from camshaft.lang.kernel import language_digest
from camshaft.models.files.quantize import quantize
from camshaft.ops.op import KernelVariant
from camshaft.plan.cached.cached_plan import CachedPlan
from camshaft.plan.cached.stored_plan import FORMAT, from_bytes, to_bytes
from camshaft.plan.runtime import runnable
from camshaft.selection.override import backend
from camshaft.store.store import Store, store
from tests.support.compilers.stored import key_of, stored
from tests.support.fixtures import tiny_logits, tiny_model
from tests.support.how_to_validate import same_process
from tests.support.models.files import changed_model
from tests.support.quick import full, quick_of

__all__ = ["same_process"]

IDS = [1, 5, 9, 12, 3, 7, 7, 2]
OF_NO_BACKEND = KernelVariant("nowhere", frozenset(), lambda node, target: pytest.fail("it is built nowhere"))
SAMPLINGS = (Sampling(greedy=True), Sampling(seed=3, repeat_penalty=1.2))


@pytest.fixture(scope="module")
def path(tiny_path: Path) -> Path:
    """The tiny model in Q8_0, whose plans call no BLAS library."""
    made = tiny_path.with_name("quantized.gguf")
    quantize(tiny_path, made, "Q8_0", threads=1)
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, path: Path) -> Path:
    """A store with the kernels and plans of the tiny model, made anew after any change of camshaft: LLVM takes 5 s."""
    made = tmp_path_factory.mktemp("kept")

    def archive() -> bytes:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CAMSHAFT_CACHE_DIR", str(made))
            said(path)
            # Other tests of this process may have loaded the executor and kernels already, which then are in their store
            # only: a new process puts into this one what it lacks.
            started(path)
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as file:
            for part in ("keys", "objects", "evidence"):
                file.add(made / part, part)
        return packed.getvalue()

    data = stored(key_of(language_digest("**/*.py"), path.read_bytes().hex(), "store of test_plan_cache"), archive)
    if not any(made.iterdir()):
        with tarfile.open(fileobj=io.BytesIO(data)) as file:
            file.extractall(made, filter="data")
    return made


def _listing(folder: Path) -> list[tuple[str, int]]:
    """The files of a store and when each was written, but for its state, which every process changes."""
    files = (file for part in sorted(folder.iterdir()) if part.name != "state" for file in part.rglob("*"))
    return sorted((str(file), file.stat().st_mtime_ns) for file in files if file.is_file())


@pytest.fixture(scope="module")
def whole() -> list[list[tuple[str, int]]]:
    """The store's files, last, when a model had said all of which it keeps the plans."""
    return []


@pytest.fixture
def kept(folder: Path, path: Path, whole: list[list[tuple[str, int]]], monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("CAMSHAFT_CACHE_DIR", str(folder))
    if whole[-1:] != [_listing(folder)]:  # what another test removed or changed is made again
        said(path)
        whole.append(_listing(folder))
    return store()


def opened(path: Path, threads: int = 2) -> LanguageModel:
    return LanguageModel(path, threads=threads, context=32, sessions=2)


def said(path: Path) -> list[Any]:
    """What a model says one by one, together, and its logits."""
    with opened(path) as lm:
        alone = [lm.generate(IDS, max_tokens=5, sampling=s, ignore_eos=True) for s in SAMPLINGS]
        texts = ["".join(generation) for generation in alone]
        batch = lm.generate_batch([IDS, IDS[:3]], max_tokens=4, sampling=SAMPLINGS[0], ignore_eos=True).texts()
        return [texts, [generation.ids for generation in alone], batch, lm.logits(IDS).tobytes()]


def runs_cached(path: Path) -> bool:
    """Whether a prompt is run by a plan out of the store."""
    with opened(path) as lm:
        with lm.session() as session:
            session.process(IDS)
        return isinstance(lm.plans._plan("prompt"), CachedPlan) and not lm.plans._compiled


def test_what_is_kept_gives_the_bits_of_plans_made_anew(kept: Store, path: Path) -> None:
    assert runs_cached(path)
    again = said(path)
    kept.schedules.clear()
    assert not runs_cached(path)
    kept.schedules.clear()
    assert said(path) == again


def test_a_plan_asked_for_is_ground_beside_the_kept_one(kept: Store, path: Path) -> None:
    with opened(path) as lm:
        with lm.session() as session:
            first = session.process(IDS)
        assert lm.plans.origins == {"prompt": "cached"}
        assert "quantized_matmul" in lm.plans.prompt.explain()
        assert lm.plans.origins == {"prompt": "compiled"}
        with lm.session() as session:
            np.testing.assert_array_equal(session.process(IDS), first)
        assert lm.plans.prompt.bound.active[lm.plans.prompt_tokens] == len(IDS)


def test_a_plan_that_cannot_be_kept_says_why(kept: Store, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.schedules.clear()
    monkeypatch.setattr("camshaft.plan.cached.serialize.MAX_COMPUTED_NBYTES", 0)
    with opened(path) as lm:
        lm.logits(IDS)
        assert lm.plans.origins["prompt"].startswith("compiled; cannot be cached: the const")
    assert not list(kept.schedules.entries())


def test_a_damaged_plan_is_made_anew(kept: Store, path: Path) -> None:
    for entry in kept.schedules.entries():
        entry.path.write_bytes(entry.path.read_bytes()[:-9] + b"elsewhere")
    with pytest.warns(UserWarning, match="'prompt' is rebuilt: its entry was damaged"):
        assert not runs_cached(path)
    assert runs_cached(path)
    kept.schedules.clear()


def test_a_plan_of_another_form_is_made_anew_and_says_so(kept: Store, path: Path) -> None:
    for entry in list(kept.schedules.entries()):
        key = entry.path.parent.name + entry.path.name
        data = kept.schedules.get(key)
        assert data is not None
        kept.schedules.put(key, data.replace(b'"format": %d' % FORMAT, b'"format": 0'))
    with pytest.warns(UserWarning, match=f"'prompt' is rebuilt: a cached plan of format 0; wanted {FORMAT}"):
        assert not runs_cached(path)
    kept.schedules.clear()


@pytest.mark.full
def test_a_lost_kernel_is_not_run(kept: Store, path: Path) -> None:
    """In a new process: this one has its kernels in memory."""
    for entry in kept.schedules.entries():
        data = kept.schedules.get(entry.path.parent.name + entry.path.name)
        assert data is not None
        kept.kernels.objects.discard(from_bytes(data).header.kernels[-1][1])
    assert started(path)["n_compiled"] > 0


@pytest.mark.parametrize(
    "what", ["evidence", full("measurements"), full("program"), "settings", full("threads"), "registered"]
)
def test_what_differs_makes_a_plan_anew(kept: Store, path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    assert runs_cached(path)
    if what == "evidence":
        kept.evidence.put("0" * 64, {"of": "something"})
    elif what == "measurements":
        kept.measurements.put("0" * 64, {"of": "something"})
    elif what == "program":
        monkeypatch.setattr(plan_cache, "program_digest", lambda: "another")
    elif what == "settings":
        monkeypatch.setenv("CAMSHAFT_CHAINS", "0")
    elif what == "registered":
        monkeypatch.setattr(ops, "_registered", {"erf": ((OF_NO_BACKEND, __name__),)})
    with opened(path, threads=1 if what == "threads" else 2) as lm:
        assert not isinstance(lm.plans._cached_plan("prompt"), CachedPlan)


def test_a_plan_does_not_outlive_proofs_that_were_removed(kept: Store, path: Path) -> None:
    """Another process clears the evidence while a model is open, which then is closed."""
    proofs = {entry.path: entry.path.read_bytes() for entry in kept.evidence.objects.entries()}
    kept.schedules.clear()
    try:
        with opened(path) as lm:
            list(lm.generate(IDS, max_tokens=3, sampling=SAMPLINGS[0], ignore_eos=True))
            assert lm.plans.plan_cache._new
            kept.schedules.clear()
            kept.evidence.objects.clear()
        assert list(kept.schedules.entries()) == []
    finally:
        for place, data in proofs.items():
            place.parent.mkdir(mode=0o700, exist_ok=True)
            place.touch(mode=0o600)
            place.write_bytes(data)


@pytest.mark.parametrize("what", ["settings", "registered", "backend"])
def test_what_is_asked_for_later_is_no_part_of_what_is_kept(
    kept: Store, path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The key is of when the model was opened."""
    with opened(path) as lm, contextlib.ExitStack() as stack:
        if what == "settings":
            monkeypatch.setenv("CAMSHAFT_CHAINS", "0")
        elif what == "registered":
            monkeypatch.setattr(ops, "_registered", {"erf": ((OF_NO_BACKEND, __name__),)})
        else:
            stack.enter_context(backend("simd"))
        assert lm.plans._cached_plan("single") is None
        lm.plans.plan_cache.add("single", lm.plans.prompt, lm.plans._memory())
        assert lm.plans.plan_cache._new == set()


def test_a_kept_plan_is_not_run_by_a_function_that_its_workers_wait_for(
    kept: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(path) as lm:
        monkeypatch.setattr(runnable, "inside_host_thunk", lambda: True)
        with pytest.raises(PlanError, match="needs the workers it is called by"):
            lm.logits(IDS)


def test_a_kept_plan_does_what_every_runnable_does(kept: Store, path: Path) -> None:
    """It runs by ranges, tells its extents and is timed."""
    with opened(path) as lm:
        wanted = lm.logits(IDS).tobytes()
        with lm.session() as session:
            session.process(IDS)
        bound = lm.plans._plan("prompt").bound
        assert isinstance(bound, CachedPlan)
        assert bound.active[lm.plans.prompt_tokens] == bound.extent(lm.plans.prompt_tokens) == len(IDS)
        run = bound.timed()
        n_thunks = run.start.shape[1]
        assert run.total_ns > 0
        assert run.programs.sum() >= n_thunks
        bound.run(0, n_thunks // 2)
        bound.run(n_thunks // 2, n_thunks)
        with pytest.raises(PlanError, match=r"thunks \[0, \d+\) of a plan that has"):
            bound.run(0, n_thunks + 1)
        assert lm.logits(IDS).tobytes() == wanted
    with pytest.raises(PlanError, match="closed"):
        bound.run()


def test_watched_plans_are_made_anew(kept: Store, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMSHAFT_VALIDATE", "1")
    assert not runs_cached(path)


def test_calls_of_blas_are_cached_with_the_library(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = pytest.importorskip("camshaft.backends.blas.library")
    if library.absent():
        pytest.skip(library.absent())
    # Plans of a named backend are not cached; this one is named so that every CPU calls BLAS.
    monkeypatch.setattr(model_plans, "PlanCache", lambda *args, use: plan_cache.PlanCache(*args, use=True))

    def logits() -> tuple[bytes, str]:
        with LanguageModel(tiny_path, backend="blas", activations="f32", threads=1, context=32) as lm:
            return lm.logits(IDS).tobytes(), lm.plans.origins["prompt"]

    (wanted, _), (_, _), (found, origin) = (logits() for _ in range(3))  # the first ones check kernels
    assert (found, origin) == (wanted, "cached")
    key = library.blas_library().key()
    monkeypatch.setattr(library.BlasLibrary, "key", lambda self: f"{key}, {tmp_path}")  # new in each run
    assert logits() == (wanted, "compiled")


def test_bytes_come_back_as_they_were(kept: Store) -> None:
    for entry in kept.schedules.entries():
        data = kept.schedules.get(entry.path.parent.name + entry.path.name)
        assert data is not None
        assert to_bytes(from_bytes(data)) == data


# What a warm start has no use for: the graph's makers, the language, dispatch, and what takes long to import.
NOT_IMPORTED = (
    *(
        "camshaft.graph",
        "camshaft.lang",
        "camshaft.validation",
        "camshaft.eager",
        "camshaft.tune",
        "camshaft.observe",
        "bench.compare",
    ),
    *(
        "camshaft.emit.llvm.module",
        "camshaft.generate.vision.vision_model",
        "camshaft.ops.op",
        "camshaft.plan.compile",
        "camshaft.plan.cached.serialize",
        "camshaft.plan.schedule",
        "camshaft.backends.device",
        "camshaft.backends.registry",
    ),
    *("rich", "asyncio", "pydantic", "email", "importlib.metadata"),
)
PROGRAM = """
import json, sys
from camshaft.cli import main
from camshaft import LanguageModel
with LanguageModel(sys.argv[1], threads=2, context=32, sessions=2) as lm:
    lm.logits([1, 5, 9, 12, 3, 7, 7, 2])
    n_compiled = len(lm.plans._compiled)
    modules = [name for name in sys.modules]
print(json.dumps({"n_compiled": n_compiled, "modules": modules}))
"""


def started(path: Path) -> dict[str, Any]:
    """A new process that opens the model."""
    command = [sys.executable, "-c", PROGRAM, str(path)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=dict(os.environ), timeout=120)
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def test_a_warm_start_imports_no_more_than_it_runs(kept: Store, path: Path) -> None:
    found = started(path)
    assert found["n_compiled"] == 0
    assert [name for name in found["modules"] if name.startswith(NOT_IMPORTED)] == []


CONVERTED = [
    ("lfm2", "blk.0.shortconv.conv.weight"),
    ("phi3", "rope_factors_long.weight"),
    ("llama", "blk.0.attn_norm.weight"),
]


@pytest.mark.parametrize(("name", "tensor"), quick_of(CONVERTED, CONVERTED[:1]))
def test_a_file_with_the_same_header_has_plans_of_its_own(name: str, tensor: str, tmp_path: Path) -> None:
    """Plans have some tensors in another form than the file: a vector of f16, taps, factors of a rotation."""
    tokens, found = tiny_logits(name)[0], []
    read = {t.name: np.array(t.data) for t in gguf.GGUFReader(tiny_model(name, tmp_path)).tensors}[tensor]
    for factor in (1.0, 1.0, 2.0):
        values = (read * factor).astype(np.float16 if name == "llama" else np.float32)
        file = changed_model(name, tmp_path, tensors={tensor: values})
        # activations of 8 bits: the plans of f32 products may go through a BLAS library, and are not cached then
        with LanguageModel(file, threads=1, context=64, sessions=1) as lm:
            found.append(lm.logits(tokens))
    np.testing.assert_array_equal(found[0], found[1])
    assert np.abs(found[0] - found[2]).max() > 0.01
