"""LoRA on GGUF models: the training graph is the model, adapters are files that fit, and merged models have their product."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from camshaft import train
from camshaft.errors import CamshaftError, FormatError, ModelError, StoreError, TrainingError
from camshaft.graph.graph import Graph
from camshaft.models.files.quantize import quantize
from camshaft.text.chat import ChatTemplate
from camshaft.train.tuning.data.examples import Example, read_examples
from camshaft.train.tuning.data.rows import one_each, packed
from tests.support.fixtures import tiny_logits, tiny_model
from tests.support.models.files import changed_model
from tests.support.quick import full
from tests.support.references import evaluated
from tests.train.by_references import by_references  # noqa: F401 - a fixture

Array = np.ndarray[Any, Any]
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}> {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)


def logits(model: train.LoraModel, adapters: Any, tokens: list[int]) -> Array:
    """The logits [n, vocab] of a text, by references."""
    graph = Graph()
    ids = graph.input("ids", (1, len(tokens)), "i32")
    constants = {
        name: {part: graph.constant(f"{name}.{part}", a) for part, a in pair.items()} for name, pair in adapters.items()
    }
    graph.output("logits", model.logits(constants, ids))
    return evaluated(graph, {"ids": np.array([tokens], np.int32)}, {})["logits"]


def drawn(model: train.LoraModel) -> Any:
    """Adapters that change something."""
    rng = np.random.default_rng(7)
    return {
        name: {
            part: a if part == "a" else (a + rng.normal(0, 0.2, a.shape)).astype(np.float32)
            for part, a in parts.items()
        }
        for name, parts in model.adapters().items()
    }


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma2", "olmo2", "phi3", "smollm3"])
def test_new_adapters_change_nothing(name: str, tmp_path: Path) -> None:
    """The logits are those that transformers gave, with biases, windows, soft caps, norms of heads and joined matrices."""
    tokens, wanted = tiny_logits(name)
    with train.LoraModel(tiny_model(name, tmp_path)) as model:
        np.testing.assert_allclose(logits(model, model.adapters(), tokens), wanted, atol=1e-4)


def test_an_adapter_file_is_read_back_and_merged(tmp_path: Path) -> None:
    tokens, plain = tiny_logits("llama")
    base, saved, merged = tiny_model("llama", tmp_path), tmp_path / "adapter.gguf", tmp_path / "merged.gguf"
    with train.LoraModel(base, train.LoraConfig(rank=4, alpha=6.0, targets=("attn_?", "ffn_down"))) as model:
        adapters = drawn(model)
        assert {name.rpartition(".")[2] for name in adapters} == {"attn_q", "attn_k", "attn_v", "ffn_down"}
        wanted = logits(model, adapters, tokens)
        train.save_adapter(saved, model, adapters)
    assert np.abs(wanted - plain).max() > 0.1
    read = train.load_adapter(saved)
    assert (set(read.scales.values()), read.architecture) == ({1.5}, "llama")
    assert all(np.array_equal(read.matrices[n][part], adapters[n][part]) for n in adapters for part in "ab")
    theirs = gguf.GGUFReader(saved)
    assert theirs.get_field("adapter.type").contents() == "lora"
    assert {t.name for t in theirs.tensors} == {f"{n}.weight.lora_{part}" for n in adapters for part in "ab"}

    train.merge(base, saved, merged)
    with train.LoraModel(merged) as model:
        np.testing.assert_allclose(logits(model, {}, tokens), wanted, atol=1e-4)
    train.merge(base, saved, merged, file_type="Q8_0", force=True)
    assert gguf.GGUFReader(merged).tensors[-1] is not None
    other = changed_model("llama", tmp_path, keys={"llama.rope.freq_base": 999.0})
    with pytest.raises(FormatError, match="is of another model"):
        train.merge(other, saved, tmp_path / "x.gguf")
    with pytest.raises(FormatError, match=r"is for 'llama'; wanted an adapter for 'qwen2'"):
        train.merge(tiny_model("qwen2", tmp_path), saved, tmp_path / "x.gguf")
    with pytest.raises(StoreError, match="exists already"):
        train.merge(base, saved, merged)
    with pytest.raises(FormatError, match="wanted a GGUF adapter of type lora"):
        train.load_adapter(base)


@pytest.mark.usefixtures("by_references")
def test_fine_tuning_lowers_the_loss_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    base, data, out = tiny_model("llama", tmp_path), tmp_path / "data.jsonl", tmp_path / "adapter.gguf"
    lines = [{"prompt": f"{i} and", "completion": " some more"} for i in range(6)] + [{"text": "no end"}]
    data.write_text("\n\n".join(map(json.dumps, lines)), "utf-8")
    options = train.FinetuneOptions(steps=3, batch=2, lr=2e-2)
    whole = train.finetune(base, data, out, options=options)
    assert (whole.n_examples, whole.n_steps) == (7, 3)
    assert whole.last_loss < whole.first_loss
    wanted = out.read_bytes()
    with pytest.raises(StoreError, match="exists already"):
        train.finetune(base, data, out, options=options)
    with pytest.raises(TrainingError, match=r"step-00000003.safetensors: is there already; resume=True goes on"):
        train.finetune(base, data, out, options=options, force=True)

    def stop(progress: train.Progress, steps: int) -> None:
        if progress.step == 2:
            raise KeyboardInterrupt

    folder = tmp_path / "checkpoints"
    with pytest.raises(KeyboardInterrupt):
        train.finetune(base, data, out, options=options, folder=folder, force=True, each=stop)
    rest = train.finetune(base, data, out, options=options, folder=folder, force=True, resume=True)
    assert out.read_bytes() == wanted
    assert (rest.first_loss, rest.last_loss, rest.resumed_after) == (whole.first_loss, whole.last_loss, 2)
    assert 0 < rest.n_tokens < whole.n_tokens


def test_only_answers_are_learned(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    chat = [("system", "be"), ("user", "hi"), ("assistant", "yes"), ("user", "so"), ("assistant", "no no")]
    lines: list[dict[str, Any]] = [
        {"messages": [{"role": role, "content": text} for role, text in chat]},
        {"prompt": "a b", "completion": " c d"},
        {"text": "e f"},
    ]
    path.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    with train.LoraModel(tiny_model("llama", tmp_path)) as model:
        tokenizer = model.tokenizer
        found = read_examples(path, tokenizer, lambda: ChatTemplate(TEMPLATE), 512)
    learned = ["".join(map(tokenizer.spelling, np.array(e.tokens)[list(e.learned)])) for e in found]
    end = "" if tokenizer.eos_id is None else tokenizer.spelling(tokenizer.eos_id)
    assert learned[0].split("\n")[:2] == ["yes", "no no"]
    assert learned[1].strip() == f"c d{end}"
    assert "e f" in learned[2].replace("\u2581", " ")
    ids, rows, targets = one_each(found).arrays
    assert ids.shape[1] % 16 == 0
    for i, example in enumerate(found):
        count = sum(example.learned[1:])
        before = [t for t, ok in zip(example.tokens, example.learned[1:], strict=False) if ok]
        assert [ids[i, r] for r in rows[i, :count]] == before
        assert (targets[i, count:] == -100).all()


@pytest.mark.usefixtures("by_references")
@pytest.mark.parametrize("name", [full("llama"), "gemma2", full("gpt2")])
def test_packed_examples_have_the_loss_and_the_gradients_of_examples_alone(name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    sizes = (9, 17, 5, 12, 3, 20)
    found = [
        Example(tuple(rng.integers(5, 40, n).tolist()), (False, *(rng.random(n - 2) < 0.7).tolist(), True))
        for n in sizes
    ]
    alone, together = one_each(found), packed(found, 33)
    assert (len(alone.ids), len(together.ids), together.ids.shape[1]) == (6, 2, 32)
    assert alone.counts.sum() == together.counts.sum() == sum(sizes) - 6
    assert alone.ids.size > together.ids.size
    updates, losses = [], []
    with train.LoraModel(tiny_model(name, tmp_path), train.LoraConfig(rank=2, targets=("attn_*",))) as model:
        for rows in (alone, together):
            step = train.Step(model.loss, drawn(model), train.SGD())
            losses.append(step(*rows.arrays, lr=1.0))
            updates.append(step.parameters)
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    for pair, other in zip(updates[0].values(), updates[1].values(), strict=True):
        for part in "ab":
            np.testing.assert_allclose(pair[part], other[part], atol=1e-6)


def test_what_packs_holds_every_example_once() -> None:
    rng = np.random.default_rng(4)
    found = [Example((i + 1,) * n, (True,) * n) for i, n in enumerate(rng.integers(2, 50, 60).tolist())]
    rows = packed(found, 50)
    assert rows.positions is not None
    assert rows.ids.shape[1] == 64 or rows.ids.shape[1] <= 48 + 16
    assert sorted(rows.ids[rows.ids > 0].tolist()) == sorted(t for e in found for t in e.tokens[1:])
    assert (rows.targets >= 0).sum() == sum(len(e.tokens) - 1 for e in found)
    starts = (rows.positions == 0) & (rows.ids > 0)
    assert starts.sum() == 60
    assert rows.counts.sum() / rows.ids.size > 0.7


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: is not JSON .expecting property name"),
        ('["x"]', "line 2: got .*wanted a JSON object"),
        ('{"prompt": "x"}', "wanted text, prompt and completion, or messages"),
        ('{"text": 3}', "line 2: text is 3; wanted a text"),
        ('{"messages": []}', r"messages is \[\]; wanted a list of objects with role"),
        ('{"messages": [{"role": "user", "content": "x"}]}', "line 2: has no token to learn"),
        (json.dumps({"text": "word " * 60}), r"line 2: has \d+ tokens; wanted at most 40"),
    ],
)
def test_lines_that_teach_nothing_are_refused(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"text": "fine words"}\n' + line, "utf-8")
    with train.LoraModel(tiny_model("llama", tmp_path)) as model, pytest.raises(FormatError, match=message):
        read_examples(path, model.tokenizer, lambda: ChatTemplate(TEMPLATE), 40)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: train.LoraConfig(rank=0), "got rank=0; wanted 1 or more"),
        (lambda folder: train.LoraConfig(alpha=float("nan")), "got alpha=nan"),
        (
            lambda folder: train.LoraModel(tiny_model("llama", folder), train.LoraConfig(targets=("q",))),
            "patterns of attn_q",
        ),
        (lambda folder: train.FinetuneOptions(batch=4, micro_batches=3), "wanted a multiple of these"),
        (
            lambda folder: train.finetune(tiny_model("llama", folder), folder / "no", folder / "out"),
            "no: cannot be read",
        ),
        (
            lambda folder: train.finetune(
                tiny_model("llama", folder),
                folder / "no",
                folder / "out.gguf",
                lora=train.LoraConfig(dora=True),
                options=train.FinetuneOptions(method="full"),
            ),
            "for the method full; wanted it for lora, dpo",
        ),
    ],
)
def test_what_is_refused(make: Callable[[Path], Any], message: str, tmp_path: Path) -> None:
    with pytest.raises((ModelError, CamshaftError), match=message):
        make(tmp_path)


@pytest.mark.full
def test_a_quantized_model_trains_as_the_same_numbers_in_f32(tmp_path: Path) -> None:
    quantize(tiny_model("llama", tmp_path), tmp_path / "q.gguf", "Q4_0", pure=True)
    train.merge(tmp_path / "q.gguf", _no_change(tmp_path), tmp_path / "f.gguf", file_type="F32")
    rng = np.random.default_rng(0)
    ids, targets = (rng.integers(5, 40, (2, n)).astype(np.int32) for n in (8, 3))
    rows, losses = np.array([[1, 3, 7], [0, 6, 7]], np.int32), {}
    for name, threads in (("q", 1), ("q", 5), ("f", 1)):
        with train.LoraModel(tmp_path / f"{name}.gguf") as model:
            step = train.Step(model.loss, model.adapters(), train.AdamW(), threads=threads)
            losses[name, threads] = [step(ids, rows, targets, lr=1e-2) for _ in range(5)]
    assert losses["q", 1] == losses["q", 5]
    assert losses["q", 1][-1] < losses["q", 1][0]
    np.testing.assert_allclose(losses["q", 1], losses["f", 1], rtol=1e-4)


def _no_change(folder: Path) -> Path:
    """An adapter of every matrix of q.gguf that changes nothing."""
    with train.LoraModel(folder / "q.gguf", train.LoraConfig(rank=1)) as model:
        train.save_adapter(folder / "none.gguf", model, model.adapters())
    return folder / "none.gguf"
