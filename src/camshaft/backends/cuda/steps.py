"""One command in the driver's terms: a kernel launch with its parameters, or a copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from camshaft.backends.cuda.driver import bindings, driver_call
from camshaft.backends.cuda.kernel import CudaKernel
from camshaft.backends.cuda.memory import CudaMemory, Pinned
from camshaft.backends.device import Bytes, CopyCommand, LaunchCommand, Place, check_copy, check_place
from camshaft.errors import BackendError

if TYPE_CHECKING:
    from camshaft.backends.cuda.device import CudaDevice

MOST_PROGRAMS = 2**31 - 1


@dataclass(eq=False)
class LaunchStep:
    """A kernel launch. `values` has its parameters and `pointers` their addresses, as cuLaunchKernel reads them. `grid` is
    the current number of workgroups."""

    command: LaunchCommand
    kernel: CudaKernel
    values: np.ndarray[Any, np.dtype[np.int64]]
    pointers: np.ndarray[Any, np.dtype[np.int64]]
    grid: int = 1

    @classmethod
    def of(cls, command: LaunchCommand, active_address: int, device: CudaDevice) -> LaunchStep:
        """Makes the step of a command. `active_address` is the device address of the active extents, an i64 each."""
        if not isinstance(command.kernel, CudaKernel):
            raise BackendError(f"{command.name}: {command.kernel.name} is not a kernel of a CUDA device")
        words = [address_of(place, command.name, device) for place in command.arrays]
        words += [active_address + 8 * extent for extent in command.scalars]
        values = np.array(words or [0], np.int64)
        pointers = values.ctypes.data + 8 * np.arange(len(values), dtype=np.int64)
        return cls(command, command.kernel, values, pointers, 1 if command.factors else max(command.constant, 1))

    @property
    def wait(self) -> bool:
        return self.command.wait

    @property
    def varies(self) -> bool:
        """Whether the grid depends on the active extents."""
        return bool(self.command.factors)

    def update(self, active: Sequence[int]) -> bool:
        """Sets the grid for these active extents. Returns whether it changed."""
        before, self.grid = self.grid, self.workgroups(active)
        return self.grid != before

    def workgroups(self, active: Sequence[int]) -> int:
        """Returns the number of workgroups, at least 1 (the kernel checks for 0 programs). BackendError above a grid's limit."""
        programs = self.command.programs(active)
        if programs > MOST_PROGRAMS:
            raise BackendError(f"{self.command.name}: {programs} programs; a grid has at most {MOST_PROGRAMS}")
        return max(programs, 1)

    def enqueue(self, stream: Any) -> None:
        block = (self.kernel.lanes, 1, 1)
        driver_call(
            "cuLaunchKernel", self.kernel.function, self.grid, 1, 1, *block, 0, stream, self.pointers.ctypes.data, 0
        )

    def node_params(self) -> Any:
        """Returns the launch as graph node parameters."""
        params = bindings().CUDA_KERNEL_NODE_PARAMS()
        params.func = self.kernel.function
        params.gridDimX, params.gridDimY, params.gridDimZ = self.grid, 1, 1
        params.blockDimX, params.blockDimY, params.blockDimZ = self.kernel.lanes, 1, 1
        params.kernelParams = self.pointers.ctypes.data
        return params


@dataclass(eq=False)
class CopyStep:
    """A copy on the GPU, or between it and the page-locked staging memory of `array`. The next run copies the first
    `active_nbytes` of `nbytes`."""

    command: CopyCommand
    nbytes: int
    source: int
    destination: int
    call: str
    array: Bytes | None = None
    pinned: Pinned | None = field(default=None, repr=False)
    active_nbytes: int = 0

    @classmethod
    def of(cls, command: CopyCommand, device: CudaDevice) -> CopyStep:
        """Makes the step of a command. BackendError for an invalid copy."""
        check_copy(device.name, command)
        ends = command.source, command.destination
        array = next((end for end in ends if isinstance(end, np.ndarray)), None)
        pinned = Pinned(device, array.nbytes) if array is not None else None
        source, destination = (
            address_of(end, command.name, device) if isinstance(end, Place) else pinned.address if pinned else 0
            for end in ends
        )
        letters = ["D" if isinstance(end, Place) else "H" for end in ends]
        call = f"cuMemcpy{letters[0]}to{letters[1]}Async"
        nbytes = command.source.nbytes
        return cls(command, nbytes, source, destination, call, array, pinned, nbytes)

    @property
    def wait(self) -> bool:
        return self.command.wait

    @property
    def varies(self) -> bool:
        """Whether the size depends on an active extent."""
        return self.command.extent is not None

    @property
    def node_nbytes(self) -> int:
        """The bytes that the graph node copies. A node cannot copy 0 bytes: it copies 1 that nothing reads."""
        return max(self.active_nbytes, 1)

    def update(self, active: Sequence[int]) -> bool:
        """Sets the size for these active extents. Returns whether it changed."""
        before, self.active_nbytes = self.active_nbytes, self.command.nbytes(active)
        return self.active_nbytes != before

    def enqueue(self, stream: Any) -> None:
        if self.active_nbytes:
            driver_call(self.call, self.destination, self.source, self.active_nbytes, stream)

    def node_params(self) -> Any:
        """Returns the copy as graph node parameters."""
        driver = bindings()
        params = driver.CUDA_MEMCPY3D()
        kinds = driver.CUmemorytype
        from_host, to_host = self.call.startswith("cuMemcpyHto"), "toH" in self.call
        for end, on_host, address in (("src", from_host, self.source), ("dst", to_host, self.destination)):
            setattr(params, f"{end}MemoryType", kinds.CU_MEMORYTYPE_HOST if on_host else kinds.CU_MEMORYTYPE_DEVICE)
            setattr(params, f"{end}Host" if on_host else f"{end}Device", address)
            setattr(params, f"{end}Pitch", self.nbytes)
            setattr(params, f"{end}Height", 1)
        params.WidthInBytes, params.Height, params.Depth = self.node_nbytes, 1, 1
        return params

    def stage_upload(self) -> None:
        """Copies the caller's bytes to page-locked memory, before a run."""
        if self.pinned is not None and self.array is not None and self.call == "cuMemcpyHtoDAsync":
            self.pinned.bytes[: self.active_nbytes] = self.array.reshape(-1)[: self.active_nbytes]

    def unstage_download(self) -> None:
        """Copies the downloaded bytes to the caller's array, after a run."""
        if self.pinned is not None and self.array is not None and self.call == "cuMemcpyDtoHAsync":
            self.array.reshape(-1)[: self.active_nbytes] = self.pinned.bytes[: self.active_nbytes]


Step = LaunchStep | CopyStep


def address_of(place: Place, what: str, device: CudaDevice) -> int:
    """Returns the device address of a place. BackendError if it is not memory of the device or passes its end."""
    memory = place.memory
    check_place(device.name, what, place, isinstance(memory, CudaMemory) and memory.device is device)
    assert isinstance(memory, CudaMemory)
    return memory.address + place.offset_nbytes
