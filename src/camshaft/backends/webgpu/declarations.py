"""cffi's declarations of webgpu.h, compiled once and stored.

cffi parses the header in 0.25 to 0.4 s, and all its names of types again for each kind of struct that is created, 50 ms each.
What it compiles both to loads in 20 ms.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from camshaft.store.files import digest_of
from camshaft.store.store import store

_MODULE = "camshaft_webgpu_header"


def declarations(header: Path) -> Any:
    """Returns the FFI that declares a header, compiled by cffi in the first process that asks. OSError if it cannot be read."""
    import _cffi_backend

    text = header.read_text("utf-8")
    objects, key = store().objects, digest_of(_MODULE, _cffi_backend.__version__, text)
    source = objects.get(key)
    if source is None:
        source = _compiled(text)
        objects.put(key, source)
    names: dict[str, Any] = {}
    exec(compile(source, _MODULE, "exec"), names)  # the store has checked its owner and digest, as of machine code
    return names["ffi"]


def _compiled(text: str) -> bytes:
    """Returns Python source that defines `ffi`."""
    from cffi import FFI
    from cffi.recompiler import make_py_source  # FFI.emit_python_code also prints what it does

    ffi = FFI()
    ffi.cdef(text)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{_MODULE}.py"
        make_py_source(ffi, _MODULE, str(path))
        return path.read_bytes()
