"""Files of a batch: rows of a run that ended early, files that cannot be used, a full disk, requests that are none."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any

import pytest

from camshaft import LanguageModel
from camshaft.errors import SettingError
from camshaft.serve.batch import files
from camshaft.serve.batch.files import Results, read_lines, result_line
from tests.serve.batch.small_batches import COMPLETION, DRAWN, line_of, results_of, run, write_lines


def test_a_run_goes_on_with_whole_rows_and_cuts_a_torn_one(lm: LanguageModel, tmp_path: Path) -> None:
    lines = [line_of(f"é{i}", COMPLETION, {"prompt": [5, 6, i + 4], **DRAWN}) for i in range(6)]
    source, target = write_lines(tmp_path / "in", lines), tmp_path / "out"
    run(lm, source, target)
    whole = target.read_bytes()
    wanted = {row["custom_id"]: row["response"]["body"]["choices"] for row in results_of(target)}
    ends = [found.end() for found in re.finditer(b"\n", whole)]
    for cut in (0, 1, 5, ends[0] - 1, ends[0], ends[1] + 3, ends[2] + 40, ends[4] - 2, ends[5] - 1, ends[5]):
        target.write_bytes(whole[:cut])
        n_whole = sum(end <= cut for end in ends)
        tally = run(lm, source, target)
        assert (tally.n_before, tally.n_answered, tally.n_done) == (n_whole, 6 - n_whole, 6)
        assert target.read_bytes().startswith(whole[: ends[n_whole - 1] if n_whole else 0])
        rows = results_of(target)
        assert len(rows) == 6
        assert {row["custom_id"]: row["response"]["body"]["choices"] for row in rows} == wanted
    write_lines(source, [*lines, line_of("more", COMPLETION, {"prompt": "a"})])
    assert run(lm, source, target).n_answered == 1
    assert len(results_of(target)) == 7


def test_files_that_cannot_be_used_are_left_as_they_are(lm: LanguageModel, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in", [line_of("a", COMPLETION, {"prompt": "a"})])
    other = write_lines(tmp_path / "other", [line_of("b", COMPLETION, {"prompt": "a"})])
    run(lm, source, tmp_path / "out")
    notes = tmp_path / "notes"
    notes.write_text("what I wrote", "utf-8")
    cases = {
        "absent: cannot be read": (tmp_path / "absent", tmp_path / "new"),
        "in: is the file of requests and of results": (source, source),
        "1 of its 1 results answer other requests": (other, tmp_path / "out"),
        "line 1 is not a result of a batch: what I wrote": (source, notes),
        "cannot be written": (source, tmp_path / "none" / "out"),
    }
    for message, (given, target) in cases.items():
        before = target.read_bytes() if target.exists() else None
        with pytest.raises(SettingError, match=re.escape(message)):
            run(lm, given, target)
        assert (target.read_bytes() if target.exists() else None) == before
    with Results(tmp_path / "out"), pytest.raises(SettingError, match="another process writes it"):
        Results(tmp_path / "out")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no /dev")
def test_files_without_an_end_are_refused_and_lines_of_others_not_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("/dev/full", "/dev/zero"):
        with pytest.raises(SettingError, match="is not a regular file"):
            Results(Path(path))
        with pytest.raises(SettingError, match="is not a regular file"):
            next(read_lines(Path(path), 10))
    monkeypatch.setattr(files, "_PART_NBYTES", 40)
    (tmp_path / "other").write_bytes(b"\0" * 100)
    with pytest.raises(SettingError, match="line 1 is not a result of a batch"):
        Results(tmp_path / "other")
    whole = result_line(b"k" * 12, "a", {"status_code": 200, "body": "x" * 100}, None)
    (tmp_path / "out").write_bytes(whole + whole[:90])
    with Results(tmp_path / "out") as results:
        assert results.done == {b"k" * 12}
    assert (tmp_path / "out").read_bytes() == whole


def test_a_full_disk_is_said_with_the_file_and_gone_on_with_later(lm: LanguageModel, tmp_path: Path) -> None:
    lines = [line_of(str(i), COMPLETION, {"prompt": "a", "max_tokens": 1}) for i in range(4)]
    source, target = write_lines(tmp_path / "in", lines), tmp_path / "out"

    class Full:
        """A file that takes a line and a half."""

        def __init__(self, file: Any) -> None:
            self._file, self._left = file, 600

        def write(self, data: memoryview) -> int:
            if not self._left:
                raise OSError(errno.ENOSPC, "No space left on device")
            n = self._file.write(data[: self._left])
            self._left -= n
            return int(n)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

    init = Results.__init__

    def opened(self: Results, path: Path) -> None:
        init(self, path)
        self._file = Full(self._file)  # type: ignore[assignment]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Results, "__init__", opened)
        with pytest.raises(SettingError, match="out: a result cannot be written: no space left on device"):
            run(lm, source, target)
    assert len(target.read_bytes()) == 600
    assert run(lm, source, target).n_before == 1
    assert sorted(row["custom_id"] for row in results_of(target)) == ["0", "1", "2", "3"]


def test_no_requests_make_no_results(lm: LanguageModel, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in", ["", " "])
    assert run(lm, source, tmp_path / "out").n_requests == 0
    assert (tmp_path / "out").read_bytes() == b""
