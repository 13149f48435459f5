"""`camshaft doctor`: what this machine claims, what was proved on it, and where camshaft keeps things."""

from __future__ import annotations

from camshaft.cli import options
from camshaft.cli.run import command
from camshaft.cli.show import print_json, print_tree


@command
def doctor(json: options.Json = False) -> None:
    """Show the machine and what was proved on it."""
    from camshaft.dispatch import capabilities, validate_backends
    from camshaft.settings import settings

    report = {
        "versions": _versions(),
        "machine": capabilities(),
        "backends": validate_backends(),
        "cache_dir": settings().cache_dir,
    }
    (print_json if json else print_tree)(report)


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
