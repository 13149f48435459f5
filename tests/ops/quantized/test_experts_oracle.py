"""Routing and blocks of experts against transformers' modules of random weights, in float64 and in f32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import camshaft as cs
from camshaft import ops

pytestmark = pytest.mark.oracle
TOKENS, D, F, E, TOP_K = 9, 32, 24, 16, 4


def config(name: str, **changes: Any) -> Any:
    import transformers

    sizes = {"hidden_size": D, "moe_intermediate_size": F, "intermediate_size": F, "num_experts_per_tok": TOP_K}
    return getattr(transformers, name)(**sizes, num_local_experts=E, num_experts=E, **changes)


def module(kind: str, name: str, given: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """A module of transformers with random weights in float64, and its weights."""
    import importlib

    import torch

    torch.manual_seed(0)
    made = getattr(importlib.import_module(f"transformers.models.{kind}.modeling_{kind}"), name)(given).double().eval()
    for tensor in made.state_dict().values():
        tensor.copy_(torch.randn_like(tensor) / 3)
    return made, {key: value.numpy() for key, value in made.state_dict().items()}


def called(made: Any, x: np.ndarray) -> Any:
    import torch

    with torch.no_grad():
        return made(torch.from_numpy(x))


def inputs(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(TOKENS, D))


def check_routing(
    found: Any, router: np.ndarray, x: np.ndarray, op: str, given: tuple[Any, ...], attrs: dict[str, Any]
) -> None:
    """The experts and weights are transformers', in any order: by the reference in float64, and by the kernel in f32."""
    _, weights, experts = (np.asarray(part) for part in found)
    wanted = np.zeros((TOKENS, E))
    np.put_along_axis(wanted, experts, weights, -1)
    logits = x @ router.T
    narrow = [a.astype(np.float32) for a in (logits, *given)]
    for (w, e), close in (
        (ops.get(op).reference((logits, *given), attrs), 1e-6),  # transformers computes parts of it in f32
        (getattr(cs, op)(*narrow, **attrs), 1e-4),
    ):
        made = np.zeros((TOKENS, E))
        np.put_along_axis(made, e, w, -1)
        np.testing.assert_allclose(made, wanted, rtol=close, atol=close)


@pytest.mark.parametrize("normalize", [True, False])
def test_qwen3_moe_routes_by_softmax(normalize: bool) -> None:
    made, state = module("qwen3_moe", "Qwen3MoeTopKRouter", config("Qwen3MoeConfig", norm_topk_prob=normalize))
    attrs = {"top_k": TOP_K, "normalize": normalize}
    check_routing(called(made, inputs()), state["weight"], inputs(), "moe_softmax_topk", (), attrs)


def test_mixtral_routes_by_softmax() -> None:
    made, state = module("mixtral", "MixtralTopKRouter", config("MixtralConfig"))
    check_routing(called(made, inputs()), state["weight"], inputs(), "moe_softmax_topk", (), {"top_k": TOP_K})


def test_gpt_oss_routes_by_softmax_of_the_chosen() -> None:
    made, state = module("gpt_oss", "GptOssTopKRouter", config("GptOssConfig"))
    state["weight"] = np.concatenate([state["weight"], state["bias"][:, None]], 1)
    x = np.concatenate([inputs(), np.ones((TOKENS, 1))], 1)
    check_routing(called(made, inputs()), state["weight"], x, "moe_softmax_topk", (), {"top_k": TOP_K})


@pytest.mark.parametrize("groups", [1, 4])
def test_deepseek_v3_routes_by_sigmoid_with_bias_and_groups(groups: int) -> None:
    top = {"n_group": groups, "topk_group": max(1, groups // 2)}
    given = config("DeepseekV3Config", n_routed_experts=E, norm_topk_prob=True, routed_scaling_factor=2.5, **top)
    made, state = module("deepseek_v3", "DeepseekV3TopkRouter", given)
    attrs = {"top_k": TOP_K, "score": "sigmoid", "groups": groups, "top_groups": top["topk_group"], "scale": 2.5}
    check_routing(
        called(made, inputs()), state["weight"], inputs(), "moe_route", (state["e_score_correction_bias"],), attrs
    )


def test_gemma_4_scales_each_expert_after_the_softmax() -> None:
    import transformers

    given = transformers.Gemma4TextConfig(hidden_size=D, num_experts=E, top_k_experts=TOP_K, rms_norm_eps=1e-6)
    made, state = module("gemma4", "Gemma4TextRouter", given)
    weights, experts = np.zeros((2, TOKENS, E))
    _, found, chosen = (np.asarray(part) for part in called(made, inputs()))
    np.put_along_axis(weights, chosen, found, -1)
    given = inputs(), state["scale"] * D**-0.5, state["proj.weight"], state["per_expert_scale"]
    attrs = {"top_k": TOP_K, "eps": 1e-6, "renormalize": False}
    narrow = [a.astype(np.float32) for a in given]
    for (w, e), close in ((ops.get("moe_gate").reference(given, attrs), 1e-6), (cs.moe_gate(*narrow, **attrs), 1e-4)):
        experts[:] = 0
        np.put_along_axis(experts, e, w, -1)
        np.testing.assert_allclose(experts, weights, rtol=close, atol=close)


@pytest.mark.parametrize(
    ("kind", "block", "made_by"),
    [
        ("qwen3_moe", "Qwen3MoeSparseMoeBlock", "Qwen3MoeConfig"),
        ("mixtral", "MixtralSparseMoeBlock", "MixtralConfig"),
        ("deepseek_v3", "DeepseekV3MoE", "DeepseekV3Config"),
    ],
)
def test_a_block_computes_what_transformers_does(kind: str, block: str, made_by: str) -> None:
    more = (
        {"n_group": 4, "topk_group": 2, "n_routed_experts": E, "n_shared_experts": 1} if kind == "deepseek_v3" else {}
    )
    made, state = module(kind, block, config(made_by, norm_topk_prob=True, **more))
    wanted = called(made, inputs()[None])
    wanted = np.asarray(wanted[0] if isinstance(wanted, tuple) else wanted)[-TOKENS:].reshape(TOKENS, D)
    stacks = *np.split(state["experts.gate_up_proj"], 2, axis=1), state["experts.down_proj"]
    x, logits = inputs(), inputs() @ state["gate.weight"].T
    route, given = "moe_softmax_topk", [logits]
    attrs: dict[str, Any] = {"top_k": TOP_K}
    terms = []
    if kind == "deepseek_v3":
        route, scale = "moe_route", made.config.routed_scaling_factor
        given.append(state["gate.e_score_correction_bias"])
        attrs |= {"score": "sigmoid", "groups": 4, "top_groups": 2, "scale": scale}
        gate, up, down = (state[f"shared_experts.{name}_proj.weight"] for name in ("gate", "up", "down"))
        hidden = x @ gate.T
        terms = [(hidden / (1 + np.exp(-hidden)) * (x @ up.T)) @ down.T]
    weights, experts = ops.get(route).reference(given, attrs)
    (y,) = ops.get("moe_experts").reference((x, *stacks, experts, weights), {})
    np.testing.assert_allclose(y + sum(terms), wanted, rtol=1e-5, atol=1e-5)
    narrow = [a.astype(np.float32) for a in (x, *stacks)]
    made_weights, made_experts = getattr(cs, route)(*(a.astype(np.float32) for a in given), **attrs)
    y = cs.moe_experts(*narrow, made_experts, made_weights)
    np.testing.assert_allclose(y + sum(terms), wanted, rtol=1e-3, atol=1e-4)
