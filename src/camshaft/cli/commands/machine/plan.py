"""`camshaft plan`: show the compiled plan of a model. `camshaft profile`: show where its time goes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from camshaft.cli import options
from camshaft.cli.command import Bar, command, print_columns, print_json, size

if TYPE_CHECKING:
    from camshaft.generate.measures.description import PlanDescription
    from camshaft.observe.profile import Profile
    from camshaft.observe.rows import Row

_Phase = Annotated[str, typer.Option(metavar="prompt|generate|both", help="What to profile.")]
_Runs = Annotated[int, typer.Option(min=1, metavar="N", help="Runs per phase; the medians are shown.")]
_Thunks = Annotated[bool, typer.Option("--thunks", help="Also list every thunk.")]
_Layers = Annotated[bool, typer.Option("--layers", help="Also list every layer.")]
_Peak = Annotated[bool, typer.Option("--peak", help="Measure the machine's peak rates again (takes seconds).")]
_Html = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write an HTML page: timeline, roofline, arena, tables.")
]
_Trace = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a trace for Perfetto.")]


@command
def plan(
    model: options.Model = options.DEFAULT_MODEL,
    *,
    running: options.ModelOptions,
    context: options.Context = options.DEFAULT_CONTEXT,
    json: options.Json = False,
) -> None:
    """Show the compiled plan of a model.

    Lists each thunk with the chosen kernel variant, the reason, and whether it waits for earlier thunks; then memory use."""
    with running.open(model, context) as lm:
        description = lm.describe_plan()
        if json:
            identity = {"model": lm.name, "backend": lm.backend, "threads": lm.threads, "kv_cache": lm.kv_cache}
            print_json(identity | _plan_report(description))
        else:
            _print_plan(description, lm.kv_cache)


def _plan_report(plan: PlanDescription) -> dict[str, object]:
    thunks = [
        {"name": t.name, "op": t.op, "variant": t.variant, "reason": t.reason, "wait": wait}
        for t, wait in zip(plan.thunks, plan.waits, strict=True)
    ]
    return {
        "thunks": thunks,
        "waits": sum(plan.waits),
        "arena_nbytes": plan.arena_nbytes,
        "temp_nbytes_sum": plan.temp_nbytes_sum,
        "weights_nbytes": plan.weights_nbytes,
        "kv_cache_nbytes": plan.kv_cache_nbytes,
        "window_nbytes": plan.window_nbytes,
        "state_nbytes": plan.state_nbytes,
        "copy_nbytes": plan.copy_nbytes,
        "mapped": plan.mapped,
        "mapped_nbytes": plan.mapped_nbytes,
        "resident_nbytes": plan.resident_nbytes,
    }


def _print_plan(plan: PlanDescription, kv_cache: str) -> None:
    rows: list[tuple[object, ...]] = [("", "wait", "name", "op", "variant", "why")]
    for number, (t, wait) in enumerate(zip(plan.thunks, plan.waits, strict=True)):
        rows.append((number, "wait" if wait else "", t.name, t.op, t.variant, t.reason))
    print_columns(rows, right=frozenset({0}))
    print()
    facts = [
        ("thunks", f"{len(plan.thunks)}, {sum(plan.waits)} of them waiting for earlier ones"),
        ("arena", f"{size(plan.arena_nbytes)}, for temporaries of {size(plan.temp_nbytes_sum)} in sum"),
        ("weights", size(plan.weights_nbytes)),
        *_mapped(plan),
        ("KV cache", f"{size(plan.kv_cache_nbytes)} a session, in {kv_cache}"),
    ]
    if plan.window_nbytes:
        windows = f"{size(plan.window_nbytes)}, {plan.ring_rows} tokens for windows of {plan.window}"
        facts.append(("of it, windows", windows))
    if plan.state_nbytes:
        facts.append(("recurrent states", f"{size(plan.state_nbytes)} a session"))
    if plan.copy_nbytes:
        from camshaft.generate.memory.checkpoints import MOST

        facts.append(("copies", f"up to {MOST} of {size(plan.copy_nbytes)} a session, to go back to earlier tokens"))
    print_columns(facts)


def _mapped(plan: PlanDescription) -> list[tuple[str, str]]:
    if not plan.mapped:
        return []
    room = f", the most used in up to {size(plan.resident_nbytes)} of memory" if plan.resident_nbytes else ""
    return [(f"of it, {plan.mapped}", f"{size(plan.mapped_nbytes)} mapped from files{room}")]


@command
def profile(
    model: options.Model = options.DEFAULT_MODEL,
    prompt_tokens: options.PromptTokens = 128,
    phase: _Phase = "both",
    runs: _Runs = 20,
    thunks: _Thunks = False,
    layers: _Layers = False,
    html: _Html = None,
    trace: _Trace = None,
    peak: _Peak = False,
    *,
    running: options.ModelOptions,
    json: options.Json = False,
) -> None:
    """Show where a model's time goes.

    Shows time, throughput and share of the machine's peak by op and by part of the model, and how long workers waited, for
    prompt processing and for generating one token."""
    from camshaft.generate.measures.benchmark import profile_model
    from camshaft.observe.machine_peak import machine_peak as measured

    _check_folders(html, trace)
    context = max(options.DEFAULT_CONTEXT, prompt_tokens + 2)
    with running.open(model, context) as lm, Bar(f"profiling {model}", unit="runs") as progress:
        if peak:
            measured(lm.threads, remeasure=True)
        profiles = profile_model(lm, prompt_tokens, phase, runs, progress)
        identity = {"model": lm.name, "backend": lm.backend, "threads": lm.threads}
    if html is not None:
        _write_page(html, profiles, identity)
    if trace is not None:
        _write_trace(trace, profiles)
    if json:
        print_json(identity | {"profiles": {title: p.report() for title, p in profiles.items()}})
    else:
        print("{model}, backend {backend}, threads {threads}".format_map(identity))
        for title, each in profiles.items():
            _print_profile(title, each, ["op", "part", *["layer"] * layers, *["thunk"] * thunks])


def _check_folders(*paths: Path | None) -> None:
    """Raise SettingError for an output path that cannot be written, before spending time on measuring."""
    from camshaft.errors import SettingError

    for path in paths:
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise SettingError(f"{path}: not writable: it is a folder, or its folder does not exist")


def _write_page(path: Path, profiles: dict[str, Profile], identity: dict[str, object]) -> None:
    from camshaft.observe.page import page
    from camshaft.selection.host_info import capabilities

    facts = {name: str(value) for name, value in {**identity, "CPU": capabilities().cpu_name or "unknown"}.items()}
    path.write_text(page(Path(str(identity["model"])).name, facts, profiles), "utf-8")


def _write_trace(path: Path, profiles: dict[str, Profile]) -> None:
    import json

    from camshaft.observe.trace import profile_trace

    path.write_text(json.dumps(profile_trace(profiles)), "utf-8")


def _print_profile(title: str, profiles: Profile, tables: list[str]) -> None:
    print(
        f"\n{title}: {profiles.total_ns / 1e6:.3f} ms (median of {profiles.runs}, least {profiles.fastest_ns / 1e6:.3f})"
    )
    waits = ", ".join(f"{w.name} {w.waited_ns / 1e3:.0f} us" for w in profiles.workers)
    print(f"{len(profiles.thunks)} thunks; at waits {profiles.waited_share:.1%} of the workers' time: {waits}")
    if profiles.peak is not None:
        r = profiles.peak
        kinds = ", ".join(f"{kind} {r.ops_per_s(kind) / 1e9:.0f}" for kind in ("int8", "bf16", "f32"))
        print(f"peak with {r.threads} threads: {r.read_bytes_per_s / 1e9:.1f} GB/s, {kinds} Gop/s")
    for note in profiles.notes:
        print(note)
    for what in tables:
        rows: list[tuple[object, ...]] = [(what, "thunks", "us", "share", "GB/s", "GFLOP/s", "of peak", "waited us")]
        rows += [_row(row) for row in profiles.by(what)]
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
        text(row.peak_share, ".0%"),
        text(row.waited_ns, ".1f", 1e-3),
    )
