"""Draws docs/images/speed.svg from bench/results/compare.json. Run by hand after a measurement: python scripts/speed_chart.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CHART = ROOT / "docs" / "images" / "speed.svg"
ROWS = ROOT / "bench" / "results" / "compare.json"

THREADS = 2
MODELS = (  # name of the rows in compare.json, and what the chart calls them
    ("SmolLM2 Q4_0", "135M Q4_0"),
    ("SmolLM2 Q4_1", "135M Q4_1"),
    ("SmolLM2 Q4_K_S, pure", "135M Q4_K_S"),
    ("SmolLM2 Q6_K", "135M Q6_K"),
    ("SmolLM2 Q8_0", "135M Q8_0"),
    ("SmolLM2 F16", "135M F16"),
    ("0.5B Q4_K_M", "0.5B Q4_K_M"),
)
PANELS = (("prompt 512", "Reading a prompt of 512 tokens"), ("generate 128", "Generating 128 tokens"))

WIDTH, TOP, ROW, BAR = 800, 104, 40, 14
LABELS = 108  # width of the column of names
PANEL = (WIDTH - LABELS - 16) // 2
BARS = PANEL - 112  # the longest bar; the rest of a panel is for figures
HEIGHT = TOP + ROW * len(MODELS) + 34

STYLE = """
  text { font-family: system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; font-size: 13px; fill: #1f2328 }
  .card { fill: #ffffff; stroke: #d0d7de } .title { font-size: 16px; font-weight: 600 } .panel { font-weight: 600 }
  .small { font-size: 12px } .quiet { fill: #59636e } .ratio { font-weight: 600; fill: #0a58ca }
  .camshaft { fill: #1f6feb } .peer { fill: #afb8c1 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .card { fill: #0d1117; stroke: #30363d } .quiet { fill: #9198a1 }
    .ratio { fill: #79c0ff } .camshaft { fill: #4493f8 } .peer { fill: #656c76 }
  }
"""


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """A line of text whose baseline is at y."""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{words}</text>'


def bar(x: float, y: float, width: float, kind: str) -> str:
    """A bar from x to the right."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:.1f}" height="{BAR}" rx="2" class="{kind}"/>'


def speeds(row: dict[str, Any]) -> tuple[float, float]:
    """Median tokens per second of camshaft and of llama.cpp."""
    sides = row["sides"]
    return sides["camshaft"]["tokens/s"]["median"], sides["llama.cpp"]["tokens/s"]["median"]


def panel(left: float, title: str, pairs: list[tuple[float, float]]) -> list[str]:
    """A pair of bars for each model, with both figures and their ratio."""
    scale = BARS / max(ours for ours, _ in pairs)
    parts = [text(left, TOP - 14, title, "panel")]
    for i, (ours, theirs) in enumerate(pairs):
        y = TOP + i * ROW
        parts += [bar(left, y, ours * scale, "camshaft"), bar(left, y + BAR + 2, theirs * scale, "peer")]
        parts.append(text(left + ours * scale + 6, y + 12, f"{ours:.0f}", "small"))
        parts.append(text(left + theirs * scale + 6, y + BAR + 14, f"{theirs:.0f}", "small quiet"))
        parts.append(text(left + PANEL - 24, y + 20, f"{ours / theirs:.1f}x", "ratio", "end"))
    return parts


def chart(document: dict[str, Any]) -> str:
    """The chart as SVG text."""
    rows = {row["name"]: row for row in document["rows"] if row["threads"] == THREADS}
    parts = [f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8" class="card"/>']
    parts.append(text(16, 30, f"Tokens per second on {THREADS} threads, camshaft and llama.cpp", "title"))
    parts += [
        bar(16, 46, BAR, "camshaft"),
        text(36, 58, "camshaft"),
        bar(116, 46, BAR, "peer"),
        text(136, 58, "llama.cpp"),
    ]
    parts.append(text(216, 58, "Zen 4 server, virtual machine; medians of interleaved rounds", "quiet"))
    parts += [text(16, TOP + i * ROW + 20, label) for i, (_, label) in enumerate(MODELS)]
    for i, (suffix, title) in enumerate(PANELS):
        pairs = [speeds(rows[f"{name} {suffix}"]) for name, _ in MODELS]
        parts += panel(LABELS + 8 + i * PANEL, title, pairs)
    foot = (
        "135M: SmolLM2-135M-Instruct. 0.5B: random weights in the shape of Qwen2-0.5B. Right of each panel: the ratio."
    )
    parts.append(text(16, HEIGHT - 14, foot, "small quiet"))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img">'
    name = "<title>Tokens per second, camshaft and llama.cpp, by model file</title>"
    return "\n".join([head, name, f"<style>{STYLE}</style>", *parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    CHART.write_text(chart(json.loads(ROWS.read_text("utf-8"))), "utf-8")
