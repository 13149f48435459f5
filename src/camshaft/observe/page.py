"""A profile as one self-contained page: timeline, roofline, arena over time, tables. For `camshaft profile --html`.

The page is pages/page.html with its style, scripts and data put in. It asks the network for nothing, and its policy forbids it.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from camshaft.observe.profile import Profile
from camshaft.observe.rows import Row
from camshaft.plan.runtime.timed import TimedRun

SCRIPTS = ("common.js", "table.js", "timeline.js", "roofline.js", "arena.js", "main.js")
_COLUMNS = ("name", "op", "variant", "device", "n_thunks", "ns", "share", "waited_ns", "nbytes", "flops", "kind")


def page(title: str, facts: Mapping[str, str], profiles: Mapping[str, Profile]) -> str:
    """The page's HTML: `facts` are shown under the title, `profiles` are its tabs."""
    data = {"profiles": [profile_data(name, found) for name, found in profiles.items()]}
    # "</" would end the script element, and "<!--" begin a comment in it
    text = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    shown = "".join(f"<li><b>{html.escape(name)}</b> {html.escape(value)}</li>" for name, value in facts.items())
    parts = {
        "title": html.escape(title),
        "facts": shown,
        "style": _asset("page.css"),
        "data": text,
        "scripts": "\n".join(_asset(name) for name in SCRIPTS),
    }
    return re.sub("@@([a-z]+)@@", lambda found: parts[found[1]], _asset("page.html"))


def _asset(name: str) -> str:
    return (files("camshaft.observe") / "pages" / name).read_text("utf-8")


def profile_data(title: str, found: Profile) -> dict[str, Any]:
    """What the page's scripts read of a profile; times in ns, to a tenth."""
    return {
        "title": title,
        "total_ns": found.total_ns,
        "fastest_ns": found.fastest_ns,
        "runs": found.runs,
        "waited_share": found.waited_share,
        "extents": found.extents,
        "notes": found.notes,
        "workers": [vars(w) for w in found.workers],
        "roof": None if found.peak is None else vars(found.peak),
        "columns": [*_COLUMNS, "gb_per_s", "gflop_per_s", "roof_share"],
        "rows": {what: [_cells(row) for row in found.by(what)] for what in ("op", "part", "layer", "thunk")},
        "arena_nbytes": found.arena_nbytes,
        "placements": [[p.name, p.space, p.offset, p.nbytes, p.first, p.last] for p in found.placements],
        "timeline": timeline_data(found.timeline),
    }


def _cells(row: Row) -> list[Any]:
    cells = [getattr(row, name) for name in (*_COLUMNS, "gb_per_s", "gflop_per_s", "roof_share")]
    return [float(f"{cell:.6g}") if isinstance(cell, float) else cell for cell in cells]


def timeline_data(run: TimedRun) -> dict[str, Any]:
    """One run: bars [lane, thunk, start, end] of programs, and waits in the same form, the last before thunk n (the end)."""
    bars, waits = [], []
    n = run.start.shape[1]
    for lane in range(len(run.lanes)):
        for thunk in range(n):
            start, end = float(run.start[lane, thunk]), float(run.end[lane, thunk])
            if not math.isnan(start):
                bars.append([lane, thunk, round(start, 1), round(end, 1)])
        for thunk in range(n + 1) if lane < run.workers else ():
            waited = float(run.waited[lane, thunk])
            until = float(run.met[lane, thunk]) if thunk < n else run.total_ns
            if waited > 0:
                waits.append([lane, thunk, round(until - waited, 1), round(until, 1)])
    return {"lanes": run.lanes, "total_ns": round(run.total_ns, 1), "bars": bars, "waits": waits}
