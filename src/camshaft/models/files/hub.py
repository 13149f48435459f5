"""Download files of the Hugging Face hub through huggingface_hub (extra 'hf')."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from camshaft.errors import DownloadError, MissingExtraError
from camshaft.models.files.fetch import Progress, file_sha256, need_space, run_command, workspace

_METADATA = """
import json, sys
from huggingface_hub import get_hf_file_metadata, hf_hub_url
for file in sys.argv[2:]:
    m = get_hf_file_metadata(hf_hub_url(sys.argv[1], file))
    print(json.dumps({"nbytes": m.size or 0, "etag": m.etag or ""}))
"""
_DOWNLOAD = """
import sys
from huggingface_hub import hf_hub_download
hf_hub_download(sys.argv[1], sys.argv[2], local_dir=sys.argv[3])
"""


def pull_files(repo: str, files: Sequence[str], folder: Path, progress: Progress | None) -> None:
    """Download files of a repository into folder/hf/REPO/, where each appears once it is whole.

    Raises DownloadError, or MissingExtraError without the library."""
    name = f"hf:{repo}/{files[0]}"
    if importlib.util.find_spec("huggingface_hub") is None:
        raise MissingExtraError("huggingface_hub", "hf", f"pulling {name}")
    python, quiet = [sys.executable, "-c"], {"HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    with workspace(folder) as work:
        try:
            lines = run_command([*python, _METADATA, repo, *files], work, 0, None, **quiet).splitlines()[-len(files) :]
            about: list[Mapping[str, Any]] = [json.loads(line) for line in lines]
            total, done = sum(row["nbytes"] for row in about), 0
            need_space(work.parent, total)
            for file, row in zip(files, about, strict=True):
                shown = _after(progress, done, total)
                run_command([*python, _DOWNLOAD, repo, file, "hub"], work, row["nbytes"], shown, **quiet)
                part, target = work / "hub" / file, folder / "hf" / repo / file
                _check(f"hf:{repo}/{file}", part, row["nbytes"], row["etag"])
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                os.replace(part, target)
                done += row["nbytes"]
        except DownloadError as error:
            raise DownloadError(f"could not fetch {name}: {error}") from error


def _after(progress: Progress | None, before: int, total: int) -> Progress | None:
    """Progress of all files from that of one, with `before` bytes done."""
    return None if progress is None else lambda done, _: progress(before + done, total)


def _check(name: str, part: Path, nbytes: int, etag: str) -> None:
    """Verify the size, and the checksum of large files: their hub etag is the SHA-256 (small files have another etag)."""
    if part.stat().st_size != nbytes:
        raise DownloadError(f"{name}: got {part.stat().st_size} bytes; wanted {nbytes}")
    if len(etag) == 64 and (digest := file_sha256(part)) != etag:
        raise DownloadError(f"{name} has SHA-256 {digest}; wanted {etag}")
