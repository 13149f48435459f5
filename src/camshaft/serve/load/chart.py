"""Draws the latencies of loads as cumulative curves, in an SVG file without scripts or external resources."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

PANELS = {"first_token_s": "First token", "between_tokens_s": "Between tokens", "answer_s": "Whole answer"}
WIDTH, PLOT, HEIGHT, TOP, LEFT, GAP = 960, 260, 200, 76, 48, 40
ROW = 20
MOST_POINTS = 200
COLORS = ("#1f6feb", "#d1570c", "#1a7f37", "#8250df", "#bf3989", "#6e7781", "#0f9d9d", "#9a6700")
NAMES_IN_ROW, NAME_WIDTH = 5, 170
Times = Mapping[str, Sequence[float]]

STYLE = """
  text { font-family: system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; font-size: 12px; fill: #1f2328 }
  .card { fill: #ffffff; stroke: #d0d7de } .title { font-size: 16px; font-weight: 600 } .panel { font-weight: 600 }
  .quiet { fill: #59636e } .grid { stroke: #d8dee4; stroke-width: 1 } .curve { fill: none; stroke-width: 2 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .card { fill: #0d1117; stroke: #30363d } .quiet { fill: #9198a1 } .grid { stroke: #30363d }
  }
"""


def chart(title: str, series: Mapping[str, Times]) -> str:
    """The SVG of the times of each load by its name: for each of PANELS, the share of times up to each time, and percentiles."""
    parts = [_text(16, 28, title, "title")]
    for i, (name, color) in enumerate(zip(series, _colors(len(series)), strict=True)):
        x, y = 16 + NAME_WIDTH * (i % NAMES_IN_ROW), 40 + ROW * (i // NAMES_IN_ROW)
        parts.append(f'<rect x="{x}" y="{y}" width="12" height="12" rx="2" fill="{color}"/>')
        parts.append(_text(x + 18, y + 10, name))
    below = ROW * ((len(series) - 1) // NAMES_IN_ROW)  # more rows of names
    parts.append(f'<g transform="translate(0 {below})">')
    for i, (key, heading) in enumerate(PANELS.items()):
        parts += _panel(LEFT + i * (PLOT + GAP), heading, [times[key] for times in series.values()])
    parts.append("</g>")
    height = TOP + below + HEIGHT + 60 + ROW * len(series)
    card = f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8" class="card"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">'
    return (
        "\n".join([head, f"<title>{html.escape(title)}</title>", f"<style>{STYLE}</style>", card, *parts, "</svg>"])
        + "\n"
    )


def _colors(n: int) -> list[str]:
    return [COLORS[i % len(COLORS)] for i in range(n)]


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{html.escape(words)}</text>'


def _panel(left: float, heading: str, all_values: Sequence[Sequence[float]]) -> list[str]:
    """Axes, a curve for each load, and its percentiles below."""
    ordered = [sorted(values) for values in all_values]
    most = max((_at(values, 0.99) for values in ordered), default=0.0) * 1.05 or 1.0
    bottom = TOP + HEIGHT
    parts = [_text(left, TOP - 8, heading, "panel")]
    for share in (0.0, 0.5, 0.95):
        y = bottom - share * HEIGHT
        parts.append(f'<line x1="{left:g}" x2="{left + PLOT:g}" y1="{y:g}" y2="{y:g}" class="grid"/>')
        parts.append(_text(left - 6, y + 4, f"{share:.0%}", "quiet", "end"))
    parts += [_text(left + PLOT * part, bottom + 16, shown(most * part), "quiet", "middle") for part in (0.5, 1.0)]
    parts.append(_text(left, bottom + 34, "p50, p95, p99", "quiet"))
    for i, (values, color) in enumerate(zip(ordered, _colors(len(ordered)), strict=True)):
        parts.append(f'<path class="curve" stroke="{color}" d="{_curve(values, left, most)}"/>')
        label = ", ".join(shown(_at(values, share)) for share in (0.5, 0.95, 0.99))
        parts.append(f'<rect x="{left:g}" y="{bottom + 43 + ROW * i}" width="8" height="8" rx="2" fill="{color}"/>')
        parts.append(_text(left + 14, bottom + 51 + ROW * i, label))
    return parts


def _curve(values: Sequence[float], left: float, most: float) -> str:
    """The path of the shares; what is above `most` is cut off."""
    n = min(len(values), MOST_POINTS)
    points = [(_at(values, (i + 1) / n), (i + 1) / n) for i in range(n)]
    inside = [(left + PLOT * x / most, TOP + HEIGHT * (1 - share)) for x, share in points if x <= most]
    return "M" + " ".join(f"{x:.1f},{y:.1f}" for x, y in [(left, TOP + HEIGHT), *inside])


def _at(values: Sequence[float], share: float) -> float:
    """The quantile of sorted values."""
    return values[min(len(values) - 1, max(0, round(share * len(values)) - 1))]


def shown(seconds: float) -> str:
    """Formats seconds; below 1, as milliseconds."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
