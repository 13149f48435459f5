"""Runs of a WebGPU device: launches in order, run-time extents, one submit, nothing made in it."""

from __future__ import annotations

import dataclasses
import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from camshaft.backends.device import CopyCommand, Place
from camshaft.backends.webgpu.kernel import counts
from camshaft.errors import BackendError
from tests.backends.webgpu.webgpu_kernels import (
    N,
    add_kernel,
    floats,
    launch,
    memory_with,
    own_device,
    scale_kernel,
    the_device,
    whole,
)

RNG = np.random.default_rng(0)


def test_dependent_launches_over_slices_of_one_arena() -> None:
    device, step = the_device(), np.ones(N, np.float32)
    arena, one = device.allocate(N * 4 * 21), memory_with(device, step)
    places = [Place(arena, N * 4 * i, N * 4) for i in range(21)]  # 148 bytes each: not aligned
    arena.write(RNG.random(N, np.float32).view(np.uint8))
    kernel = add_kernel(device)
    with_arena = [launch(kernel, a, whole(one), b) for a, b in itertools.pairwise(places)]
    run = device.bind(with_arena, 0)
    run.submit([])
    run.wait()
    got = floats(arena).reshape(21, N)
    for before, after in itertools.pairwise(got):
        np.testing.assert_array_equal(after, before + step)


def test_one_place_as_both_inputs_and_the_output() -> None:
    device, values = the_device(), RNG.random(N, np.float32)
    memory = memory_with(device, values)
    run = device.bind([launch(add_kernel(device), *[whole(memory)] * 3)], 0)
    for _ in range(3):
        run.submit([])
    run.wait()
    np.testing.assert_array_equal(floats(memory), 8 * values)


@pytest.mark.parametrize("rows", [1, 20, 21])
def test_workgroups_fold_into_two_dimensions(rows: int) -> None:
    device = own_device(workgroups=7)
    x, y = RNG.random((2, rows, N), np.float32)
    out = device.allocate(x.nbytes)
    places = whole(memory_with(device, x)), whole(memory_with(device, y)), whole(out)
    run = device.bind([launch(add_kernel(device, rows), *places, constant=rows)], 0)
    run.submit([])
    run.wait()
    np.testing.assert_array_equal(floats(out).reshape(rows, N), x + y)


def test_more_programs_than_two_dimensions_hold() -> None:
    device = own_device(workgroups=7)
    memory = device.allocate(50 * N * 4)
    run = device.bind([launch(add_kernel(device, 50), *[whole(memory)] * 3, constant=50)], 0)
    with pytest.raises(BackendError, match="a launch of 50 programs; the most is 49"):
        run.submit([])


def test_arrays_longer_than_a_binding_are_several() -> None:
    device, rows = own_device(binding=4096), 100  # 14,800 bytes an array
    x, y = RNG.random((2, rows, N), np.float32)
    kernel = add_kernel(device, rows)
    assert len(kernel.module(frozenset()).bindings) > 9
    room = device.allocate(x.nbytes + 4)  # the output begins at byte 4
    places = whole(memory_with(device, x)), whole(memory_with(device, y)), Place(room, 4, x.nbytes)
    run = device.bind([launch(kernel, *places, constant=rows)], 0)
    run.submit([])
    run.wait()
    np.testing.assert_array_equal(floats(room)[1:].reshape(rows, N), x + y)
    assert floats(room)[0] == 0


def test_extents_change_between_submits_and_none_runs_nothing() -> None:
    device, x = the_device(), RNG.random((5, N), np.float32)
    source, out = memory_with(device, x), device.allocate(x.nbytes)
    kernel = scale_kernel(device, 5)
    # The second of two extents counts the programs and is the kernel's scalar.
    run = device.bind([launch(kernel, whole(source), whole(out), scalars=(1,), factors=((1, 1),))], 2)
    for length in (0, 3, 5):
        run.submit([9, length])
        run.wait()
        expected = np.zeros_like(x)
        expected[:length] = x[:length] * length
        np.testing.assert_array_equal(floats(out).reshape(5, N), expected)


