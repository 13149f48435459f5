"""Folders in Hugging Face's layout open as models: converted once, and again when they change."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

import numpy as np
import pytest

from camshaft import LanguageModel
from camshaft.errors import ModelError
from camshaft.models.files.folders import converted_folder
from camshaft.models.files.pull import resolve_model
from tests.support.fixtures import tiny_logits
from tests.support.models.hub_folders import hub_folder


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMSHAFT_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.full
def test_a_folder_runs_as_its_file_does(tmp_path: Path) -> None:
    folder, _ = hub_folder("llama", tmp_path)
    tokens, wanted = tiny_logits("llama")
    with pytest.warns(UserWarning, match=r"hub-llama is converted to GGUF, once: .*\.gguf"):
        lm = LanguageModel(folder, threads=1, context=64, sessions=1, activations="f32")
    with lm:
        np.testing.assert_allclose(lm.logits(tokens), wanted, atol=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        path = resolve_model(folder)
    assert path.parent == tmp_path / "cache" / "models" / "converted"


def test_a_conversion_is_said_once(tmp_path: Path) -> None:
    folder, _ = hub_folder("llama", tmp_path)
    with pytest.warns(UserWarning, match=r"hub-llama is converted to GGUF, once: .*\.gguf"):
        path = resolve_model(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolve_model(folder) == path


def test_a_changed_folder_is_converted_again_and_the_old_file_goes(tmp_path: Path) -> None:
    folder, _ = hub_folder("llama", tmp_path)
    calls: list[tuple[int, int]] = []
    first = converted_folder(folder, lambda done, total: calls.append((done, total)))
    n, when = len(calls), first.stat().st_mtime_ns
    assert converted_folder(folder, lambda done, total: calls.append((done, total))) == first
    assert (len(calls), first.stat().st_mtime_ns) == (n, when)
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"rope_theta": 500.0}))
    second = converted_folder(folder, lambda done, total: None)
    assert second != first
    assert not first.exists()
    link = tmp_path / "link"
    os.symlink(folder, link)
    assert converted_folder(link) == second


def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"is a folder without config\.json and \.safetensors files"):
        resolve_model(tmp_path)
    folder, _ = hub_folder("llama", tmp_path)
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"architectures": ["NoSuch"]}))
    with pytest.raises(ModelError, match="no conversion of 'NoSuch'"):
        resolve_model(folder, lambda done, total: None)
    made = tmp_path / "cache" / "models" / "converted"
    assert [path.name for path in made.iterdir()] == ["lock"]
