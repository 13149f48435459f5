"""DPO: pairs as tokens, the loss of torch's formula, and a model that comes to prefer what was chosen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft import train
from camshaft.errors import CamshaftError, FormatError
from camshaft.text.chat import ChatTemplate
from camshaft.train.tuning.data.examples import Example, read_pairs
from camshaft.train.tuning.methods.preference import dpo_loss, pair_rows, with_reference
from tests.support.fixtures import tiny_model
from tests.train.by_references import ReferencePlan, by_references  # noqa: F401 - a fixture
from tests.train.tuning.test_lora import TEMPLATE, drawn, logits

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(5)


def answer(prompt: list[int], n: int) -> Example:
    tokens = (*prompt, *RNG.integers(5, 40, n).tolist())
    return Example(tokens, (False,) * len(prompt) + (True,) * n)


PAIRS = [(answer(p, n), answer(p, m)) for p, n, m in (([7, 8], 5, 9), ([9], 3, 3), ([11, 12, 13], 7, 2), ([5], 1, 4))]


@pytest.fixture(autouse=True)
def references(by_references: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr("camshaft.train.tuning.methods.preference.compile", ReferencePlan)


def log_probability(model: train.LoraModel, adapters: Any, example: Example) -> float:
    scores = logits(model, adapters, list(example.tokens)).astype(np.float64)
    of_all = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    return sum(of_all[i, t] for i, t in enumerate(example.tokens[1:]) if example.learned[i + 1])


def test_the_loss_is_that_of_the_formula(tmp_path: Path) -> None:
    with train.LoraModel(tiny_model("llama", tmp_path), train.LoraConfig(rank=2)) as model:
        rows = with_reference(model, pair_rows(PAIRS), 3)
        assert rows.reference is not None
        wanted = [[log_probability(model, {}, e) for e in pair] for pair in PAIRS]
        np.testing.assert_allclose(rows.reference, wanted, rtol=1e-5)
        assert rows.counts.tolist() == [len(a.tokens) + len(b.tokens) - 2 for a, b in PAIRS]
        new = train.Step(dpo_loss(model, 0.3), model.adapters(), train.SGD())
        assert new.evaluate(*rows.arrays) == pytest.approx(np.log(2), abs=1e-5), "adapters that change nothing"
        adapters = drawn(model)
        gained = np.array([[log_probability(model, adapters, e) for e in pair] for pair in PAIRS]) - wanted
        loss = np.log1p(np.exp(-0.3 * (gained[:, 0] - gained[:, 1]))).mean()
        step = train.Step(dpo_loss(model, 0.3), adapters, train.SGD())
        assert step.evaluate(*rows.arrays) == pytest.approx(loss, rel=1e-4)


def test_fine_tuning_by_preferences_lowers_the_loss(tmp_path: Path) -> None:
    data, held, out = tmp_path / "pairs.jsonl", tmp_path / "held.jsonl", tmp_path / "a.gguf"
    lines = [{"prompt": f"{i} is", "chosen": " good", "rejected": " not so good"} for i in range(6)]
    data.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    held.write_text("\n".join(map(json.dumps, lines[:3])), "utf-8")
    options = train.FinetuneOptions(steps=6, batch=2, lr=2e-2, method="dpo", validate_every=3)
    result = train.finetune(tiny_model("llama", tmp_path), data, out, options=options, validation=held)
    assert result.first_loss == pytest.approx(np.log(2), abs=1e-5)
    assert result.last_loss is not None
    assert result.last_loss < 0.5
    assert result.best_validation is not None
    assert result.best_validation < 0.5
    assert train.load_adapter(out).architecture == "llama"


def test_pairs_are_read(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    chat = [{"role": "user", "content": "hi"}]
    turns = [{"role": "assistant", "content": "no no"}]
    lines: list[dict[str, Any]] = [
        {"prompt": "a b", "chosen": " c", "rejected": " d e"},
        {"prompt": chat, "chosen": "yes", "rejected": turns},
    ]
    path.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    with train.LoraModel(tiny_model("llama", tmp_path)) as model:
        tokenizer = model.tokenizer
        found = read_pairs(path, tokenizer, lambda: ChatTemplate(TEMPLATE), 64)
        learned = [
            ["".join(map(tokenizer.spelling, np.array(e.tokens)[list(e.learned)])) for e in pair] for pair in found
        ]
        assert [text.split("\n")[0] for text in learned[1]] == ["yes", "no no"]
        assert [text.replace("\u2581", " ").split("<")[0].strip() for text in learned[0]] == ["c", "d e"]
        for line, message in (
            ({"prompt": "a", "chosen": "b"}, "wanted prompt, chosen and rejected"),
            ({"prompt": "a", "chosen": "b", "rejected": "b"}, "are the same tokens"),
            ({"prompt": "a", "chosen": 3, "rejected": "b"}, "completion is 3; wanted a text"),
            ({"prompt": chat, "chosen": chat, "rejected": "b"}, "ends with a turn of 'user'"),
            ([1], "wanted a JSON object"),
        ):
            path.write_text(json.dumps(line), "utf-8")
            with pytest.raises(FormatError, match=f"line 1: .*{message}"):
                read_pairs(path, tokenizer, lambda: ChatTemplate(TEMPLATE), 64)


def test_wrong_options_are_refused() -> None:
    for options, message in (
        ({"method": "ppo"}, "method='ppo'; wanted lora, dpo, full, qat"),
        ({"beta": 0, "method": "dpo"}, "beta=0; wanted a finite number above 0"),
        ({"method": "dpo", "pack": True}, "got pack=True for the method dpo"),
    ):
        with pytest.raises(CamshaftError, match=message):
            train.FinetuneOptions(**options)  # type: ignore[arg-type]


@pytest.mark.oracle
def test_loss_and_gradients_are_those_of_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from scripts.oracles import tiny_models
    from tests.train.test_train_oracle import with_lora

    seed, tiny = tiny_models.SEEDED["llama"]
    network = tiny_models.build(tiny, seed).requires_grad_(False)
    beta = 0.2
    with train.LoraModel(tiny_model("llama", tmp_path), train.LoraConfig(rank=4)) as model:
        rows = with_reference(model, pair_rows(PAIRS), 4)
        adapters = model.adapters()
        rng = np.random.default_rng(1)
        for name, pair in adapters.items():  # rows of q and k are in another order in the file
            if not name.endswith(("attn_q", "attn_k")):
                pair["b"] = rng.normal(0, 0.2, pair["b"].shape).astype(np.float32)
        step = train.Step(dpo_loss(model, beta), adapters, train.SGD())
        ours = step(*rows.arrays, lr=1.0)
        tensors = with_lora(torch, network, adapters, model.lora.scale)

        def theirs(example: Example) -> Any:
            scores = torch.log_softmax(network(torch.tensor([example.tokens]).long()).logits[0].double(), dim=-1)
            chosen = [(i, t) for i, t in enumerate(example.tokens[1:]) if example.learned[i + 1]]
            return sum(scores[i, t] for i, t in chosen)

        margins = [theirs(a) - theirs(b) for a, b in PAIRS]
        reference = [float(r[0] - r[1]) for r in rows.reference]  # type: ignore[union-attr]
        loss = -sum(torch.nn.functional.logsigmoid(beta * (m - r)) for m, r in zip(margins, reference, strict=True)) / 4
        loss.backward()
        assert ours == pytest.approx(loss.item(), rel=1e-4)
        for name, pair in step.parameters.items():
            for part in "ab":
                if not name.endswith(("attn_q", "attn_k")):
                    change = adapters[name][part] - pair[part]
                    np.testing.assert_allclose(change, tensors[f"{name}.{part}"].grad, atol=2e-4, err_msg=name)
