"""Experts that stay in files: only those that are chosen are read, the most used keep their memory, and tokens are the same."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest

from camshaft import LanguageModel, Sampling
from camshaft.errors import SettingError
from camshaft.generate.memory import resident_experts
from tests.support.models.files import changed_model

GREEDY = Sampling(greedy=True)
N_EXPERTS, DIM, FFN, LAYERS = 16, 64, 2048, 2
EXPERT = 3 * DIM * FFN * 34 // 32  # bytes in Q8_0
MOST_GB = 12 * EXPERT / 1e9
AROUND = 1 << 17  # Linux maps pages around one that is read, and reads some ahead

needs_smaps = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/smaps")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A qwen3moe of 16 experts of 0.4 MB, two of which a token chooses in each of two layers."""
    rng, tensors = np.random.default_rng(3), {}
    for layer in range(LAYERS):
        tensors[f"blk.{layer}.ffn_gate_inp.weight"] = rng.normal(size=(N_EXPERTS, DIM)).astype(np.float32)
        for name, shape in (("gate", (FFN, DIM)), ("up", (FFN, DIM)), ("down", (DIM, FFN))):
            values = rng.normal(size=(N_EXPERTS, *shape)).astype(np.float32) / 16
            kind = gguf.GGMLQuantizationType.Q8_0
            tensors[f"blk.{layer}.ffn_{name}_exps.weight"] = gguf.quants.quantize(values, kind), kind
    keys = {"qwen3moe.expert_count": N_EXPERTS, "qwen3moe.expert_feed_forward_length": FFN}
    return changed_model("qwen3moe", tmp_path_factory.mktemp("experts"), keys=keys, tensors=tensors)


def opened(model: Path, gb: float | None) -> LanguageModel:
    return LanguageModel(model, threads=1, context=64, sessions=1, experts_resident=gb)


def answer(lm: LanguageModel, n: int = 24) -> list[int]:
    generation = lm.generate([40, 7, 81, 200, 13], max_tokens=n, sampling=GREEDY, ignore_eos=True)
    list(generation)
    return generation.ids


def in_memory() -> int:
    """The bytes of packed files that this process has in memory."""
    total, is_packed = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            is_packed = ".packed" in line or ".unfinished-" in line
        elif is_packed and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


@pytest.fixture(scope="module")
def usual(model: Path) -> Iterator[list[int]]:
    with opened(model, None) as lm:
        assert lm.plans.residency is None
        yield answer(lm)


@needs_smaps
@pytest.mark.full
def test_one_token_reads_the_pages_of_its_experts_alone(model: Path, usual: list[int]) -> None:
    with opened(model, MOST_GB) as lm:
        lm.plans.weights.finish()
        assert in_memory() == 0
        lm.logits([40])
        use = lm.plans.experts.use
        parts = 2 * 3 * 2 * LAYERS  # codes and scales of three matrices of two experts
        assert (use.chosen, use.read, use.found) == (2 * LAYERS, 2 * LAYERS, 0)
        assert 2 * LAYERS * EXPERT * 0.95 < in_memory() <= 2 * LAYERS * EXPERT + parts * AROUND
        assert in_memory() < 0.4 * N_EXPERTS * LAYERS * EXPERT


@needs_smaps
def test_tokens_are_the_same_and_the_least_used_experts_go(model: Path, usual: list[int]) -> None:
    for _ in range(2):  # packed now, and then from what was packed
        with opened(model, MOST_GB) as lm:
            assert answer(lm) == usual
            use, parts = lm.plans.experts.use, 2 * 3 * 12
            assert use.resident_nbytes <= use.most_nbytes == int(MOST_GB * 1e9)
            assert use.read > 12
            assert use.dropped > 0
            assert use.found > 0
            assert in_memory() <= use.most_nbytes + parts * AROUND


def test_the_most_used_experts_are_kept_for_the_next_start(model: Path) -> None:
    with opened(model, MOST_GB) as lm:
        answer(lm)
        counts = lm.plans.experts._counts.copy()
    with opened(model, MOST_GB) as lm:
        lm.logits([40])
        after = lm.plans.experts._counts
        assert (after - counts).sum() == 2 * LAYERS
        assert (after >= counts).all()
        kept = np.sort(counts, axis=None)[::-1][:12]
        assert counts[lm.plans.experts._resident].sum() >= kept[:10].sum()


def test_budgets_that_cannot_be_are_refused(model: Path, tmp_path: Path) -> None:
    least = f"one token chooses {2 * LAYERS * EXPERT / 1e9:.3g} GB"
    for gb, message in (
        (0, "wanted gigabytes above 0"),
        (-1.5, "wanted gigabytes above 0"),
        (float("nan"), "wanted gigabytes above 0"),
        ("2", "wanted gigabytes above 0"),
        (True, "wanted gigabytes above 0"),
        (1e9, "this machine has"),
        (1e-6, least),
    ):
        with pytest.raises(SettingError, match=message):
            opened(model, gb)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="has no experts"):
        opened(changed_model("llama", tmp_path), 0.1)


def test_a_model_larger_than_memory_is_mapped(
    model: Path, usual: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident_experts, "physical_nbytes", lambda: model.stat().st_size * 3 // 4)
    with opened(model, None) as lm:
        assert lm.plans.residency.what == "experts"
        assert answer(lm) == usual
        plan = lm.describe_plan()
        assert plan.mapped == "experts"
        assert plan.resident_nbytes < plan.mapped_nbytes < plan.weights_nbytes


@pytest.mark.full
def test_a_dense_model_larger_than_memory_is_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dense = changed_model("llama", tmp_path)
    with LanguageModel(dense, threads=1, context=64, sessions=1) as lm:
        wanted = answer(lm)
    monkeypatch.setattr(resident_experts, "physical_nbytes", lambda: dense.stat().st_size)
    with LanguageModel(dense, threads=1, context=64, sessions=1) as lm:
        assert lm.plans.residency.what == "weights"
        assert answer(lm) == wanted
        assert lm.describe_plan().resident_nbytes == 0


@pytest.mark.full
def test_the_command_says_what_the_experts_did(model: Path) -> None:
    given = ["generate", str(model), "-p", "a", "--raw", "-n", "4", "--json", "--threads", "1"]
    run = subprocess.run(
        [sys.executable, "-m", "camshaft", *given, "--experts-resident", str(MOST_GB)], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["experts"]["chosen"] > 0
