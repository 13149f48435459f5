"""Compile kernels in a background thread while child processes validate them.

The compiled kernels stay in the memory cache and run only after validation.
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
