"""`camshaft transcribe`: what is said in a recording, as text, subtitles or JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from camshaft.cli import options
from camshaft.cli.command import Bar, command, print_json
from camshaft.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from camshaft.generate.speech.transcript import Segment, Transcript

_File = Annotated[Path, typer.Argument(metavar="FILE", help="A WAV file; others need the extra 'audio'.")]
_Language = Annotated[
    str | None,
    typer.Option(metavar="CODE", help="The language spoken (de, or german); default: found in the first window."),
]
_Translate = Annotated[bool, typer.Option("--translate", help="Translate to English.")]
_Times = Annotated[bool, typer.Option("--timestamps", help="Print each segment's times before it.")]
_Format = Annotated[str, typer.Option("--format", metavar="text|srt|vtt|json", help="What to print.")]
_Prompt = Annotated[
    str, typer.Option(metavar="TEXT", help="A text before the recording: names that occur, or a style.")
]
_Temperature = Annotated[
    list[float] | None,
    typer.Option(
        metavar="X",
        help="Temperature; several are tried in turn where a text is poor. Default: 0 to 1 in steps of 0.2.",
        show_default=False,
    ),
]
_Seed = Annotated[int, typer.Option(metavar="N", min=0, help="Seed of texts that are drawn at a temperature above 0.")]
_Fresh = Annotated[bool, typer.Option("--no-context", help="Do not tell each window the text before it.")]
_FORMATS = ("text", "srt", "vtt", "json")


@command
def transcribe(
    model: options.Model,
    file: _File,
    *,
    language: _Language = None,
    translate: _Translate = False,
    timestamps: _Times = False,
    format: _Format = "text",
    prompt: _Prompt = "",
    temperature: _Temperature = None,
    seed: _Seed = 0,
    no_context: _Fresh = False,
    threads: options.Threads = None,
) -> None:
    """Print what is said in a recording, by a Whisper model.

    Text and subtitles appear segment by segment."""
    if format not in _FORMATS:
        raise SettingError(f"--format {format}; wanted one of {', '.join(_FORMATS)}")
    if timestamps and format != "text":
        raise SettingError(f"--timestamps with --format {format}, which has times; wanted it with text")
    options.pull(model)
    from camshaft.generate.speech import transcript as made
    from camshaft.generate.speech.options import TranscribeOptions
    from camshaft.generate.speech.speech_model import SpeechModel

    wanted: dict[str, Any] = {"temperature": tuple(temperature)} if temperature else {}
    given = TranscribeOptions(
        language=language,
        task="translate" if translate else "transcribe",
        prompt=prompt,
        seed=seed,
        condition_on_previous_text=not no_context,
        **wanted,
    )
    shown: dict[str, Callable[[Segment], str]] = {
        "text": lambda segment: made.line_of(segment, timestamps=timestamps),
        "srt": made.srt_cue,
        "vtt": made.vtt_cue,
        "json": lambda segment: "",
    }
    with SpeechModel(model, threads=threads) as speech, Bar("transcribing", unit="seconds") as bar:
        if format == "vtt":
            print(made.VTT_HEADER, end="")
        result = speech.transcribe(
            file,
            given,
            on_segment=lambda segment: print(shown[format](segment), end="", flush=True),
            on_progress=(lambda done, total: bar(int(done), int(total))) if format == "json" else _quiet,
        )
        if format == "json":
            print_json(_described(speech.name, result))


def _quiet(done: float, total: float) -> None:
    """Segments that appear show the progress."""


def _described(model: str, result: Transcript) -> dict[str, Any]:
    return {"model": model, **{name: getattr(result, name) for name in result.__dataclass_fields__}}
