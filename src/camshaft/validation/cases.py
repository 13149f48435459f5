"""VariantCase: one variant of one op on one backend, and the digest of all that its proof depends on."""

from __future__ import annotations

import functools
import hashlib
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

ROOT = Path(__file__).parent.parent
_IMPORT = re.compile(r"^\s*(?:from (camshaft\.ops[\w.]*) import (\([^)]*\)|[^\n]*)|import (camshaft\.ops[\w.]*))", re.M)
_SHARED = ("backends/device.py", "formats", "validation/run.py", "validation/validate.py", "dtypes.py", "extent.py")


@dataclass(frozen=True)
class VariantCase:
    """What is to be proved. `backend` may name a device of it ('webgpu:1'). `module` has the op as OP, or in OPS by name; a
    child process imports it from there, and `home`, where a variant that was registered from elsewhere comes from.

    `kinds` narrows the samples to those whose inputs are of these dtypes, block formats and layouts; None means all of them.
    `values` spells those chosen for the variant's tunables.
    """

    op: str
    variant: str
    backend: str
    module: str
    kinds: str | None = None
    home: str | None = None
    values: str = ""

    def resolve(self) -> tuple[Op, KernelVariant]:
        """The op and the variant, with its values. BackendError if the module has no such thing, or a value is not legal."""
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
        """SHA-256 over the sources, the names, and for BLAS the library: evidence under another key says nothing."""
        names = self.op, self.variant, self.backend, self.kinds or "all", self.home or ""
        found = backend_named(self.backend)
        parts = [_source_digest(self.module, found.sources), *names, found.version]
        if self.home is not None:
            parts.append(_module_path(self.home).read_text("utf-8"))
        if self.backend == "blas":
            parts.append(blas_library().key())
        if self.backend == "c":
            parts.append(find_compiler().key())
        parts += [*_device_key(self.backend), *([self.values] if self.values else [])]
        return hashlib.sha256("|".join(parts).encode()).hexdigest()


@functools.cache
def _device_key(name: str) -> tuple[str, ...]:
    """What tells a device outside of the CPU from others: its description with the driver, features and limits."""
    if device(name).space == HOST:
        return ()
    made = device(name).name
    return tuple(repr(info) for info in devices() if info.name == made)


def case_of(op: Op, variant: KernelVariant, backend: str, node: NodeSpec | None = None) -> VariantCase:
    """The claim of a variant on one of its backends; with a node, for inputs of that node's kinds."""
    known = op.name in ops.NAMES and ops.get(op.name) is op
    module = ops.module_of(op.name) if known else op.infer.__module__
    home = ops.home_of(op, variant)
    kinds = None if node is None else kinds_of(node)
    return VariantCase(op.name, variant.name, backend, module, kinds, home, values_text(variant.values))


def kinds_of(node: NodeSpec) -> str:
    """The dtypes or block formats of a node's inputs, with their layouts: samples of other kinds compile other kernels."""
    return kinds_among(node.inputs)


def kinds_among(inputs: Iterable[TensorSpec]) -> str:
    """`kinds_of` a node of these inputs."""
    return ",".join(f"{spec.dtype.name}/{spec.layout.name}" for spec in inputs)


def all_cases(backend: str) -> tuple[VariantCase, ...]:
    """Every variant of every op that a backend claims, for its first device or the one named."""
    name = backend_named(backend).name
    return tuple(case_of(op, v, backend) for op in ops.all_ops() for v in ops.variants_of(op) if name in v.backends)


@functools.cache
def machine_key() -> str:
    """SHA-256 that stands for this CPU with its features, and this LLVM."""
    return hashlib.sha256(f"{host_target()!r}".encode()).hexdigest()


@functools.cache
def _source_digest(module: str, sources: tuple[str, ...]) -> str:
    """The op's own modules as far as it imports them from ops/, and what every op rests on."""
    digest = hashlib.sha256(f"{language_digest(*sources)}|{_shared_digest()}".encode())
    done: set[str] = set()
    left = [module]
    while left:
        name = left.pop()
        if name in done:
            continue
        done.add(name)
        text = _module_path(name).read_bytes()
        digest.update(f"|{name}|{len(text)}|".encode() + text)
        left += sorted(_imported(text.decode("utf-8")))
    return digest.hexdigest()


def _imported(text: str) -> Iterator[str]:
    for match in _IMPORT.finditer(text):
        base, names, plain = match.groups()
        found = (
            [plain]
            if plain
            else [base, *(f"{base}.{n.split()[0]}" for n in names.strip("() \n").split(",") if n.split())]
        )
        # The table of ops says nothing about one op's kernels.
        yield from (name for name in found if name != "camshaft.ops" and _package_path(name) is not None)


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
    digest = hashlib.sha256()
    for name in _SHARED:
        path = ROOT / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(file.read_bytes())
    return digest.hexdigest()
