"""`camshaft show`: what is in a model file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from camshaft.cli import options
from camshaft.cli.command import Bar, command, print_columns, print_json, size
from camshaft.cli.terminal import escaped
from camshaft.errors import count

if TYPE_CHECKING:
    from camshaft.models.files.contents import Contents, Row

_MAX_TEXT = 160
_Shown = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A model name, hf:OWNER/REPO/FILE, a .gguf or .safetensors file, or a folder of Hugging Face's layout.",
    ),
]


@command
def show(model: _Shown, *, json: options.Json = False) -> None:
    """Show a file's metadata, tensors, sizes by format, tokenizer and chat template.

    Adapters, importance matrices and folders of safetensors files are shown too. Control characters are escaped."""
    from pathlib import Path

    from camshaft.models.files.contents import contents
    from camshaft.models.files.pull import resolve_model

    path = Path(model)
    if not path.is_dir():
        with Bar(f"pulling {model}") as progress:
            path = resolve_model(model, progress)
    found = contents(path)
    if json:
        print_json(found)
        return
    _print_summary(found)
    _print_section(f"metadata, {count(len(found.metadata), 'key')}", [_metadata_cells(row) for row in found.metadata])
    tensors = [(escaped_line(t.name), _shape(t.shape), escaped_line(t.format), size(t.nbytes)) for t in found.tensors]
    _print_section(count(len(tensors), "tensor"), tensors, frozenset({4}))
    totals = [(escaped_line(t.format), count(t.n_tensors, "tensor"), _elements(t.n_elements), size(t.nbytes))
              for t in found.totals]  # fmt: skip
    _print_section("by format", totals, frozenset({2, 3, 4}))
    if found.chat_template is not None:
        print("\nchat template")
        print(escaped(found.chat_template))


def _print_summary(found: Contents) -> None:
    rows = [
        ("path", escaped_line(found.path)),
        ("kind", escaped_line(found.kind)),
        ("format", found.container),
        ("size", size(found.nbytes)),
        ("numbers", _elements(found.n_elements)),
    ]
    if found.family is not None:
        note = "" if found.runs or found.kind != "model" or "safetensors" in found.container else " (camshaft lacks it)"
        rows.append(("family", escaped_line(found.family) + note))
    if (tokenizer := found.tokenizer) is not None:
        words = [tokenizer.kind, *([f"pre {tokenizer.pre}"] if tokenizer.pre else [])]
        words += [count(tokenizer.n_tokens, "token")] if tokenizer.n_tokens is not None else []
        words += [f"{name} {number}" + (f" {text!r}" if text else "") for name, number, text in tokenizer.special]
        rows.append(("tokenizer", escaped_line(", ".join(words), limit=1000)))
    rows.append(("chat template", "none" if found.chat_template is None else f"{len(found.chat_template)} characters"))
    print_columns(rows)


def _print_section(title: str, rows: Sequence[tuple[str, ...]], right: frozenset[int] = frozenset()) -> None:
    if rows:
        print(f"\n{title}")
        print_columns([("", *row) for row in rows], right=right)


def _metadata_cells(row: Row) -> tuple[str, ...]:
    text = row.value if isinstance(row.value, str) else _value(row.value)
    if row.n_items is not None:
        items = [_value(item) for item in row.value]
        text = ", ".join(items) + (", ..." if row.n_items > len(items) else "")
    kind = row.type if row.n_items is None else row.type.replace("array of", f"{row.n_items} x")
    return escaped_line(row.key), kind, escaped_line(text)


def _value(value: Any) -> str:
    return f"{value:.7g}" if isinstance(value, float) else str(value) if isinstance(value, bool) else repr(value)


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "scalar"


def _elements(n: int) -> str:
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if n >= factor:
            return f"{n / factor:.{2 - min(2, int(math.log10(n / factor)))}f} {unit}"
    return str(n)


def escaped_line(text: str, limit: int = _MAX_TEXT) -> str:
    """A text from a file on one line: control characters, tabs and newlines escaped, cut to `limit` characters."""
    short = text if len(text) <= limit else text[: limit - 3] + "..."
    return escaped(short).replace("\n", "\\n").replace("\t", "\\t")
