"""Memory of a WebGPU device: bytes at any offset in and out, zeroed, bounded."""

from __future__ import annotations

import numpy as np
import pytest

from camshaft.backends.webgpu import memory as memory_module
from camshaft.errors import BackendError
from tests.backends.webgpu.webgpu_kernels import own_device, the_device

DATA = np.random.default_rng(0).integers(0, 256, 1001, dtype=np.uint8)


def test_memory_is_zeroed_and_as_long_as_asked_for() -> None:
    memory = the_device().allocate(1001)
    assert memory.nbytes == 1001
    assert memory.read().shape == (1001,)
    assert not memory.read().any()


@pytest.mark.parametrize("offset", [0, 1, 2, 3, 4, 995])
@pytest.mark.parametrize("nbytes", [0, 1, 2, 3, 4, 5, 6])
def test_writes_of_any_bytes_leave_their_neighbours(offset: int, nbytes: int) -> None:
    memory, expected = the_device().allocate(1001), DATA.copy()
    memory.write(DATA)
    memory.write(DATA[500 : 500 + nbytes], offset)
    expected[offset : offset + nbytes] = DATA[500 : 500 + nbytes]
    np.testing.assert_array_equal(memory.read(), expected)
    np.testing.assert_array_equal(memory.read(offset, nbytes), DATA[500 : 500 + nbytes])


def test_reads_longer_than_the_staging_buffer(monkeypatch) -> None:
    monkeypatch.setattr(memory_module, "_STAGING_NBYTES", 64)
    memory = the_device().allocate(1001)
    memory.write(DATA)
    np.testing.assert_array_equal(memory.read(), DATA)
    np.testing.assert_array_equal(memory.read(7, 900), DATA[7:907])


@pytest.mark.parametrize(("offset", "nbytes"), [(0, 11), (10, 1), (-1, 2), (0, -1)])
def test_nothing_outside_is_read_or_written(offset: int, nbytes: int) -> None:
    memory = the_device().allocate(10)
    with pytest.raises(BackendError, match=rf"webgpu: a read of bytes \[{offset}, .* of 10"):
        memory.read(offset, nbytes)
    if nbytes >= 0:
        with pytest.raises(BackendError, match=r"a write of bytes .* of 10"):
            memory.write(np.zeros(nbytes, np.uint8), offset)


def test_closed_memory_says_so() -> None:
    memory = the_device().allocate(10)
    memory.close()
    memory.close()
    with pytest.raises(BackendError, match="a read of memory that is closed"):
        memory.read()


def test_a_buffer_past_the_limit_is_refused_with_the_limit() -> None:
    device = own_device(buffer=1000)
    with pytest.raises(BackendError, match=r"a buffer of 1001 bytes; the largest of .* is 1000"):
        device.allocate(1001)