@pytest.mark.parametrize(
    ("active", "words"),
    [
        ([], "wanted 1"),
        ([1, 2], "wanted 1"),
        ([-1], "each from 0 to 2147483647"),
        ([2**31], "each from 0 to 2147483647"),
    ],
)
def test_extents_that_do_not_fit_are_refused(active: list[int], words: str) -> None:
    device = the_device()
    memory = device.allocate(5 * N * 4)
    run = device.bind([launch(scale_kernel(device, 5), whole(memory), whole(memory), scalars=(0,))], 1)
    with pytest.raises(BackendError, match=words):
        run.submit(active)


def test_a_run_makes_nothing() -> None:
    device = the_device()
    memory, back = device.allocate(8 * N * 4), np.zeros(N * 4, np.uint8)
    places = [Place(memory, N * 4 * i, N * 4) for i in range(8)]
    launches = [launch(add_kernel(device), a, a, b) for a, b in itertools.pairwise(places)]
    run = device.bind([CopyCommand("in", back.copy(), places[0]), *launches, CopyCommand("out", places[7], back)], 0)
    run.submit([])
    run.wait()
    before = dataclasses.replace(counts)
    for _ in range(3):
        run.submit([])
        run.wait()
    assert counts == before
    assert before.pipelines
    assert before.bind_groups


def test_like_launches_share_pipelines_and_bind_groups() -> None:
    device = own_device()
    memory = device.allocate(N * 4)
    before = dataclasses.replace(counts)
    device.bind([launch(add_kernel(device), *[whole(memory)] * 3) for _ in range(10)], 0)
    assert counts.pipelines - before.pipelines == 1
    assert counts.bind_groups - before.bind_groups == 1


def test_time_stamps_for_every_command() -> None:
    device = the_device()
    memory, back = device.allocate(N * 4), np.zeros(N * 4, np.uint8)
    commands = [
        CopyCommand("in", back.copy(), whole(memory)),
        launch(add_kernel(device), *[whole(memory)] * 3),
        CopyCommand("out", whole(memory), back),
    ]
    run = device.bind(commands, 0, timed=True)
    assert run.elapsed_ns() is None
    run.submit([])
    run.wait()
    elapsed = run.elapsed_ns()
    if "timestamp-query" not in device.features:
        assert elapsed is None
        return
    assert elapsed is not None
    assert len(elapsed) == 3
    assert all(0 <= ns < 60e9 for ns in elapsed)
    assert elapsed[1] > 0
    assert device.bind(commands, 0).elapsed_ns() is None


def test_runs_from_several_threads() -> None:
    device, kernel, failures = the_device(), add_kernel(the_device()), []

    def work(value: float) -> None:
        memory, back = memory_with(device, np.full(N, value, np.float32)), np.zeros(N * 4, np.uint8)
        commands = [launch(kernel, *[whole(memory)] * 3), CopyCommand("out", whole(memory), back)]
        run = device.bind(commands, 0)
        for i in range(10):
            run.submit([])
            run.wait()
            if not (back.view(np.float32) == value * 2 ** (i + 1)).all():
                failures.append((value, i))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, [1.0, 2.0, 3.0, 4.0]))  # raises what a thread raised
    assert failures == []


def test_a_run_that_is_closed_or_was_not_submitted() -> None:
    device = the_device()
    run = device.bind([], 0)
    with pytest.raises(BackendError, match="was not submitted"):
        run.wait()
    run.submit([])
    run.wait()
    run.close()
    run.close()
    with pytest.raises(BackendError, match="a closed run was submitted"):
        run.submit([])


def test_commands_that_cannot_be_bound() -> None:
    device, other = the_device(), own_device()
    memory, foreign = device.allocate(N * 4), other.allocate(N * 4)
    kernel, array = add_kernel(device), np.zeros(N * 4, np.uint8)
    for command, words in (
        (launch(kernel, whole(memory), whole(foreign), whole(memory)), "memory that is not this device's"),
        (launch(add_kernel(other), *[whole(memory)] * 3), "a kernel that is not this device's"),
        (launch(kernel, *[whole(memory)] * 2), "2 arrays; add_rows takes 3"),
        (launch(kernel, Place(memory, 4, N * 4), *[whole(memory)] * 2), r"bytes \[4, 152\) of 148"),
        (CopyCommand("c", array[1:], whole(memory)), "147 and 148 bytes"),
        (CopyCommand("c", array, array), "from an array to an array"),
        (CopyCommand("c", np.zeros((N, 8), np.uint8)[:, ::2], whole(memory)), "not contiguous uint8"),
    ):
        with pytest.raises(BackendError, match=words):
            device.bind([command], 0)
