"""`/metrics`: the engine's statistics in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator

from camshaft.generate.engine.engine import Engine
from camshaft.generate.engine.statistics import BUCKETS_S, Histogram

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def metrics_text(engine: Engine) -> str:
    """All metrics, one a line."""
    statistics, prefixes = engine.statistics, engine.prefixes
    counters = {
        "prompt_tokens_total": (statistics.prompt_tokens, "prompt tokens, cached ones included"),
        "prompt_tokens_cached_total": (statistics.cached_tokens, "prompt tokens found in the prefix cache"),
        "generated_tokens_total": (statistics.generated_tokens, "tokens generated"),
        "steps_total": (statistics.steps, "steps of the engine"),
        "prefix_evictions_total": (prefixes.evictions if prefixes else 0, "blocks that left the prefix cache"),
    }
    gauges = {
        "requests_running": (engine.n_running, "requests with a slot"),
        "requests_waiting": (engine.n_waiting, "requests that wait for a slot"),
        "slots": (engine.lm.plans.cache.n_slots, "requests that can run at once"),
        "prefix_blocks": (prefixes.n_blocks if prefixes else 0, "blocks in the prefix cache"),
        "prefix_blocks_idle": (prefixes.n_idle if prefixes else 0, "blocks in the prefix cache that no request uses"),
    }
    histograms = {
        "queue_seconds": (statistics.queue_s, "from the arrival of a request to its slot"),
        "first_token_seconds": (statistics.first_token_s, "from the arrival of a request to its first token"),
        "between_tokens_seconds": (statistics.between_tokens_s, "a request's mean time between tokens"),
    }
    lines: list[str] = []
    for kind, table in (("counter", counters), ("gauge", gauges)):
        for name, (value, meaning) in table.items():
            lines += [*_head(name, kind, meaning), f"camshaft_{name} {value}"]
    lines += _head("requests_total", "counter", "requests that have ended, by how")
    lines += [f'camshaft_requests_total{{end="{how}"}} {n}' for how, n in sorted(statistics.ended.items())]
    for name, (histogram, meaning) in histograms.items():
        lines += [*_head(name, "histogram", meaning), *_buckets(name, histogram)]
    return "\n".join(lines) + "\n"


def _head(name: str, kind: str, meaning: str) -> list[str]:
    return [f"# HELP camshaft_{name} {meaning}", f"# TYPE camshaft_{name} {kind}"]


def _buckets(name: str, histogram: Histogram) -> Iterator[str]:
    for bound, n in zip(BUCKETS_S, histogram.counts, strict=True):
        yield f'camshaft_{name}_bucket{{le="{bound}"}} {n}'
    yield f'camshaft_{name}_bucket{{le="+Inf"}} {histogram.n}'
    yield f"camshaft_{name}_sum {histogram.total_s:.6f}"
    yield f"camshaft_{name}_count {histogram.n}"
