"""Requests go to the replica that has most of their prompt, unless it has much more to do than another one."""

from __future__ import annotations

from random import Random

import pytest

from camshaft.cluster.prefixes import RoutedPrefixes, choose
from camshaft.generate.engine.prefix_cache import BLOCK_TOKENS, block_keys

A, B, C = "abc"
KEYS = [b"1", b"2", b"3", b"4"]


def _chosen(prefixes: RoutedPrefixes[str], keys: list[bytes], n_open: dict[str, int], slack: int = 2) -> set[str]:
    """What is chosen in 30 tries."""
    return {choose(keys, n_open, prefixes, slack, Random(seed)) for seed in range(30)}


def test_the_longest_beginning_decides_and_of_equals_the_shorter_queue() -> None:
    prefixes = RoutedPrefixes[str](100)
    prefixes.add(A, KEYS[:2])
    prefixes.add(B, KEYS[:3])
    prefixes.add(C, KEYS[1:])  # no beginning
    assert [prefixes.n_cached(each, KEYS) for each in (A, B, C, "d")] == [2, 3, 0, 0]
    assert _chosen(prefixes, KEYS, {A: 0, B: 2, C: 0}) == {B}
    assert _chosen(prefixes, KEYS[:2], {A: 2, B: 1, C: 0}) == {B}
    assert _chosen(prefixes, KEYS[:2], {A: 1, B: 2, C: 0}) == {A}


def test_where_queues_differ_by_more_or_nothing_is_known_the_better_of_two_gets_it() -> None:
    prefixes = RoutedPrefixes[str](100)
    prefixes.add(B, KEYS)
    assert _chosen(prefixes, KEYS, {A: 0, B: 3}) == {A}
    assert _chosen(prefixes, KEYS, {A: 0, B: 3, C: 1}) == {A, C}  # never the longest queue of the three
    assert _chosen(prefixes, [], {A: 0, B: 0, C: 0}) == {A, B, C}
    assert _chosen(prefixes, [b"other"], {A: 5, B: 5, C: 4}) == {A, B, C}
    assert _chosen(prefixes, [b"other"], {A: 1}) == {A}


def test_blocks_are_forgotten_from_the_end_of_the_prompt_that_was_used_least_recently() -> None:
    prefixes = RoutedPrefixes[str](5)
    prefixes.add(A, KEYS)
    prefixes.add(A, [b"x", b"y"])
    assert (prefixes.n_cached(A, KEYS), prefixes.n_cached(A, [b"x", b"y"])) == (3, 2)
    prefixes.add(A, KEYS[:1])
    prefixes.add(A, [b"z"])
    assert [prefixes.n_cached(A, [key]) for key in (*KEYS, b"x", b"y", b"z")] == [1, 1, 0, 0, 1, 1, 1]
    prefixes.add(B, KEYS)
    prefixes.keep([B, C])
    assert (prefixes.n_cached(A, KEYS), prefixes.n_cached(B, KEYS)) == (0, 4)


def _hits(n_replicas: int, *, is_random: bool, n_prompts: int = 400) -> int:
    """The blocks that replicas with enough memory find, of prompts that come twice, at random times."""
    random, caches = Random(1), [set[bytes]() for _ in range(n_replicas)]
    prompts = [block_keys([i] * BLOCK_TOKENS + [1] * 3 * BLOCK_TOKENS) for i in range(n_prompts)] * 2
    random.shuffle(prompts)
    prefixes, n_open, hits = RoutedPrefixes[int](4 * n_prompts), [0] * n_replicas, 0
    for i, keys in enumerate(prompts):
        to = choose([] if is_random else keys, dict(enumerate(n_open)), prefixes, 4, random)
        prefixes.add(to, keys)
        hits += sum(key in caches[to] for key in keys)
        caches[to].update(keys)
        n_open[to] += 1
        if i >= 8:
            busy = max(range(n_replicas), key=n_open.__getitem__)
            n_open[busy] -= 1
    return hits


@pytest.mark.parametrize("n_replicas", [2, 8])
def test_hits_are_those_of_one_engine_where_at_random_few_are(n_replicas: int) -> None:
    alone = _hits(1, is_random=True)
    assert alone == 400 * 4
    assert _hits(n_replicas, is_random=False) >= 0.9 * alone
    assert _hits(n_replicas, is_random=True) == pytest.approx(alone / n_replicas, rel=0.3)
