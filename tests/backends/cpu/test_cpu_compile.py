"""Objects load wherever memory is free, and may call the C functions that LLVM puts in."""

import ctypes
import os
import subprocess
import sys

import pytest

from camshaft.backends.cpu.compile import compile_module, load_object

CLEARS = """
define void @clears(ptr %at, i64 %n) {
  call void @llvm.memset.p0.i64(ptr %at, i8 7, i64 %n, i1 false)
  ret void
}
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
"""

# Fills every hole of two pages or more, so that an object's code finds room near and its constants, were they apart, 3 GB away.
CROWDED = """
import ctypes, mmap
from camshaft.backends.cpu.compile import compile_module, load_kernel

def function(i):
    table = ", ".join(f"float {float((7 * j + i) % 13)}" for j in range(3000))
    text = f'''@table = internal constant [3000 x float] [{table}]
define float @f{i}(i64 %n) {{
  %at = getelementptr [3000 x float], ptr @table, i64 0, i64 %n
  %value = load float, ptr %at
  ret float %value
}}'''
    return ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_int64)(load_kernel(compile_module(text)).address(f"f{i}"))

def address(mapping):
    return ctypes.addressof(ctypes.c_char.from_buffer(mapping))

first = function(0)
flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
large = mmap.mmap(-1, 3 << 30, flags=flags)
small = [mmap.mmap(-1, 2 * mmap.PAGESIZE, flags=flags)]
while address(small[-1]) > address(large) and len(small) < 20000:
    small.append(mmap.mmap(-1, 2 * mmap.PAGESIZE, flags=flags))
functions = [first, *(function(i) for i in range(1, 5))]
assert [f(5) for f in functions] == [float((35 + i) % 13) for i in range(5)]
print("right")
"""


def test_an_object_calls_c_functions() -> None:
    library = load_object(compile_module(CLEARS))
    block = (ctypes.c_uint8 * 5000)()
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(library.address("clears"))(ctypes.addressof(block), 4999)
    assert bytes(block) == b"\x07" * 4999 + b"\x00"


@pytest.mark.skipif(sys.platform != "linux", reason="holes are filled by Linux's order of mappings")
def test_kernels_load_in_a_crowded_address_space() -> None:
    env = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    child = subprocess.run([sys.executable, "-c", CROWDED], capture_output=True, text=True, timeout=120, env=env)
    assert child.stdout == "right\n", child.stderr[-400:]
