"""DoRA against PEFT: the losses of its training, folders that it writes, and folders that it reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft import LanguageModel, train
from tests.support.fixtures import tiny_model

pytestmark = pytest.mark.oracle
torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
pytest.importorskip("transformers")
from scripts.oracles import tiny_models  # noqa: E402 - imports torch

OPTIONS: dict[str, Any] = {"activations": "f32", "threads": 1, "context": 64, "sessions": 1}
STEPS = 60


def network_of(name: str) -> Any:
    seed, tiny = tiny_models.SEEDED[name]
    return tiny_models.build(tiny, seed).requires_grad_(False)


def start_from(network: Any, adapters: dict[str, Any]) -> None:
    """Gives A of PEFT's modules the values of ours."""
    names = {"attn_q": "self_attn.q_proj", "attn_v": "self_attn.v_proj", "ffn_down": "mlp.down_proj"}
    for name, parts in adapters.items():
        _, layer, short = name.split(".")
        module = network.get_submodule(f"base_model.model.model.layers.{layer}.{names[short]}")
        module.lora_A["default"].weight.data = torch.tensor(parts["a"])


def test_training_follows_peft_and_folders_go_both_ways(tmp_path: Path) -> None:
    base, tokens = tiny_model("llama", tmp_path), tiny_models.sequence(1)
    config = peft.LoraConfig(r=4, lora_alpha=16, use_dora=True, target_modules=["q_proj", "v_proj", "down_proj"])
    network = peft.get_peft_model(network_of("llama"), config)
    ids = np.random.default_rng(0).integers(5, tiny_models.SEEDED["llama"][1].n_vocab, (12, 17)).astype(np.int32)
    rows = np.tile(np.arange(16, dtype=np.int32), (12, 1))
    batches, losses, worst = train.Batches((ids[:, :-1], rows, ids[:, 1:]), 4), [], 0.0
    lora = train.LoraConfig(rank=4, dora=True, targets=("attn_q", "attn_v", "ffn_down"))
    with train.LoraModel(base, lora) as model:
        step = train.Step(model.loss, model.adapters(), train.AdamW(), clip=1.0, threads=1)
        start_from(network, model.adapters())
        learned = [p for p in network.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(learned, lr=1e-2)
        for n in range(STEPS):
            x, _, y = batches(n)
            optimizer.zero_grad()
            scores = network(torch.tensor(x).long()).logits
            theirs = torch.nn.functional.cross_entropy(scores.flatten(0, 1), torch.tensor(y).long().flatten())
            theirs.backward()
            torch.nn.utils.clip_grad_norm_(learned, 1.0)
            optimizer.step()
            losses.append(step(*batches(n), lr=1e-2))
            worst = max(worst, abs(losses[-1] - theirs.item()))
        train.save_adapter(tmp_path / "ours", model, step.parameters)
    assert losses[-1] < losses[0] - 0.5
    assert worst < 1e-3
    network.save_pretrained(tmp_path / "theirs")
    wanted = network(torch.tensor([tokens])).logits[0].detach().numpy()
    with LanguageModel(base, adapters=[tmp_path / "theirs"], **OPTIONS) as lm:
        np.testing.assert_allclose(lm.logits(tokens), wanted, atol=2e-3)
        lm.use_adapters([tmp_path / "ours"])
        found = np.array(lm.logits(tokens))
    ours = peft.PeftModel.from_pretrained(network_of("llama"), tmp_path / "ours")
    np.testing.assert_allclose(found, ours(torch.tensor([tokens])).logits[0].detach().numpy(), atol=2e-3)


@pytest.mark.parametrize("name", ["gpt2", "gptneox"])
def test_a_folder_is_what_peft_makes_of_it(name: str, tmp_path: Path) -> None:
    """With biases, matrices the other way round, and rows of joined q, k, v in another order."""
    from tests.train.tuning.test_lora import drawn

    base, tokens = tiny_model(name, tmp_path), tiny_models.sequence(1)
    with train.LoraModel(base, train.LoraConfig(rank=4, dora=True)) as model:
        train.save_adapter(tmp_path / "ours", model, drawn(model))
    theirs = peft.PeftModel.from_pretrained(network_of(name), tmp_path / "ours")
    wanted = theirs(torch.tensor([tokens])).logits[0].detach().numpy()
    with LanguageModel(base, adapters=[tmp_path / "ours"], **OPTIONS) as lm:
        np.testing.assert_allclose(lm.logits(tokens), wanted, atol=5e-3)
