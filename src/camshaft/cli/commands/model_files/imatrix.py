"""`camshaft imatrix`: which inputs of a model's weights are large, for `camshaft quantize --imatrix`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from camshaft.cli import options
from camshaft.cli.command import Bar, command, print_json

_Text = Annotated[
    Path, typer.Argument(metavar="TEXT", help="A text file in UTF-8, of the kind that the model will read.")
]
_Chunk = Annotated[int, typer.Option(metavar="N", min=16, help="Tokens of a chunk.")]


@command
def imatrix(
    model: options.Model,
    text: _Text,
    out: options.GgufOut,
    chunk: _Chunk = 512,
    chunks: options.Chunks = None,
    *,
    force: options.Force = False,
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """Compute a model's importance matrix on a text: the sums of squares of the inputs of its weights.

    The model is best one of many bits (F16, BF16, Q8_0); the file is in llama.cpp's format."""
    from camshaft.models.files.pull import resolve_model
    from camshaft.models.files.quantize import check_target

    with Bar(f"pulling {model}") as progress:
        path = resolve_model(model, progress)
    check_target(path, out, force)
    from camshaft.generate.measures.importance import importance_matrix, read_text
    from camshaft.models.files.imatrix import write_imatrix

    words = read_text(text)
    with Bar(f"reading {text.name}", unit="chunks") as progress:
        found = importance_matrix(
            path, words, dataset=str(text), chunk=chunk, chunks=chunks, threads=threads, progress=progress
        )
    write_imatrix(out, found)
    if json:
        print_json({"path": out, "entries": len(found.sums), "chunks": found.chunk_count, "chunk": found.chunk_size})
        return
    print(f"{out}: {len(found.sums)} matrices, from {found.chunk_count} chunks of {found.chunk_size} tokens")
