"""`camshaft doctor`: what this machine claims, what was proved on it, and where camshaft keeps things."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from camshaft.cli import options
from camshaft.cli.progress import Bar
from camshaft.cli.run import command
from camshaft.cli.show import print_columns, print_json, print_tree

if TYPE_CHECKING:
    from camshaft.dispatch import BackendValidation, Verdict

_STATUSES = ("proved", "failed", "absent")


@command
def doctor(json: options.Json = False) -> None:
    """Show the machine and what was proved on it.

    The first time, everything that was not proved yet is proved now, which takes a minute."""
    from camshaft.dispatch import capabilities, validate_backends
    from camshaft.settings import settings

    about = {"versions": _versions(), "machine": capabilities(), "cache_dir": settings().cache_dir}
    with Bar("proving kernels", unit="kernels") as progress:
        backends = validate_backends(progress=progress)
    if json:
        print_json(about | {"backends": backends})
    else:
        print_tree(about)
        _print_backends(backends)


def _print_backends(backends: Mapping[str, BackendValidation]) -> None:
    print("backends")
    rows: list[tuple[object, ...]] = [("  ", "status", *_STATUSES, "why")]
    for name, b in backends.items():
        why = b.reason if b.status == "absent" else ""
        rows.append((f"  {name}", b.status, b.n_proved, b.n_failed, b.n_absent, why))
    print_columns(rows, right=frozenset({2, 3, 4}))
    used = {name: b for name, b in backends.items() if b.verdicts}
    print("ops")
    ops = dict.fromkeys(v.op for b in used.values() for v in b.verdicts)
    rows = [("  ", *used)]
    rows += [(f"  {op}", *(_counts([v for v in b.verdicts if v.op == op]) for b in used.values())) for op in ops]
    print_columns(rows)
    for v in (v for b in used.values() for v in b.verdicts if v.status != "proved"):
        print(f"{v.op} {v.variant} on {v.backend} {v.status}: {v.reason}")


def _counts(verdicts: list[Verdict]) -> str:
    """'2 proved, 1 absent'; '-' for an op that the backend claims nothing of."""
    counts = Counter[str](v.status for v in verdicts)
    return ", ".join(f"{counts[s]} {s}" for s in _STATUSES if counts[s]) or "-"


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
