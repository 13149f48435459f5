"""`camshaft embed`: print the vectors of texts."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from camshaft.cli import options
from camshaft.cli.command import command, print_json
from camshaft.errors import SettingError

_Texts = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TEXT]...", help="The texts; without any, each line of stdin is one.", show_default=False),
]
_Pooling = Annotated[
    str | None,
    typer.Option(
        metavar="mean|cls|last", help="How a text's vector comes from its tokens'; default: as the file says."
    ),
]
_Context = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Maximum tokens per text; default: at most 512.")
]
_Plain = Annotated[bool, typer.Option("--no-normalize", help="Print vectors as they are, not of length 1.")]


@command
def embed(
    model: options.Model,
    texts: _Texts = None,
    *,
    pooling: _Pooling = None,
    context: _Context = None,
    no_normalize: _Plain = False,
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """Print the vectors of texts, of length 1.

    A line per text with its numbers; --json: one object with the vectors."""
    from camshaft.formats.texts import read_lines

    wanted = texts or read_lines(sys.stdin.buffer, "stdin")
    if not wanted:
        raise SettingError("no texts; give some, or lines on stdin")
    with options.open_embedder(model, threads=threads, context=context, pooling=pooling) as lm:
        vectors = lm.embed(wanted, normalize=not no_normalize)
        if json:
            print_json({"model": lm.name, "pooling": lm.pooling, "vectors": vectors.tolist()})
        else:
            for vector in vectors:
                print(*(f"{x:.7g}" for x in vector.tolist()))
