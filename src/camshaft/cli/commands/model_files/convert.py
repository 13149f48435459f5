"""`camshaft convert`: a model in Hugging Face's layout as a GGUF file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from camshaft.cli import options
from camshaft.cli.command import Bar, command, print_json

_Folder = Annotated[
    Path,
    typer.Argument(
        metavar="FOLDER",
        help="A folder with config.json, .safetensors files and a tokenizer; or a ggml-*.bin file of whisper.cpp.",
    ),
]
_Type = Annotated[
    str | None,
    typer.Argument(metavar="[TYPE]", help="F16, BF16, Q8_0, Q4_K_M, ...; default: the type of most weights."),
]
_Mmproj = Annotated[
    bool, typer.Option("--mmproj", help="Write the vision encoder, the second file of a model that sees images.")
]


@command
def convert(
    folder: _Folder,
    out: options.GgufOut,
    file_type: _Type = None,
    *,
    mmproj: _Mmproj = False,
    force: options.Force = False,
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """Write a model of Hugging Face's layout as a GGUF file."""
    from camshaft.models.convert.convert import convert

    started = time.perf_counter()
    with Bar("converting", unit="weights") as progress:
        given = {"mmproj": mmproj, "force": force}
        result = convert(folder, out, file_type, **given, threads=threads, progress=progress)
    if json:
        print_json(result)
        return
    formats = ", ".join(f"{n} {name}" for name, n in result.n_tensors.items())
    took = time.perf_counter() - started
    print(f"{result.path}: {result.architecture}, {result.nbytes / 1e6:.1f} MB in {took:.1f} s; tensors: {formats}")
