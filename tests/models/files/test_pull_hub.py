"""pull from the hub: names, files, parts of split models and what is checked. The hub is a fake; no network."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from camshaft.errors import DownloadError, ModelError
from camshaft.models.files.catalog import KnownModel
from camshaft.models.files.pull import models, pull, resolve_model
from tests.models.files.fake_downloads import CONTENT, left_behind, use_hub


@pytest.mark.parametrize("etag", [hashlib.sha256(CONTENT).hexdigest(), "0" * 40])
def test_a_file_of_the_hub(tiny: KnownModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, etag: str) -> None:
    use_hub(monkeypatch, tmp_path, etag)
    name = "hf:owner/repo/sub/tiny-Q4_1.gguf"
    path = resolve_model(name)
    assert path.read_bytes() == CONTENT
    assert [model.name for model in models()] == [name]
    monkeypatch.setenv("FAKE_HUB_FILE", "absent")
    assert pull(name) == path


def test_what_the_hub_gives_is_checked(tiny: KnownModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_hub(monkeypatch, tmp_path, "0" * 64)
    with pytest.raises(DownloadError, match="SHA-256"):
        pull("hf:owner/repo/tiny.gguf")
    with pytest.raises(DownloadError, match=r"could not fetch hf:owner/other/tiny\.gguf: 404: owner/other"):
        pull("hf:owner/other/tiny.gguf")
    assert left_behind() == []


def test_all_parts_of_a_split_model_are_pulled_by_the_name_of_one(
    tiny: KnownModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_hub(monkeypatch, tmp_path, "0" * 40)
    seen: list[tuple[int, int]] = []
    path = pull("hf:owner/repo/sub/tiny-00002-of-00003.gguf", lambda done, total: seen.append((done, total)))
    parts = [path.with_name(f"tiny-0000{i}-of-00003.gguf") for i in (1, 2, 3)]
    assert path == parts[1]
    assert [part.read_bytes() for part in parts] == [CONTENT] * 3
    assert {total for _, total in seen[1:]} <= {3 * len(CONTENT)}
    [model] = models()
    assert (model.name, model.nbytes) == ("hf:owner/repo/sub/tiny-00001-of-00003.gguf", 3 * len(CONTENT))
    parts[2].unlink()
    assert resolve_model("hf:owner/repo/sub/tiny-00001-of-00003.gguf") == parts[0]
    assert parts[2].read_bytes() == CONTENT


@pytest.mark.parametrize(
    "name", ["hf:a/b", "hf:a/b/../c.gguf", "hf:../b/c.gguf", "hf:a/b/c.bin", "hf:a/b//c.gguf", "hf:a/b/c\\d.gguf"]
)
def test_hub_names_that_are_none(tiny: KnownModel, name: str) -> None:
    with pytest.raises(ModelError, match=r"wanted hf:OWNER/REPO/FILE\.gguf"):
        pull(name)
