"""The tables of rows: their peers exist, names are unique, shares of peak follow from the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import rows
from bench.compare import model_files
from bench.compare.model_files import Watch, work_of
from bench.compare.process import PROGRAM
from bench.compare.random_model import SHAPES, make
from bench.compare.suites import language_rows, start_rows
from bench.compare.suites.groups import GROUPS
from bench.compare.suites.suite import OURS, UNITS
from camshaft.formats.gguf.file import open_gguf
from tests.bench.support import no_watch
from tests.support.fixtures import tiny_model


@pytest.fixture
def one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every row's model is a tiny one."""
    path = tiny_model("llama", tmp_path)

    def found(*given: object) -> Path:
        return path

    for name in ("smollm2", "requantized"):
        monkeypatch.setattr(language_rows, name, found)
    monkeypatch.setattr(start_rows, "MODELS", {"tiny": found})
    for name in ("SMOLLM2", "QWEN"):
        row = getattr(language_rows, name)
        monkeypatch.setattr(language_rows, name, type(row)(row.name, found, row.prompt, row.generate))
    return path


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("group", GROUPS)
def test_rows_are_well_made(group: str, threads: int, one_file: Path) -> None:
    names: set[str] = set()
    suites = list(GROUPS[group](threads, no_watch))
    assert suites
    for suite in suites:
        assert (suite.group, suite.threads) == (group, threads)
        assert [peer.peer_python for peer in suite.peers if peer.name == OURS] == [False]
        assert all((PROGRAM.parent / f"{peer.made_by.split(':')[0]}.py").is_file() for peer in suite.peers)
        for task in suite.tasks:
            assert task.name not in names
            assert task.unit in UNITS
            assert task.amount > 0
            assert task.target.share is None or task.nbytes or task.ops
            names.add(task.name)


def test_what_a_token_reads_follows_from_the_file(one_file: Path) -> None:
    work = work_of(one_file)
    with open_gguf(one_file) as file:
        matrices = {name: t for name, t in file.tensors.items() if len(t.shape) == 2}
    assert 0 < work.read_nbytes <= sum(t.nbytes for t in matrices.values())
    assert work.generate_nbytes(10, 2) < work.generate_nbytes(10) < work.generate_nbytes(10, after=100)
    c = work.config
    assert work.generate_nbytes(10) - work.read_nbytes == c.n_layers * 2 * c.n_kv_heads * c.head_dim * 2 * 5
    assert len(work.text(1000)) == 1000


def test_past_its_attention_the_last_layer_is_no_work_of_a_prompts_tokens(one_file: Path) -> None:
    work = work_of(one_file)
    with open_gguf(one_file) as file:
        sizes = {
            n: t.shape[0] * t.shape[1] for n, t in file.tensors.items() if n.startswith("blk.") and len(t.shape) == 2
        }
    assert work.config.n_layers == 2
    spared = sum(sizes[f"blk.1.{part}.weight"] for part in ("attn_output", "ffn_gate", "ffn_up", "ffn_down"))
    assert sum(work.layer_weights.values()) == sum(sizes.values()) - spared


def test_files_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMSHAFT_CACHE_DIR", str(tmp_path / "cache"))
    source, titles = tiny_model("llama", tmp_path), []

    def watch(title: str) -> object:
        titles.append(title)
        return no_watch(title)

    def tiny(watch: Watch) -> Path:
        return source

    monkeypatch.setattr(model_files, "smollm2", tiny)
    first = model_files.requantized("Q8_0", True, watch)  # type: ignore[arg-type]
    assert first == model_files.requantized("Q8_0", True, watch)  # type: ignore[arg-type]
    assert titles == ["making smollm2.Q8_0-pure.gguf"]
    with open_gguf(first) as file:
        assert {t.format.name for t in file.tensors.values() if len(t.shape) == 2} <= {"Q8_0", "F32", "F16"}


def test_a_model_of_random_weights_has_its_shape(tmp_path: Path) -> None:
    shape = SHAPES["qwen2-0.5b"]
    small = type(shape)("qwen2", 2, 64, 128, 4, 2, 1200, 64, 1e6, biases=True)
    made = make(small, tiny_model("llama", tmp_path), tmp_path / "random.gguf", "Q8_0")
    with open_gguf(made.path) as file:
        assert file.tensors["token_embd.weight"].shape == (1200, 64)
        assert file.tensors["blk.1.attn_q.bias"].shape == (64,)


def test_every_call_has_a_window_in_each_round_and_a_row_compares_them(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def takes(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(rows, "clock", lambda: now)
    spent = rows.in_rounds({"camshaft": lambda: takes(0.01), "peer": lambda: takes(0.03)}, 3)
    made = rows.compared({"op": "sort"}, spent)
    assert (made["op"], made["clock"]) == ("sort", "wall")
    assert made["ns"]["peer"] == pytest.approx({"median": 3e7, "min": 3e7, "max": 3e7})
    assert made["times"] == made["times_least"] == {"peer": 3.0}


def test_a_llama_bench_program_does_what_it_can_measure(one_file: Path) -> None:
    suite = language_rows.with_binary(
        language_rows.of_file(one_file, 2, 8, 4, [3]), "/llama-bench", one_file, ["-fa", "1"]
    )
    (peer,) = (peer for peer in suite.peers if peer.name == "llama-bench")
    assert peer.given == {"binary": "/llama-bench", "model": str(one_file), "threads": 2, "arguments": ["-fa", "1"]}
    assert (PROGRAM.parent / "llama_bench.py").is_file()
    assert [task.takes("llama-bench") for task in suite.tasks] == [True, True, False]
    assert all(task.takes(OURS) and task.takes("llama.cpp") for task in suite.tasks)
