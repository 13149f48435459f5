"""Kernels of products on this machine cut down to lesser levels of features: what they compute, in a process of each level."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from camshaft.emit.target import LEVELS
from tests.support.needs import require_level
from tests.support.quick import full

# One sample of each kind of kernel and block format, by the beginning and the end of its name.
SAMPLES = {
    "quantized_matmul": [
        *((f"{name} 1(1)", "q8") for name in ("Q4_0", "Q8_0", "Q4_K")),
        *((f"{name} 29(20)", "q8") for name in ("Q4_0", "Q5_0", "Q8_0", "Q4_K", "Q6_K", "Q2_K", "IQ4_NL")),
        ("Q4_0 29(20)", "f32"),
    ],
    "matmul": [("()13x7x32()", ""), ("()33x34x35() transposed", ""), ("bf16 37x44x33", "")],
    "attention": [("70 tokens from 100", ""), ("one token at 300", "")],
}
# In the default run: one token and several, packed in 4 and 6 bits, and a product of bf16.
QUICK = {
    "quantized_matmul": [("Q4_0 1(1)", "q8"), ("Q6_K 29(20)", "q8")],
    "matmul": [("bf16 37x44x33", "")],
}
# What few machines have is behind `soak`, and what most machines run anyway behind `full`.
RUN = [
    ("sse4", QUICK),
    *(full(name, SAMPLES) for name in ("sse4", "avx2")),
    *(
        pytest.param(name, SAMPLES, marks=pytest.mark.soak)
        for name in ("avx512", "avx-vnni", "avx512-vnni", "avx512-bf16", "amx")
    ),
]
CHILD = """
import json, sys
from camshaft import ops
from camshaft.backends.cpu.device import cpu_device
from camshaft.validation.validate import check_sample, node_of

device, found = cpu_device(), []
for name, wanted in json.loads(sys.argv[1]).items():
    op = ops.get(name)
    for first, last in wanted:
        sample = next(s for s in op.samples() if s.name.startswith(first) and s.name.endswith(last))
        for variant in op.variants:
            if "simd" in variant.backends and variant.supports(node_of(op, sample), device) is None:
                checked = check_sample(op, variant, device, sample)
                found.append([name, variant.name, sample.name, checked.max_error, checked.tolerance])
print(json.dumps({"features": sorted(device.features), "lanes": device.lanes, "found": found}))
"""


@pytest.mark.parametrize(("level", "samples"), RUN)
@pytest.mark.full
def test_products_on_a_lesser_level(level, samples) -> None:
    require_level(level)
    environment = {**os.environ, "CAMSHAFT_CPU_FEATURES": level, "PYTHONPATH": str(Path(__file__).parents[3] / "src")}
    command = [sys.executable, "-c", CHILD, json.dumps(samples)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-500:]
    said = json.loads(done.stdout)
    above = frozenset().union(*(row.features for row in LEVELS.values())) - LEVELS[level].features
    assert not above & set(said["features"])
    wrong = [row for row in said["found"] if not row[3] <= row[4]]
    assert not wrong
    run = {(op, variant) for op, variant, *_ in said["found"]}
    wanted = {("quantized_matmul", "tile"), ("matmul", "blocked"), ("attention", "tiled"), ("attention", "split_keys")}
    assert run >= {row for row in wanted if row[0] in samples}
