"""VariantCase: one variant of one op on one backend to validate, and the digest of the sources that its result depends on."""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from camshaft import ops
from camshaft.backends.blas.library import blas_library
from camshaft.backends.c.compilers import find_compiler
from camshaft.backends.cpu.compile import host_target
from camshaft.backends.device import HOST
from camshaft.backends.registry import backend_named, device, devices
from camshaft.errors import BackendError
from camshaft.lang.kernel import language_digest
from camshaft.ops.op import KernelVariant, NodeSpec, Op, values_of, values_text
from camshaft.ops.spec import TensorSpec
from camshaft.store.files import Field, digest_of

ROOT = Path(__file__).parent.parent
_IMPORT = re.compile(r"^\s*(?:from (camshaft\.ops[\w.]*) import (\([^)]*\)|[^\n]*)|import (camshaft\.ops[\w.]*))", re.M)
_SHARED = ("backends/device.py", "formats", "validation/run.py", "validation/validate.py", "dtypes.py", "extent.py")


@dataclass(frozen=True)
class VariantCase:
    """One variant of one op on one backend. `backend` may name a device ('webgpu:1').

    `module` defines the op, as OP or in the dict OPS; a child process imports it, and `home`, the module that registered the
    variant if that differs. `kinds` restricts the samples to inputs of these dtypes and layouts (None: all samples).
    `values` are the variant's tunable parameters as text.
    """

    op: str
    variant: str
    backend: str
    module: str
    kinds: str | None = None
    home: str | None = None
    values: str = ""

    def resolve(self) -> tuple[Op, KernelVariant]:
        """Return the op and the variant with its values. Raises BackendError for an unknown variant or an illegal value."""
        module = importlib.import_module(self.module)
        op: Op = module.OPS[self.op] if hasattr(module, "OPS") else module.OP
        if self.home is not None:
            importlib.import_module(self.home)  # registers the variant
        backend = backend_named(self.backend).name
        for variant in ops.variants_of(op):
            if (op.name, variant.name) == (self.op, self.variant) and backend in variant.backends:
                return op, variant.with_values(values_of(self.values))
        raise BackendError(f"{self.module} has no variant {self.variant!r} of {self.op!r} for backend {self.backend!r}")

    def key(self) -> str:
        """SHA-256 over the names, sources, device and library versions: a result is valid only for the same key."""
        backend = backend_named(self.backend)
        parts = []
        if self.home is not None:
            parts.append(_module_path(self.home).read_text("utf-8"))
        if self.backend == "blas":
            parts.append(blas_library().key())
        if self.backend == "c":
            parts.append(find_compiler().key())
        sources = _source_digest(self.module, backend.sources)
        return _key(self, sources, (backend.version, *parts, *_device_key(self.backend)))


@functools.lru_cache(maxsize=4096)
def _key(case: VariantCase, sources: str, others: tuple[str, ...]) -> str:
    names = case.op, case.variant, case.backend, case.kinds or "all", case.home or ""
    values = [case.values] if case.values else []
    return digest_of([sources, *names, *others, *values])


@functools.cache
def _device_key(name: str) -> tuple[str, ...]:
    """Identifies a device other than the CPU: its description with driver, features and limits."""
    if device(name).space == HOST:
        return ()
    canonical = device(name).name
    return tuple(repr(info) for info in devices() if info.name == canonical)


def case_of(op: Op, variant: KernelVariant, backend: str, node: NodeSpec | None = None) -> VariantCase:
    """The case of a variant on a backend; with a node, only for inputs of that node's kinds."""
    known = op.name in ops.NAMES and ops.get(op.name) is op
    module = ops.module_of(op.name) if known else op.infer.__module__
    home = ops.home_of(op, variant)
    kinds = None if node is None else kinds_of(node)
    return VariantCase(op.name, variant.name, backend, module, kinds, home, values_text(variant.values))


def kinds_of(node: NodeSpec) -> str:
    """The dtypes and layouts of a node's inputs, as text. Inputs of other kinds compile to other kernels."""
    return kinds_among(node.inputs)


def kinds_among(inputs: Iterable[TensorSpec]) -> str:
    """As `kinds_of`, for a node with these inputs."""
    return ",".join(f"{spec.dtype.name}/{spec.layout.name}" for spec in inputs)


def all_cases(backend: str) -> tuple[VariantCase, ...]:
    """Every variant of every op that supports the backend, on its first device or the one named."""
    name = backend_named(backend).name
    return tuple(case_of(op, v, backend) for op in ops.all_ops() for v in ops.variants_of(op) if name in v.backends)


@functools.cache
def machine_key() -> str:
    """SHA-256 that identifies this CPU, its features and the LLVM version."""
    return digest_of(repr(host_target()))


@functools.cache
def _source_digest(module: str, sources: tuple[str, ...]) -> str:
    """Digest of the op's module, the modules of ops/ that it imports, the kernel language and shared sources."""
    parts: list[Field] = [language_digest(*sources), _shared_digest()]
    done: set[str] = set()
    remaining = [module]
    while remaining:
        name = remaining.pop()
        if name in done:
            continue
        done.add(name)
        text, imported = _source(name)
        parts.append((name, text))
        remaining += imported
    return digest_of(parts)


@functools.cache
def _source(module: str) -> tuple[bytes, list[str]]:
    """A module's source and the modules of ops/ that it imports. Kept: a helper is in the digests of many ops."""
    text = _module_path(module).read_bytes()
    return text, sorted(_imported(text.decode("utf-8")))


def _imported(text: str) -> Iterator[str]:
    for match in _IMPORT.finditer(text):
        base, names, plain = match.groups()
        modules = (
            [plain]
            if plain
            else [base, *(f"{base}.{n.split()[0]}" for n in names.strip("() \n").split(",") if n.split())]
        )
        # The table of ops does not affect the kernels of one op.
        yield from (name for name in modules if name != "camshaft.ops" and _package_path(name) is not None)


def _package_path(name: str) -> Path | None:
    parts = name.split(".")
    if parts[0] != "camshaft":
        return None
    base = ROOT.joinpath(*parts[1:])
    return next((p for p in (base.with_suffix(".py"), base / "__init__.py") if p.is_file()), None)


def _module_path(name: str) -> Path:
    path = _package_path(name)
    if path is not None:
        return path
    try:
        file = getattr(sys.modules.get(name) or importlib.import_module(name), "__file__", None)
    except ImportError as error:
        raise BackendError(f"module {name}, which registers a variant, cannot be imported: {error}") from error
    if file is None:
        raise BackendError(f"module {name} has no source file to take a digest of")
    return Path(file)


@functools.cache
def _shared_digest() -> str:
    paths = [ROOT / name for name in _SHARED]
    files = [file for path in paths for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    return digest_of((file.relative_to(ROOT).as_posix(), file.read_bytes()) for file in files)
