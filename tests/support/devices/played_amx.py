"""AMX played by NumPy: LLVM IR whose tile intrinsics become calls to here, so that kernels of tiles run on any CPU.

Written from the operations in Intel's manual (volume 2, TDPBSUD, TDPBF16PS, TILELOADD, TILESTORED). A tile is a number; what it
holds, its shape included, is kept here, and using one in another shape than it was made in is an error.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from ml_dtypes import bfloat16

from camshaft.backends.cpu.compile import NativeLibrary, load_object
from camshaft.backends.cpu.device import CpuDevice, CpuKernel
from camshaft.emit.llvm.module import emit
from camshaft.emit.target import LEVELS, CpuTarget
from camshaft.lang import CompileRequest
from tests.support.compilers.emit_harness import compiled

SHORT, LONG, TILE, VOID = ctypes.c_int16, ctypes.c_int64, ctypes.c_int64, None
TYPES = {SHORT: "i16", LONG: "i64", TILE: "i64", VOID: "void"}
BYTES = 1024
# An instruction calls what its place in the table holds, so that the text is the same in every process and its code is stored.
TABLE = """
@played.table = internal global [{0} x ptr] zeroinitializer
define void @played.set(i64 %i, ptr %function) {{
  %at = getelementptr ptr, ptr @played.table, i64 %i
  store ptr %function, ptr %at
  ret void
}}
"""
INSTRUCTION = """
define internal {result} @played.{name}({parameters}) {{
  %at = getelementptr ptr, ptr @played.table, i64 {i}
  %function = load ptr, ptr %at
  {given}call {result} %function({parameters})
  ret {returned}
}}
"""
CASTS = """
define i64 @played.cast.vector.to.tile.{0}(<256 x {1}> %v) {{
  %at = alloca <256 x {1}>, align 64
  store <256 x {1}> %v, ptr %at
  %tile = call i64 @played.read(ptr %at)
  ret i64 %tile
}}
define <256 x {1}> @played.cast.tile.to.vector.{0}(i64 %tile) {{
  %at = alloca <256 x {1}>, align 64
  call void @played.write(i64 %tile, ptr %at)
  %v = load <256 x {1}>, ptr %at
  ret <256 x {1}> %v
}}
"""


@dataclass
class Amx:
    """The tiles made so far, their shapes by number, and how often each instruction was played."""

    tiles: list[np.ndarray] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    held: list[object] = field(default_factory=list)

    def made(self, values: np.ndarray) -> int:
        """A new tile of 16 rows of 64 bytes; what its shape leaves out is 0."""
        whole = np.zeros((16, 64), np.uint8)
        whole[: values.shape[0], : values.shape[1]] = values
        self.tiles.append(whole)
        return len(self.tiles) - 1

    def zero(self, rows: int, nbytes: int) -> int:
        return self.made(np.zeros((rows, nbytes), np.uint8))

    def load(self, rows: int, nbytes: int, at: int, stride: int) -> int:
        return self.made(np.stack([_bytes(at + i * stride, nbytes) for i in range(rows)]))

    def store(self, rows: int, nbytes: int, at: int, stride: int, tile: int) -> None:
        for i in range(rows):
            _bytes(at + i * stride, nbytes)[:] = self.tiles[tile][i, :nbytes]

    def bytes_product(self, m: int, n: int, k: int, c: int, a: int, b: int) -> int:
        """TDPBSUD: a's bytes are signed, b's are not."""
        left, right = self._sides(m, n, k, a, b)
        total = left.view(np.int8).astype(np.int64) @ right.astype(np.int64)
        return self.made((self._sums(m, n, c, np.int32) + total).astype(np.int32).view(np.uint8))

    def bf16_product(self, m: int, n: int, k: int, c: int, a: int, b: int) -> int:
        """TDPBF16PS, summed in f64: the instruction's own roundings are within what callers allow."""
        left, right = self._sides(m, n, k, a, b, 2)
        total = left.astype(np.float64) @ right.astype(np.float64)
        return self.made((self._sums(m, n, c, np.float32) + total).astype(np.float32).view(np.uint8))

    def _sums(self, m: int, n: int, c: int, dtype: type) -> np.ndarray:
        return np.ascontiguousarray(self.tiles[c][:m, :n]).view(dtype)

    def _sides(self, m: int, n: int, k: int, a: int, b: int, size: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """a [m, products], and b's words [k / 4, n / 4] as [products, columns]: bytes, or bf16 of `size` 2."""
        each = 4 // size
        left = np.ascontiguousarray(self.tiles[a][:m, :k])
        right = self.tiles[b][: k // 4, :n].reshape(k // 4, n // 4, each, size).transpose(0, 2, 1, 3)
        right = np.ascontiguousarray(right).reshape(k // size, -1)
        return (left, right) if size == 1 else (left.view(bfloat16), right.view(bfloat16))

    def read(self, at: int) -> int:
        return self.made(_bytes(at, BYTES).reshape(16, 64))

    def write(self, tile: int, at: int) -> None:
        _bytes(at, BYTES)[:] = self.tiles[tile].reshape(-1)

    def counted(self, name: str, function: Callable[..., int | None]) -> Callable[..., int | None]:
        """The function as an instruction that is counted, its shapes checked: no exception may leave a callback."""

        def called(*given: int) -> int | None:
            self.counts[name] = self.counts.get(name, 0) + 1
            try:
                return function(*given)
            except (ValueError, IndexError) as error:
                self.failed.append(f"{name}{given}: {error}")
                return 0

        return called


def _bytes(at: int, count: int) -> np.ndarray:
    return np.ctypeslib.as_array(ctypes.cast(at, ctypes.POINTER(ctypes.c_uint8)), (count,))


SIGNATURES = {
    "tilezero.internal": (Amx.zero, TILE, (SHORT, SHORT)),
    "tileloadd64.internal": (Amx.load, TILE, (SHORT, SHORT, LONG, LONG)),
    "tileloaddt164.internal": (Amx.load, TILE, (SHORT, SHORT, LONG, LONG)),
    "tilestored64.internal": (Amx.store, VOID, (SHORT, SHORT, LONG, LONG, TILE)),
    "tdpbsud.internal": (Amx.bytes_product, TILE, (SHORT, SHORT, SHORT, TILE, TILE, TILE)),
    "tdpbf16ps.internal": (Amx.bf16_product, TILE, (SHORT, SHORT, SHORT, TILE, TILE, TILE)),
    "read": (Amx.read, TILE, (LONG,)),
    "write": (Amx.write, VOID, (TILE, LONG)),
}


def played(text: str) -> str:
    """LLVM IR in which tiles are numbers and their intrinsics calls of what `played.set` puts in a table."""
    text = re.sub(r"^declare .*@llvm\.x86\.(?:cast\.|tile|tdp).*\n", "", text, flags=re.M)
    text = re.sub(r"@llvm\.x86\.((?:cast|tile|tdp)[\w.]*)", r"@played.\1", text.replace("x86_amx", "i64"))
    text += "".join(CASTS.format(*pair) for pair in (("v256i32", "i32"), ("v256f32", "float")))
    return text + TABLE.format(len(SIGNATURES)) + "".join(map(_instruction, range(len(SIGNATURES)), SIGNATURES))


def _instruction(i: int, name: str) -> str:
    _, result, types = SIGNATURES[name]
    parameters = ", ".join(f"{TYPES[t]} %p{j}" for j, t in enumerate(types))
    given, returned = ("", "void") if result is VOID else ("%value = ", f"{TYPES[result]} %value")
    return INSTRUCTION.format(
        i=i, name=name, result=TYPES[result], parameters=parameters, given=given, returned=returned
    )


def loaded(text: str) -> tuple[NativeLibrary, Amx]:
    """The code of LLVM IR whose tiles are played, and its player, which has to outlive it."""
    amx, library = Amx(), load_object(compiled(played(text)))
    put = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p)(library.address("played.set"))
    for i, (name, (function, result, types)) in enumerate(SIGNATURES.items()):
        callback = ctypes.CFUNCTYPE(result, *types)(amx.counted(name, function.__get__(amx)))
        amx.held.append(callback)
        put(i, ctypes.cast(callback, ctypes.c_void_p).value)
    return library, amx


@dataclass(frozen=True)
class PlayedDevice(CpuDevice):
    """This CPU as one with AMX, whose tile instructions are played. `players`: one a kernel, as they are compiled."""

    players: list[Amx] = field(default_factory=list)
    kernels: dict[tuple[object, ...], CpuKernel] = field(default_factory=dict)

    def compile(self, request: CompileRequest) -> CpuKernel:
        key = (request.kernel, request.key(), request.lanes)
        if key not in self.kernels:
            target = CpuTarget(self.architecture, request.lanes or self.lanes, self.features)
            library, amx = loaded(emit(request.trace(), target, "kernel"))
            self.players.append(amx)
            self.kernels[key] = CpuKernel(request.kernel.name, library.address("kernel"), library)
        return self.kernels[key]


def device() -> PlayedDevice:
    """A machine of level `amx`; its kernels run where AVX-512 VNNI is."""
    return PlayedDevice("cpu:amx", "simd", 16, LEVELS["amx"].features, "x86_64")
