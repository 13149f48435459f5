"""`camshaft models`, `camshaft pull` and `camshaft quantize`: list, download and convert model files."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from camshaft.cli import options
from camshaft.cli.command import Bar, command, print_columns, print_json, size
from camshaft.errors import SettingError
from camshaft.models.files.catalog import DEFAULT_MODEL

_Name = Annotated[
    str,
    typer.Argument(metavar="[NAME]", help="A model name, hf:OWNER/REPO/FILE, or a wheel that contains a known model."),
]
_In = Annotated[str, typer.Argument(metavar="IN", help="A model name, hf:OWNER/REPO/FILE, or a .gguf path.")]
_Type = Annotated[
    str, typer.Argument(metavar="TYPE", help="Q4_0, Q8_0, Q4_K_M, Q6_K, F16, ...; an unknown type lists all.")
]
_Imatrix = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="An importance matrix (camshaft imatrix): errors count by the inputs they meet."),
]
_TensorType = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN=TYPE",
        help="Write the matrices whose names have the regular expression as TYPE; may be given several times, the first counts.",
        show_default=False,
    ),
]


@command
def models(json: options.Json = False) -> None:
    """List the models in the cache: name, size, path."""
    from camshaft.models.files import pull as library

    if json:
        print_json({"models_dir": library.models_dir(), "models": library.models()})
        return
    rows = [(model.name, size(model.nbytes), model.path) for model in library.models()]
    print_columns(rows, right=frozenset({1}))
    if not rows:
        print(f"no model in {library.models_dir()}; 'camshaft pull' fetches {DEFAULT_MODEL}", file=sys.stderr)


@command
def pull(name: _Name = DEFAULT_MODEL) -> None:
    """Download a model into the cache and verify it."""
    from camshaft.models.files import pull as library

    with Bar(f"pulling {name}") as progress:
        path = library.pull(name, progress)
    print(path)


@command
def quantize(
    source: _In,
    out: options.Out,
    file_type: _Type,
    *,
    pure: options.Pure = False,
    imatrix: _Imatrix = None,
    tensor_type: _TensorType = None,
    force: options.Force = False,
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """Convert a model to another quantization, such as Q4_K_M."""
    from camshaft.models.files import pull
    from camshaft.models.files.imatrix import read_imatrix
    from camshaft.models.files.quantization_mix import mix_named
    from camshaft.models.files.quantize import quantize

    mix_named(file_type)
    given = [_pattern_and_type(text) for text in tensor_type or ()]
    importance = read_imatrix(imatrix) if imatrix is not None else None
    started = time.perf_counter()
    with Bar(f"pulling {source}") as progress:
        path = pull.resolve_model(source, progress)
    with Bar(f"quantizing to {file_type.upper()}", unit="weights") as progress:
        result = quantize(
            path,
            out,
            file_type,
            pure=pure,
            importance=importance,
            tensor_types=given,
            force=force,
            threads=threads,
            progress=progress,
        )
    if json:
        print_json(result)
        return
    formats = ", ".join(f"{n} {name}" for name, n in result.n_tensors.items())
    before, after = result.nbytes_before / 1e6, result.nbytes / 1e6
    print(
        f"{result.path}: {after:.1f} MB of {before:.1f} MB in {time.perf_counter() - started:.1f} s; tensors: {formats}"
    )


def _pattern_and_type(text: str) -> tuple[str, str]:
    pattern, equals, name = text.rpartition("=")
    if not equals or not pattern or not name:
        raise SettingError(f"--tensor-type {text!r:.80}; wanted PATTERN=TYPE, such as attn_v=Q6_K")
    return pattern, name
