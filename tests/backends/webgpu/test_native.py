"""How the library of the package wgpu is loaded: by its header, which cffi parses once for all processes."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from camshaft.backends.webgpu import declarations as declarations_module
from camshaft.backends.webgpu import native as native_module
from camshaft.backends.webgpu.declarations import declarations
from tests.backends.webgpu.webgpu_kernels import the_device

HEADER = """
typedef struct Two { int first; struct Two *next; } Two;
enum { CAMSHAFT_SEVEN = 7 };
size_t strlen(char const *text);
"""


def test_a_header_is_parsed_once(tmp_path: Path, monkeypatch, capfd) -> None:
    header = tmp_path / "header.h"
    header.write_text(HEADER, "utf-8")
    monkeypatch.setenv("CAMSHAFT_CACHE_DIR", str(tmp_path / "cache"))
    declarations(header)
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr(declarations_module, "_compiled", lambda text: pytest.fail("it was parsed again"))
    ffi = declarations(header)
    lib = ffi.dlopen(None)
    assert (lib.CAMSHAFT_SEVEN, ffi.new("Two *", {"first": 3}).first) == (7, 3)
    if sys.platform != "win32":
        assert lib.strlen(b"four") == 4


def test_another_header_is_parsed_itself(tmp_path: Path) -> None:
    header = tmp_path / "header.h"
    header.write_text(HEADER, "utf-8")
    declarations(header)
    header.write_text(HEADER.replace("= 7", "= 8"), "utf-8")
    assert declarations(header).dlopen(None).CAMSHAFT_SEVEN == 8


def test_a_package_with_other_files_is_imported(tmp_path: Path) -> None:
    the_device()
    assert native_module._in_folder(tmp_path) is None
    resources = Path(str(find_spec("wgpu").origin)).parent / "resources"
    ours, theirs = native_module._in_folder(resources), native_module._imported()
    assert ours is not None
    assert ours.lib.wgpuGetVersion() == theirs.lib.wgpuGetVersion()
