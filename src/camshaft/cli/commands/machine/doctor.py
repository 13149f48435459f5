"""`camshaft doctor`: report hardware, validated kernels and what to install. `camshaft devices`: list the devices."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from camshaft.cli import options
from camshaft.cli.command import Bar, command, print_columns, print_json, size
from camshaft.errors import count

if TYPE_CHECKING:
    from rich.console import Console

    from camshaft.selection.host_info import RuntimeCapabilities
    from camshaft.validation.evidence import BackendValidation
    from camshaft.validation.report import Tally

_MOST_GAINS = 8  # of measurements, in the report


@command
def doctor(json: options.Json = False) -> None:
    """Show this machine and validate every kernel on it.

    The first run takes minutes. It may be interrupted: results so far are stored, and the next run continues from there."""
    from camshaft.observe.machine_peak import stored_peaks
    from camshaft.selection.host_info import capabilities
    from camshaft.selection.measurements import measurements
    from camshaft.validation.proof import validate_backends
    from camshaft.validation.report import absences, advice, failures, families

    machine = capabilities()
    with Bar("proving kernels", unit="kernels") as progress:
        backends = validate_backends(progress=progress)
    report = {
        "families": families(backends),
        "absences": absences(backends),
        "failures": failures(backends),
        "advice": advice(backends),
        "peaks": stored_peaks(),
        "measurements": measurements().summary(),
    }
    if json:
        about = {"versions": _versions(), "machine": machine, "cache_dir": machine.cache_dir}
        print_json(about | {"backends": backends} | report)
    else:
        _print(machine, backends, report)


def _print(machine: RuntimeCapabilities, backends: Mapping[str, BackendValidation], report: Mapping[str, Any]) -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    for title, lines in (("Machine", _machine(machine)), ("Speed", _speed(report["peaks"], report["measurements"]))):
        _section(console, title, lines)
    _print_families(console, report["families"], [name for name, b in backends.items() if b.results])
    _section(console, "Failed", [(f"{f.op} {f.variant} on {f.backend}", f.reason) for f in report["failures"]])
    _section(console, "Absent", [_absence(a) for a in report["absences"]])
    _section(console, "To get more", [(a.command, a.brings) for a in report["advice"]])


def _section(console: Console, title: str, lines: list[tuple[str, str]]) -> None:
    """Print a title and a table of (name, text) lines with wrapped text; nothing if there are no lines."""
    from rich.padding import Padding
    from rich.table import Table

    if not lines:
        return
    console.print(title, style="bold")
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(max_width=max(console.width // 2 - 2, 20), overflow="fold")
    table.add_column(overflow="fold")
    for name, text in lines:
        table.add_row(name, text)
    console.print(Padding(table, (0, 0, 0, 2)))
    console.print()


def _machine(report: RuntimeCapabilities) -> list[tuple[str, str]]:
    caches = [f"{name.upper()} {size(n)}" for name, n in report.cache_nbytes.items() if n]
    memory = "unknown" if report.memory_nbytes is None else size(report.memory_nbytes)
    usable = [b for b in report.blas if b.absent is None]
    libraries = [f"{b.name} {b.version or ''} for {b.used_by}".replace("  ", " ") for b in usable]
    versions = ", ".join(f"{name} {version}" for name, version in _versions().items() if name != "platform")
    return [
        ("CPU", f"{report.cpu_name or 'unknown'} ({report.llvm_cpu}, {report.architecture})"),
        ("cores", f"{report.cores}, {report.threads} workers, {report.lanes} lanes of f32"),
        ("memory", "; ".join([memory, ", ".join(caches)]) if caches else memory),
        ("features", " ".join(sorted(report.features))),
        ("BLAS", ", ".join(libraries) or "none"),
        ("versions", f"{versions}, LLVM {report.llvm_version}"),
        ("system", _versions()["platform"]),
        ("cache", report.cache_dir),
    ]


def _speed(machine_peaks: tuple[Any, ...], tuning: Any) -> list[tuple[str, str]]:
    """Measured peak rates and tuning state, or the commands that measure them."""
    rows = [(f"peak, {count(r.threads, 'thread')}", _peak(r)) for r in machine_peaks]
    if not rows:
        rows = [("peak", "not measured yet: camshaft profile measures it")]
    if not tuning.n_measurements:
        return [*rows, ("measured", "nothing yet: a run of a model or camshaft tune [MODEL] measures kernels")]
    when = time.strftime("%Y-%m-%d", time.localtime(tuning.newest))
    done = f"{count(tuning.n_sites, 'shape')}, {count(tuning.n_measurements, 'measurement')}"
    rows.append(("measured", f"{done}, the last on {when}"))
    for gain in tuning.gains[:_MOST_GAINS]:
        sizes = " ".join(map(str, gain.sizes))
        rows.append((f"{gain.op} {sizes}", f"{gain.variant} measured {gain.times:.1f} times faster than {gain.guess}"))
    return rows


def _peak(peak: Any) -> str:
    rates = {"int8": peak.int8_ops_per_s, "bf16": peak.bf16_ops_per_s, "f32": peak.f32_ops_per_s}
    peaks = ", ".join(f"{name} {rate / 1e9:.0f}" for name, rate in rates.items())
    return f"reads {peak.read_bytes_per_s / 1e9:.1f} GB/s; {peaks} G operations/s"


def _absence(absence: Any) -> tuple[str, str]:
    many = count(absence.n_kernels, "kernel")
    named = ", ".join(absence.ops[:4]) + (f" and {len(absence.ops) - 4} more" if len(absence.ops) > 4 else "")
    return (absence.backend, f"{absence.reason} ({many}{'' if absence.whole else f': {named}'})")


def _print_families(console: Console, rows: Mapping[str, Mapping[str, Tally]], backends: list[str]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from camshaft.validation.report import Tally

    console.print("Kernels proved, !failed and -absent, by family of ops", style="bold")
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_footer=True)
    table.add_column("", footer="all")
    for name in backends:
        whole = sum((row.get(name, Tally()) for row in rows.values()), Tally())
        table.add_column(name, footer=_tally(whole), justify="right")
    for family, row in rows.items():
        table.add_row(f"  {family}", *(_tally(row[name]) if name in row else "" for name in backends))
    console.print(table)


def _tally(tally: Tally) -> Any:
    from rich.text import Text

    parts = [(str(tally.proved), "green"), (f"!{tally.failed}", "bold red"), (f"-{tally.absent}", "yellow")]
    shown = [part for part, n in zip(parts, (tally.proved, tally.failed, tally.absent), strict=True) if n]
    return Text(" ").join(Text(text, style) for text, style in shown)


def _versions() -> dict[str, str]:
    import platform

    packages = ("camshaft", "llvmlite", "numpy", "tokenizers")
    return {"python": platform.python_version(), "platform": platform.platform()} | {p: _version(p) for p in packages}


def _version(package: str) -> str:
    import importlib.metadata  # 15 ms, not needed by other commands

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


@command
def devices(json: options.Json = False) -> None:
    """List the devices that plans can run on.

    Shows limits and features, and why a device is unavailable."""
    from camshaft.backends.registry import devices as every_device

    rows = every_device()
    if json:
        print_json({"devices": rows})
        return
    table: list[tuple[object, ...]] = [("device", "backend", "available", "what")]
    for row in rows:
        limits = ", ".join(f"{name} {value}" for name, value in row.limits.items())
        what = row.absent or "; ".join(text for text in (row.description, limits) if text)
        table.append((row.name, row.backend, "no" if row.absent else "yes", what))
    print_columns(table)
