"""Render profiles as one self-contained HTML page: timeline, roofline, arena over time, tables.

The page is pages/frame.html around pages/profile.html, with style, scripts and data inserted. Its content security policy forbids
network access.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from camshaft.observe.profile import Profile
from camshaft.observe.rows import Row
from camshaft.plan.runtime.timed import TimedRun

SCRIPTS = ("common.js", "table.js", "timeline.js", "roofline.js", "arena.js", "main.js")
_COLUMNS = ("name", "op", "variant", "device", "n_thunks", "ns", "share", "waited_ns", "nbytes", "flops", "kind")


def page(title: str, facts: Mapping[str, str], profiles: Mapping[str, Profile]) -> str:
    """Return the page's HTML. `facts` are listed under the title; each profile is a tab."""
    data = {"profiles": [profile_data(name, profile) for name, profile in profiles.items()]}
    return filled("profile", SCRIPTS, title, facts, data)


def filled(kind: str, scripts: Sequence[str], title: str, facts: Mapping[str, str], data: Mapping[str, Any]) -> str:
    """Return a page of a kind (its body is KIND.html of pages/) with title, facts, style, data and scripts inserted."""
    # "</" would end the script element, and "<!--" would start a comment in it
    text = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    shown = "".join(f"<li><b>{html.escape(name)}</b> {html.escape(value)}</li>" for name, value in facts.items())
    parts = {
        "kind": kind,
        "title": html.escape(title),
        "facts": shown,
        "style": _asset("page.css"),
        "data": text,
        "scripts": "\n".join(_asset(name) for name in scripts),
    }
    return re.sub(
        "@@([a-z]+)@@", lambda match: parts[match[1]], _asset("frame.html").replace("@@body@@", _asset(f"{kind}.html"))
    )


def _asset(name: str) -> str:
    return (files("camshaft.observe") / "pages" / name).read_text("utf-8")


def profile_data(title: str, profile: Profile) -> dict[str, Any]:
    """The data of a profile for the page's scripts; times in ns."""
    return {
        "title": title,
        "total_ns": profile.total_ns,
        "fastest_ns": profile.fastest_ns,
        "runs": profile.runs,
        "waited_share": profile.waited_share,
        "extents": profile.extents,
        "notes": profile.notes,
        "workers": [vars(w) for w in profile.workers],
        "peak": None if profile.peak is None else vars(profile.peak),
        "columns": [*_COLUMNS, "gb_per_s", "gflop_per_s", "peak_share"],
        "rows": {what: [_cells(row) for row in profile.by(what)] for what in ("op", "part", "layer", "thunk")},
        "arena_nbytes": profile.arena_nbytes,
        "placements": [[p.name, p.space, p.offset, p.nbytes, p.first, p.last] for p in profile.placements],
        "timeline": timeline_data(profile.timeline),
    }


def _cells(row: Row) -> list[Any]:
    cells = [getattr(row, name) for name in (*_COLUMNS, "gb_per_s", "gflop_per_s", "peak_share")]
    return [float(f"{cell:.6g}") if isinstance(cell, float) else cell for cell in cells]


def timeline_data(run: TimedRun) -> dict[str, Any]:
    """One run as bars [lane, thunk, start, end], and waits in the same form; the wait of thunk n is that at the end."""
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
