"""attention's options against torch's SDPA, transformers' eager attention with sinks and soft cap, and onnx's node tests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import camshaft as cs
from camshaft import ops

pytestmark = pytest.mark.oracle
SDPA = ops.get("scaled_dot_product_attention")
B, H, KV, L, S, D = 2, 4, 2, 7, 21, 16


def drawn(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def check(wanted: Any, inputs: Any, attrs: dict[str, Any], close: float = 1e-5) -> None:
    """The reference and the kernels give what the oracle gives."""
    (made, *_) = SDPA.reference(inputs, attrs)
    np.testing.assert_allclose(made, wanted, rtol=close, atol=close)
    computed = cs.scaled_dot_product_attention(*inputs, **attrs)
    np.testing.assert_allclose(computed, wanted, rtol=close, atol=close)


def torch_sdpa(q: Any, k: Any, v: Any, mask: Any = None, **attrs: Any) -> np.ndarray:
    torch = pytest.importorskip("torch")
    tensors = [torch.from_numpy(x).double() for x in (q, k, v)]
    given = None if mask is None else torch.from_numpy(mask)
    given = given.double() if given is not None and given.dtype != torch.bool else given
    call = torch.nn.functional.scaled_dot_product_attention
    return np.asarray(call(*tensors, attn_mask=given, enable_gqa=True, **attrs))


@pytest.mark.parametrize("v_size", [D, 24])
@pytest.mark.parametrize("queries", [L, S])
def test_torch_agrees_on_masks(queries: int, v_size: int) -> None:
    q, k, v = drawn((B, H, queries, D), (B, KV, S, D), (B, KV, S, v_size))
    check(torch_sdpa(q, k, v), (q, k, v), {})
    check(torch_sdpa(q, k, v, scale=0.3), (q, k, v), {"scale": 0.3})
    check(torch_sdpa(q, k, v, is_causal=True), (q, k, v), {"causal": True})
    (added,) = drawn((B, H, queries, S))
    for shape in ((queries, S), (1, 1, 1, S), (B, 1, 1, S), (B, H, queries, S), (H, queries, S), (1, H, 1, S)):
        at = tuple(slice(n) for n in (1,) * (4 - len(shape)) + shape)
        part = np.ascontiguousarray(added[at]).reshape(shape)
        check(torch_sdpa(q, k, v, part), (q, k, v, part), {})
        seen = part > -0.3
        seen[..., 0] = True
        check(torch_sdpa(q, k, v, seen), (q, k, v, seen), {})


def test_torch_agrees_on_rows_that_see_nothing() -> None:
    q, k, v = drawn((B, H, L, D), (B, KV, S, D), (B, KV, S, D))
    seen = np.ones((L, S), bool)
    seen[3] = False
    wanted = torch_sdpa(q, k, v, seen)
    check(np.nan_to_num(wanted, nan=0.0), (q, k, v, seen), {})


def test_torch_agrees_on_the_log_sum_exp() -> None:
    torch = pytest.importorskip("torch")
    q, k, v = drawn((B, H, L, D), (B, H, S, D), (B, H, S, D))
    scores = torch.from_numpy(q).double() @ torch.from_numpy(k).double().transpose(2, 3) / D**0.5
    np.testing.assert_allclose(SDPA.reference((q, k, v), {"lse": True})[1], torch.logsumexp(scores, -1), rtol=1e-12)


@pytest.mark.parametrize("kind", ["gpt_oss", "gemma2"])
def test_transformers_agrees_on_sinks_soft_cap_and_windows(kind: str) -> None:
    torch = pytest.importorskip("torch")
    module = pytest.importorskip(f"transformers.models.{kind}.modeling_{kind}")
    q, k, v, sinks = drawn((B, H, S, D), (B, KV, S, D), (B, KV, S, D), (H,))
    places = np.arange(S, dtype=np.int32)
    (mask,) = ops.get("attention_mask").reference((places, places), {"window": 6, "to": "f32"})
    given = SimpleNamespace(num_key_value_groups=H // KV, sinks=torch.from_numpy(sinks), training=False, head_dim=D)
    more = {"softcap": 1.5} if kind == "gemma2" else {}
    tensors = [torch.from_numpy(x) for x in (q, k, v)]
    made, _ = module.eager_attention_forward(given, *tensors, torch.from_numpy(mask), scaling=0.2, **more)
    attrs: dict[str, Any] = {"causal": True, "window": 6, "scale": 0.2}
    inputs = (q, k, v, sinks) if kind == "gpt_oss" else (q, k, v)
    attrs |= {"extras": "sinks"} if kind == "gpt_oss" else {"cap": 1.5}
    check(made.transpose(1, 2).numpy(), inputs, attrs)


def of_onnx() -> list[Any]:
    case = pytest.importorskip("onnx.backend.test.case.node", reason="onnx is not installed")
    with np.errstate(all="ignore"):
        found = case.collect_testcases("Attention")
    return [c for c in found if "expanded" not in c.name]


def test_onnx_agrees_on_its_node_tests() -> None:
    """Those whose output is attention alone, with the same offset for the whole batch."""
    helper = pytest.importorskip("onnx.helper")
    tried = 0
    for case in of_onnx():
        node = case.model.graph.node[0]
        attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        (inputs, outputs) = case.data_sets[0]
        names = [name for name in node.input if name]
        given = dict(zip((("Q", "K", "V", "mask", "past_key", "past_value", "nonpad")[i] for i, n in
                          enumerate(node.input) if n), inputs, strict=True))  # fmt: skip
        assert len(names) == len(inputs)
        made = from_onnx(given, attrs)
        if made is None:
            continue
        close = 1e-5 if given["Q"].dtype == np.float32 else 2e-2
        wanted = outputs[0].astype(np.float32)
        np.testing.assert_allclose(made.reshape(wanted.shape), wanted, rtol=close, atol=close, err_msg=case.name)
        tried += 1
    assert tried >= 60


def from_onnx(given: dict[str, Any], attrs: dict[str, Any]) -> np.ndarray | None:
    """The first output of an onnx Attention node by this package; None where its options are others."""
    known = {
        "is_causal",
        "scale",
        "softcap",
        "q_num_heads",
        "kv_num_heads",
        "qk_matmul_output_mode",
        "softmax_precision",
    }
    if set(attrs) - known or ("nonpad" in given and attrs.get("is_causal")):
        return None
    q, k, v = (given[name] for name in "QKV")
    flat = q.ndim == 3
    if flat:
        q, k, v = (
            x.reshape(*x.shape[:2], attrs[n], -1).transpose(0, 2, 1, 3)
            for x, n in ((q, "q_num_heads"), (k, "kv_num_heads"), (v, "kv_num_heads"))
        )
    past = 0
    if "past_key" in given:
        past = given["past_key"].shape[2]
        k, v = (np.concatenate([given[n], x], 2) for n, x in (("past_key", k), ("past_value", v)))
    mask, extras = given.get("mask"), {}
    if mask is not None:
        short = k.shape[2] - mask.shape[-1]
        if short:
            fill = False if mask.dtype == bool else -np.inf
            mask = np.concatenate([mask, np.full((*mask.shape[:-1], short), fill, mask.dtype)], -1)
        extras["mask"] = mask
    if "nonpad" in given:
        extras["lengths"] = given["nonpad"].astype(np.int32)
    options = {"causal": bool(attrs.get("is_causal", 0)), "offset": past, "cap": float(attrs.get("softcap", 0.0))}
    options |= {"scale": attrs.get("scale"), "extras": " ".join(extras)}
    arrays = [np.ascontiguousarray(x) for x in (q, k, v, *extras.values())]
    (made,) = SDPA.reference(arrays, options)
    return made.transpose(0, 2, 1, 3) if flat else made
