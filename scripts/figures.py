"""Writes the tables of figures in README.md and docs/performance/ from bench/results/. Run by hand: python scripts/figures.py.

A table is between `<!-- figures: begin NAME -->` and `<!-- figures: end -->`; NAME is a row of TABLES.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from scripts.figure_tables import comparison, machine, number, percent, results, spread, table  # noqa: E402

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs" / "performance").glob("*.md")))
BLOCK = re.compile(r"(<!-- figures: begin ([\w-]+).*?-->\n)(.*?)(<!-- figures: end -->)", re.DOTALL)
QUANTIZED = ("quantized", "iq-formats", "iq-formats-avx2", "iq-formats-zen4")

# README: what the row is called, results file, group and name of the row, threads.
SUMMARY = (
    ("SmolLM2-135M Q4_1, prompt of 512", "compare", "models", "SmolLM2 Q4_1 prompt 512", 2),
    ("SmolLM2-135M Q4_1, generating 128", "compare", "models", "SmolLM2 Q4_1 generate 128", 2),
    ("SmolLM2-135M F16, generating 128", "compare", "formats", "SmolLM2 F16 generate 128", 2),
    ("0.5B Q4_K_M, prompt of 512", "compare", "models", "0.5B Q4_K_M prompt 512", 2),
    ("0.5B Q4_K_M, generating 128", "compare", "models", "0.5B Q4_K_M generate 128", 2),
    ("16 sequences generating together, total", "compare", "sequences", "SmolLM2 Q4_1 generate 128 x 16", 2),
    ("first token, from process start", "compare", "first-token", "SmolLM2 Q4_1, process start to first token", 2),
    ("causal attention, 8 heads x 1024 x 64, f32", "compare", "attention", "SDPA causal B1 H8 T1024 D64 f32", 2),
    ("f32 matmul 1024 x 1024 x 1024", "matmul", "matmul", "f32 matmul 1024 x 1024 x 1024", 2),
    ("one of 100 dependent adds of 16 elements", "compare", "executor", "dependent adds of 16", 2),
)


def summary() -> str:
    """The README's table."""
    lines = []
    for label, name, group, row_name, threads in SUMMARY:
        (row,) = (
            r for r in results(name)["rows"] if (r["group"], r["name"], r["threads"]) == (group, row_name, threads)
        )
        unit, sides, best = row["unit"], row["sides"], row["best_peer"]
        ours, theirs = (number(sides[side][unit]["median"]) for side in ("camshaft", best))
        lines.append((label, unit, ours, f"{theirs} ({best})", f"{row['ratio']:.2f}", percent(row.get("peak_share"))))
    return table(("work, 2 threads", "unit", "camshaft", "best peer", "times as fast", "of the machine peak"), lines)


def ops() -> str:
    """Each op of a model, alone."""
    header = ("threads", "tokens", "op", "variant", "microseconds", "GB/s", "GFLOP/s", "of the machine peak")
    lines = []
    for r in results("kernels"):
        op = r["op"] if r["use"] == r["op"] else f"{r['op']} {r['use']}"
        rates = (number(r["ns"]["median"] / 1e3), r["GB/s"], r["GFLOP/s"], percent(r["peak_share"]))
        lines.append((r["threads"], r["tokens"], op, r["variant"], *rates))
    return table(header, lines)


def quantized(name: str) -> str:
    """One quantized product, and ggml's."""
    header = ("threads", "format", "tokens", "GB/s", "of the peak", "Gop/s", "of the peak")
    lines = []
    for r in results(name):
        ours = (r["GB/s"]["camshaft"], percent(r["read_share"]), r["Gop/s"]["camshaft"], percent(r["ops_share"]))
        theirs = (r["GB/s"].get("ggml", ""), r["Gop/s"].get("ggml", ""), r["times_ggml"] or "")
        lines.append((r["threads"], r["format"], r["n"], *ours, *theirs))
    return table((*header, "ggml GB/s", "ggml Gop/s", "times ggml"), lines)


def beside(name: str) -> str:
    """An op beside the same of other libraries, in interleaved rounds."""
    lines = []
    for r in results(name):
        ours = spread(r["ns"][r.get("by", "camshaft")], 1e-3)
        theirs = "; ".join(f"{name} {spread(r['ns'][name], 1e-3)}" for name in r["times"])
        ratios = ("; ".join(map(number, r[kind].values())) for kind in ("times", "times_least"))
        lines.append((r["threads"], r["op"], r["use"], ours, theirs, *ratios))
    header = "threads", "op", "of", "camshaft, us", "others, us", "times as fast, by medians", "by the least times"
    return table(header, lines)


def attention() -> str:
    """Attention alone, by shape and cache format."""
    header = ("threads", "what", "cache", "library", "microseconds", "GB/s", "GFLOP/s", "of the machine peak")
    lines = []
    for r in results("attention"):
        library = "camshaft" if r["backend"] == "simd" else r["backend"]
        rates = (spread(r["ns"], 1e-3), r["GB/s"], r["GFLOP/s"], percent(r["peak_share"]), r.get("ratio", ""))
        lines.append((r["threads"], r["use"], r["form"], library, *rates))
    return table((*header, "times the best peer"), lines)


