"""References of norms, activations and losses against torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from camshaft import ops

pytestmark = pytest.mark.oracle
RNG = np.random.default_rng(5)
X, Z = RNG.normal(size=(2, 3, 4, 5)), RNG.normal(size=(2, 3, 4, 5))
W, B, C = RNG.normal(size=5), RNG.normal(size=5), RNG.normal(size=3)


def reference(name: str, *arrays: np.ndarray, **attrs: Any) -> np.ndarray:
    return ops.get(name).reference(arrays, attrs)[0]


def tensor(x: Any) -> Any:
    torch = pytest.importorskip("torch")
    return torch.from_numpy(np.asarray(x).copy())


def equal(ours: np.ndarray, theirs: Any) -> None:
    np.testing.assert_allclose(np.asarray(ours), theirs.numpy(), rtol=1e-12, atol=1e-14)


def test_norms() -> None:
    F = pytest.importorskip("torch.nn.functional")
    x, z, w, b, c = map(tensor, (X, Z, W, B, C))
    normed = F.rms_norm(x, (5,), w, 1e-5)
    equal(reference("rms_norm", X, W, eps=1e-5), normed)
    equal(reference("rms_norm", X, W, eps=1e-5, offset=1.0), F.rms_norm(x, (5,), 1 + w, 1e-5))
    equal(reference("residual_norm", X[0, 0], Z[0, 0], W, eps=1e-5), F.rms_norm(x[0, 0] + z[0, 0], (5,), w, 1e-5))
    equal(reference("norm_gate", X, W, Z, eps=1e-5), normed * F.silu(z))
    equal(reference("norm_add", X, W, Z, eps=1e-5), z + normed)
    equal(reference("layer_norm", X, W, B, eps=1e-5), F.layer_norm(x, (5,), w, b, 1e-5))
    equal(
        reference("layer_norm_2d", X, C, -C, eps=1e-4), F.layer_norm(x.movedim(1, -1), (3,), c, -c, 1e-4).movedim(-1, 1)
    )
    equal(reference("group_norm", Z, C, C, groups=3), F.group_norm(z, 3, c, c))
    equal(reference("group_norm", Z, C, C, groups=1, eps=1e-3), F.group_norm(z, 1, c, c, 1e-3))
    equal(reference("l2_norm", X, eps=1e-6), x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt())


def test_softmax_and_its_relatives() -> None:
    torch = pytest.importorskip("torch")
    x, mask = tensor(X), Z > -0.5
    mask[..., 0] = True
    equal(reference("log_softmax", X), torch.log_softmax(x, -1))
    hidden = (x * 0.3).masked_fill(~tensor(mask), -torch.inf)
    equal(reference("scale_mask_softmax", X, mask, scale=0.3), torch.softmax(hidden, -1))
    equal(reference("scale_mask_softmax", X, Z[:1, :1], scale=0.3), torch.softmax(x * 0.3 + tensor(Z[:1, :1]), -1))


@pytest.mark.parametrize(
    ("name", "theirs", "attrs"),
    [
        ("relu", "relu", {}),
        ("leaky_relu", "leaky_relu", {"negative_slope": 0.2}),
        ("elu", "elu", {"alpha": 0.7}),
        ("hard_swish", "hardswish", {}),
        ("mish", "mish", {}),
        ("softplus", "softplus", {}),
    ],
)
def test_activations(name: str, theirs: str, attrs: dict[str, float]) -> None:
    F = pytest.importorskip("torch.nn.functional")
    equal(reference(name, 4 * X, **attrs), getattr(F, theirs)(tensor(4 * X), **attrs))


def test_gated_activations() -> None:
    F = pytest.importorskip("torch.nn.functional")
    equal(reference("sigmoid_multiply", X, Z), tensor(X) * tensor(Z).sigmoid())
    equal(reference("gelu_multiply", X, Z), F.gelu(tensor(X), approximate="tanh") * tensor(Z))
    equal(reference("log1p", X[X > -0.9]), tensor(X[X > -0.9]).log1p())
    equal(reference("expm1", X), tensor(X).expm1())
    equal(reference("tan", X), tensor(X).tan())


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses(reduction: str) -> None:
    F = pytest.importorskip("torch.nn.functional")
    logits, target = X.reshape(-1, 5), RNG.integers(0, 5, 24)
    target[::4] = 3
    for attrs in ({}, {"ignore_index": 3}, {"label_smoothing": 0.2, "ignore_index": 3}):
        theirs = F.cross_entropy(tensor(logits), tensor(target), reduction=reduction, **attrs)
        equal(reference("cross_entropy", logits, target, reduction=reduction, **attrs), theirs)
    for name in ("mse_loss", "l1_loss", "binary_cross_entropy_with_logits"):
        t = RNG.random(X.shape)
        equal(reference(name, X, t, reduction=reduction), getattr(F, name)(tensor(X), tensor(t), reduction=reduction))


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_three_steps_of_adam(decay: float) -> None:
    torch = pytest.importorskip("torch")
    p, m, v = X.copy(), np.zeros_like(X), np.zeros_like(X)
    theirs = tensor(X).requires_grad_()
    optimizer = torch.optim.AdamW([theirs], lr=0.01, betas=(0.8, 0.99), eps=1e-6, weight_decay=decay)
    for step in range(1, 4):
        g = RNG.normal(size=X.shape)
        theirs.grad = tensor(g)
        optimizer.step()
        given = p, m, v, g, np.array(0.01), np.array([step], np.int32)
        attrs = {"b1": 0.8, "b2": 0.99, "eps": 1e-6, "weight_decay": decay}
        p, m, v = ops.get("adam_update").reference(given, attrs)
    equal(p, theirs.detach())
