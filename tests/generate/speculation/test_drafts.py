"""Drafts: prompt lookup, and how many tokens are worth checking."""

from __future__ import annotations

import numpy as np
import pytest

from camshaft.generate.memory.logits import logits_memory, move_row
from camshaft.generate.speculation.ngram import LONGEST, NgramIndex, length_class
from camshaft.generate.speculation.pace import MOST_ROWS, Pace, RunCosts, lengths
from camshaft.generate.speculation.speculator import NgramDrafter


def _draft(text: list[int], most: int = 7) -> tuple[list[int], int]:
    index = NgramIndex()
    index.follow(text)
    return index.draft(most)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ([], ([], 0)),
        ([1, 2], ([], 0)),
        ([1, 2, 3, 4], ([], 0)),
        ([1, 2, 3, 4, 5, 1, 2], ([3, 4, 5], 2)),
        ([1, 2, 3, 9, 9, 8, 2, 3, 7, 1, 2, 3], ([9, 9, 8], 3)),  # the longest, not the latest
        ([2, 3, 9, 8, 2, 3, 7, 6, 2, 3], ([7, 6, 2], 2)),  # the latest of two
        ([5, 5, 5, 5], ([5, 5, 5], 3)),
        ([1, 2, 1, 2, 1, 2], ([1, 2, 1], 4)),  # goes round
        ([7, *range(20), *range(20)], ([0, 1, 2], LONGEST)),
    ],
)
def test_what_followed_the_longest_repetition_is_drafted(text: list[int], wanted: tuple[list[int], int]) -> None:
    found, length = _draft(text, 3)
    if text[-1:] == [19]:
        assert length == LONGEST
        assert len(found) == 3
    else:
        assert (found, length) == wanted


def test_a_grown_text_and_a_changed_one_give_what_a_new_index_gives() -> None:
    rng, index = np.random.default_rng(0), NgramIndex()
    text: list[int] = []
    for step in range(300):
        text = [*text[: len(text) // 2], 3] if step % 50 == 49 else [*text, int(rng.integers(4))]
        index.follow(text)
        assert index.draft(5) == _draft(text, 5)


def test_lengths_are_in_the_class_of_the_greatest_bound_below() -> None:
    assert [length_class(n) for n in (2, 3, 4, 5, 8, 9, 16)] == [2, 3, 3, 5, 5, 9, 9]


def _costs(**seconds: float) -> RunCosts:
    costs = RunCosts()
    for name, value in seconds.items():
        for each in (100.0, value, value, value):  # the first has compiled the plan
            costs.add(int(name.removeprefix("of_")), each)
    return costs


def test_costs_are_as_measured_and_as_expected_before() -> None:
    costs = RunCosts()
    assert [costs.of(n) for n in (1, 2, 3, 4, 8)] == [1.0, 1.2, 1.5, 1.5, 2.1]
    assert costs.in_runs(1.0) is None
    costs = _costs(of_1=2.0, of_2=3.0, of_7=5.0)
    assert [costs.of(n) for n in (1, 2, 4, 5, 8)] == [1.0, 1.5, 1.5, 2.5, 2.5]
    assert costs.in_runs(1.0) == 0.5
    costs = _costs(of_4=3.0)  # as if 2 seconds were a run of one
    assert [costs.of(n) for n in (1, 2, 4)] == [1.0, 1.2, 1.5]
    assert costs.in_runs(1.0) == 0.5
    assert (costs.seconds(3), costs.seconds(1)) == (3.0, None)


def test_a_draft_is_as_long_as_pays() -> None:
    pace = Pace(RunCosts(), {None: 0.99})
    assert pace.length(None, 7) == 7
    assert pace.length(None, 2) == 2
    assert pace.length(None, 7, known=6) == MOST_ROWS - 6
    assert pace.length(None, 7, known=MOST_ROWS) == 0
    assert pace.length(None, 7, each=2.0) == 0
    for _ in range(30):
        pace.saw(None, False)
    assert pace.share(None) < 0.05
    assert pace.length(None, 7) == 0
    for _ in range(30):
        pace.saw(None, True)
    assert pace.length(None, 7) == 7
    assert Pace(_costs(of_1=1.0, of_2=2.1, of_4=4.1, of_8=8.0), {None: 0.99}).length(None, 7) == 0


def test_several_texts_share_the_rows_of_a_run() -> None:
    costs = RunCosts()
    assert lengths([(0.99, 7), (0.99, 7)], 2, costs) == [3, 3]
    assert lengths([(0.99, 7), (0.1, 7)], 2, costs) == [6, 0]
    assert lengths([(0.99, 2), (0.9, 7)], 2, costs) == [2, 4]
    assert lengths([(0.0, 0), (0.5, 7), (0.5, 7)], 3, costs) == [0, 1, 0]  # a row that costs nothing: 4 are run anyway
    assert lengths([(0.9, 7)] * 8, 8, costs) == [0] * 8
    assert lengths([(0.9, 7)] * 16, 16, costs) == [0] * 16
    assert lengths([(0.9, 7)] * 2, 2, costs, each=0.3) == [3, 3]  # drafted side by side
    assert lengths([(0.9, 7)] * 2, 2, costs, each=1.0) == [0, 0]


def test_wrong_drafts_are_not_run_any_more_and_right_ones_again() -> None:
    drafter, text = NgramDrafter(), [1, 2, 3, 1, 2]
    drafter.begin(RunCosts())
    lengths = []
    for wrong in (True, False):
        for _ in range(25):
            text = [*text, 1, 2] if text[-2:] != [1, 2] else text
            drafts = drafter.draft(text, None, 7, 1)  # type: ignore[arg-type]
            lengths.append(len(drafts))
            expected = drafter._next[0]
            token = expected + 1 if wrong else expected
            drafter.saw(token)
            text = [*text, token]
    assert lengths[24] == 0
    assert lengths[49] > 0


def test_a_row_of_logits_becomes_the_first() -> None:
    logits = logits_memory(4, 3, None)
    assert isinstance(logits, np.ndarray)
    logits[:] = np.arange(12).reshape(4, 3)
    move_row(logits, 0)
    assert logits[0].tolist() == [0, 1, 2]
    move_row(logits, 2)
    assert logits[0].tolist() == [6, 7, 8]
    assert logits[1].tolist() == [3, 4, 5]