def eager_calls() -> str:
    """Calls of `camshaft.table()` beside NumPy."""
    header = ("threads", "call", "camshaft, us", "NumPy, us", "times as fast, by minimum", "by median")
    lines = []
    for r in results("dispatch"):
        times = (spread(r["ns"][side], 1e-3) for side in ("camshaft", "numpy"))
        lines.append((r["threads"], r["case"], *times, f"{r['ratio']:.2f}", f"{r['ratio_of_medians']:.2f}"))
    return table(header, lines)


def executor() -> str:
    """Nanoseconds of the executor itself."""
    lines = []
    for r in results("executor"):
        ns = f"{r['ns_per_thunk']} ({r['ns_per_thunk_min']} to {r['ns_per_thunk_max']})"
        lines.append((r["threads"], "yes" if r["waits"] else "no", ns))
    return table(("threads", "a wait after each thunk", "ns per thunk"), lines)


def first_token() -> str:
    """Seconds from process start to the first token."""
    lines = []
    for r in results("first_token"):
        start = r["op"].removeprefix("first token, ")
        lines.append((r["model"], r["threads"], start, spread(r["ns"], 1e-9)))
    return table(("model", "threads", "start", "seconds"), lines)


def packing() -> str:
    """Weights packed, in bytes of the file."""
    lines = [(r["format"], r["threads"], spread(r["GB/s"])) for r in results("loading") if r["op"] == "pack"]
    return table(("format", "threads", "GB/s of the file"), lines)


def memory() -> str:
    """What opening a model takes."""
    header = (
        "model",
        "file, MB",
        "weights",
        "KV cache",
        "arena",
        "peak of the process",
        "peak / (file + KV cache + arena)",
    )
    kinds = ("file_nbytes", "weights_nbytes", "cache_nbytes", "arena_nbytes", "peak_nbytes")
    found = [r for r in results("loading") if r["op"] == "memory"]
    return table(header, [(r["model"], *(f"{r[kind] / 1e6:.1f}" for kind in kinds), r["share"]) for r in found])


def tuning() -> str:
    """What tuning found, by measured shape."""
    header = ("op", "shape", "untuned", "us, minimum", "tuned", "us, minimum", "times as fast", "noise")
    lines = []
    for r in results("tune"):
        changed = r["after"] != r["before"]
        after = (
            (r["after"], number(r["after_min_ns"] / 1e3), f"{r['times_as_fast']:.2f}")
            if changed
            else ("the same", "", "")
        )
        us = number(r["before_min_ns"] / 1e3)
        lines.append((r["op"], f"`{r['shape']}`", r["before"], us, *after, f"{r['noise']:.0%}"))
    return table(header, lines)


def first_runs() -> str:
    """The first runs with an empty cache, and runs with a tuned one."""
    header = ("run", "prompt tokens/s", "generated tokens/s", "untuned of tuned", "kernels that tuning changed")
    lines = []
    for r in results("first_runs"):
        ratios = " / ".join(str(ratio) for ratio in r.get("untuned_of_tuned", {}).values())
        changed = f"{r['different_thunks']} of {r['thunks']}" if "thunks" in r else ""
        lines.append((r["run"], r["prompt_tokens_per_s"], r["generated_tokens_per_s"], ratios, changed))
    return table(header, lines)


# Results of a Xeon whose name is that of others' files, by level of CPU features.
ON_EMERALD_RAPIDS = (
    ("convolution", "avx512"), ("convolution", "avx2"), ("fourier", "avx512"), ("fourier", "avx2"), ("sorts", "avx2"),
)  # fmt: skip

TABLES: dict[str, Callable[[], str]] = {
    "summary": summary,
    "machine": partial(machine, "compare"),
    "models": partial(comparison, "models"),
    "formats": partial(comparison, "formats"),
    "context": partial(comparison, "context"),
    "sequences": partial(comparison, "sequences"),
    "compared-first-token": partial(comparison, "first-token"),
    "compared-attention": partial(comparison, "attention"),
    "compared-executor": partial(comparison, "executor"),
    "products": partial(comparison, "products"),
    "matmul-machine": partial(machine, "matmul"),
    "matmul": partial(comparison, "matmul", name="matmul"),
    "ops": ops,
    **{name: partial(quantized, name.replace("-", "_")) for name in QUANTIZED},
    **{name: partial(beside, name) for name in ("convolution", "recurrent", "moe", "fourier", "sorts")},
    **{f"{name}-{level}": partial(beside, f"{name}_{level}") for name, level in ON_EMERALD_RAPIDS},
    **{f"{name}-zen4": partial(beside, f"{name}_zen4") for name in ("convolution", "fourier", "moe", "sorts")},
    "attention": attention,
    "eager-calls": eager_calls,
    "executor": executor,
    "first-token": first_token,
    "packing": packing,
    "memory": memory,
    "tuning": tuning,
    "first-runs": first_runs,
}


def written(page: str) -> str:
    """The page's text with every table made again."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n\n{found[4]}", page)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(written(path.read_text("utf-8")), "utf-8")
