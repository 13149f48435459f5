"""Ops on sequences: any split of the tokens over calls gives the same, and chunks give what token by token gives."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

import camshaft as cs
from camshaft import ops
from camshaft.backends.cpu.device import cpu_device
from camshaft.dtypes import as_dtype, f32
from camshaft.errors import ShapeError
from camshaft.ops.op import NodeSpec
from camshaft.ops.recurrent.delta_chunks import decays_between
from camshaft.ops.recurrent.frame import decays as log_decays
from camshaft.ops.recurrent.frame import rates, small
from camshaft.ops.recurrent.rwkv import OPS as RWKV
from camshaft.ops.spec import TensorSpec
from camshaft.validation.run import run_variant

Decays = Callable[[np.ndarray], np.ndarray]


def inputs(tokens: int, key_size: int = 32, value_size: int = 32, heads: int = 1) -> tuple[np.ndarray, ...]:
    """q, k, v, g, beta and a state of the delta rule."""
    rng, shape = np.random.default_rng(tokens), (1, tokens, heads)
    made = (
        rng.normal(size=(*shape, key_size)), small(rng, (*shape, key_size)), rng.normal(size=(*shape, value_size)),
        log_decays(rng, shape), rates(rng, shape), rng.normal(size=(1, heads, key_size, value_size)),
    )  # fmt: skip
    return tuple(np.asarray(a, np.float32) for a in made)


def error(came: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(came.astype(np.float64) - wanted) / np.linalg.norm(wanted))


def far_and_near(shape: tuple[int, ...]) -> np.ndarray:
    """Log decays of about -40 but for each fourth token: those of near tokens are far below the sum's last digit."""
    g = -50 * np.abs(np.random.default_rng(5).normal(size=shape))
    g[:, ::4] = -0.01
    return np.asarray(g, np.float32)


def agree(tokens: int, far: bool = False) -> None:
    op, given = ops.get("gated_delta_rule"), inputs(tokens)
    given = (*given[:3], far_and_near(given[3].shape), *given[4:]) if far else given
    specs = tuple(TensorSpec(a.shape, as_dtype(a.dtype)) for a in given)
    node, device = NodeSpec(specs, op.infer(specs, {}), {}), cpu_device("simd")
    made = [run_variant(v, node, device, given, {}) for v in op.variants if not v.supports(node, device)]
    for found in made:
        for came, wanted in zip(found, op.reference(given, {}), strict=True):
            assert error(came, wanted) < 3e-6


@pytest.mark.parametrize("tokens", [24, 128])
def test_chunks_give_what_token_by_token_gives(tokens: int) -> None:
    agree(tokens)


def test_near_tokens_after_far_decays_keep_their_digits() -> None:
    """In the kernels, and in the products that other devices run."""
    agree(128, far=True)
    g = far_and_near((1, 64))
    sums = np.cumsum(g, -1, dtype=np.float64)[0]
    wanted = np.tril(np.exp(np.minimum(sums[:, None] - sums, 0)))
    found = decays_between(SimpleNamespace(matmul=np.matmul, where=np.where, exp=np.exp), g)
    np.testing.assert_allclose(found[0], wanted, rtol=2e-5, atol=1e-30)


@pytest.mark.full
@pytest.mark.parametrize("tokens", [1, 25, 63, 64, 65, 191, 4097])
def test_chunks_of_more_lengths(tokens: int) -> None:
    agree(tokens)


def test_the_delta_rule_goes_on_where_it_stopped() -> None:
    *given, state = inputs(130)
    op = ops.get("gated_delta_rule")
    first = cs.gated_delta_rule(*(a[:, :65] for a in given), state)
    second = cs.gated_delta_rule(*(a[:, 65:] for a in given), first[1])
    whole, last = op.reference((*given, state), {})
    assert error(np.concatenate([first[0], second[0]], 1), whole) < 3e-6
    assert error(second[1], last) < 3e-6


def test_a_convolution_goes_on_where_it_stopped() -> None:
    rng = np.random.default_rng(1)
    x, w, state = (rng.normal(size=s).astype(np.float32) for s in ((2, 9, 17), (17, 4), (2, 3, 17)))
    whole, last = ops.get("ssm_conv").reference((x, w, state), {})
    made, after = [], state
    for part in (x[:, :1], x[:, 1:]):
        y, after = cs.ssm_conv(part, w, after)
        made.append(y)
    np.testing.assert_allclose(np.concatenate(made, 1), whole, atol=1e-5)
    np.testing.assert_array_equal(after, last.astype(np.float32))


def test_tokens_far_apart_in_decay_do_not_overflow() -> None:
    q, k, v, g, beta, state = inputs(70)
    given = (q, k, v, np.full_like(g, -80), beta, state)
    out, last = cs.gated_delta_rule(*given)
    wanted = ops.get("gated_delta_rule").reference(given, {})
    assert error(out, wanted[0]) < 3e-6
    assert error(last, wanted[1]) < 3e-6


