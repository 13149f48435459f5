"""The options of `camshaft serve`, of which `camshaft batch` has some."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from camshaft.cli import options

DEFAULT_PORT = 8080
DEFAULT_SLOTS = 16  # as many generate in one run of a plan

Host = Annotated[str, typer.Option(metavar="NAME", help="The address to listen at; 0.0.0.0: all of this machine's.")]
Port = Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="The port to listen at; 0: any free one.")]
Slots = Annotated[int, typer.Option(metavar="N", min=1, help="Answers generated at once; other requests wait.")]
Queue = Annotated[int, typer.Option(metavar="N", min=1, help="Answers that may wait; further requests get status 429.")]
CacheTokens = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Memory for keys and values, in tokens of all answers together; default: slots times context.",
    ),
]
TimeLimit = Annotated[
    float,
    typer.Option(
        metavar="S",
        help="Seconds that an answer may take, in the queue too; then it ends where it is.",
        show_default=False,
    ),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Require one of the API keys in FILE: one a line, or its sha256:HEX."),
]
Embed = Annotated[
    str | None, typer.Option(metavar="MODEL", help="Also serve vectors of texts, by this model, at /v1/embeddings.")
]
Ray = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Run on the nodes of the Ray cluster at this address: HOST:PORT, or auto."),
]
Replicas = Annotated[
    str | None,
    typer.Option(
        metavar="N|LEAST:MOST",
        help="With --ray: copies of each model, as many as requests need from LEAST to MOST; default: one a node.",
    ),
]
Rerank = Annotated[
    str | None, typer.Option(metavar="MODEL", help="Also score documents for queries, by this model, at /v1/rerank.")
]
Speech = Annotated[
    str | None, typer.Option(metavar="MODEL", help="Also transcribe recordings, by this model, at /v1/audio.")
]
Models = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODEL ...]",
        help=f"Model names (pulled on first use), hf:OWNER/REPO/FILE, or .gguf paths; default: {options.DEFAULT_MODEL}.",
        show_default=False,
    ),
]
SlotPath = Annotated[
    Path | None,
    typer.Option(
        "--slot-save-path", metavar="FOLDER", help="Let clients save prompts in FOLDER, and restore them (/slots)."
    ),
]
Speculate = Annotated[
    str,
    typer.Option(
        metavar="auto|ngram|MODEL|off",
        help="Draft tokens, while few requests run: what followed the same ones earlier in a text (ngram; auto: where texts stay"
        " the same, token by token), or by a smaller MODEL.",
    ),
]
Cors = Annotated[
    list[str] | None,
    typer.Option(
        "--cors",
        metavar="ORIGIN",
        help="Let web pages of this origin use the server; *: of any. May be given several times.",
    ),
]
Log = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Log each request as a line of JSON, without texts; -: on standard error."),
]
LogTexts = Annotated[bool, typer.Option("--log-texts", help="With --log: also the texts of prompts and answers.")]
Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Serve the models that a TOML file describes.")
]
