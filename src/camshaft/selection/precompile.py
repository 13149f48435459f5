"""Kernels compiled ahead: while children prove the variants, this process compiles what they are wanted for.

Nothing runs them before the proof is through: who runs a kernel asks for it again, and finds it in memory.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from camshaft.backends.device import HOST, Device
from camshaft.ops.kernels.launch import signature
from camshaft.ops.op import HostCall, KernelVariant, NodeSpec
from camshaft.validation.run import compile_launch

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
