"""Training against torch: optimizers step by step in f64, in f32 the character GPT of docs/training.md and LoRA for 200 steps.

llama.cpp loads an adapter.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import camshaft as cs
from camshaft import train
from camshaft.train.tuning.methods.full import FullModel
from tests.support.fixtures import tiny_logits, tiny_model
from tests.train.by_references import by_references  # noqa: F401 - a fixture
from tests.train.test_docs import MODEL
from tests.train.tuning.test_lora import drawn, logits

pytestmark = pytest.mark.oracle
SHAPES = {"w": (6, 5), "t": (2, 3, 4), "b": (5,), "s": ()}
OPTIMIZERS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "SGD": (train.SGD(weight_decay=0.1), "SGD", {"weight_decay": 0.1}),
    "momentum": (train.SGD(momentum=0.8, weight_decay=0.1), "SGD", {"momentum": 0.8, "weight_decay": 0.1}),
    "Nesterov": (train.SGD(momentum=0.8, nesterov=True), "SGD", {"momentum": 0.8, "nesterov": True}),
    "Adam": (train.Adam(weight_decay=0.1), "Adam", {"weight_decay": 0.1}),
    "AdamW": (
        train.AdamW(b1=0.8, b2=0.95, eps=1e-6, weight_decay=0.1),
        "AdamW",
        {"betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1},
    ),
    "Adafactor": (train.Adafactor(weight_decay=0.1), "Adafactor", {"weight_decay": 0.1}),
}


def weighed(p: dict[str, Any], g: dict[str, Any]) -> Any:
    """A loss whose gradients are `g`."""
    return sum((cs.sum(p[name] * g[name]) for name in SHAPES), start=0.0)


@pytest.mark.usefixtures("by_references")
@pytest.mark.parametrize("clip", [None, 2.0])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_step_by_step(name: str, clip: float | None) -> None:
    torch = pytest.importorskip("torch")
    ours, theirs, options = OPTIMIZERS[name]
    rng = np.random.default_rng(0)
    start = {n: rng.normal(size=shape) for n, shape in SHAPES.items()}
    step = train.Step(weighed, start, ours, clip=clip)
    p = {n: torch.tensor(a, requires_grad=True) for n, a in start.items()}
    optimizer = getattr(torch.optim, theirs)(p.values(), lr=1.0, **options)
    for n in range(12):
        g = {name: rng.normal(size=shape) for name, shape in SHAPES.items()}
        optimizer.param_groups[0]["lr"] = rate = train.cosine(0.05, 12, warmup=3)(n)
        for tensor, gradient in zip(p.values(), g.values(), strict=True):
            tensor.grad = torch.tensor(gradient)
        if clip is not None:
            norm = torch.nn.utils.clip_grad_norm_(p.values(), clip)
        optimizer.step()
        step(g, lr=rate)
        if clip is not None:
            assert step.gradient_norm == pytest.approx(float(norm), rel=1e-6)
        for key, tensor in p.items():
            # the scale of clipping is an f32
            wanted, tolerance = tensor.detach().numpy(), 1e-12 if clip is None else 1e-6
            np.testing.assert_allclose(step.parameters[key], wanted, rtol=tolerance, atol=tolerance, err_msg=key)


def test_schedules() -> None:
    torch = pytest.importorskip("torch")
    schedules = torch.optim.lr_scheduler
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.5)
    makes: list[tuple[Callable[[int], float], Any]] = [
        (train.cosine(0.5, 20, final=0.1), lambda: schedules.CosineAnnealingLR(optimizer, 20, eta_min=0.1)),
        (train.linear(0.5, 20, final=0.1), lambda: schedules.LinearLR(optimizer, 1.0, 0.2, total_iters=20)),
    ]
    for ours, make in makes:
        optimizer.param_groups[0].update(lr=0.5, initial_lr=0.5)
        theirs = make()
        for n in range(20):
            assert ours(n) == pytest.approx(theirs.get_last_lr()[0], rel=1e-9)
            optimizer.step()
            theirs.step()


def torch_loss(torch: Any, w: dict[str, Any], x: Any, y: Any, heads: int, layers: int) -> Any:
    """The model of the page."""
    F = torch.nn.functional
    h = w["tokens"][x] + w["places"]

    def norm(h: Any) -> Any:
        return h * torch.rsqrt((h * h).mean(-1, keepdim=True) + 1e-5)

    for i in range(layers):
        qkv = (norm(h) @ w[f"qkv{i}"]).reshape(*x.shape, 3, heads, -1)
        q, k, v = (qkv[:, :, n].transpose(1, 2) for n in range(3))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + seen.transpose(1, 2).reshape(*x.shape, -1) @ w[f"mix{i}"]
        h = h + F.gelu(norm(h) @ w[f"up{i}"], approximate="tanh") @ w[f"down{i}"]
    return F.cross_entropy((norm(h) @ w["out"]).reshape(-1, w["out"].shape[1]), y.reshape(-1))


def test_the_character_gpt_follows_torch_for_200_steps() -> None:
    torch = pytest.importorskip("torch")
    page: dict[str, Any] = {}
    exec(compile(MODEL.partition("step = train.Step")[0], "docs/training.md", "exec"), page)
    start, length, batch = page["start"], page["length"], page["batch"]
    windows = train.Windows(page["ids"], length, batch)
    rate = train.cosine(1e-2, 200, warmup=20)
    step = train.Step(page["loss"], start, train.AdamW(weight_decay=0.1), clip=1.0)
    w = {name: torch.tensor(a, requires_grad=True) for name, a in start.items()}
    optimizer = torch.optim.AdamW(w.values(), lr=1.0, weight_decay=0.1)
    worst = 0.0
    for n in range(200):
        x, y = windows(n)
        optimizer.param_groups[0]["lr"] = rate(n)
        optimizer.zero_grad()
        theirs = torch_loss(torch, w, torch.tensor(x).long(), torch.tensor(y).long(), page["heads"], page["layers"])
        theirs.backward()
        torch.nn.utils.clip_grad_norm_(w.values(), 1.0)
        optimizer.step()
        worst = max(worst, abs(step(x, y, lr=rate(n)) - theirs.item()))
    assert theirs.item() < 0.2
    assert worst < 1e-3


def with_lora(torch: Any, network: Any, adapters: dict[str, dict[str, Any]], scale: float) -> dict[str, Any]:
    """Adds the adapters to the linear layers of a transformers model; returns their tensors."""
    names = {
        "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    }  # fmt: skip
    made = {}
    for name, pair in adapters.items():
        _, layer, short = name.split(".")
        a, b = (torch.tensor(pair[part], requires_grad=True) for part in "ab")
        linear = network.get_submodule(f"model.layers.{layer}.{names[short]}")
        linear.register_forward_hook(lambda module, given, y, a=a, b=b: y + scale * (given[0] @ a.T) @ b.T)
        made |= {f"{name}.a": a, f"{name}.b": b}
    return made


def test_lora_follows_torch_for_200_steps(tmp_path: Path) -> None:
    """B starts at 0, so the order in which GGUF has the rows of q and k changes nothing."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from scripts.oracles import tiny_models
    from scripts.oracles.tiny.vocabulary import N_VOCAB

    seed, tiny = tiny_models.SEEDED["llama"]
    network = tiny_models.build(tiny, seed).requires_grad_(False)
    rng = np.random.default_rng(0)
    ids = rng.integers(5, N_VOCAB, (12, 17)).astype(np.int32)
    rows = np.tile(np.arange(4, 16, dtype=np.int32), (12, 1))
    batches = train.Batches((ids[:, :-1], rows, ids[:, 5:]), 4)
    rate = train.cosine(1e-2, 200, warmup=10)
    with train.LoraModel(tiny_model("llama", tmp_path), train.LoraConfig(rank=4)) as model:
        step = train.Step(model.loss, model.adapters(), train.AdamW(), clip=1.0, threads=1)
        adapters = with_lora(torch, network, model.adapters(), model.lora.scale)
        optimizer = torch.optim.AdamW(adapters.values(), lr=1.0)
        losses, worst = [], 0.0
        for n in range(200):
            x, _, y = batches(n)
            optimizer.param_groups[0]["lr"] = rate(n)
            optimizer.zero_grad()
            scores = network(torch.tensor(x).long()).logits[:, 4:]
            theirs = torch.nn.functional.cross_entropy(
                scores.reshape(-1, scores.shape[-1]), torch.tensor(y).long().reshape(-1)
            )
            theirs.backward()
            torch.nn.utils.clip_grad_norm_(adapters.values(), 1.0)
            optimizer.step()
            losses.append(step(*batches(n), lr=rate(n)))
            worst = max(worst, abs(losses[-1] - theirs.item()))
    assert losses[-1] < losses[0] - 0.5
    assert worst < 1e-3


