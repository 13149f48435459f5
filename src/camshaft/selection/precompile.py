"""Kernels compiled ahead: while children prove the variants, this process compiles what they are wanted for.

Nothing runs them before the proof is through: who runs a kernel asks for it again, and finds it in memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from math import isfinite
from numbers import Real
from typing import Any, TypeAlias

from camshaft.backends.device import HOST, Device
from camshaft.errors import BackendError, CamshaftError
from camshaft.ops.kernels.launch import signature
from camshaft.ops.op import HostCall, KernelVariant, NodeSpec, Op
from camshaft.validation.run import compile_launch, refusal_of


def refusal_on(op: Op, variant: KernelVariant, node: NodeSpec, target: Device) -> str | None:
    """None, or why the variant cannot have the node there. BackendError for an answer that is neither, or a failure to answer."""
    found = _asked(op, variant, "supports", lambda: variant.supports(node, target))
    if not isinstance(found, (str, type(None))):  # True and False would both be taken for their opposite
        raise BackendError(f"{op.name}/{variant.name}: supports gave {found!r}; wanted None, or in words why not")
    refused: str | None = found or _asked(op, variant, "build", lambda: refusal_of(variant, node, target))
    return refused


def cost_on(op: Op, variant: KernelVariant, node: NodeSpec, target: Device) -> float:
    """The estimate in nanoseconds. BackendError if it is no number, or one that nothing can be compared with."""
    found = _asked(op, variant, "cost", lambda: variant.cost(node, target))
    if not isinstance(found, Real) or not isfinite(found) or found < 0:
        raise BackendError(f"{op.name}/{variant.name}: cost gave {found!r}; wanted nanoseconds, 0 or more")
    return float(found)


def _asked(op: Op, variant: KernelVariant, what: str, ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except CamshaftError:
        raise
    except Exception as error:
        raise BackendError(f"{op.name}/{variant.name}: {what} raised {type(error).__name__}: {error}") from error


Wanted: TypeAlias = tuple[KernelVariant, NodeSpec, Device]


@contextmanager
def compiled_ahead(wanted: Iterable[Wanted]) -> Iterator[None]:
    """Compiles the kernels that variants make of nodes, those for a HOST device, as far as it comes while the body runs."""
    stop = threading.Event()
    thread = threading.Thread(target=_compile, args=(list(wanted), stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _compile(wanted: list[Wanted], stop: threading.Event) -> None:
    for variant, node, device in wanted:
        if device.space == HOST and not _compiled(variant, node, device, stop):
            return


def _compiled(variant: KernelVariant, node: NodeSpec, device: Device, stop: threading.Event) -> bool:
    """False where it was to stop, or something failed: that fails again where it is asked for, with a caller to tell."""
    try:
        build = variant.build(node, device)
        if isinstance(build, HostCall):
            return True
        for launch in build.launches:
            if stop.is_set():
                return False
            compile_launch(launch, signature(launch, node, build), device)
    except Exception:
        return False
    return True
