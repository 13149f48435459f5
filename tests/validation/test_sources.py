"""A case's digest covers every emitter file of its backend."""

from __future__ import annotations

from pathlib import Path

import pytest

import camshaft
from camshaft.backends.c import device as c_device
from camshaft.backends.cuda import kernel as cuda_kernel
from camshaft.backends.registry import backends
from camshaft.validation import cases
from tests.test_import_order import imported

PACKAGE = Path(camshaft.__file__).parent
# Modules that make code for a backend where they are not backends/NAME/device.py.
_ENTRY = dict.fromkeys(("scalar", "simd", "blas"), "backends/cpu/device.py")
_OWN = [name for name, backend in backends().items() if backend.sources]


def file_of(dotted: str) -> Path | None:
    """The file of a module of camshaft, or of the module that a name is imported from."""
    parts = dotted.split(".")
    for n in (len(parts), len(parts) - 1):
        base = PACKAGE.joinpath(*parts[1:n])
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file():
                return path
    return None


def emitters_of(entry: Path) -> set[Path]:
    """The files of emit/ that `entry` imports, directly or through others of emit/."""
    found: set[Path] = set()
    left = [entry]
    while left:
        path = left.pop()
        package = ("camshaft", *path.relative_to(PACKAGE).parts[:-1])
        for _, name in imported(path.read_text("utf-8"), package):
            file = file_of(name) if name.startswith("camshaft.emit") else None
            if file is not None and file not in found:
                found.add(file)
                left.append(file)
    return found


def matched(patterns: tuple[str, ...]) -> set[Path]:
    return {path for pattern in patterns for path in PACKAGE.glob(pattern)}


@pytest.mark.parametrize("name", _OWN)
def test_every_pattern_matches_a_file(name: str) -> None:
    assert [p for p in backends()[name].sources if not list(PACKAGE.glob(p))] == []


@pytest.mark.parametrize("name", _OWN)
def test_every_emitter_that_a_backend_uses_is_in_its_key(name: str) -> None:
    folder = PACKAGE / "backends" / name
    entries = sorted(folder.glob("*.py")) if name not in _ENTRY else [PACKAGE / _ENTRY[name]]
    reached = {path for entry in entries for path in emitters_of(entry)} - {PACKAGE / "emit" / "__init__.py"}
    assert reached, name
    assert {p for p in reached if p.stat().st_size} <= matched(backends()[name].sources)


def test_what_every_proof_rests_on_exists() -> None:
    assert [name for name in cases._SHARED if not (PACKAGE / name).exists()] == []
    assert matched(c_device._SOURCES) >= {
        p for p in emitters_of(PACKAGE / "backends/c/device.py") if p.parent.name == "c"
    }


def test_kept_ptx_is_that_of_the_files_as_they_are() -> None:
    maker = PACKAGE / "backends/cuda/kernel.py"  # LLVM's passes, too
    used = {p for p in emitters_of(maker) if p.stat().st_size}
    assert matched(cuda_kernel._SOURCES) >= {maker, *used}
