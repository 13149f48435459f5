"""Methods of fine-tuning beside LoRA: whole models, models as they will be rounded; data read from the file step by step."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from camshaft import train
from camshaft.errors import CamshaftError
from camshaft.formats.gguf.file import open_gguf
from camshaft.graph.graph import Graph
from camshaft.models.files.quantize import quantize
from camshaft.text.chat import ChatTemplate
from camshaft.train.tuning.data.batches import StreamedBatches
from camshaft.train.tuning.data.examples import example_of, read_examples
from camshaft.train.tuning.data.rows import layout_of, one_each, packed
from camshaft.train.tuning.methods.full import FullModel
from tests.support.fixtures import tiny_logits, tiny_model
from tests.support.quick import full
from tests.support.references import evaluated
from tests.train.by_references import by_references  # noqa: F401 - a fixture

Array = np.ndarray[Any, Any]
LINES = [{"prompt": f"{i} and", "completion": " some more" * (i % 3 + 1)} for i in range(11)]
IDS = np.arange(5, 45, dtype=np.int32).reshape(2, 20)
BATCH = IDS[:, :-1], np.tile(np.arange(19, dtype=np.int32), (2, 1)), IDS[:, 1:].copy()


def written(folder: Path) -> Path:
    path = folder / "data.jsonl"
    path.write_text("\n\n".join(map(json.dumps, LINES)), "utf-8")
    return path


def loss_of(model: Any, parameters: Any) -> float:
    """The loss of BATCH by references."""
    graph = Graph()
    given = [graph.input(name, a.shape, "i32") for name, a in zip("xry", BATCH, strict=True)]
    held = {name: graph.constant(name, a) for name, a in parameters.items()}
    graph.output("loss", model.loss(held, *given))
    return float(evaluated(graph, dict(zip("xry", BATCH, strict=True)), {})["loss"])


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2", "qwen2"])
def test_a_whole_model_begins_as_the_file(name: str, tmp_path: Path) -> None:
    tokens, wanted = tiny_logits(name)
    with FullModel(tiny_model(name, tmp_path)) as model:
        graph = Graph()
        ids = graph.input("ids", (1, len(tokens)), "i32")
        held = {n: graph.constant(n, a) for n, a in model.parameters().items()}
        graph.output("logits", model.logits(held, ids))
        found = evaluated(graph, {"ids": np.array([tokens], np.int32)}, {})["logits"]
    np.testing.assert_allclose(found, wanted, atol=1e-4)


@pytest.mark.usefixtures("by_references")
def test_a_whole_model_is_learned_and_written(tmp_path: Path) -> None:
    base, out = tiny_model("llama", tmp_path), tmp_path / "tuned.gguf"
    quantize(base, tmp_path / "q.gguf", "Q4_0", pure=True)
    options = train.FinetuneOptions(steps=4, batch=4, lr=3e-3, method="full", targets=("attn_*", "*norm"))
    done = train.finetune(tmp_path / "q.gguf", written(tmp_path), out, options=options)
    assert done.last_loss < done.first_loss
    with open_gguf(tmp_path / "q.gguf") as before, open_gguf(out) as after:
        formats = {name: (t.format.name, after.tensors[name].format.name) for name, t in before.tensors.items()}
        same = {n for n, t in before.tensors.items() if np.array_equal(t.data(), after.tensors[n].data())}
    assert formats["blk.0.attn_q.weight"] == ("Q4_0", "F16")
    assert formats["blk.0.ffn_up.weight"] == formats["token_embd.weight"] == ("Q4_0", "Q4_0")
    assert "blk.0.ffn_up.weight" in same
    assert not same & {"blk.0.attn_q.weight", "blk.1.attn_norm.weight", "output_norm.weight"}
    assert gguf.GGUFReader(out).get_field("general.architecture").contents() == "llama"


def test_the_loss_of_rounded_weights_is_that_of_the_file_they_are_written_to(tmp_path: Path) -> None:
    base, out = tiny_model("llama", tmp_path), tmp_path / "tuned.gguf"
    with FullModel(base, file_type="Q8_0", rounds=True) as model, FullModel(base) as plain:
        start = model.parameters()
        assert set(model.rounded.values()) == {"Q8_0"}
        assert set(model.rounded) == {n for n in start if start[n].ndim == 2}
        found = loss_of(model, start)
        assert abs(found - loss_of(plain, start)) > 1e-6
        model.save(out, start)
    with FullModel(out) as saved:
        assert loss_of(saved, saved.parameters()) == pytest.approx(found, rel=1e-6)


@pytest.mark.usefixtures("by_references")
def test_rounded_weights_pass_gradients_straight_through(tmp_path: Path) -> None:
    updates = []
    base, out = tiny_model("llama", tmp_path), tmp_path / "rounded.gguf"
    with FullModel(base, file_type="Q4_0", rounds=True) as model:
        model.save(out, model.parameters())
        for rounds, start in ((True, model.parameters()), (False, None)):
            with FullModel(out if start is None else base, ("attn_*",), "Q4_0", rounds=rounds) as one:
                begin = one.parameters()
                step = train.Step(one.loss, begin, train.SGD())
                step(*BATCH, lr=1.0)
                after = step.parameters
                updates.append({n: after[n] - begin[n] for n in begin})
    # The other matrices are not rounded where attention alone is learned, so that gradients are near, not equal.
    for name, update in updates[0].items():
        other = updates[1][name]
        cosine = np.vdot(update, other) / (np.linalg.norm(update) * np.linalg.norm(other))
        assert cosine > 0.8, name


def test_files_are_read_step_by_step_as_from_memory(tmp_path: Path) -> None:
    path, template = written(tmp_path), ChatTemplate("x")
    with train.LoraModel(tiny_model("llama", tmp_path)) as model:
        found = read_examples(path, model.tokenizer, lambda: template, 64)

        def parse(where: str, line: bytes) -> Any:
            return example_of(where, line, model.tokenizer, lambda: template, 64)

        for length, rows in ((None, one_each(found)), (64, packed(found, 64))):
            size = min(4, len(rows.ids))
            held = train.Batches(rows.arrays, size, seed=5)
            streamed = StreamedBatches(path, parse, length, size, seed=5)
            assert (streamed.n_examples, streamed.n_rows) == (11, len(rows.ids))
            assert streamed.steps_per_epoch == held.steps_per_epoch
            for n in (0, 3, 1, 7):
                for a, b in zip(held(n), streamed(n), strict=True):
                    np.testing.assert_array_equal(a, b)
                assert streamed.tokens(n) == rows.counts[held.chosen(n)].sum()
                assert streamed.targets(n) == (streamed(n)[2] >= 0).sum()
            assert streamed.n_tokens == rows.counts.sum()


def test_packing_many_examples_takes_no_square_time() -> None:
    sizes = np.random.default_rng(0).integers(2, 500, 20_000).tolist()
    layout = layout_of(sizes, sizes, 512)
    assert sorted(i for group in layout.groups for i in group) == list(range(20_000))
    assert all(sum(sizes[i] - 1 for i in group) <= 511 for group in layout.groups)
    assert sum(sizes) / (len(layout.groups) * 512) > 0.97


def test_rslora_scales_by_the_root_of_the_rank(tmp_path: Path) -> None:
    saved, folder = tmp_path / "a.gguf", tmp_path / "peft"
    lora = train.LoraConfig(rank=16, alpha=8.0, targets=("attn_q",), rslora=True)
    assert lora.scale == 2.0
    with train.LoraModel(tiny_model("llama", tmp_path), lora) as model:
        train.save_adapter(saved, model, model.adapters())
        train.save_adapter(folder, model, model.adapters())
        paths = saved, folder
        assert [set(train.load_adapter(p, model.file.path).scales.values()) for p in paths] == [{2.0}, {2.0}]
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["use_rslora"], config["lora_alpha"]) == (True, 8)


@pytest.mark.usefixtures("by_references")
@pytest.mark.parametrize(
    ("optimizer", "schedule"),
    [("adamw8bit", "linear"), full("adafactor", "wsd"), ("lion", "constant"), full("sgd", "wsd")],
)
def test_optimizers_and_schedules_by_name(optimizer: str, schedule: str, tmp_path: Path) -> None:
    options = train.FinetuneOptions(steps=5, batch=4, lr=1e-2, optimizer=optimizer, schedule=schedule)
    lora = train.LoraConfig(rank=2, targets=("attn_q",))
    out = tmp_path / "a.gguf"
    done = train.finetune(tiny_model("llama", tmp_path), written(tmp_path), out, lora=lora, options=options)
    assert done.n_steps == 5
    assert any(pair["b"].any() for pair in train.load_adapter(out).matrices.values())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda d: train.FinetuneOptions(method="qat"), "method qat without a type"),
        (lambda d: train.FinetuneOptions(file_type="F16"), "got file_type='F16' for the method lora"),
        (lambda d: train.FinetuneOptions(optimizer="adam"), "optimizer='adam'; wanted adamw, adamw8bit"),
        (lambda d: train.FinetuneOptions(schedule="step"), "wanted cosine, linear, constant, wsd"),
        (lambda d: FullModel(d / "llama.gguf", ("nothing",)), "target 'nothing', which no tensor has; wanted .*attn_q"),
        (
            lambda d: FullModel(d / "llama.gguf", file_type="Q5_0", rounds=True),
            "got the type Q5_0 to round to; wanted Q4_0 or Q8_0",
        ),
        (lambda d: FullModel(d / "llama.gguf", file_type="Q9"), "no file type 'Q9'"),
        (
            lambda d: train.finetune(d / "llama.gguf", d, d / "x", options=train.FinetuneOptions(method="full")),
            "the method full writes a model; wanted a name that ends in .gguf",
        ),
        (
            lambda d: train.finetune(
                d / "llama.gguf", d, d / "llama.gguf", force=True, options=train.FinetuneOptions(method="full")
            ),
            "is the source itself",
        ),
    ],
)
def test_what_is_refused(make: Callable[[Path], Any], message: str, tmp_path: Path) -> None:
    tiny_model("llama", tmp_path)
    with pytest.raises(CamshaftError, match=message):
        make(tmp_path)
