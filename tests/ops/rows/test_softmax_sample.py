"""softmax_sample: several draws without replacement, and their log-probabilities."""

from __future__ import annotations

import numpy as np

from camshaft import ops
from camshaft.backends.cpu.device import cpu_device
from camshaft.ops.op import Sample
from camshaft.validation.run import run_variant
from camshaft.validation.validate import node_of
from tests.ops.rows.draws import chi_square, draw


def several(logits, draws, seeds=None, **settings):
    """Tokens [R, draws] and their log-probabilities."""
    rows = len(logits)
    given = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | settings
    dtypes = {"top_k": np.int32}
    columns = (np.full(rows, value, dtypes.get(name, np.float32)) for name, value in given.items())
    seed = np.zeros((rows, 3), np.uint32)
    seed[:, 0] = np.arange(rows) if seeds is None else seeds
    inputs = (np.ascontiguousarray(logits, np.float32), *columns, seed)
    op = ops.get("softmax_sample")
    return run_variant(op.variants[0], node_of(op, Sample("", inputs, {"draws": draws})), cpu_device("simd"), inputs)


def test_draws_without_replacement_follow_the_distribution() -> None:
    rows, p = 30_000, np.array([0.4, 0.3, 0.2, 0.1])
    tokens, logprobs = several(np.tile(np.log(p), (rows, 1)), 2)
    pairs = np.bincount(tokens[:, 0] * 4 + tokens[:, 1], minlength=16)
    expected = p[:, None] * p / (1 - p[:, None]) * (1 - np.eye(4))
    assert abs(chi_square(pairs, expected.ravel())) < 4
    np.testing.assert_allclose(logprobs, np.log(p)[tokens], rtol=1e-5)


def test_the_first_of_several_draws_is_the_one_draw() -> None:
    logits = np.random.default_rng(5).normal(size=(40, 300))
    tokens, _ = several(logits, 300)
    np.testing.assert_array_equal(tokens[:, 0], draw(logits))
    np.testing.assert_array_equal(np.sort(tokens, -1), np.broadcast_to(np.arange(300), (40, 300)))


def test_a_row_gives_no_more_tokens_than_are_kept() -> None:
    logits = np.array([[0.0, -np.inf, 3.0, 1.0, 2.0]])
    tokens, logprobs = several(logits, 5, top_k=3)
    assert sorted(tokens[0, :3]) == [2, 3, 4]
    assert tokens[0, 3:].tolist() == [-1, -1]
    assert np.isnan(logprobs[0, 3:]).all()
    np.testing.assert_allclose(np.exp(logprobs[0, :3]).sum(), 1, rtol=1e-6)
    assert several(logits, 5, temperature=0)[0][0].tolist() == [2, 4, 3, 0, -1]


def test_greedy_log_probabilities_are_those_of_the_logits() -> None:
    logits = np.random.default_rng(6).normal(size=(3, 50))
    tokens, logprobs = several(logits, 2, temperature=0, top_k=1)
    expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    np.testing.assert_allclose(logprobs, np.take_along_axis(expected, tokens.astype(np.int64), -1), rtol=1e-5)
