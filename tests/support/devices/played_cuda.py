"""Puts the fake driver of fake_cuda.py in the place of cuda-bindings, with kernels that the simulated GPU runs."""

from __future__ import annotations

from camshaft.backends.cuda import device as cuda
from camshaft.backends.cuda import driver, kernel, run, steps
from camshaft.backends.cuda import run as graph
from camshaft.emit.nvptx.module import emit
from tests.support.devices.ptxas import ptx_of
from tests.support.devices.simulated_gpu import simulated
from tests.support.needs import require


def played_driver(monkeypatch, folder, **facts):
    """The fake driver, with `facts` of its machine; the store is in `folder`, so that every kernel passes through here."""
    try:
        from tests.support.devices.fake_cuda import FakeDriver
    except ImportError:
        require(False, "cuda-bindings is not installed")
    fake = FakeDriver(**facts)

    def made(simt, target, symbol):
        fake.kernels[symbol] = simulated(simt), len(simt.arrays) + len(simt.scalars)
        return ptx_of(emit(simt, target, symbol), target)

    monkeypatch.setattr(kernel, "ptx_of", made)
    for module in (driver, kernel, cuda, graph, run, steps):
        monkeypatch.setattr(module, "bindings", lambda: fake)
    monkeypatch.setenv("CAMSHAFT_CACHE_DIR", str(folder))
    cuda.absent.cache_clear()
    return fake
