"""What a text says of a model: `camshaft perplexity` how well it predicts it, `camshaft imatrix` which inputs are large."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from camshaft.cli import options
from camshaft.cli.command import Bar, command, print_json

_HalfScored = Annotated[
    int, typer.Option(metavar="N", min=4, help="Tokens of a chunk, of which the second half is scored.")
]
_File = Annotated[Path, typer.Argument(metavar="FILE", help="A text file in UTF-8.")]
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
    from camshaft.formats.texts import read_text
    from camshaft.generate.measures.importance import importance_matrix
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


@command
def perplexity(
    model: options.Model,
    file: _File,
    chunk: _HalfScored = 512,
    chunks: options.Chunks = None,
    *,
    running: options.ModelOptions,
    json: options.Json = False,
) -> None:
    """Measure how well a model predicts a text.

    Prints exp of the mean negative log probability of its tokens, with its standard error, as llama-perplexity does."""
    from camshaft.formats.texts import read_text

    text = read_text(file)
    with running.open(model, chunk) as lm:
        from camshaft.generate.measures.perplexity import perplexity as measure

        with Bar(f"reading {file.name}", unit="chunks") as progress:
            found = measure(lm, text, chunk=chunk, chunks=chunks, progress=progress)
        if json:
            print_json({"model": lm.name, **asdict(found)})
        else:
            print(found)
