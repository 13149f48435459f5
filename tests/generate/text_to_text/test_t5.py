"""Tiny random T5s against transformers: logits, answers, mutations, hostile files, and the command."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft import TextToTextModel
from camshaft.cli.main import make_app
from camshaft.errors import CamshaftError, ContextError, ModelError, SettingError
from camshaft.generate.stored.plan_cache import PlanCache
from camshaft.models.t5 import config as t5_config
from camshaft.models.t5 import t5
from tests.support.fixtures import DATA
from tests.support.models.files import changed_model

TOLERANCE, BROKEN = 1e-3, 1e-2
NAMES = ("t5-gated", "t5-relu")


def facts(name: str) -> dict[str, Any]:
    with np.load(DATA / "t5" / f"{name}.npz") as saved:
        return dict(saved)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that holds both models."""
    made = tmp_path_factory.mktemp("t5")
    for name in NAMES:
        (made / f"{name}.gguf").write_bytes(lzma.decompress((DATA / "t5" / f"{name}.gguf.xz").read_bytes()))
    return made


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[TextToTextModel]:
    with TextToTextModel(folder / "t5-gated.gguf", threads=1, activations="f32") as opened:
        yield opened


def difference(model: TextToTextModel, name: str = "t5-gated") -> float:
    theirs = facts(name)
    model.encode(theirs["prompt"].tolist())
    found = [model.step(token, i).copy() for i, token in enumerate(theirs["answer"].tolist())]
    return float(np.abs(np.array(found) - theirs["logits"]).max())


def fresh(folder: Path) -> TextToTextModel:
    """One whose plans are compiled now."""
    made = TextToTextModel(folder / "t5-gated.gguf", threads=1, activations="f32")
    made._plans.cache._use = False
    return made


def test_logits_are_those_of_transformers(model: TextToTextModel) -> None:
    theirs = facts("t5-gated")
    assert theirs["logits"].std(axis=0).mean() >= 1
    assert len(theirs["prompt"]) > t5_config.FARTHEST
    assert difference(model) < TOLERANCE


@pytest.mark.full
def test_the_first_t5_has_no_gate_and_one_table(folder: Path) -> None:
    with TextToTextModel(folder / "t5-relu.gguf", threads=1, activations="f32") as first:
        assert difference(first, "t5-relu") < TOLERANCE


def test_a_shorter_prompt_sees_nothing_of_a_longer_one(model: TextToTextModel) -> None:
    difference(model)
    model.encode([5, 6, 7])
    after = model.step(0, 0).copy()
    with TextToTextModel(model.name, threads=1, activations="f32") as new:
        new.encode([5, 6, 7])
        assert np.abs(new.step(0, 0) - after).max() == 0


