"""Kernel: a Python function in the kernel language, traced once per set of constants into Kernel IR."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from camshaft.dtypes import i64
from camshaft.errors import CamshaftError, KernelError
from camshaft.lang import ir
from camshaft.lang.tracing import tracer as tracing
from camshaft.lang.verifier.verify import verify
from camshaft.store.files import digest_of

Constant: TypeAlias = "int | float | str | bool | ir.RunTime | tuple[Constant, ...]"


@dataclass(frozen=True)
class Kernel:
    """A kernel function. Positional parameters are arrays, then run-time scalars (i64); keyword-only ones are constants."""

    function: Callable[..., None]

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def source_file(self) -> str:
        return inspect.getsourcefile(self.function) or "<unknown>"

    def digest(self) -> str:
        """Return the SHA-256 of the kernel's source file and of every file of its package that it imports names from.

        A change of a helper therefore changes the digest.
        """
        return _source_digest(self.function.__module__, self.source_file)

    def trace(
        self,
        arrays: Sequence[ir.ArrayParam],
        scalars: Sequence[str] = (),
        constants: Mapping[str, Constant] | None = None,
        grid: Sequence[ir.GridDim] = (ir.GridDim(),),
    ) -> ir.KernelIR:
        """Run the function once with traced values. A KernelError names the source line that breaks a rule."""
        tracer = tracing.Tracer(self.name, self.function.__code__.co_filename)
        params = [ir.Array(a.name, a.dtype, a.bounds, a.writable) for a in arrays]
        sizes = [*(a.shape for a in arrays), *(constants or {}).values()]
        try:
            with ir.recording(tracer):
                values = [tracer.record("scalar", i64, attr=index) for index, _ in enumerate(scalars)]
                given = [tracing.Array(p, _traced(a.shape, values)) for p, a in zip(params, arrays, strict=True)]
                by_keyword = {name: _traced(constant, values) for name, constant in (constants or {}).items()}
                in_order = [] if any(_has_run_time(size) for size in sizes) else values
                self.function(tracer, *given, *in_order[: self._scalar_count(len(params), len(in_order))], **by_keyword)
        except CamshaftError:
            raise
        except Exception as error:  # for example an unknown method of k, or NumPy on a traced value
            raise tracer.foreign(error) from error
        if tracer.broken or tracer.block is not tracer.body:
            raise tracer.broken or tracer.left_early(tracer.loop_line)
        return ir.KernelIR(
            self.name,
            tuple(params),
            tuple(scalars),
            tuple(grid),
            tuple(tracer.scratches),
            tracer.body,
            self.source_file,
        )

    def _scalar_count(self, n_arrays: int, n_scalars: int) -> int:
        """Return how many scalars the function takes; scalars that only the grid uses follow them."""
        code = self.function.__code__
        named = code.co_argcount - 1 - n_arrays
        if code.co_flags & inspect.CO_VARARGS:
            return n_scalars
        if not 0 <= named <= n_scalars:
            raise KernelError(
                f"kernel {self.name} takes {code.co_argcount - 1} arrays and scalars, got {n_arrays} and {n_scalars}"
            )
        return named


def _has_run_time(constant: Any) -> bool:
    if isinstance(constant, tuple):
        return any(_has_run_time(part) for part in constant)
    return isinstance(constant, ir.RunTime)


def _traced(constant: Any, scalars: Sequence[ir.Value]) -> Any:
    """The constant with traced values for run-time scalars."""
    if isinstance(constant, tuple):
        return tuple(_traced(part, scalars) for part in constant)
    return scalars[constant.index] if isinstance(constant, ir.RunTime) else constant


@functools.cache
def _source_digest(module: str, path: str) -> str:
    files: set[str] = set()
    _collect_sources(module, module.split(".")[0], files)
    return digest_of(Path(source).read_bytes() for source in (path, *sorted(files - {path})))


def _collect_sources(name: str, package: str, files: set[str]) -> None:
    """Collect the files of a module and of the modules below ops/ (outside camshaft: of its package) that it imports from."""
    module = sys.modules.get(name)
    path = getattr(module, "__file__", None)
    if module is None or path is None or path in files:
        return
    files.add(path)
    prefix = "camshaft.ops." if package == "camshaft" else f"{package}."
    for value in list(vars(module).values()):
        origin = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(value, Kernel):
            origin = value.function.__module__
        if isinstance(origin, str) and origin.startswith(prefix):
            _collect_sources(origin, package, files)


@dataclass(frozen=True)
class CompileRequest:
    """A kernel and everything else that its compiled code depends on, besides the device.

    `scalars` are the names of the run-time scalars. `lanes` is the number of lanes of a program; None means the device's default.
    """

    kernel: Kernel
    arrays: tuple[ir.ArrayParam, ...]
    scalars: tuple[str, ...] = ()
    constants: Mapping[str, Constant] = field(default_factory=dict)
    grid: tuple[ir.GridDim, ...] = (ir.GridDim(),)
    lanes: int | None = None

    def trace(self) -> ir.KernelIR:
        """Trace and verify the kernel. KernelError or VerifyError if it breaks a rule of the language."""
        traced = self.kernel.trace(self.arrays, self.scalars, self.constants, self.grid)
        verify(traced)
        return traced

    def key(self) -> str:
        """Return a digest for cache keys. It does not include `lanes`."""
        constants = [(name, repr(self.constants[name])) for name in sorted(self.constants)]
        parts = (repr(self.arrays), self.scalars, constants, repr(self.grid))
        return digest_of(self.kernel.name, self.kernel.digest(), *parts)


def kernel(function: Callable[..., None]) -> Kernel:
    """Wrap a function as a Kernel: (k, arrays..., scalars..., *, constants...)."""
    return Kernel(function)


@functools.cache
def files_digest(*patterns: str) -> str:
    """Return the SHA-256 of the camshaft files that match `patterns` ("emit/llvm/**/*.py"), with their paths."""
    root = Path(__file__).parent.parent
    files = sorted({path for pattern in patterns for path in root.glob(pattern)})
    return digest_of((path.relative_to(root).as_posix(), path.read_bytes()) for path in files)


def language_digest(*patterns: str) -> str:
    """Return the digest of lang/ and of the files that match `patterns`.

    It is part of every cache key of generated code, so that a change in these files recompiles it.
    """
    return files_digest("lang/**/*.py", *patterns)
