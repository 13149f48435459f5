"""Copies in runs of a WebGPU device: any bytes, in their turn, and as many as an extent has."""

from __future__ import annotations

import numpy as np
import pytest

from camshaft.backends.device import CopyCommand, Place
from camshaft.backends.webgpu.steps import Size
from tests.backends.webgpu.webgpu_kernels import N, add_kernel, launch, memory_with, the_device, whole
from tests.support.active_copies import copies_follow_an_extent

RNG = np.random.default_rng(0)


def test_uploads_take_their_turn_and_downloads_what_was_there_then() -> None:
    device = the_device()
    first, second = RNG.random((2, N), np.float32)
    memory, out = device.allocate(N * 4), device.allocate(N * 4)
    before, after = np.zeros((2, N * 4), np.uint8)
    arrays = [first.view(np.uint8), second.view(np.uint8)]
    commands = [
        CopyCommand("first in", arrays[0], whole(memory)),
        launch(add_kernel(device), whole(memory), whole(memory), whole(out)),
        CopyCommand("first out", whole(memory), before),
        CopyCommand("second in", arrays[1], whole(memory)),  # after what reads the first
        launch(add_kernel(device), whole(memory), whole(out), whole(out)),
        CopyCommand("sum out", whole(out), after),
    ]
    run = device.bind(commands, 0)
    for _ in range(2):
        first += 1
        run.submit([])
        run.wait()
        np.testing.assert_array_equal(before.view(np.float32), first)
        np.testing.assert_array_equal(after.view(np.float32), second + (first + first))


@pytest.mark.parametrize(("source", "destination", "nbytes"), [(0, 512, 256), (1, 514, 255), (3, 600, 1), (64, 7, 9)])
@pytest.mark.parametrize("same", [True, False])
def test_copies_between_any_bytes(source: int, destination: int, nbytes: int, same: bool) -> None:
    device, data = the_device(), RNG.integers(0, 256, 1000, dtype=np.uint8)
    there = memory_with(device, data)
    target = there if same else memory_with(device, data)
    places = Place(there, source, nbytes), Place(target, destination, nbytes)
    run = device.bind([CopyCommand("c", *places)], 0)
    run.submit([])
    run.wait()
    expected = data.copy()
    expected[destination : destination + nbytes] = data[source : source + nbytes]
    np.testing.assert_array_equal(target.read(), expected)


@pytest.mark.parametrize(("offset", "nbytes"), [(0, 4), (1, 1), (2, 7), (5, 994), (996, 5), (1001, 0)])
def test_arrays_go_to_any_bytes_and_come_back(offset: int, nbytes: int) -> None:
    device, data = the_device(), RNG.integers(0, 256, 1001, dtype=np.uint8)
    memory, back = memory_with(device, data), np.zeros(nbytes, np.uint8)
    sent = RNG.integers(0, 256, nbytes, dtype=np.uint8)
    place = Place(memory, offset, nbytes)
    run = device.bind([CopyCommand("in", sent, place), CopyCommand("out", place, back)], 0)
    run.submit([])
    run.wait()
    np.testing.assert_array_equal(back, sent)
    data[offset : offset + nbytes] = sent
    np.testing.assert_array_equal(memory.read(), data)


@pytest.mark.parametrize(("row_nbytes", "offset"), [(12, 0), (6, 0), (6, 64), (1, 3)])
def test_copies_follow_an_extent(row_nbytes: int, offset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, count = [], Size.words_nbytes

    def counted(size: Size, active: list[int]) -> int:
        sizes.append(count(size, active))
        return sizes[-1]

    monkeypatch.setattr(Size, "words_nbytes", counted)
    for nbytes in copies_follow_an_extent(the_device(), row_nbytes, offset):
        assert sizes
        if offset % 4 == 0:  # else a kernel copies across, and up to the bound
            words = -(-nbytes // 4) * 4
            assert sizes == [words] * 3
        sizes.clear()