def test_a_greedy_answer_is_that_of_transformers(model: TextToTextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = facts("t5-gated")
    ids = theirs["prompt"].tolist()
    monkeypatch.setattr(model.tokenizer, "encode", lambda *_, **__: ids)
    answer = model.generate("whatever", greedy=True, max_tokens=24)
    text = "".join(answer)
    wanted = [i for i in theirs["greedy"].tolist()[1:] if i != 1]
    assert answer.ids == wanted
    assert text == model.tokenizer.decode(wanted)
    assert answer.finish_reason == ("stop" if 1 in theirs["greedy"] else "length")


def test_texts_end_at_stop_strings_and_limits(model: TextToTextModel) -> None:
    answer = model.generate("the cat sat", greedy=True, max_tokens=6, ignore_eos=True)
    text = "".join(answer)
    assert (answer.tokens, answer.finish_reason, answer.prompt_tokens) == (6, "length", 4)
    cut = "".join(model.generate("the cat sat", greedy=True, max_tokens=6, ignore_eos=True, stop=text[2]))
    assert cut == text[: text.index(text[2])]
    drawn = ["".join(model.generate("the cat", seed=3, temperature=2.0, max_tokens=8)) for _ in range(2)]
    assert drawn[0] == drawn[1]


def test_another_answer_ends_the_one_before(model: TextToTextModel) -> None:
    first = model.generate("the cat", greedy=True, ignore_eos=True)
    next(first)
    "".join(model.generate("the mat", greedy=True, max_tokens=2))
    with pytest.raises(ModelError, match="began another answer"):
        "".join(first)


def test_kernels_of_plans_that_were_compiled_are_measured_later(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []
    monkeypatch.setattr(PlanCache, "measure_later", lambda self, compiled, backend, threads: measured.extend(compiled))
    with fresh(folder) as compiled:
        compiled.encode([5])
    assert measured == ["encode"]


@pytest.mark.parametrize("both_sides", [True, False])
def test_buckets_are_those_of_transformers(both_sides: bool) -> None:
    pairs = {0: 0, -1: 1, -3: 3, -200: 15 if both_sides else 31, 1: 17 if both_sides else 0}
    for distance, bucket in pairs.items():
        assert t5.buckets(np.array([distance]), 32, both_sides=both_sides)[0] == bucket


def test_biases_of_the_other_kind_show(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buckets = t5.buckets
    monkeypatch.setattr(t5, "buckets", lambda d, n, both_sides: buckets(-d, n, both_sides=both_sides))
    with fresh(folder) as wrong:
        assert difference(wrong) > BROKEN


@pytest.mark.full
def test_scaled_scores_show(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heads = t5.Heads
    monkeypatch.setattr(t5, "Heads", lambda n, dim, scale: heads(n, dim, dim**-0.5))
    with fresh(folder) as wrong:
        assert difference(wrong) > BROKEN


def test_a_step_at_another_position_shows(model: TextToTextModel) -> None:
    theirs = facts("t5-gated")
    model.encode(theirs["prompt"].tolist())
    for i, token in enumerate(theirs["answer"].tolist()[:4]):
        logits = model.step(token, i + 1).copy()
    assert np.abs(logits - theirs["logits"][3]).max() > BROKEN


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"t5.context_length": 10**6}, "wanted at most 4096"),
        ({"t5.block_count": 3}, "no tensor 'enc.blk.2"),
        ({"t5.decoder_block_count": 4}, "no tensor 'dec.blk.3"),
        ({"t5.attention.relative_buckets_count": 0}, "is 0; wanted an integer of 1 or more"),
        ({"t5.attention.relative_buckets_count": 6}, "wanted a multiple of 4"),
        ({"t5.attention.relative_buckets_count": 256}, "256 buckets of distances; wanted a multiple of 4 below 256"),
        ({"t5.attention.relative_buckets_count": 16}, r"wanted \[16, 4\]"),
        ({"t5.attention.head_count": 5}, "wanted"),
        ({"t5.decoder_start_token_id": 5000}, "wanted at most 130"),
        ({"general.architecture": "llama"}, "wanted t5"),
    ],
)
def test_a_file_that_lies_is_one_clear_line(keys: dict[str, Any], message: str, folder: Path, tmp_path: Path) -> None:
    changed = changed_model(folder / "t5-gated.gguf", tmp_path, keys=keys)
    with pytest.raises(CamshaftError, match=message) as caught:
        _run(changed)
    assert "\n" not in str(caught.value)


def _run(path: Path) -> None:
    with TextToTextModel(path, threads=1, activations="f32") as opened:
        opened.encode([5])
        opened.step(0, 0)


def test_what_the_class_has_not_is_refused(model: TextToTextModel) -> None:
    for options in ({"logprobs": 2}, {"prompt_cache": "auto"}, {"speculate": "ngram"}, {"dry_multiplier": 1.0}):
        with pytest.raises(SettingError, match=next(iter(options))):
            model.generate("the", **options)  # type: ignore[arg-type]
    with pytest.raises(ContextError, match="wanted 1 to 160"):
        model.generate("the cat " * 100)


def test_tokens_and_places_that_there_are_not_are_refused(model: TextToTextModel, folder: Path) -> None:
    for ids in ([model.config.vocab_size], [5, -1]):
        with pytest.raises(ContextError, match="wanted a whole number from 0 to 130"):
            model.encode(ids)
    model.encode([5])
    for token, position, message in ((-1, 0, "token id -1"), (0, 160, "at position 160; wanted 0 to 159")):
        with pytest.raises(ContextError, match=message):
            model.step(token, position)
    with fresh(folder) as new, pytest.raises(ContextError, match="there is no prompt"):
        new.step(0, 0)
    with pytest.raises(ModelError, match=r"got the model None; wanted a \.gguf file"):
        TextToTextModel(None)  # type: ignore[arg-type]


@pytest.mark.full
def test_the_command_answers(folder: Path) -> None:
    from typer.testing import CliRunner

    def run(*words: object) -> Any:
        return CliRunner().invoke(make_app(["generate"]), ["generate", *map(str, words)])

    path = folder / "t5-gated.gguf"
    given = (path, "the cat sat", "--greedy", "--activations", "f32", "--threads", 1, "-n", 5)
    shown = run(*given)
    assert shown.exit_code == 0, shown.output
    answer = json.loads(run(*given, "--json").stdout)
    assert shown.stdout == answer["text"] + "\n"
    assert answer["prompt_tokens"] == 4
    assert run(*given, "--speculate", "off").stdout == shown.stdout
    for words in (("--system", ""), ("--context", 64), ("--verbose",), ("--kv-cache", "f16"), ("--adapter", "a.gguf")):
        refused = run(path, "the cat", *words)
        assert refused.stderr == f"camshaft: {words[0]}, which a model with an encoder and a decoder does not have\n"
