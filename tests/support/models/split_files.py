"""Models split over several files, as llama-gguf-split writes them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from camshaft.formats.gguf.file import open_gguf
from camshaft.formats.gguf.write import NewTensor, Raw, values_of, write_gguf

_U16, _I32 = 2, 5


def split_keys(number: int, count: int, n_tensors: int) -> dict[str, Raw]:
    """The keys of a part."""
    return {
        "split.no": (_U16, struct.pack("<H", number)),
        "split.count": (_U16, struct.pack("<H", count)),
        "split.tensors.count": (_I32, struct.pack("<i", n_tensors)),
    }


def split(source: Path, folder: Path, count: int = 3, name: str = "model", **lies: Any) -> list[Path]:
    """The parts of a model, of about as many tensors each; the first has the metadata too. `lies` replace split_keys' numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}-{i + 1:05}-of-{count:05}.gguf" for i in range(count)]
    with open_gguf(source) as file:
        tensors = [NewTensor(t.name, t.shape, t.format, lambda t=t: [t.data()]) for t in file.tensors.values()]
        for i, path in enumerate(paths):
            keys = split_keys(**{"number": i, "count": count, "n_tensors": len(tensors)} | lies)
            some = tensors[i * len(tensors) // count : (i + 1) * len(tensors) // count]
            write_gguf(path, (values_of(file.metadata) if i == 0 else {}) | keys, some)
    return paths
