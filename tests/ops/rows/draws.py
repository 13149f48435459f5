"""Draws of sample, and how far their counts are from a distribution."""

from __future__ import annotations

import dataclasses

import numpy as np

from camshaft import ops
from camshaft.backends.cpu.device import cpu_device
from camshaft.ops.op import Sample
from camshaft.validation.run import run_variant
from camshaft.validation.validate import node_of

OP = ops.get("sample")


def draw(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=None, lanes=None, backend="simd"):
    """One token per row; parameters are repeated over the rows; row r has seed r unless `seed` [R, 3] is given."""
    rows = len(logits)
    if seed is None:
        seed = np.stack([np.arange(rows), np.zeros(rows), np.zeros(rows)], 1)
    inputs = (
        np.ascontiguousarray(logits, np.float32),
        np.full(rows, temperature, np.float32),
        np.full(rows, top_k, np.int32),
        np.full(rows, top_p, np.float32),
        np.full(rows, min_p, np.float32),
        np.asarray(seed, np.uint32),
    )
    device = cpu_device(backend)
    if lanes:
        device = dataclasses.replace(device, lanes=lanes)
    return run_variant(OP.variants[0], node_of(OP, Sample("", inputs)), device, inputs)[0]


def chi_square(counts, weights) -> float:
    """How many standard deviations chi-square lies above its mean, over the cells that are expected at least 8 times."""
    expected = weights / weights.sum() * counts.sum()
    assert counts[expected == 0].sum() == 0
    few = expected < 8
    cells = np.append(expected[~few], expected[few].sum())
    seen = np.append(counts[~few], counts[few].sum())[cells > 0]
    cells = cells[cells > 0]
    freedom = len(cells) - 1
    return (((seen - cells) ** 2 / cells).sum() - freedom) / np.sqrt(2 * freedom)