@pytest.mark.usefixtures("by_references")
def test_a_whole_model_follows_torch(tmp_path: Path) -> None:
    """Rows of q and k are in another order in GGUF, which changes no loss."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from scripts.oracles import tiny_models
    from scripts.oracles.tiny.vocabulary import N_VOCAB

    seed, tiny = tiny_models.SEEDED["llama"]
    network = tiny_models.build(tiny, seed)
    ids = np.random.default_rng(0).integers(5, N_VOCAB, (8, 17)).astype(np.int32)
    rows = np.tile(np.arange(16, dtype=np.int32), (8, 1))
    batches = train.Batches((ids[:, :-1], rows, ids[:, 1:]), 4)
    with FullModel(tiny_model("llama", tmp_path)) as model:
        step = train.Step(model.loss, model.parameters(), train.AdamW(), clip=1.0, threads=1)
        optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
        losses, worst = [], 0.0
        for n in range(16):
            x, _, y = batches(n)
            optimizer.zero_grad()
            scores = network(torch.tensor(x).long()).logits
            theirs = torch.nn.functional.cross_entropy(
                scores.reshape(-1, scores.shape[-1]), torch.tensor(y).long().reshape(-1)
            )
            theirs.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            losses.append(step(*batches(n), lr=3e-3))
            worst = max(worst, abs(losses[-1] - theirs.item()))
    assert losses[-1] < losses[0] - 0.5
    assert worst < 1e-3


@pytest.mark.parametrize("name", ["llama", "mixtral", "qwen3moe"])
def test_llama_cpp_loads_an_adapter(name: str, tmp_path: Path) -> None:
    """Of a mixture also that of the stacks of experts; the greedy text is the same."""
    llama_cpp = pytest.importorskip("llama_cpp")
    from scripts.oracles import llama

    tokens, plain = tiny_logits(name)
    base, saved = tiny_model(name, tmp_path), tmp_path / "adapter.gguf"
    with train.LoraModel(base, train.LoraConfig(rank=4, alpha=6.0)) as model:
        adapters = drawn(model)
        train.save_adapter(saved, model, adapters)
        wanted = logits(model, adapters, tokens)
    assert any(pair["a"].ndim == 3 for pair in adapters.values()) is (name != "llama")
    theirs = llama_cpp.Llama(str(base), lora_path=str(saved), n_ctx=64, logits_all=True, n_gpu_layers=0, verbose=False)
    eval_ = llama.on_a_new_thread(theirs.eval)
    eval_(tokens)
    found = theirs.scores[: len(tokens)]
    assert np.abs(wanted - plain).max() > 0.1
    np.testing.assert_allclose(found, wanted, atol=1e-2)
    greedy = []
    for _ in range(12):
        greedy.append(int(np.argmax(theirs.scores[theirs.n_tokens - 1])))
        eval_(greedy[-1:])
    with cs.LanguageModel(base, adapters=[saved], activations="f32") as lm:
        text = "".join(lm.generate(tokens, max_tokens=12, temperature=0.0, ignore_eos=True))
        assert text
        assert text == lm.detokenize(greedy)
