"""Machine facts, timing, JSON rows and Markdown tables for the benchmarks."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from camshaft.selection.host_info import capabilities
from camshaft.tune.rounds import Spread as Spread

GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
SHOWN_FEATURES = (
    "avx2",
    "avx512f",
    "avx512vnni",
    "avxvnni",
    "avx512bf16",
    "amx-int8",
    "neon",
    "dotprod",
    "i8mm",
    "sve",
)


def machine() -> dict[str, Any]:
    """Facts about the machine to store with each result. None or "unknown" if the system does not report one."""
    found = capabilities()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "cpu": found.cpu_name,
        "llvm_cpu": found.llvm_cpu,
        "architecture": found.architecture,
        "features": [name for name in SHOWN_FEATURES if name in found.features],
        "lanes": found.lanes,
        "cores": found.cores,
        "usable_cores": found.threads,
        "cache_nbytes": found.cache_nbytes,
        "memory_nbytes": found.memory_nbytes,
        "governor": GOVERNOR.read_text().strip() if GOVERNOR.is_file() else "unknown",
        "virtual": _is_virtual(),
        "load_average": load,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "llvm": found.llvm_version,
        "llvmlite": found.llvmlite_version,
    }


def _is_virtual() -> bool | None:
    info = Path("/proc/cpuinfo")
    return "hypervisor" in info.read_text("utf-8") if info.is_file() else None


def seconds_per_call(call: Callable[[], object], repeats: int, least_s: float = 0.02) -> Spread:
    """Seconds per call: the mean over windows of `least_s`, `repeats` times, after one warm-up call."""
    call()
    started = time.perf_counter()
    call()
    once = max(time.perf_counter() - started, 1e-9)
    calls = max(1, round(least_s / once))
    means = []
    for _ in range(repeats):
        started = time.perf_counter()
        for _ in range(calls):
            call()
        means.append((time.perf_counter() - started) / calls)
    return Spread.of(means)


def write(path: Path | None, rows: Sequence[dict[str, Any]]) -> None:
    """Write the rows, each with the facts about the machine, to a JSON file if a path is given."""
    if path is not None:
        facts = machine()
        path.write_text(json.dumps([row | {"machine": facts} for row in rows], indent=1) + "\n", "utf-8")


def table(header: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    rows = [header, ["---"] * len(header), *lines]
    return "\n".join("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows)


def facts_line(facts: dict[str, Any]) -> str:
    """The machine as one line of text."""
    virtual = ", virtual" if facts["virtual"] else ""
    return (
        f"{facts['cpu']} ({facts['llvm_cpu']}{virtual}), {facts['usable_cores']} of {facts['cores']} cores, "
        f"{' '.join(facts['features'])}; governor {facts['governor']}; load {facts['load_average']}; {facts['system']}; "
        f"Python {facts['python']}, LLVM {facts['llvm']}"
    )
