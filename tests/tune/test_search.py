"""The beam search on fake timings: steps, width, impossible choices, stopping below the noise."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from camshaft.errors import SettingError
from camshaft.ops.op import Values
from camshaft.tune.search import beam_search, neighbours

LEGAL = {"rows": (1, 2, 4, 8, 16), "columns": (1, 2, 3, 4)}


def anything(values: Values) -> bool:
    return True


def test_neighbours_differ_in_one_value_by_one_step() -> None:
    found = neighbours({"rows": 4, "columns": 1}, LEGAL, anything)
    assert found == [{"rows": 8, "columns": 1}, {"rows": 2, "columns": 1}, {"rows": 4, "columns": 2}]


def test_a_step_goes_on_to_the_next_value_that_fits() -> None:
    found = neighbours({"rows": 4, "columns": 1}, LEGAL, lambda values: values["rows"] != 8)
    assert {"rows": 16, "columns": 1} in found


def test_a_seed_outside_of_the_legal_values_has_neighbours_on_both_sides() -> None:
    found = neighbours({"rows": 6, "columns": 1}, {"rows": LEGAL["rows"]}, anything)
    assert found == [{"rows": 8, "columns": 1}, {"rows": 4, "columns": 1}]


def test_the_search_walks_to_the_best() -> None:
    asked: list[Values] = []

    def evaluate(batch: Sequence[Values]) -> list[float | None]:
        asked.extend(batch)
        return [1.0 - 0.1 * (v["rows"] / 16 + v["columns"]) + 0.1 * (4 / 16 + 1) for v in batch]

    found = beam_search({"rows": 4, "columns": 1}, LEGAL, anything, evaluate, width=1, noise=0.0)
    assert found.values == {"rows": 16, "columns": 4}
    assert len(asked) == found.n_tried
    assert all(asked.count(values) == 1 for values in asked)


def test_what_cannot_be_had_is_no_winner_and_no_step() -> None:
    def evaluate(batch: Sequence[Values]) -> list[float | None]:
        return [None if v["rows"] > 4 else 1 / v["columns"] for v in batch]

    found = beam_search({"rows": 4, "columns": 1}, LEGAL, anything, evaluate, width=4, noise=0.0)
    assert found.values["rows"] <= 4
    assert found.values["columns"] == 4


def test_a_gain_under_the_noise_ends_the_search() -> None:
    rounds: list[int] = []

    def evaluate(batch: Sequence[Values]) -> list[float | None]:
        rounds.append(len(batch))
        return [0.99 for _ in batch]

    beam_search({"rows": 4, "columns": 1}, LEGAL, anything, evaluate, width=4, noise=0.02)
    assert len(rounds) == 1


def test_a_wider_beam_tries_more() -> None:
    def evaluate(batch: Sequence[Values]) -> list[float | None]:
        return [1 / (v["rows"] * v["columns"]) for v in batch]

    narrow, wide = (
        beam_search({"rows": 1, "columns": 1}, LEGAL, anything, evaluate, width=width, noise=0.0) for width in (1, 4)
    )
    assert wide.n_tried > narrow.n_tried
    assert narrow.values == wide.values == {"rows": 16, "columns": 4}


def test_a_beam_of_no_width_is_refused() -> None:
    with pytest.raises(SettingError, match="width of 1 or more"):
        beam_search({}, {}, anything, lambda batch: [], width=0, noise=0.0)
