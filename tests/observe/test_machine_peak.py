"""Machine peak: stored per machine and thread count, the higher of two measurements, correct kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from camshaft.dtypes import f32, i32, u32
from camshaft.emit.llvm.module import emit
from camshaft.emit.target import LEVELS
from camshaft.observe import machine_peak as peaks
from camshaft.observe import peak_kernels as kernels
from camshaft.observe.machine_peak import MachinePeak, best_of, machine_peak, measure, stored_peak, stored_peaks
from camshaft.plan.buffers import Buffer, BufferUse, Lifetime
from camshaft.plan.memory.arena import make_schedule
from camshaft.plan.runtime.execute import bind
from camshaft.plan.schedule import Programs, Thunk
from camshaft.store.store import store
from tests.support.compilers.assembly import instructions, longest_loop, vector_stack_accesses
from tests.support.compilers.cross import CrossTarget, assembly_for
from tests.support.compilers.emit_harness import trace

AMX = CrossTarget("x86_64-unknown-linux-gnu", "sapphirerapids", LEVELS["amx"].features)
AVX2 = CrossTarget("x86_64-unknown-linux-gnu", "haswell", LEVELS["avx2"].features)
FAKE = MachinePeak(1, 1e9, 8e9, 2e9, 4e9)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """An empty store, and measurements that take no time; the numbers of threads that were asked for."""
    monkeypatch.setenv("CAMSHAFT_CACHE_DIR", str(tmp_path))
    asked: list[int] = []

    def played(threads: int) -> MachinePeak:
        asked.append(threads)
        return replace(FAKE, threads=threads, read_bytes_per_s=threads * 1e9 / len(asked))

    monkeypatch.setattr(peaks, "measure", played)
    return asked


def test_a_roof_is_measured_once_with_that_of_one_thread(measured: list[int]) -> None:
    assert (stored_peak(3), stored_peaks(), measured) == (None, (), [])
    first = machine_peak(3)
    assert sorted(measured) == [1, 3]
    assert machine_peak(3) == first == stored_peak(3)
    assert machine_peak(1) == stored_peak(1)
    assert [r.threads for r in stored_peaks()] == [1, 3]
    assert len(measured) == 2


def test_measuring_anew_keeps_the_higher_figures(measured: list[int]) -> None:
    first = machine_peak(1)
    assert machine_peak(1, remeasure=True) == first, "the second measurement was lower"
    assert len(measured) == 2


def test_a_document_of_another_version_counts_for_nothing(measured: list[int]) -> None:
    machine_peak(1)
    store().evidence.put(peaks._key(), {"peaks": [{"threads": 1}, 7]})
    assert stored_peaks() == ()
    assert machine_peak(1).threads == 1


def test_least_time_is_the_greater_of_reading_and_computing() -> None:
    assert FAKE.least_s(2e9) == 2.0
    assert FAKE.least_s(1e9, {"f32": 8e9}) == 2.0
    assert FAKE.least_s(0.0, {"int8": 8e9, "bf16": 2e9}) == 2.0
    assert FAKE.best(replace(FAKE, f32_ops_per_s=5e9, int8_ops_per_s=1.0)) == replace(FAKE, f32_ops_per_s=5e9)


def test_a_small_measurement_gives_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "LEAST_S", 0.0)
    monkeypatch.setattr(kernels, "REPEATS", 1)
    found = measure(2, 1 << 20)
    assert found.threads == 2
    assert all(value > 0 for value in vars(found).values())
    assert kernels.measure_writing(2, 1 << 20) > 0


def test_a_rate_is_that_of_the_fastest_unit_that_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {unit.name: float(i) for i, unit in enumerate(kernels.UNITS, 1)}
    monkeypatch.setattr(peaks, "units_here", lambda: kernels.UNITS)
    assert best_of(2, rates, 9.0) == MachinePeak(2, 9.0, 3.0, 7.0, 7.0)
    rates["bf16 in AMX tiles"] = 20.0
    assert best_of(2, rates, 9.0) == MachinePeak(2, 9.0, 3.0, 20.0, 7.0)
    monkeypatch.setattr(peaks, "units_here", lambda: tuple(u for u in kernels.UNITS if not u.features))
    assert best_of(1, rates, 9.0) == MachinePeak(1, 9.0, 1.0, 7.0, 7.0)


@pytest.mark.parametrize("words", [1, 8])
def test_chains_of_several_instructions_do_all_the_work_that_is_counted(words: int) -> None:
    sums, times = 2, 12
    x, out = kernels._ones(u32, 2, (5 + sums * words) * kernels.WIDTH), kernels._ones(i32, 2, sums * kernels.WIDTH)
    run(kernels.byte_chains, x, out, (u32, i32), sums=sums, words=words, times=times)
    assert np.array_equal(out, np.stack([np.repeat(np.arange(sums), kernels.WIDTH) + times * words] * 2))


@pytest.mark.parametrize(("words", "products", "wide"), [(1, 10, 10), (8, 32, 4)])
def test_avx2_is_measured_with_its_products_in_the_loop(words: int, products: int, wide: int) -> None:
    sums = 5 if words == 1 else 2  # 16 registers have room for these, of two vectors each
    arrays = [
        np.zeros((1, (5 + sums * words) * kernels.WIDTH), np.uint32),
        np.zeros((1, sums * kernels.WIDTH), np.int32),
    ]
    ir = trace(kernels.byte_chains, arrays, sums=sums, words=words, times=64)
    loop = longest_loop(assembly_for(AVX2, emit(ir, AVX2.at(8), "chains")))
    counts = instructions(loop)
    assert (counts["vpmaddubsw"], counts["vpmaddwd"]) == (products, wide)
    assert not vector_stack_accesses(loop)


def test_memory_is_read_beyond_the_last_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    for caches, memory, wanted in (
        ((1 << 15, 1 << 20, 32 << 20), 64 << 30, 256 << 20),
        ((1 << 15, 2 << 20, 480 << 20), 64 << 30, 1440 << 20),
        ((1 << 15, 2 << 20, 480 << 20), 4 << 30, 512 << 20),
        ((None, None, None), None, 256 << 20),
    ):
        monkeypatch.setattr(kernels, "hardware", lambda caches=caches: (None, 2, caches))
        monkeypatch.setattr(kernels, "memory_nbytes", lambda memory=memory: memory)
        assert kernels.beyond_caches() == wanted


@pytest.mark.parametrize(("unit", "word"), [("int8 in AMX tiles", "tdpbsud"), ("bf16 in AMX tiles", "tdpbf16ps")])
def test_the_matrix_unit_is_measured_with_four_tiles_of_sums(unit: str, word: str) -> None:
    (found,) = (each for each in kernels.UNITS if each.name == unit)
    made, (dtype, _, sums) = AMX.at(16), found.operands
    rows = found.side + kernels.SLOTS * kernels.TILE_DEPTH
    arrays = [np.zeros((2 * rows, 64), dtype.numpy), np.zeros((2 * found.side, found.side), sums.numpy)]
    ir = trace(kernels.tiles, arrays, side=found.side, times=kernels.TILE_STEPS)
    counts = instructions(longest_loop(assembly_for(AMX, emit(ir, made, "tiles"))))
    assert counts[word] == 4 * kernels.SLOTS or counts[word] == 4
    assert counts["tileloadd"] >= counts[word]
    assert not counts["tilestored"]


@pytest.mark.parametrize("unit", [unit for unit in kernels.UNITS if unit.side], ids=lambda unit: unit.name)
def test_tiles_do_all_the_work_that_is_counted(unit: kernels.Unit) -> None:
    dtype, value, sums = unit.operands
    rows, times = unit.side + kernels.SLOTS * kernels.TILE_DEPTH, 8
    x = kernels._ones(dtype, 2 * rows, 64)
    x[:] = value
    out = kernels._ones(sums, 2 * unit.side, unit.side)
    code = kernels._compiled(kernels.tiles, x, out, (dtype, sums), 2, side=unit.side, times=times)
    with kernels._bound(code, (x, out), 2, 1) as plan:
        plan.run()
    per_word = kernels._PER_LANE[unit.step] // (8 if unit.step == "dot4" else 2)  # a word of bytes is 1, 0, 0, 0
    assert np.array_equal(out, np.full_like(out, times * kernels.TILE_DEPTH * per_word))


def run(source, x, out, dtypes, **constants) -> None:
    n_programs = len(x) // int(constants.get("streams", 1))
    code = kernels._compiled(source, x, out, dtypes, n_programs, **constants)
    buffers = [Buffer(name, array.nbytes, Lifetime.IO) for name, array in (("x", x), ("out", out))]
    uses = (BufferUse(buffers[0].slice(), "read"), BufferUse(buffers[1].slice(), "write"))
    args = tuple(b.slice() for b in buffers)
    thunk = Thunk("roof", "roof", "roof", "", "kernel", code, args, uses, Programs(n_programs))
    bind(*make_schedule([thunk]), buffers=dict(zip(buffers, (x, out), strict=True)), threads=1).run()


@pytest.mark.parametrize(("streams", "ahead"), kernels._READ_PATTERNS)
def test_reading_reads_every_word(streams: int, ahead: int) -> None:
    x, out = kernels._ones(u32, 4, kernels.PIECE, kernels.WIDTH), kernels._ones(u32, 4, kernels.WIDTH)
    x[:] = np.random.default_rng(0).integers(0, 2**32, x.shape)
    run(kernels.read_memory, x, out, (u32, u32), streams=streams, ahead=ahead)
    pieces = np.bitwise_xor.reduce(x, axis=1).reshape(streams, 4 // streams, kernels.WIDTH)
    assert np.array_equal(out[: 4 // streams], np.bitwise_xor.reduce(pieces, axis=0))


@pytest.mark.parametrize(
    ("step", "given", "filling", "made", "sum_of_step"),
    [
        ("dot4", u32, 1, i32, 1),  # bytes 1, 0, 0, 0 times the same
        ("dot2", u32, kernels.PAIR_OF_ONES, f32, 2),
        ("fma", f32, 1, f32, 1),
    ],
)
def test_chains_do_all_the_work_that_is_counted(step, given, filling, made, sum_of_step) -> None:
    x, out = kernels._ones(given, 2, 2 * kernels.WIDTH), kernels._ones(made, 2, kernels.CHAINS * kernels.WIDTH)
    x[:] = filling
    run(kernels.chains, x, out, (given, made), step=step)
    chain = np.repeat(np.arange(kernels.CHAINS), kernels.WIDTH)
    assert np.array_equal(out, np.stack([chain + sum_of_step * kernels.STEPS] * 2))
