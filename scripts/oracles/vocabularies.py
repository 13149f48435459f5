"""llama.cpp's vocabulary-only GGUF files, out of the source archive of llama-cpp-python."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

from camshaft.settings import settings

PACKAGE = "llama-cpp-python==0.3.36"
VOCABULARIES = ("qwen2", "llama-bpe", "gpt-2", "starcoder", "llama-spm", "phi-3", "bert-bge", "nomic-bert-moe")
# Their tokens are frozen as digests.
OTHERS = (
    "aquila",
    "baichuan",
    "command-r",
    "deepseek-coder",
    "deepseek-llm",
    "falcon",
    "gemma-4",
    "gpt-neox",
    "mpt",
    "qwen35",
)
OTHERS += ("refact",)


def fetch_vocabularies(names: Iterable[str]) -> dict[str, Path]:
    """The files by name, stored below the cache folder; the archive (77 MB) is downloaded when one is missing."""
    folder = settings().cache_dir / "oracles"
    files = {name: folder / f"ggml-vocab-{name}.gguf" for name in names}
    if not all(path.is_file() for path in files.values()):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as download:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", download]
            subprocess.run([*command, "--no-binary", "llama-cpp-python", PACKAGE], check=True)
            _extract(next(Path(download).glob("llama_cpp_python-*.tar.gz")), {p.name: p for p in files.values()})
    return files


def _extract(archive: Path, targets: dict[str, Path]) -> None:
    with tarfile.open(archive) as tar:
        for member in tar:
            target = targets.get(Path(member.name).name)
            content = tar.extractfile(member) if target and "/models/" in member.name else None
            if target and content:
                target.write_bytes(content.read())
