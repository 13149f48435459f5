"""Copies that no encoder command can do: within one buffer, or not in whole 32-bit words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from camshaft.backends.device import Place
from camshaft.backends.webgpu.binding import Binder, Row
from camshaft.backends.webgpu.kernel import Entry, Pipeline, make_pipeline, make_shader
from camshaft.backends.webgpu.memory import WebGpuMemory, words_nbytes

if TYPE_CHECKING:
    from camshaft.backends.webgpu.device import WebGpuDevice

_THREADS = 64
_PIECE_NBYTES = 32 << 20

# Within one buffer both bindings are writable: WebGPU forbids a buffer that is both read-only and writable in a dispatch.
# destination[to.. to + nbytes) = source[from.. from + nbytes), in bytes; a thread writes one word of the destination.
_WGSL = """
struct Fixed { source: u32, destination: u32, nbytes: u32, room: u32 }
@group(0) @binding(0) var<uniform> fixed: Fixed;
@group(0) @binding(1) var<storage, read_write> destination: array<u32>;
@group(0) @binding(2) var<storage, ACCESS> source: array<u32>;

@compute @workgroup_size(THREADS)
fn copy(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
    let word = fixed.destination / 4u + (group.y * groups.x + group.x) * THREADSu + thread;
    let end = fixed.destination + fixed.nbytes;
    if (word * 4u >= end) { return; }
    if (word * 4u >= fixed.destination && word * 4u + 4u <= end && (fixed.source - fixed.destination) % 4u == 0u) {
        destination[word] = source[(word * 4u - fixed.destination + fixed.source) / 4u];
        return;
    }
    var value = destination[word];
    for (var b = 0u; b < 4u; b++) {
        let at = word * 4u + b;
        if (at >= fixed.destination && at < end) {
            let from_ = at - fixed.destination + fixed.source;
            let byte = (source[from_ / 4u] >> (8u * (from_ % 4u))) & 255u;
            value = (value & ~(255u << (8u * b))) | (byte << (8u * b));
        }
    }
    destination[word] = value;
}
"""


class CopyKernels:
    """A device's two copy pipelines: between two buffers, and within one."""

    def __init__(self, device: WebGpuDevice) -> None:
        self.separate = _make(device, "read", "read-only-storage")
        self.same = _make(device, "read_write", "storage")


def _make(device: WebGpuDevice, access: str, kind: str) -> Pipeline:
    shader = make_shader(device, "copy", _WGSL.replace("THREADS", str(_THREADS)).replace("ACCESS", access))
    return make_pipeline(device, "copy", shader, [Entry(0, "uniform", 16), Entry(1, "storage"), Entry(2, kind)])


def is_encodable(source: Place, destination: Place) -> bool:
    """Returns whether an encoder command can do the copy: between two buffers, in whole words."""
    whole = (source.offset_nbytes | destination.offset_nbytes | source.nbytes) % 4 == 0
    return whole and source.memory is not destination.memory


def bind_copy(binder: Binder, kernels: CopyKernels, source: Place, destination: Place) -> Iterator[int]:
    """Binds the dispatches that copy `source` to `destination` (no overlap) and yields their numbers."""
    for start in range(0, source.nbytes, _PIECE_NBYTES):
        nbytes = min(_PIECE_NBYTES, source.nbytes - start)
        yield _bind_piece(binder, kernels, _part(source, start, nbytes), _part(destination, start, nbytes))


def _part(place: Place, start: int, nbytes: int) -> Place:
    return Place(place.memory, place.offset_nbytes + start, nbytes)


def _bind_piece(binder: Binder, kernels: CopyKernels, source: Place, destination: Place) -> int:
    rows = [_row(1, destination, binder.device), _row(2, source, binder.device)]
    first, cut = source.offset_nbytes - rows[1][2], destination.offset_nbytes - rows[0][2]
    words = np.array([first, cut, source.nbytes, 0], np.uint32)
    n_words = -(-(cut + source.nbytes) // 4) - cut // 4
    pipeline = kernels.same if source.memory is destination.memory else kernels.separate
    return binder.add(pipeline, rows, 0, words, (-(-n_words // _THREADS), ()))


def _row(binding: int, place: Place, device: WebGpuDevice) -> Row:
    start = place.offset_nbytes // device.limits["alignment"] * device.limits["alignment"]
    assert isinstance(place.memory, WebGpuMemory)
    return binding, place.memory.handle, start, words_nbytes(place.offset_nbytes + place.nbytes) - start