def of_gradient(tokens: int, keys: int, values: int, groups: int, decays: Decays = lambda g: g) -> None:
    """The kernel's gradients of the delta rule against the reference's; 1 and 3 threads give the same bits."""
    op, (q, k, v, g, beta, state) = ops.get("gated_delta_rule_gradient"), inputs(tokens, keys, values, 2)
    rng = np.random.default_rng(8)
    dy, dstate = (rng.normal(size=a.shape).astype(np.float32) for a in (v, state))
    g = decays(g)
    given = (q[:, :, :groups], k[:, :, :groups], v, g, beta, state, dy, dstate)
    graph = cs.Graph()
    made = graph.node(op.name, *(graph.input(f"x{i}", a.shape, "f32") for i, a in enumerate(given)))
    for i, tensor in enumerate(made):
        graph.output(f"y{i}", tensor)
    found = []
    for threads in (1, 3):
        with cs.compile(graph, backend="simd", threads=threads) as plan:
            found.append(plan.run(**{f"x{i}": a for i, a in enumerate(given)}))
    for i, wanted in enumerate(op.reference(given, {})):
        assert found[0][f"y{i}"].tobytes() == found[1][f"y{i}"].tobytes()
        assert error(found[0][f"y{i}"], wanted) < 3e-6


@pytest.mark.parametrize("decays", [lambda g: g, lambda g: 0 * g - 9, lambda g: far_and_near(g.shape)])
def test_gradients_over_chunks(decays: Decays) -> None:
    """By far decays the gradient of g is small against products that cancel in it."""
    of_gradient(67, 64, 32, 1, decays)


@pytest.mark.full
@pytest.mark.parametrize(
    "sizes", [(1, 33, 31, 2), (64, 32, 32, 2), (65, 128, 16, 1), (200, 16, 256, 2), (129, 100, 70, 1)]
)
def test_gradients_over_chunks_of_more_sizes(sizes: tuple[int, int, int, int]) -> None:
    of_gradient(*sizes)


def test_heads_of_more_than_256_keys_have_gradients_by_products() -> None:
    graph, shape = cs.Graph(), (1, 2, 1, 257)
    inputs = [graph.input(name, shape, "f32") for name in "qkv"] + [graph.input("g", shape[:3], "f32")]
    made = graph.node("gated_linear_attention", *inputs)
    graph.gradients(cs.sum(made[0]), inputs)
    assert "gated_linear_attention_gradient" not in {node.op.name for node in graph.nodes}
    with pytest.raises(ShapeError, match=r"got 257, 257; wanted keys K and values V of at most 256"):
        graph.node("gated_linear_attention_gradient", *inputs, *[made[1], made[0], made[1]])


def test_a_nan_in_a_key_leaves_the_upper_triangle_0() -> None:
    k = np.ones((1, 1, 4, 2), np.float32)
    k[0, 0, 2] = np.nan
    found = cs.delta_chunk_kkt(k, np.zeros((1, 1, 4), np.float32), np.ones((1, 1, 4), np.float32))
    assert not np.triu(found[0, 0]).any()


def test_a_gate_far_below_0_keeps_its_digits() -> None:
    alpha = np.array([[[-30.0, -17, -5, 0, 5, 200]]], np.float32)
    zeros = np.zeros(6, np.float32)
    g, _ = cs.delta_gates(alpha, alpha, zeros, zeros)
    np.testing.assert_allclose(g, -np.logaddexp(0, alpha.astype(np.float64)), rtol=2e-6)


@pytest.mark.parametrize(
    ("name", "change", "match"),
    [
        ("gated_delta_rule", {"scale": float("nan")}, "wanted a finite float"),
        ("gated_delta_rule", {"l2_norm": 1}, "wanted True or False"),
        ("ssm_conv", {"activation": "relu"}, "wanted activation silu or none"),
    ],
)
def test_wrong_attributes_are_named(name: str, change: dict[str, object], match: str) -> None:
    op = ops.get(name)
    specs = tuple(TensorSpec(a.shape, f32) for a in next(iter(op.samples())).inputs)
    with pytest.raises(ShapeError, match=f"{name}: .*{match}"):
        op.infer(specs, change)


def test_heads_that_share_no_group_are_refused() -> None:
    q, k, v, g, beta, _ = inputs(2, heads=3)
    with pytest.raises(ShapeError, match=r"gated_delta_rule: got 3, 2; wanted heads of values"):
        cs.gated_delta_rule(q[:, :, :2], k[:, :, :2], v, g, beta)


def test_rwkv7_with_minus_k_and_rate_k_is_the_delta_rule() -> None:
    """a = -k and b = beta k, no decay, values beta v: the two rules are one."""
    q, k, v, _, beta, state = inputs(5)
    zeros = np.zeros_like(k)
    rate = beta[..., None]
    made = RWKV["rwkv7_time_mix"].reference((q, zeros, k, rate * v, -k, rate * k, state), {})
    wanted = ops.get("delta_rule").reference((q, k, v, beta, state), {"scale": 1.0})
    for came, want in zip(made, wanted, strict=True):
        np.testing.assert_allclose(came, want, atol=1e-6)
