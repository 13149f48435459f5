"""`/metrics`: the statistics of the models' engines in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator

from camshaft.generate.engine.engine import Engine
from camshaft.generate.engine.request import BUCKETS_S, Histogram
from camshaft.serve.models.models import Models
from camshaft.serve.models.served import Served

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_MEANINGS = {
    "prompt_tokens_total": "prompt tokens, cached ones included",
    "prompt_tokens_cached_total": "prompt tokens found in the prefix cache",
    "generated_tokens_total": "tokens generated",
    "drafted_tokens_total": "tokens drafted by speculation",
    "accepted_tokens_total": "drafted tokens that were right",
    "drafting_seconds_total": "time that drafting took",
    "steps_total": "steps of the engine",
    "preemptions_total": "requests that gave their part of a limited cache to others for a while",
    "prefix_evictions_total": "blocks that left the prefix cache",
    "requests_running": "requests with a slot",
    "requests_waiting": "requests that wait for a slot",
    "slots": "requests that can run at once",
    "prefix_blocks": "blocks in the prefix cache",
    "prefix_blocks_idle": "blocks in the prefix cache that no request uses",
    "prefix_states_bytes": "recurrent states and windows that were copied for the prefix cache",
    "requests_total": "requests that have ended, by how",
    "queue_seconds": "from the arrival of a request to its slot",
    "first_token_seconds": "from the arrival of a request to its first token",
    "between_tokens_seconds": "a request's mean time between tokens",
    "models": "models of the server, by state",
    "model_loads_total": "models loaded, unloaded, and not loaded for an error",
}
_HISTOGRAMS = ("queue_seconds", "first_token_seconds", "between_tokens_seconds")


def metrics_text(models: Models) -> str:
    """All metrics, one a line. Those of an engine have its model's name; they begin again when it is loaded again."""
    samples: dict[str, list[str]] = {name: [] for name in _MEANINGS}
    for entry, loaded in models.in_memory():
        if isinstance(loaded, Served):
            _add_engine(samples, f'model="{_escaped(entry.card.name)}"', loaded.engine)
    for state in ("loaded", "loading", "unloaded"):
        n = sum(entry.state == state for entry in models.entries.values())
        samples["models"].append(f'camshaft_models{{state="{state}"}} {n}')
    for how in ("loaded", "unloaded", "failed"):
        samples["model_loads_total"].append(f'camshaft_model_loads_total{{end="{how}"}} {models.counts[how]}')
    return "".join(_metric(name, lines) for name, lines in samples.items() if lines)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _metric(name: str, lines: list[str]) -> str:
    kind = "counter" if name.endswith("_total") else "histogram" if name in _HISTOGRAMS else "gauge"
    head = [f"# HELP camshaft_{name} {_MEANINGS[name]}", f"# TYPE camshaft_{name} {kind}"]
    return "\n".join([*head, *lines]) + "\n"


def _add_engine(samples: dict[str, list[str]], label: str, engine: Engine) -> None:
    statistics, prefixes = engine.statistics, engine.prefixes
    values = {
        "prompt_tokens_total": statistics.prompt_tokens,
        "prompt_tokens_cached_total": statistics.cached_tokens,
        "generated_tokens_total": statistics.generated_tokens,
        "drafted_tokens_total": statistics.drafted_tokens,
        "accepted_tokens_total": statistics.accepted_tokens,
        "drafting_seconds_total": round(statistics.drafting_s, 6),
        "steps_total": statistics.steps,
        "preemptions_total": statistics.preemptions,
        "prefix_evictions_total": prefixes.evictions if prefixes else 0,
        "requests_running": engine.n_running,
        "requests_waiting": engine.n_waiting,
        "slots": engine.lm.plans.cache.n_slots,
        "prefix_blocks": prefixes.n_blocks if prefixes else 0,
        "prefix_blocks_idle": prefixes.n_idle if prefixes else 0,
        "prefix_states_bytes": prefixes.states_nbytes if prefixes else 0,
    }
    for name, value in values.items():
        samples[name].append(f"camshaft_{name}{{{label}}} {value}")
    ended = sorted(statistics.ended.items())
    samples["requests_total"] += [f'camshaft_requests_total{{{label},end="{how}"}} {n}' for how, n in ended]
    times = (statistics.queue_s, statistics.first_token_s, statistics.between_tokens_s)
    for name, histogram in zip(_HISTOGRAMS, times, strict=True):
        samples[name] += _buckets(name, label, histogram)


def _buckets(name: str, label: str, histogram: Histogram) -> Iterator[str]:
    for bound, n in zip(BUCKETS_S, histogram.counts, strict=True):
        yield f'camshaft_{name}_bucket{{{label},le="{bound}"}} {n}'
    yield f'camshaft_{name}_bucket{{{label},le="+Inf"}} {histogram.n}'
    yield f"camshaft_{name}_sum{{{label}}} {histogram.total_s:.6f}"
    yield f"camshaft_{name}_count{{{label}}} {histogram.n}"
