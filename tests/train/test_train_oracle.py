"""Training against torch: optimizers step by step in f64, and the character GPT of docs/training.md for 200 steps in f32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import camshaft as cs
from camshaft import train
from tests.train.by_references import by_references  # noqa: F401 - a fixture
from tests.train.test_docs import MODEL

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
