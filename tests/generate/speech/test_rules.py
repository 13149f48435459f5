"""Which tokens may follow: the rules of times, by hand and, live, as transformers has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from camshaft.generate.speech.rules import Rules
from camshaft.generate.speech.tokens import SpeechTokens
from camshaft.generate.speech.transcript import split_window

# Text 0 to 9, the end 10, special tokens 11 to 18, times from 20 to 40.
END, NO_TIMES, FIRST, LAST = 10, 19, 20, 40
TOKENS = SpeechTokens(END, 11, 14, 13, 16, 17, NO_TIMES, FIRST, LAST, {"en": 12}, (3, END))


def rules(*, timestamps: bool = True, limit: int = 5) -> Rules:
    return Rules(TOKENS, np.arange(11, FIRST), np.array([3, END]), timestamps, limit)


def allowed(chosen: list[int], logits: np.ndarray[Any, Any] | None = None, **options: Any) -> set[int]:
    given = np.zeros(LAST + 3, np.float32) if logits is None else logits.copy()
    if logits is None:
        given[:FIRST] = 9.0  # so that text is likelier than all times
    rules(**options).apply(given, chosen)
    return set(np.flatnonzero(np.isfinite(given)).tolist())


TEXT, TIMES = set(range(END)), set(range(FIRST, LAST + 1))


@pytest.mark.parametrize(
    ("chosen", "wanted"),
    [
        ([], set(range(FIRST, FIRST + 6))),
        ([22], TEXT | {END}),
        ([22, 5], TEXT | {END} | set(range(23, LAST + 1))),
        ([22, 5, 25], {END} | set(range(25, LAST + 1))),
        ([22, 5, 25, 25], TEXT | {END}),
        ([22, 5, 25, 30], TEXT | {END}),
        ([22, 5, 25, 30, 4], TEXT | {END} | set(range(31, LAST + 1))),
        ([5], TEXT | {END} | TIMES),
        ([22, 5, 40], {END, 40}),
    ],
)
def test_times_come_in_pairs_and_never_go_back(chosen: list[int], wanted: set[int]) -> None:
    assert allowed(chosen) == wanted


def test_without_times_none_comes_and_the_first_token_is_no_blank() -> None:
    assert allowed([], timestamps=False) == TEXT - {3}
    assert allowed([4], timestamps=False) == TEXT | {END}


def test_times_that_are_likelier_together_than_any_text_exclude_it() -> None:
    logits = np.zeros(LAST + 1, np.float32)
    logits[5] = 2.5  # less than ln(18): the times from 23 on
    assert allowed([22, 5], logits) == set(range(23, LAST + 1))
    logits[5] = 3.5
    assert 5 in allowed([22, 5], logits)


@pytest.mark.parametrize(
    ("ids", "parts", "moved"),
    [
        ([], [], 80),
        ([20, 1, 2], [(20, 1, 2)], 80),
        ([20, 1, 25, 25, 2, 30], [(20, 1, 25), (25, 2, 30)], 80),
        ([20, 1, 25, 25, 2, 30, 33], [(20, 1, 25), (25, 2, 30)], 20),
        ([20, 1, 25, 25, 2], [(20, 1, 25)], 10),
        ([20, 20], [(20,)], 80),
    ],
)
def test_a_window_is_split_at_pairs_and_the_next_begins_at_the_last(
    ids: list[int], parts: list[tuple[int, ...]], moved: int
) -> None:
    assert split_window(ids, TOKENS, 80) == (parts, moved)


@pytest.mark.oracle
def test_masks_are_those_of_transformers() -> None:
    torch = pytest.importorskip("torch")
    from transformers import GenerationConfig
    from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

    config = GenerationConfig(
        eos_token_id=END, bos_token_id=END, no_timestamps_token_id=NO_TIMES, max_initial_timestamp_index=5
    )
    theirs = WhisperTimeStampLogitsProcessor(config, begin_index=3)
    rng = np.random.default_rng(5)
    for _ in range(400):
        n = int(rng.integers(0, 7))
        chosen = np.where(rng.random(n) < 0.5, rng.integers(FIRST, LAST + 1, n), rng.integers(0, END, n)).tolist()
        logits = rng.normal(size=LAST + 1).astype(np.float32) * 3
        logits[11:FIRST] = -np.inf
        if not chosen:
            logits[[3, END]] = -np.inf
        wanted = theirs(torch.tensor([[1, 1, 1, *chosen]]), torch.tensor(logits[None].copy()))[0].numpy()
        rules().apply(logits, chosen)
        assert (np.isfinite(logits) == np.isfinite(wanted)).all(), chosen
