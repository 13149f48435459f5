"""Measurements: stored by shape, looked up by nearest site, merged among processes, dropped when a kernel changes or fails."""

from __future__ import annotations

import threading
import warnings
from dataclasses import replace

import pytest

from camshaft import ops
from camshaft.dtypes import f16, f32
from camshaft.errors import BackendError
from camshaft.extent import Extent
from camshaft.ops.op import NodeSpec
from camshaft.ops.spec import Dim, TensorSpec
from camshaft.selection import measurements as stored_measurements
from camshaft.selection import select
from camshaft.selection.measurements import Measurements, _document_key, measurements
from camshaft.selection.sites import Measurement, form_of, measurement, sizes_of
from camshaft.store.store import store
from camshaft.validation import cases
from camshaft.validation.cases import VariantCase, case_of
from camshaft.validation.evidence import ValidationResult

MATMUL = ops.get("matmul")
LANES, TILED = (next(v for v in MATMUL.variants if v.name == name) for name in ("lanes", "tiled"))

pytestmark = pytest.mark.usefixtures("cache")


def product(m: Dim, k: int, n: int) -> NodeSpec:
    a, b = TensorSpec((m, k), f32), TensorSpec((k, n), f32)
    return NodeSpec((a, b), MATMUL.infer((a, b), {}), {})


def keep(node: NodeSpec, **times: float) -> None:
    """Stores times of the variants of matmul on simd by name."""
    variants = {v.name: v for v in MATMUL.variants}
    measurements().add(measurement(MATMUL, variants[name], "simd", node, ns, 1) for name, ns in times.items())


