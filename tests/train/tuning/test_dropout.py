"""Dropout of adapters' inputs: what it draws, that it repeats, and what it equals; tests/test_ops.py has the op's samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import camshaft as cs
from camshaft import train
from camshaft.errors import CamshaftError, ModelError
from camshaft.ops.sample.uniform import drawn
from tests.support.fixtures import tiny_model
from tests.train.by_references import by_references  # noqa: F401 - a fixture

Array = np.ndarray[Any, Any]
IDS = np.random.default_rng(2).integers(5, 45, (4, 9)).astype(np.int32)
BATCH = IDS[:, :-1], np.tile(np.arange(8, dtype=np.int32), (4, 1)), IDS[:, 1:].copy()


def lora(dropout: float, **options: Any) -> train.LoraConfig:
    return train.LoraConfig(rank=2, targets=("attn_q", "ffn_down"), dropout=dropout, **options)


def begun(model: train.LoraModel) -> Any:
    """Adapters whose products are not 0."""
    rng = np.random.default_rng(5)
    return {n: {**p, "b": rng.normal(0, 0.1, p["b"].shape).astype(np.float32)} for n, p in model.adapters().items()}


def run(path: Path, config: train.LoraConfig, steps: int = 2, **options: Any) -> tuple[train.Step, list[float]]:
    with train.LoraModel(path, config) as model:
        step = train.Step(model.loss, begun(model), train.SGD(), **options)
        return step, [step.evaluate(*BATCH), *(step(*BATCH, lr=0.1) for _ in range(steps))]


def same(a: Any, b: Any) -> bool:
    return all(a[n][part].tobytes() == b[n][part].tobytes() for n in a for part in a[n])


@pytest.mark.usefixtures("by_references")
def test_the_op_keeps_the_expected_value_and_its_gradient_has_the_same_mask() -> None:
    x, seed = np.full((200, 300), 2.0, np.float32), np.array([7, 8, 9], np.uint32)
    y, dx = cs.value_and_grad(lambda x, s: (cs.sum(y := cs.dropout(x, s, p=0.3)), y), has_aux=True)(x, seed)
    kept = y[1] != 0
    assert abs(kept.mean() - 0.7) < 3 * np.sqrt(0.21 / kept.size)
    assert abs(y[1].mean() - 2.0) < 3 * np.sqrt(0.21 / kept.size) * 2 / 0.7
    np.testing.assert_allclose(y[1][kept], 2 / 0.7, rtol=1e-6)
    np.testing.assert_array_equal(dx != 0, kept)
    again = cs.jit(lambda x, s: cs.dropout(x, s, p=0.3))(x, seed + np.uint32(1)) != 0
    assert abs((again == kept).mean() - 0.58) < 0.01, "masks of two seeds are independent"


@pytest.mark.usefixtures("by_references")
def test_no_dropout_is_equal_to_the_bit_to_none_and_validation_has_none(tmp_path: Path) -> None:
    path = tiny_model("llama", tmp_path)
    (plain, losses), (zero, found), (some, others) = (
        run(path, lora(p), seed=s) for p, s in ((0.0, None), (0.0, 3), (0.4, 3))
    )
    assert found == losses
    assert same(plain.parameters, zero.parameters)
    assert others[0] == losses[0]
    assert others[1] != losses[1]
    assert not same(plain.parameters, some.parameters)
    assert run(path, lora(0.4), 1, seed=4)[1][1] != others[1], "of another seed another one"


@pytest.mark.usefixtures("by_references")
def test_each_step_micro_batch_and_matrix_draws_anew(tmp_path: Path) -> None:
    path = tiny_model("llama", tmp_path)
    with train.LoraModel(path, lora(0.4)) as model:
        step = train.Step(model.loss, begun(model), train.SGD(), seed=1)
        assert len({step(*BATCH, lr=0.0) for _ in range(3)}) == 3
        assert step.evaluate(*BATCH) == step.evaluate(*BATCH)
        twice = tuple(np.concatenate([a, a]) for a in BATCH)
        parts = train.Step(model.loss, begun(model), train.SGD(), seed=1, micro_batches=2)
        first = train.Step(model.loss, begun(model), train.SGD(), seed=1)
        assert parts(*twice, lr=0.0) == pytest.approx((first(*BATCH, lr=0.0) + first(*BATCH, lr=0.0)) / 2, rel=1e-12)


@pytest.mark.full
@pytest.mark.usefixtures("by_references")
def test_a_resumed_run_draws_as_one_that_never_stopped(tmp_path: Path) -> None:
    path, data = tiny_model("llama", tmp_path), tmp_path / "data.jsonl"
    data.write_text("\n".join(json.dumps({"text": f"{i} and some more"}) for i in range(6)), "utf-8")
    options, config = train.FinetuneOptions(steps=3, batch=2, lr=2e-2), lora(0.3)
    train.finetune(path, data, tmp_path / "whole", lora=config, options=options)

    def stop(progress: Any, steps: int) -> None:
        if progress.step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train.finetune(path, data, tmp_path / "parts", lora=config, options=options, each=stop)
    with pytest.raises(CamshaftError, match=r"was trained on .*dropout 0\.3"):
        train.finetune(path, data, tmp_path / "parts", lora=lora(0.2), options=options, resume=True)
    train.finetune(path, data, tmp_path / "parts", lora=config, options=options, resume=True)
    whole, parts = (train.load_adapter(tmp_path / name, path).matrices for name in ("whole", "parts"))
    assert same(whole, parts)
    assert json.loads((tmp_path / "whole" / "adapter_config.json").read_text())["lora_dropout"] == 0.3


@pytest.mark.full
def test_any_number_of_threads_and_layers_computed_once_more_give_the_same_bits(tmp_path: Path) -> None:
    path, found = tiny_model("llama", tmp_path), []
    for threads, recomputed in ((1, 0), (2, 0), (5, 0), (2, 2)):
        with train.LoraModel(path, lora(0.3)) as model:
            model.recomputed = recomputed
            step = train.Step(model.loss, begun(model), train.AdamW(), seed=9, threads=threads)
            losses = [step(*BATCH, lr=1e-2) for _ in range(3)]
            found.append((losses, step.parameters))
    for losses, parameters in found[1:]:
        assert losses == found[0][0]
        assert same(parameters, found[0][1])


@pytest.mark.parametrize("p", [-0.1, 1.0, True, "x", float("nan")])
def test_what_is_no_share_is_refused(p: Any) -> None:
    with pytest.raises(ModelError, match=r"got dropout=.*wanted a number from 0 to below 1"):
        lora(p)


def test_a_seed_is_an_integer() -> None:
    with pytest.raises(CamshaftError, match=r"Step: got seed=-1; wanted an integer of 64 bits"):
        train.Step(lambda p: cs.sum(p), np.ones(3, np.float32), train.SGD(), seed=-1)


NAMES = {"q_proj": "attn_q", "down_proj": "ffn_down"}


@pytest.mark.oracle
@pytest.mark.parametrize("dora", [False, True])
def test_training_follows_peft_with_the_same_masks(dora: bool, tmp_path: Path) -> None:
    """PEFT's modules of dropout multiply by our masks."""
    torch, peft = pytest.importorskip("torch"), pytest.importorskip("peft")
    pytest.importorskip("transformers")
    from tests.train.tuning.test_dora_oracle import network_of

    p, seed, steps = 0.3, 2**33 + 5, 12
    made = peft.LoraConfig(r=2, lora_alpha=16, lora_dropout=p, use_dora=dora, target_modules=list(NAMES))
    network = peft.get_peft_model(network_of("llama"), made).train()
    with train.LoraModel(tiny_model("llama", tmp_path), lora(p, dora=dora)) as model:
        adapters, now = model.adapters(), {"step": 0}
        for number, name in enumerate(model.names):
            _, layer, short = name.split(".")
            ends = {"attn_q": "self_attn.q_proj", "ffn_down": "mlp.down_proj"}
            module = network.get_submodule(f"base_model.model.model.layers.{layer}.{ends[short]}")
            module.lora_A["default"].weight.data = torch.tensor(adapters[name]["a"])

            def masked(x: Any, number: int = number) -> Any:
                words = np.array([seed % 2**32, (seed >> 32) + number, now["step"]], np.uint32)
                kept = drawn(words, x.numel()).reshape(x.shape) >= np.float32(p)
                return x * torch.tensor(kept / (1 - p), dtype=x.dtype)

            module.lora_dropout["default"].forward = masked
        step = train.Step(model.loss, adapters, train.SGD(), clip=1.0, seed=seed, threads=1)
        learned = [w for w in network.parameters() if w.requires_grad]
        optimizer = torch.optim.SGD(learned, lr=0.5)
        ids, targets = (torch.tensor(a).long() for a in (BATCH[0], BATCH[2]))
        losses = []
        for n in range(steps):
            now["step"] = n
            optimizer.zero_grad()
            theirs = torch.nn.functional.cross_entropy(network(ids).logits.flatten(0, 1), targets.flatten())
            theirs.backward()
            torch.nn.utils.clip_grad_norm_(learned, 1.0)
            optimizer.step()
            losses.append((step(*BATCH, lr=0.5), theirs.item()))
    ours, wanted = np.array(losses).T
    assert wanted[-1] < wanted[0] - 0.1
    np.testing.assert_allclose(ours, wanted, atol=1e-4)
