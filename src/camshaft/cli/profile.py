"""`camshaft profile`: where a model's time goes, by op, part and thunk; as a page with pictures, or for Perfetto."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from camshaft.cli import options
from camshaft.cli.progress import Bar
from camshaft.cli.run import command
from camshaft.cli.show import print_columns, print_json

if TYPE_CHECKING:
    from camshaft.observe.profile import Profile
    from camshaft.observe.rows import Row

_PromptTokens = Annotated[int, typer.Option(min=1, metavar="N", help="Length of the prompt.")]
_Phase = Annotated[str, typer.Option(metavar="prompt|generate|both", help="What to profile.")]
_Runs = Annotated[int, typer.Option(min=1, metavar="N", help="Runs of each; medians are shown.")]
_Thunks = Annotated[bool, typer.Option("--thunks", help="Show every thunk too.")]
_Layers = Annotated[bool, typer.Option("--layers", help="Show every layer too.")]
_Roof = Annotated[bool, typer.Option("--roof", help="Measure the machine's roof anew first (some seconds).")]
_Html = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page: timeline, roofline, arena, tables.")]
_Trace = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a trace that Perfetto opens.")]


@command
def profile(
    model: options.Model = options.DEFAULT_MODEL,
    prompt_tokens: _PromptTokens = 128,
    phase: _Phase = "both",
    runs: _Runs = 20,
    thunks: _Thunks = False,
    layers: _Layers = False,
    html: _Html = None,
    trace: _Trace = None,
    peak: _Roof = False,
    backend: options.Backend = None,
    threads: options.Threads = None,
    activations: options.Activations = None,
    kv_cache: options.KVCache = None,
    json: options.Json = False,
) -> None:
    """Show where a model's time goes.

    Time, rates and share of the machine's roof by op and by part of the model, and what workers waited, for reading a prompt
    and for generating a token after it."""
    from camshaft.generate.profiling import profile_model
    from camshaft.observe.machine_peak import machine_peak as measured

    _check_folders(html, trace)
    context = max(options.DEFAULT_CONTEXT, prompt_tokens + 2)
    given = {"backend": backend, "threads": threads, "activations": activations, "kv_cache": kv_cache}
    with options.open_model(model, context=context, **given) as lm, Bar(f"profiling {model}", unit="runs") as progress:
        if peak:
            measured(lm.threads, anew=True)
        found = profile_model(lm, prompt_tokens, phase, runs, progress)
        who = {"model": lm.name, "backend": lm.backend, "threads": lm.threads}
    if html is not None:
        _write_page(html, found, who)
    if trace is not None:
        _write_trace(trace, found)
    if json:
        print_json(who | {"profiles": {title: p.report() for title, p in found.items()}})
    else:
        print("{model}, backend {backend}, threads {threads}".format_map(who))
        for title, each in found.items():
            _print(title, each, ["op", "part", *["layer"] * layers, *["thunk"] * thunks])


def _check_folders(*paths: Path | None) -> None:
    """SettingError, before anything is measured, for a file that could not be written afterwards."""
    from camshaft.errors import SettingError

    for path in paths:
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise SettingError(f"{path}: wanted a file in a folder that is there")


def _write_page(path: Path, found: dict[str, Profile], who: dict[str, object]) -> None:
    from camshaft.observe.page import page
    from camshaft.selection.host_info import capabilities

    facts = {name: str(value) for name, value in {**who, "CPU": capabilities().cpu_name or "unknown"}.items()}
    path.write_text(page(Path(str(who["model"])).name, facts, found), "utf-8")


def _write_trace(path: Path, found: dict[str, Profile]) -> None:
    import json

    from camshaft.observe.trace import profile_trace

    path.write_text(json.dumps(profile_trace(found)), "utf-8")


def _print(title: str, found: Profile, tables: list[str]) -> None:
    print(f"\n{title}: {found.total_ns / 1e6:.3f} ms (median of {found.runs}, least {found.fastest_ns / 1e6:.3f})")
    waits = ", ".join(f"{w.name} {w.waited_ns / 1e3:.0f} us" for w in found.workers)
    print(f"{len(found.thunks)} thunks; at waits {found.waited_share:.1%} of the workers' time: {waits}")
    if found.peak is not None:
        r = found.peak
        kinds = ", ".join(f"{kind} {r.ops_per_s(kind) / 1e9:.0f}" for kind in ("int8", "bf16", "f32"))
        print(f"roof with {r.threads} threads: {r.read_bytes_per_s / 1e9:.1f} GB/s, {kinds} Gop/s")
    for note in found.notes:
        print(note)
    for what in tables:
        rows: list[tuple[object, ...]] = [(what, "thunks", "us", "share", "GB/s", "GFLOP/s", "of roof", "waited us")]
        rows += [_row(row) for row in found.by(what)]
        print()
        print_columns(rows, right=frozenset(range(1, 8)))


def _row(row: Row) -> tuple[object, ...]:
    def text(value: float | None, form: str, factor: float = 1.0) -> str:
        return "-" if value is None else format(value * factor, form)

    return (
        row.name,
        row.n_thunks,
        text(row.ns, ".1f", 1e-3),
        text(row.share, ".1%"),
        text(row.gb_per_s, ".1f"),
        text(row.gflop_per_s, ".1f"),
        text(row.roof_share, ".0%"),
        text(row.waited_ns, ".1f", 1e-3),
    )
