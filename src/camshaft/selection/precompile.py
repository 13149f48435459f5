"""Compile kernels in a background thread while child processes validate them; check answers of variants.

The compiled kernels stay in the memory cache and run only after validation.
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
    """The reason why the variant cannot run the node on `target`, or None. Raises BackendError if the variant's functions
    raise, or return anything else."""
    refusal = _call(op, variant, "supports", lambda: variant.supports(node, target))
    if not isinstance(refusal, (str, type(None))):  # booleans would be misread: True would mean a refusal
        raise BackendError(
            f"{op.name}/{variant.name}: supports returned {refusal!r}; wanted None or the reason as text"
        )
    checked: str | None = refusal or _call(op, variant, "build", lambda: refusal_of(variant, node, target))
    return checked


def cost_on(op: Op, variant: KernelVariant, node: NodeSpec, target: Device) -> float:
    """The variant's cost estimate in nanoseconds. Raises BackendError unless it is a finite number of 0 or more."""
    cost = _call(op, variant, "cost", lambda: variant.cost(node, target))
    if not isinstance(cost, Real) or not isfinite(cost) or cost < 0:
        raise BackendError(f"{op.name}/{variant.name}: cost returned {cost!r}; wanted nanoseconds, 0 or more")
    return float(cost)


def _call(op: Op, variant: KernelVariant, what: str, function: Callable[[], Any]) -> Any:
    try:
        return function()
    except CamshaftError:
        raise
    except Exception as error:
        raise BackendError(f"{op.name}/{variant.name}: {what} raised {type(error).__name__}: {error}") from error


CompileRequest: TypeAlias = tuple[KernelVariant, NodeSpec, Device]


@contextmanager
def compiled_ahead(wanted: Iterable[CompileRequest]) -> Iterator[None]:
    """Compile the variants' kernels for HOST devices in a background thread while the body runs; stop at its end."""
    stop = threading.Event()
    thread = threading.Thread(target=_compile, args=(list(wanted), stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _compile(wanted: list[CompileRequest], stop: threading.Event) -> None:
    for variant, node, device in wanted:
        if device.space == HOST and not _compiled(variant, node, device, stop):
            return


def _compiled(variant: KernelVariant, node: NodeSpec, device: Device, stop: threading.Event) -> bool:
    """False if stopped, or if something failed: the error is raised again where the kernel is requested."""
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
