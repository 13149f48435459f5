"""Peak rates of this machine: memory beyond the caches read and written, and each unit that may multiply int8, bf16 or f32.

Run: python -m bench.machine.peak [--threads 1 2] [--json FILE]. Measures with observe/machine_peak.py; stores nothing. Shares
of the peak, in every script and in `camshaft profile`, are of the fastest unit for a kind of product.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench import rows
from camshaft.observe.machine_peak import MachinePeak, best_of, measure, measure_units
from camshaft.observe.peak_kernels import beyond_caches, measure_reading, measure_writing

__all__ = ["MachinePeak", "measure"]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(rows.facts_line(rows.machine()) + "\n", flush=True)
    found, nbytes = [], beyond_caches()
    for threads in options.threads:
        units = measure_units(threads)
        peak = best_of(threads, units, measure_reading(threads, nbytes))
        found.append((peak, measure_writing(threads, nbytes), units))
    lines = [
        tuple(f"{x / 1e9:.4g}" if i else int(x) for i, x in enumerate((*vars(peak).values(), written, *units.values())))
        for peak, written, units in found
    ]
    header = ("threads", "read GB/s", "int8 Gop/s", "bf16 GFLOP/s", "f32 GFLOP/s", "written GB/s", *found[0][2])
    print(rows.table(header, lines))
    print(f"memory: {nbytes / 1e6:.0f} MB")
    facts = {"bench": "peak", "nbytes": nbytes}
    rows.write(options.json, [facts | vars(r) | {"write_bytes_per_s": w, "units": units} for r, w, units in found])


if __name__ == "__main__":
    main()
