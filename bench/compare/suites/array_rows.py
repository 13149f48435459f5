"""Rows of array ops against array libraries: f32 and bf16 matrix products, softmax, norms, elementwise chains, attention."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench.compare.model_files import Watch
from bench.compare.suites.suite import OURS, Peer, Suite, Target, Task
from camshaft.selection.host_info import capabilities

# (m, k, n) of matrix products
SQUARES = tuple((n, n, n) for n in (64, 128, 256, 512, 1024, 2048, 4096))
# shapes in models: one row, few rows, few columns, small and large depth, layers of SmolLM2 and of a 0.5B model
OTHERS = (
    (1, 4096, 4096),
    (16, 4096, 4096),
    (4096, 1024, 64),
    (64, 1024, 4096),
    (1024, 64, 1024),
    (64, 4096, 64),
    (512, 576, 1536),
    (512, 896, 4864),
)
ROWS, COLUMNS = 1024, 4096
SDPA = (1, 8, 1024, 64)
EPS = 1e-5
NUMPY, NUMPY_CORE, TORCH, COMPILED, ONNX = "NumPy", "NumPy, its core named", "torch", "torch compiled", "onnxruntime"
LIBRARIES = {ONNX: 1.0, TORCH: 1.5, COMPILED: 1.5}

# Steps (op, operands); an operand is a name or the number of an earlier step.
CHAINS: dict[str, tuple[tuple[str, ...], ...]] = {
    "silu(a b + c)": (("multiply", "a", "b"), ("add", "0", "c"), ("silu", "1")),
    "tanh(a - b) c + a": (("subtract", "a", "b"), ("tanh", "0"), ("multiply", "1", "c"), ("add", "2", "a")),
    "sigmoid(a b) c + max(a, b)": (
        ("multiply", "a", "b"),
        ("sigmoid", "0"),
        ("multiply", "1", "c"),
        ("maximum", "a", "b"),
        ("add", "2", "3"),
    ),
    "exp(-(a - b)^2) c + b": (
        ("subtract", "a", "b"),
        ("square", "0"),
        ("negative", "1"),
        ("exp", "2"),
        ("multiply", "3", "c"),
        ("add", "4", "b"),
    ),
}

# OpenBLAS's core names by CPU feature, the latest first
CORES = (
    ("amx-bf16", "SapphireRapids"),
    ("avx512bf16", "Cooperlake"),
    ("avx512f", "SkylakeX"),
    ("avx2", "Haswell"),
)


def core_name() -> str | None:
    """The value of OPENBLAS_CORETYPE for this CPU, or None if unknown."""
    found = capabilities().features
    return next((name for feature, name in CORES if feature in found), None)


def array_peers(threads: int, *names: str) -> tuple[Peer, ...]:
    """The named libraries and camshaft, each with `threads` threads."""
    variables = "CAMSHAFT_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"
    environment, given = dict.fromkeys(variables, str(threads)), {"threads": threads}
    core = core_name()
    known = {
        NUMPY: Peer(NUMPY, "numpy_arrays:NumPy", {}, environment),
        NUMPY_CORE: Peer(NUMPY_CORE, "numpy_arrays:NumPy", {}, environment | {"OPENBLAS_CORETYPE": core or ""}),
        TORCH: Peer(TORCH, "torch_arrays:Torch", given, environment),
        COMPILED: Peer(COMPILED, "torch_arrays:Torch", given | {"compiled": True}, environment),
        ONNX: Peer(ONNX, "onnx_arrays:OnnxRuntime", given, environment),
    }
    chosen = [known[name] for name in names if name != NUMPY_CORE or core is not None]
    return (*chosen, Peer(OURS, "ours/arrays:Camshaft", given, environment, peer_python=False))


def product(dtype: str, m: int, k: int, n: int) -> Task:
    """A matrix product; the result has the operands' dtype, and each array is read or written once."""
    order = {"what": "matmul", "dtype": dtype, "given": {"a": [m, k], "b": [k, n]}, "gives": [m, n]}
    share = {"f32": 0.9, "bf16": 0.85}[dtype]
    nbytes = {"f32": 4, "bf16": 2}[dtype] * (m * k + k * n + m * n)
    ops, floor = 2.0 * m * k * n, 0.85 if dtype == "f32" else None
    target = Target(floor=floor, share=share)
    name = f"{dtype} matmul {m} x {k} x {n}"
    return Task(name, order, "GFLOP/s", ops, target, nbytes, {dtype: ops}, family=f"{dtype} matmul")


def matmul(threads: int, watch: Watch) -> Iterator[Suite]:
    """Matrix products whose operands both change between runs."""
    shapes = SQUARES + OTHERS
    everybody = array_peers(threads, NUMPY, NUMPY_CORE, TORCH, COMPILED, ONNX)
    yield Suite("matmul", threads, everybody, tuple(product("f32", *shape) for shape in shapes))
    yield Suite(
        "matmul", threads, array_peers(threads, TORCH, COMPILED), tuple(product("bf16", *shape) for shape in shapes)
    )


def _pass(name: str, what: str, given: Mapping[str, list[int]], **more: Any) -> Task:
    """An op that reads each operand once and writes one result of the first operand's shape."""
    shape = next(iter(given.values()))
    order = {"what": what, "given": dict(given), "gives": shape, **more}
    count = sum(_elements(each) for each in given.values()) + _elements(shape)
    return Task(name, order, "us", 1, Target(against=LIBRARIES, share=0.8), 4.0 * count)


def _elements(shape: list[int]) -> int:
    count = 1
    for n in shape:
        count *= n
    return count


def attention(threads: int, watch: Watch) -> Iterator[Suite]:
    """Causal attention of one sequence: half of all pairs, two products each."""
    _, heads, tokens, d = SDPA
    order = {"what": "sdpa", "given": {name: list(SDPA) for name in "qkv"}, "gives": list(SDPA)}
    ops = 4.0 * heads * d * tokens * (tokens + 1) / 2
    name = f"SDPA causal B1 H{heads} T{tokens} D{d} f32"
    task = Task(name, order, "us", 1, Target(ratio=2.5, share=0.55), ops={"f32": ops})
    yield Suite("attention", threads, array_peers(threads, TORCH, COMPILED, ONNX), (task,))


def passes(rows: int, columns: int) -> tuple[Task, ...]:
    """Softmax, norms and elementwise chains of one size."""
    x, row = [rows, columns], [columns]
    where = f"{rows} x {columns}"
    norms = (
        _pass(f"softmax {where}", "softmax", {"x": x}),
        _pass(f"rms_norm {where}", "rms_norm", {"x": x, "weight": row}, eps=EPS),
        _pass(f"layer_norm {where}", "layer_norm", {"x": x, "weight": row, "bias": row}, eps=EPS),
    )
    chains = [
        _pass(f"{name}, {where}", "chain", dict.fromkeys("abc", x), steps=[list(s) for s in steps])
        for name, steps in CHAINS.items()
    ]
    return (*norms, *chains)


def elementwise(threads: int, watch: Watch) -> Iterator[Suite]:
    """Softmax, norms and elementwise chains of 1024 x 4096."""
    everybody = array_peers(threads, NUMPY, TORCH, COMPILED, ONNX)
    yield Suite("elementwise", threads, everybody, passes(ROWS, COLUMNS))
