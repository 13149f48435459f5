"""`camshaft rerank`: score documents for a query, best first."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from camshaft.cli import options
from camshaft.cli.command import command, print_json
from camshaft.errors import SettingError

_Query = Annotated[str, typer.Argument(metavar="QUERY", help="What the documents should answer.")]
_Files = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[FILE]...",
        help="Text files, each a document; without any, and without --document, each line of stdin is one.",
        show_default=False,
    ),
]
_Documents = Annotated[
    list[str] | None,
    typer.Option("--document", metavar="TEXT", help="A document; may be given several times.", show_default=False),
]
_TopN = Annotated[int | None, typer.Option(metavar="N", min=1, help="Print the N best only.")]
_Context = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Maximum tokens of query and document; default: at most 512.")
]
_Plain = Annotated[bool, typer.Option("--no-normalize", help="Print the model's logits, not scores from 0 to 1.")]
_Truncate = Annotated[bool, typer.Option("--truncate", help="Leave out the end of documents longer than the context.")]


@command
def rerank(
    model: options.Model,
    query: _Query,
    files: _Files = None,
    *,
    document: _Documents = None,
    top_n: _TopN = None,
    context: _Context = None,
    truncate: _Truncate = False,
    no_normalize: _Plain = False,
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """Score documents for a query and print them, best first.

    A line per document: its score, and its file or text; --json: one object."""
    from camshaft.formats.texts import read_lines, read_text

    texts = [read_text(file) for file in files or []] + list(document or [])
    names = [str(file) for file in files or []] + list(document or [])
    if not texts:
        texts = names = read_lines(sys.stdin.buffer, "stdin")
    if not texts:
        raise SettingError("no documents; give files, --document TEXT, or lines on stdin")
    with options.open_reranker(model, threads=threads, context=context) as lm:
        scores = lm.rank(query, texts, normalize=not no_normalize, truncate=truncate).tolist()
    order = sorted(range(len(texts)), key=lambda i: -scores[i])[:top_n]
    if json:
        rows = [{"index": i, "relevance_score": scores[i], "document": texts[i]} for i in order]
        print_json({"model": lm.name, "results": rows})
    else:
        for i in order:
            print(f"{scores[i]:.7g}", " ".join(names[i].split()), sep="\t")