@pytest.fixture
def proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is proved, by decree."""
    monkeypatch.setattr(
        select, "prove", lambda rows, **_: {c: ValidationResult(c.op, c.variant, c.backend, "proved") for c in rows}
    )


def test_a_measurement_is_found_again_by_another_process() -> None:
    node = product(64, 64, 64)
    keep(node, tiled=500.0)
    other = Measurements(store())  # as a process that starts now reads it
    assert other.ns(MATMUL, case_of(MATMUL, TILED, "simd", node), node) == 500.0
    assert other.ns(MATMUL, case_of(MATMUL, LANES, "simd", node), node) is None
    kept = other.summary()
    assert (kept.n_measurements, kept.n_sites) == (1, 1)
    assert kept.newest is not None


def test_the_winner_of_a_site_holds_half_way_to_the_next(proved: None) -> None:
    """Between 64 and 512 the border is at their geometric mean, 181."""
    keep(product(64, 64, 64), lanes=1.0, tiled=2.0)
    keep(product(512, 512, 512), lanes=2.0, tiled=1.0)
    for size, winner in ((64, "lanes"), (170, "lanes"), (192, "tiled"), (512, "tiled")):
        choice = select.select(MATMUL, product(size, size, size), "simd")
        assert choice.variant.name == winner, size
        assert choice.reason.startswith("measured")


def test_each_size_counts() -> None:
    """One column of 1024 rows is not a neighbour of a square."""
    keep(product(1024, 1024, 1024), tiled=1.0)
    for near, node in (
        (True, product(512, 2048, 1024)),
        (False, product(1024, 1024, 1)),
        (False, product(1, 1024, 1024)),
    ):
        found = measurements().ns(MATMUL, case_of(MATMUL, TILED, "simd", node), node)
        assert (found is not None) == near, node


def test_times_of_neighbours_are_scaled_by_work() -> None:
    keep(product(256, 256, 256), tiled=100.0)
    node = product(512, 256, 256)
    found = measurements().ns(MATMUL, case_of(MATMUL, TILED, "simd", node), node)
    assert found == pytest.approx(200.0, rel=0.01)


def test_only_times_of_one_site_are_compared(proved: None) -> None:
    """`lanes` was measured further away: at the nearest site it is unknown, and what is measured comes first."""
    keep(product(256, 256, 256), tiled=1e9)
    keep(product(512, 512, 512), lanes=1.0)
    assert select.select(MATMUL, product(280, 280, 280), "simd").variant.name == "tiled"


def test_forms_are_apart() -> None:
    rows = Extent("rows", 64)
    a, b = TensorSpec((64, 64), f16), TensorSpec((64, 64), f32)
    half = NodeSpec((a, b), MATMUL.infer((a, b), {}), {})
    turned = NodeSpec((b, b), MATMUL.infer((b, b), {"transpose_b": True}), {"transpose_b": True})
    nodes = [product(64, 64, 64), product(rows, 64, 64), half, turned]
    assert len({form_of(node) for node in nodes}) == 4
    assert {sizes_of(node) for node in nodes} == {(64, 64, 64, 64)}


def test_sizes_among_the_attributes_count() -> None:
    attention = ops.get("attention")
    sample = next(iter(attention.samples()))
    assert sample.attrs["head_dim"] in sizes_of(NodeSpec((), (), sample.attrs))


def test_values_that_were_measured_are_candidates(proved: None) -> None:
    node = product(256, 256, 256)
    tuned = TILED.with_values({"rows": 4, "columns": 1})  # sums that fit any CPU's registers
    keep(node, tiled=100.0, lanes=200.0)
    measurements().add([measurement(MATMUL, tuned, "simd", node, 50.0, 1)])
    choice = select.select(MATMUL, node, "simd")
    assert choice.variant.values == {"rows": 4, "columns": 1}
    assert choice.variant.label == "tiled columns=1 rows=4"
    assert "measured 0.05 us, the fastest of 4" in choice.reason


def test_a_changed_kernel_drops_its_measurements_with_a_warning(proved: None, monkeypatch: pytest.MonkeyPatch) -> None:
    node = product(256, 256, 256)
    keep(node, tiled=100.0, lanes=1.0)
    tuned = measurement(MATMUL, TILED.with_values({"rows": 4}), "simd", node, 50.0, 1)
    other = measurement(MATMUL, TILED.with_values({"rows": 4}), "simd", product(16, 16, 16), 50.0, 1)
    measurements().add([tuned, other])
    monkeypatch.setattr(cases, "_source_digest", lambda module, sources: "changed")
    with pytest.warns(UserWarning, match="dropped the stored .*: its kernel changed since") as caught:
        choice = select.select(MATMUL, node, "simd")
    assert choice.variant.values == {}
    assert choice.reason.startswith("estimated")
    assert len(caught) == 1  # whatever variants, values and sizes: one line for all
    assert " and 3 more: its kernel" in str(caught[0].message)
    assert measurements().summary().n_measurements == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Measurements(store()).summary().n_measurements == 0


def test_a_stored_choice_that_proves_no_longer_is_dropped_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    node = product(256, 256, 256)
    keep(node, tiled=100.0, lanes=200.0)
    measurements().add([measurement(MATMUL, TILED.with_values({"rows": 4}), "simd", node, 50.0, 1)])

    def prove(rows: list[VariantCase], **_: object) -> dict[VariantCase, ValidationResult]:
        return {
            c: ValidationResult(c.op, c.variant, c.backend, "failed" if c.values else "proved", "planted") for c in rows
        }

    monkeypatch.setattr(select, "prove", prove)
    with pytest.warns(UserWarning, match="matmul tiled rows=4: failed: planted"):
        choice = select.select(MATMUL, node, "simd")
    assert choice.variant.label == "tiled"
    assert {m.values for m in measurements().at(MATMUL, node)} == {""}


def test_values_that_are_legal_no_longer_are_no_candidates(proved: None) -> None:
    node = product(256, 256, 256)
    keep(node, tiled=100.0)
    gone = replace(measurement(MATMUL, TILED, "simd", node, 1.0, 1), values="rows=99")
    measurements().add([gone])
    assert select.select(MATMUL, node, "simd").variant.label == "tiled"


def test_illegal_values_are_refused() -> None:
    with pytest.raises(BackendError, match="tiled: got rows=99; wanted values of packed 0, 1; rows 1, 2"):
        TILED.with_values({"rows": 99})
    with pytest.raises(BackendError, match="lanes: got rows=4; wanted values of nothing"):
        LANES.with_values({"rows": 4})


def test_a_claim_names_its_values_and_has_a_key_of_its_own() -> None:
    node = product(64, 64, 64)
    plain, tuned = (case_of(MATMUL, v, "simd", node) for v in (TILED, TILED.with_values({"rows": 4})))
    assert plain.key() != tuned.key()
    assert tuned.resolve()[1].values == {"rows": 4}


def test_what_threads_and_processes_add_is_merged() -> None:
    mine, theirs = Measurements(store()), Measurements(store())
    nodes = [product(size, size, size) for size in range(1, 33)]
    rows = [measurement(MATMUL, TILED, "simd", node, 1.0, 1) for node in nodes]
    theirs.summary()  # has read the empty document
    halves = [
        threading.Thread(target=lambda half=half: [mine.add([m]) for m in half]) for half in (rows[::2], rows[1::2])
    ]
    for thread in halves:
        thread.start()
    for thread in halves:
        thread.join()
    theirs.add([measurement(MATMUL, LANES, "simd", nodes[0], 1.0, 1)])
    assert theirs.summary().n_measurements == 33


def test_nobody_writes_between_anothers_reading_and_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, theirs = Measurements(store()), Measurements(store())
    rows = [measurement(MATMUL, TILED, "simd", product(size, size, size), 1.0, 1) for size in (8, 16)]
    read, begun, others = mine._read, threading.Event(), threading.Thread(target=lambda: theirs.add(rows[1:]))

    def slow_read() -> dict[str, Measurement]:
        found = read()
        others.start()  # who would write now if nothing held it off
        begun.wait(0.2)
        return found

    monkeypatch.setattr(mine, "_read", slow_read)
    mine.add(rows[:1])
    others.join(30)
    assert Measurements(store()).summary().n_measurements == 2


def test_new_times_of_a_site_take_the_place_of_its_backends_old_ones() -> None:
    node = product(64, 64, 64)
    keep(node, tiled=100.0, lanes=200.0)
    blas = replace(measurement(MATMUL, TILED, "simd", node, 1.0, 1), backend="blas")
    measurements().add([blas])
    measurements().replace_site(MATMUL, node, [measurement(MATMUL, TILED, "simd", node, 90.0, 1)])
    assert {(m.variant, m.backend, m.ns) for m in measurements().at(MATMUL, node)} == {
        ("tiled", "simd", 90.0),
        ("tiled", "blas", 1.0),
    }


def test_clear_counts_and_forgets() -> None:
    keep(product(64, 64, 64), tiled=100.0, lanes=200.0)
    assert measurements().clear() == 2
    assert measurements().summary().n_measurements == Measurements(store()).summary().n_measurements == 0


def test_rows_of_another_version_are_left_out() -> None:
    keep(product(64, 64, 64), tiled=100.0)
    key = _document_key()
    document = store().measurements.get(key)
    assert document is not None
    row = document["measurements"][0]
    store().measurements.put(key, {"measurements": [row, row | {"colour": "red"}, 7]})
    assert Measurements(store()).summary().n_measurements == 1


@pytest.mark.parametrize(
    "damage",
    [
        {"ns": "fast"}, {"ns": -1.0}, {"ns": True}, {"work": 0.0}, {"sizes": 7}, {"sizes": [64, "64"]}, {"sizes": [-1]},
        {"op": None}, {"form": ["f32"]}, {"values": 3}, {"threads": "2"}, {"guess": 1}, {"when": None},
    ],
)  # fmt: skip
def test_damaged_rows_are_left_out(damage: dict[str, object]) -> None:
    keep(product(64, 64, 64), tiled=100.0)
    document = store().measurements.get(_document_key())
    assert document is not None
    row = document["measurements"][0]
    store().measurements.put(_document_key(), {"measurements": [row, row | {"variant": "lanes"} | damage]})
    fresh = Measurements(store())
    assert fresh.summary().n_measurements == 1
    assert [m.variant for m in fresh.at(MATMUL, product(64, 64, 64))] == ["tiled"]


def test_another_machines_measurements_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    keep(product(64, 64, 64), tiled=100.0)
    _document_key.cache_clear()
    monkeypatch.setattr(stored_measurements, "hardware", lambda: ("another CPU", 64, (1 << 15,)))
    try:
        assert Measurements(store()).summary().n_measurements == 0
    finally:
        _document_key.cache_clear()
