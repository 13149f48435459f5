"""CAMSHAFT_INTERPRET: a plan's kernels become host thunks that the interpreter runs, every access checked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from camshaft.backends.device import HOST
from camshaft.errors import SettingError
from camshaft.extent import Extent
from camshaft.lang.interpreter.interpret import interpret
from camshaft.observe.kernel_texts import KernelTexts, kernel_texts
from camshaft.plan.lowering.lower import Lowered
from camshaft.plan.schedule import BufferSlice, Programs, Thunk


def interpreted(lowered: Lowered) -> None:
    """Puts interpreted thunks in the place of compiled ones. SettingError for what is no kernel of ours, or not on the CPU."""
    for origin in lowered.origins:
        for index, texts in zip(range(origin.first, origin.last), kernel_texts(origin), strict=False):
            lowered.thunks[index] = _interpreted(lowered.thunks[index], texts)


def _interpreted(thunk: Thunk, texts: KernelTexts) -> Thunk:
    where = f"CAMSHAFT_INTERPRET=1: thunk {thunk.name!r} ({thunk.op}/{thunk.variant})"
    if thunk.device != HOST:
        raise SettingError(f"{where} is on {thunk.device}; only plans of the CPU are interpreted")
    if texts.traced is None:
        raise SettingError(f"{where} calls another library; CAMSHAFT_BACKEND=simd has kernels of ours alone")
    lanes = 1 if texts.device.backend == "scalar" else texts.launch.lanes or texts.device.lanes  # type: ignore[union-attr]
    kernel, arrays = texts.traced, texts.made.arrays

    def run(*args: Any) -> None:
        views = [
            np.frombuffer(memory, np.uint8).view(array.dtype.numpy).reshape(array.shape)
            for memory, array in zip(args, arrays, strict=False)
        ]
        interpret(kernel, views, [int(value) for value in args[len(arrays) :]], lanes=lanes)

    slices = tuple(arg for arg in thunk.args if isinstance(arg, BufferSlice))
    extents = tuple(arg for arg in thunk.args if isinstance(arg, Extent))
    return replace(
        thunk,
        kind="host",
        entry=run,
        args=(*slices, *extents),
        programs=Programs(1),
        reason=f"interpreted; {thunk.reason}",
    )
