"""Peak rates of this machine: memory reads, and int8, bf16 and f32 multiply-adds.

Run: python -m bench.peak [--threads 1 2] [--json FILE]. Measures with observe/machine_peak.py; stores nothing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench import rows
from camshaft.observe.machine_peak import MachinePeak, measure

__all__ = ["MachinePeak", "measure"]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(rows.facts_line(rows.machine()) + "\n", flush=True)
    peaks = [measure(threads) for threads in options.threads]
    lines = [tuple(f"{x / 1e9:.4g}" if i else x for i, x in enumerate(vars(r).values())) for r in peaks]
    header = ("threads", "read GB/s", "int8 Gop/s", "bf16 GFLOP/s", "f32 GFLOP/s")
    print(rows.table(header, lines))
    rows.write(options.json, [{"bench": "peak", **vars(r)} for r in peaks])


if __name__ == "__main__":
    main()
