"""What makes plans anew though others are cached: evidence, settings, proofs, a BLAS library, a file with the same header."""

from __future__ import annotations

import contextlib
from pathlib import Path

import gguf
import numpy as np
import pytest

from camshaft import LanguageModel, ops
from camshaft.errors import PlanError
from camshaft.generate import model_plans
from camshaft.generate.stored import plan_cache
from camshaft.ops.op import KernelVariant
from camshaft.plan.cached.cached_plan import CachedPlan
from camshaft.plan.runtime import runnable
from camshaft.selection.override import backend
from camshaft.store.store import Store
from tests.generate.stored.tiny_plans import IDS, SAMPLINGS, opened, runs_cached
from tests.support.fixtures import tiny_logits, tiny_model
from tests.support.how_to_validate import same_process
from tests.support.models.files import changed_model
from tests.support.quick import full, quick_of

__all__ = ["same_process"]
OF_NO_BACKEND = KernelVariant("nowhere", frozenset(), lambda node, target: pytest.fail("it is built nowhere"))


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


def test_watched_plans_are_made_anew(kept: Store, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMSHAFT_VALIDATE", "1")
    assert not runs_cached(path)


@pytest.mark.full
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
