"""`camshaft doctor`: what this machine claims, what was proved on it, what it can do at most, and how to get more."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from camshaft.cli import options
from camshaft.cli.progress import Bar
from camshaft.cli.run import command
from camshaft.cli.show import print_json, size

if TYPE_CHECKING:
    from rich.console import Console

    from camshaft.selection.host_info import RuntimeCapabilities
    from camshaft.validation.evidence import BackendValidation
    from camshaft.validation.report import Tally


@command
def doctor(json: options.Json = False) -> None:
    """Show the machine and what was proved on it.

    Proves everything that was not proved yet, which takes minutes the first time. It may be interrupted: what was proved by then
    is kept, and the next one goes on from there."""
    from camshaft.observe.machine_peak import stored_peaks
    from camshaft.selection.host_info import capabilities
    from camshaft.selection.measurements import measurements
    from camshaft.validation.proof import validate_backends
    from camshaft.validation.report import absences, advice, failures, families

    machine = capabilities()
    with Bar("proving kernels", unit="kernels") as progress:
        backends = validate_backends(progress=progress)
    found = {
        "families": families(backends),
        "absences": absences(backends),
        "failures": failures(backends),
        "advice": advice(backends),
        "roofs": stored_peaks(),
        "measurements": measurements().kept(),
    }
    if json:
        about = {"versions": _versions(), "machine": machine, "cache_dir": machine.cache_dir}
        print_json(about | {"backends": backends} | found)
    else:
        _print(machine, backends, found)


def _print(machine: RuntimeCapabilities, backends: Mapping[str, BackendValidation], found: Mapping[str, Any]) -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    for title, lines in (("Machine", _machine(machine)), ("Speed", _speed(found["roofs"], found["measurements"]))):
        _section(console, title, lines)
    _print_families(console, found["families"], [name for name, b in backends.items() if b.results])
    _section(console, "Failed", [(f"{f.op} {f.variant} on {f.backend}", f.reason) for f in found["failures"]])
    _section(console, "Absent", [_absence(a) for a in found["absences"]])
    _section(console, "To get more", [(a.command, a.brings) for a in found["advice"]])


def _section(console: Console, title: str, lines: list[tuple[str, str]]) -> None:
    """A title, and lines of a name and a text that is wrapped beside it; nothing for no lines."""
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


def _machine(found: RuntimeCapabilities) -> list[tuple[str, str]]:
    caches = [f"{name.upper()} {_binary(n)}" for name, n in found.cache_nbytes.items() if n]
    memory = "unknown" if found.memory_nbytes is None else size(found.memory_nbytes)
    made = [b for b in found.blas if b.absent is None]
    libraries = [f"{b.name} {b.version or ''} for {b.used_by}".replace("  ", " ") for b in made]
    versions = ", ".join(f"{name} {version}" for name, version in _versions().items() if name != "platform")
    return [
        ("CPU", f"{found.cpu_name or 'unknown'} ({found.llvm_cpu}, {found.architecture})"),
        ("cores", f"{found.cores}, {found.threads} workers, {found.lanes} lanes of f32"),
        ("memory", "; ".join([memory, ", ".join(caches)]) if caches else memory),
        ("features", " ".join(sorted(found.features))),
        ("BLAS", ", ".join(libraries) or "none"),
        ("versions", f"{versions}, LLVM {found.llvm_version}"),
        ("system", _versions()["platform"]),
        ("cache", found.cache_dir),
    ]


def _binary(nbytes: int) -> str:
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"


def _speed(machine_peaks: tuple[Any, ...], kept: Any) -> list[tuple[str, str]]:
    """The measured roof and how much was tuned, or the commands that do it."""
    rows = [(f"roof, {r.threads} {'thread' if r.threads == 1 else 'threads'}", _roof(r)) for r in machine_peaks]
    if not rows:
        rows = [("roof", "not measured yet: camshaft profile does it")]
    if not kept.n_measurements:
        return [*rows, ("tuned", "nothing yet: camshaft tune [MODEL] measures kernels")]
    when = time.strftime("%Y-%m-%d", time.localtime(kept.newest))
    return [*rows, ("tuned", f"{kept.n_sites} shapes by {kept.n_measurements} measurements, the last on {when}")]


def _roof(peak: Any) -> str:
    rates = {"int8": peak.int8_ops_per_s, "bf16": peak.bf16_ops_per_s, "f32": peak.f32_ops_per_s}
    peaks = ", ".join(f"{name} {rate / 1e9:.0f}" for name, rate in rates.items())
    return f"reads {peak.read_bytes_per_s / 1e9:.1f} GB/s; {peaks} G operations/s"


def _absence(absence: Any) -> tuple[str, str]:
    many = f"{absence.n_kernels} {'kernel' if absence.n_kernels == 1 else 'kernels'}"
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
    import importlib.metadata  # 15 ms, which no other command should pay

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
