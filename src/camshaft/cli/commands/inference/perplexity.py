"""`camshaft perplexity`: how well a model predicts a text."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from camshaft.cli import options
from camshaft.cli.command import Bar, command, print_json
from camshaft.errors import SettingError

_File = Annotated[Path, typer.Argument(metavar="FILE", help="A text file in UTF-8.")]
_Chunk = Annotated[int, typer.Option(metavar="N", min=4, help="Tokens of a chunk, of which the second half is scored.")]


@command
def perplexity(
    model: options.Model,
    file: _File,
    chunk: _Chunk = 512,
    chunks: options.Chunks = None,
    *,
    running: options.ModelOptions,
    json: options.Json = False,
) -> None:
    """Measure how well a model predicts a text.

    Prints exp of the mean negative log probability of its tokens, with its standard error, as llama-perplexity does."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SettingError(f"{file}: is not UTF-8: byte {error.start} is wrong") from None
    with running.open(model, chunk) as lm:
        from camshaft.generate.measures.perplexity import perplexity as measure

        with Bar(f"reading {file.name}", unit="chunks") as progress:
            found = measure(lm, text, chunk=chunk, chunks=chunks, progress=progress)
        if json:
            print_json({"model": lm.name, **asdict(found)})
        else:
            print(found)
