"""Ops on sequences against transformers' pure-torch functions, onnx's reference evaluator and torch's convolution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from camshaft import ops

pytestmark = pytest.mark.oracle


def arrays(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def close(came: Any, wanted: Any) -> None:
    wanted = np.asarray(wanted, np.float64)
    assert np.linalg.norm(came - wanted) < 3e-6 * np.linalg.norm(wanted)


def model(name: str) -> Any:
    import importlib

    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


@pytest.mark.parametrize("kind", ["chunk", "recurrent"])
def test_the_delta_rule_is_that_of_qwen3_next(kind: str) -> None:
    import torch

    q, k, v, g, beta, state = arrays((2, 70, 2, 16), (2, 70, 2, 16), (2, 70, 4, 24), *[(2, 70, 4)] * 2, (2, 4, 16, 24))
    g, beta = -np.exp(g - 2), 1 / (1 + np.exp(-beta))
    rule = getattr(model("qwen3_next"), f"torch_{kind}_gated_delta_rule")
    given = [torch.from_numpy(a) for a in (q, k, v, g, beta, state)]
    wanted = rule(*given[:5], initial_state=given[5], output_final_state=True, use_qk_l2norm_in_kernel=True)
    for came, want in zip(
        ops.get("gated_delta_rule").reference((q, k, v, g, beta, state), {"l2_norm": True}), wanted, strict=True
    ):
        close(came, want.numpy())


@pytest.mark.parametrize("rule", ["gated", "delta", "gated_delta"])
def test_linear_attention_is_that_of_onnx(rule: str) -> None:
    from onnx.reference.ops.op_linear_attention import LinearAttention

    q, k, v, g, beta, state = arrays((2, 7, 2, 8), (2, 7, 2, 8), (2, 7, 2, 12), (2, 7, 2), (2, 7, 2), (2, 2, 8, 12))
    g, k, beta = -np.exp(g - 1), k / 3, 1 / (1 + np.exp(-beta))
    flat = [a.reshape(2, 7, -1) for a in (q, k, v)]
    run = LinearAttention._run
    wanted = run(
        object.__new__(LinearAttention), *flat, state, g if "gated" in rule else None, beta if "delta" in rule else None,
        kv_num_heads=2, q_num_heads=2, scale=0.25, update_rule=rule,
    )  # fmt: skip
    name, given = {
        "gated": ("gated_linear_attention", (q, k, v, g, state)),
        "delta": ("delta_rule", (q, k, v, beta, state)),
        "gated_delta": ("gated_delta_rule", (q, k, v, g, beta, state)),
    }[rule]
    made = ops.get(name).reference(given, {"scale": 0.25})
    close(made[0].reshape(2, 7, -1), wanted[0])
    close(made[1], wanted[1])


def test_mamba_2_is_that_of_transformers() -> None:
    import torch

    x, dt, a, b, c, d, state = arrays(
        (2, 70, 4, 8), (2, 70, 4), (4,), (2, 70, 2, 16), (2, 70, 2, 16), (4,), (2, 4, 8, 16)
    )
    dt, a = np.exp(dt - 2), -np.exp(a)
    t = [torch.from_numpy(m) for m in (x, dt, a, b, c, d, state)]
    scan = model("mamba2").mamba2_chunk_scan
    wanted = scan(*t[:5], chunk_size=32, D=t[5], initial_states=t[6], return_final_states=True)
    made = ops.get("mamba2_ssd").reference((x, dt, a, b, c, d, state), {})
    close(made[0], wanted[0].numpy())
    close(made[1], wanted[1].numpy())


def test_mamba_1_is_that_of_transformers() -> None:
    import torch

    x, dt, a, b, c, d = arrays((2, 9, 5), (2, 9, 5), (5, 16), (2, 9, 16), (2, 9, 16), (5,))
    dt, a = np.exp(dt - 2), -np.exp(a)
    turned = [torch.from_numpy(np.ascontiguousarray(m.swapaxes(1, 2))) for m in (x, dt, b, c)]
    scan = model("mamba").mamba_selective_scan
    t_a, t_d = torch.from_numpy(a), torch.from_numpy(d)
    y, last = scan(turned[0], turned[1], t_a, turned[2], turned[3], t_d, return_last_state=True)
    made = ops.get("selective_scan").reference((x, dt, a, b, c, d), {})
    close(made[0], y.numpy().swapaxes(1, 2))
    close(made[1], last.numpy())


@pytest.mark.parametrize("activation", ["silu", "none"])
def test_the_convolution_is_that_of_onnx(activation: str) -> None:
    from onnx.reference.ops.op_causal_conv_with_state import CausalConvWithState

    x, w, state, bias = arrays((2, 9, 5), (5, 4), (2, 3, 5), (5,))
    channels_first = (x.swapaxes(1, 2), w[:, None], bias, state.swapaxes(1, 2))
    wanted = CausalConvWithState._run(object.__new__(CausalConvWithState), *channels_first, activation=activation)
    made = ops.get("ssm_conv").reference((x, w, state, bias), {"activation": activation})
    for came, want in zip(made, wanted, strict=True):
        close(came, want.swapaxes(1, 2))


def test_the_convolution_is_that_of_torch() -> None:
    import torch

    x, w, state = arrays((2, 9, 5), (5, 4), (2, 3, 5))
    wanted = model("lfm2").causal_conv1d_fn(torch.from_numpy(x.swapaxes(1, 2)), torch.from_numpy(w)).numpy()
    close(ops.get("conv1d_depthwise_causal").reference((x, w), {})[0], wanted.swapaxes(1, 2))
    gate = np.full_like(x, 2)
    short = ops.get("short_conv").reference((gate, gate, x, w, 0 * state), {})
    close(short[0], 4 * wanted.swapaxes(1, 2))


@pytest.mark.parametrize("n", [1, 17, 64])
def test_triangular_systems_are_those_of_torch(n: int) -> None:
    import torch

    (a,) = arrays((2, n, n))
    a /= n
    lower = torch.from_numpy(a).double()
    eye = torch.linalg.solve_triangular(lower, torch.eye(n).double(), upper=False, unitriangular=True)
    close(ops.get("triangular_inverse").reference((a,), {})[0], eye.numpy())
