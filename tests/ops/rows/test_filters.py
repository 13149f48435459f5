"""Filters before sample, against llama.cpp's definitions written out; draws behind them follow the distribution."""

from __future__ import annotations

import numpy as np
import pytest

from camshaft import table
from camshaft.ops.sample.kept import LOWEST

P = np.array([0.4, 0.3, 0.15, 0.1, 0.05])


def rows(*values, dtype=np.float32):
    return [np.array([v], dtype) for v in values]


def kept(logits):
    return np.flatnonzero(logits[0] > LOWEST).tolist()


def seeds(n):
    made = np.zeros((n, 3), np.uint32)
    made[:, 0] = np.arange(n)
    return made


def test_typical_p_keeps_what_is_nearest_to_the_entropy() -> None:
    rng = np.random.default_rng(0)
    for share in (0.2, 0.5, 0.9):
        logits = (2 * rng.normal(size=(1, 1000))).astype(np.float32)
        p = np.exp(logits[0].astype(np.float64))
        p /= p.sum()
        order = np.argsort(np.abs(-np.log(p) + (p * np.log(p)).sum()), kind="stable")
        n = int((np.cumsum(p[order]) <= share).sum()) + 1
        assert kept(table().typical_p(logits, *rows(share))) == sorted(order[:n].tolist())


def test_typical_p_without_a_share_writes_every_token() -> None:
    logits = np.random.default_rng(1).normal(size=(2, 17)).astype(np.float32)
    out = np.full_like(logits, 7)
    table().typical_p(logits, np.array([np.nan, 1], np.float32), out=out)
    np.testing.assert_array_equal(out, logits)
    logits[0, 5] = np.inf
    assert kept(table().typical_p(logits, np.array([0.5, 0.5], np.float32))) == [5]


def test_xtc_keeps_the_least_likely_of_the_likely() -> None:
    logits, seed = np.log(P[None]).astype(np.float32), seeds(1)
    assert kept(table().xtc(logits, *rows(1, 0.12), seed)) == [2, 3, 4]
    assert kept(table().xtc(logits, *rows(1, 0.35), seed)) == [0, 1, 2, 3, 4]  # one alone is above
    assert kept(table().xtc(logits, *rows(0, 0.12), seed)) == [0, 1, 2, 3, 4]


def test_xtc_happens_as_often_as_it_should() -> None:
    n = 20_000
    logits = np.tile(np.log(P), (n, 1)).astype(np.float32)
    out = table().xtc(logits, np.full(n, 0.25, np.float32), np.full(n, 0.12, np.float32), seeds(n))
    happened = int((out[:, 0] == LOWEST).sum())
    assert abs(happened - n / 4) < 4 * np.sqrt(n * 0.25 * 0.75)


def test_uniform_numbers_are_even_and_inside() -> None:
    u = table().uniform(seeds(200), n=100)
    assert 0 < u.min() <= u.max() < 1
    counts = np.bincount((u.ravel() * 20).astype(np.int64), minlength=20)
    assert ((counts - 1000) ** 2 / 1000).sum() < 19 + 4 * np.sqrt(38)


def test_mirostat_cuts_what_is_too_surprising_and_learns() -> None:
    logits = np.log(P[None]).astype(np.float32)
    assert kept(table().mirostat(logits, *rows(2.8))) == [0, 1, 2]  # -log2 0.15 = 2.74, -log2 0.1 = 3.3
    assert kept(table().mirostat(logits, *rows(-1))) == [0]
    surprise = -np.log2(0.3)
    mu = table().mirostat_update(*rows(6, np.log(0.3), 5, 0.1))
    np.testing.assert_allclose(mu, [6 - 0.1 * (surprise - 5)], rtol=1e-6)


@pytest.mark.parametrize("n", [1, 31, 32, 33, 100])
def test_a_token_mask_has_a_bit_for_each_token(n) -> None:
    rng = np.random.default_rng(n)
    allowed = rng.random((2, n)) < 0.5
    words = np.zeros((2, -(-n // 32)), np.uint32)
    for row, token in np.argwhere(allowed):
        words[row, token // 32] |= np.uint32(1 << (token % 32))
    logits = rng.normal(size=(2, n)).astype(np.float32)
    np.testing.assert_array_equal(table().token_mask(logits, words), np.where(allowed, logits, np.float32(LOWEST)))


def test_dry_penalizes_what_would_repeat_the_text() -> None:
    logits, settings = np.zeros((1, 8), np.float32), rows(0.5, 2)
    text = np.array([[1, 2, 3, 4, 7, 1, 2, 3]], np.int32)  # 1 2 3 came before, then 4
    out = table().dry(logits, text, *settings, np.array([2], np.int32))
    np.testing.assert_allclose(out[0], np.eye(8)[4] * -0.5 * 2 ** (3 - 2), rtol=1e-6)
    broken = np.where(text == 2, -1, text)
    out = table().dry(logits, broken, *settings, np.array([2], np.int32))
    assert not out.any()


def test_a_biased_token_is_the_only_one_or_none() -> None:
    logits = np.zeros((1, 4), np.float32)
    ids = np.array([[2, -1]], np.int32)
    out = table().logit_bias(logits, ids, np.array([[-np.inf, 9]], np.float32))
    np.testing.assert_array_equal(out, np.float32([[0, 0, -np.inf, 0]]))
