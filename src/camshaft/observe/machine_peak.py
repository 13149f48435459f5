"""Measure the machine's peak rates (memory reads, int8, bf16 and f32 operations) and cache them in the store.

`machine_peak()` reads the cache or measures; `stored_peak()` only reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from camshaft.observe.peak_kernels import beyond_caches, measure_reading, measure_unit, units_here
from camshaft.process import thread_count
from camshaft.store.files import digest_of
from camshaft.store.store import row_as, store
from camshaft.validation.cases import machine_key


@dataclass(frozen=True)
class MachinePeak:
    """Peak rates with `threads` threads: bytes read and operations per second (a multiply-add counts as two), each of the fastest
    unit that kernels may use for it."""

    threads: int
    read_bytes_per_s: float
    int8_ops_per_s: float
    bf16_ops_per_s: float
    f32_ops_per_s: float

    def best(self, other: MachinePeak) -> MachinePeak:
        """The higher value of each rate: disturbance only lowers a measurement."""
        return MachinePeak(
            *(max(mine, yours) for mine, yours in zip(vars(self).values(), vars(other).values(), strict=True))
        )

    def ops_per_s(self, kind: str) -> float:
        """The peak rate of 'int8', 'bf16' or 'f32'."""
        peak: float = vars(self)[f"{kind}_ops_per_s"]
        return peak

    def least_s(self, nbytes: float = 0.0, ops: Mapping[str, float] | None = None) -> float:
        """The roofline bound: the minimum seconds to read `nbytes` and do `ops` operations of each kind, overlapped."""
        computing = sum(n / self.ops_per_s(kind) for kind, n in (ops or {}).items())
        return max(nbytes / self.read_bytes_per_s, computing)


def measure_units(threads: int) -> dict[str, float]:
    """Operations per second of each unit of this CPU, by its name."""
    return {unit.name: measure_unit(unit, threads) for unit in units_here()}


def measure(threads: int, nbytes: int | None = None) -> MachinePeak:
    """Measure the peak rates with `threads` threads, in about two seconds. `nbytes` is the size of the memory read, by default
    more than the caches hold."""
    return best_of(threads, measure_units(threads), measure_reading(threads, nbytes or beyond_caches()))


def best_of(threads: int, units: Mapping[str, float], read_bytes_per_s: float) -> MachinePeak:
    """The peak by the rates of units: for each kind of product the fastest one."""
    best = dict.fromkeys(("int8", "bf16", "f32"), 0.0)
    for unit in units_here():
        best |= {kind: max(best[kind], units[unit.name]) for kind in unit.kinds}
    return MachinePeak(threads, read_bytes_per_s, *best.values())


def _key() -> str:
    return digest_of("machine peak", 6, machine_key())


def stored_peaks() -> tuple[MachinePeak, ...]:
    """The measured peaks of this machine, sorted by number of threads. Measures nothing."""
    rows = (store().evidence.get(_key()) or {}).get("peaks") or ()
    valid = [peak for row in rows if (peak := row_as(MachinePeak, row))]
    return tuple(sorted(valid, key=lambda r: r.threads))


def stored_peak(threads: int | None = None) -> MachinePeak | None:
    """The stored peak with `threads` threads (default: all), or None. Measures nothing."""
    wanted = thread_count(threads)
    return next((r for r in stored_peaks() if r.threads == wanted), None)


def machine_peak(threads: int | None = None, *, remeasure: bool = False) -> MachinePeak:
    """The peak with `threads` threads (default: all), measured and stored along with that of one thread if need be (5 s).

    `remeasure` measures again and stores the higher of the old and new rates.
    """
    wanted = thread_count(threads)
    known = {r.threads: r for r in stored_peaks()}
    if remeasure or wanted not in known:
        for n in {1, wanted}:
            if remeasure or n not in known:
                fresh = measure(n)
                known[n] = fresh.best(known[n]) if n in known else fresh
        store().evidence.put(_key(), {"peaks": [asdict(r) for r in known.values()]})
    return known[wanted]
