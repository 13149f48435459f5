"""Rows of arrays: f32 and bf16 matrix products, softmax and norms, chains of elementwise ops; against libraries of arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench.compare.model_files import Watch
from bench.compare.suite import OURS, Side, Suite, Target, Task
from camshaft.selection.host_info import capabilities

# m, k, n of a product
SQUARES = tuple((n, n, n) for n in (64, 128, 256, 512, 1024, 2048, 4096))
# what stands in models: a row, few rows, few columns, little depth, much depth, layers of SmolLM2 and of a 0.5B model
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

# Steps [op, operands], which are names or the number of an earlier step
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

# OpenBLAS's names of cores, by the features that tell, the latest first
CORES = (
    ("amx-bf16", "SapphireRapids"),
    ("avx512bf16", "Cooperlake"),
    ("avx512f", "SkylakeX"),
    ("avx2", "Haswell"),
)


def core_name() -> str | None:
    """What OPENBLAS_CORETYPE has to say for this CPU; None where only OpenBLAS knows."""
    found = capabilities().features
    return next((name for feature, name in CORES if feature in found), None)


def sides(threads: int, *names: str) -> tuple[Side, ...]:
    """Those of the libraries, and camshaft, all with so many threads."""
    variables = "CAMSHAFT_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"
    held, given = dict.fromkeys(variables, str(threads)), {"threads": threads}
    core = core_name()
    known = {
        NUMPY: Side(NUMPY, "numpy_arrays:NumPy", {}, held),
        NUMPY_CORE: Side(NUMPY_CORE, "numpy_arrays:NumPy", {}, held | {"OPENBLAS_CORETYPE": core or ""}),
        TORCH: Side(TORCH, "torch_arrays:Torch", given, held),
        COMPILED: Side(COMPILED, "torch_arrays:Torch", given | {"compiled": True}, held),
        ONNX: Side(ONNX, "onnx_arrays:OnnxRuntime", given, held),
    }
    chosen = [known[name] for name in names if name != NUMPY_CORE or core is not None]
    return (*chosen, Side(OURS, "ours_arrays:Camshaft", given, held, peer=False))


def product(dtype: str, m: int, k: int, n: int) -> Task:
    """Its result has the operands' dtype; they are read and it is written once."""
    order = {"what": "matmul", "dtype": dtype, "given": {"a": [m, k], "b": [k, n]}, "gives": [m, n]}
    share = {"f32": 0.9, "bf16": 0.85}[dtype]
    nbytes = {"f32": 4, "bf16": 2}[dtype] * (m * k + k * n + m * n)
    ops, floor = 2.0 * m * k * n, 0.85 if dtype == "f32" else None
    target = Target(floor=floor, share=share)
    name = f"{dtype} matmul {m} x {k} x {n}"
    return Task(name, order, "GFLOP/s", ops, target, nbytes, {dtype: ops}, family=f"{dtype} matmul")


def matmul(threads: int, watch: Watch) -> Iterator[Suite]:
    """Products of matrices that both change from run to run."""
    shapes = SQUARES + OTHERS
    everybody = sides(threads, NUMPY, NUMPY_CORE, TORCH, COMPILED, ONNX)
    yield Suite("matmul", threads, everybody, tuple(product("f32", *shape) for shape in shapes))
    yield Suite("matmul", threads, sides(threads, TORCH, COMPILED), tuple(product("bf16", *shape) for shape in shapes))


def _pass(name: str, what: str, given: Mapping[str, list[int]], **more: Any) -> Task:
    """An op that reads each operand once and writes one result of the first one's shape."""
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
    """Causal attention of one sequence: half of all pairs, two products of each."""
    _, heads, tokens, d = SDPA
    order = {"what": "sdpa", "given": {name: list(SDPA) for name in "qkv"}, "gives": list(SDPA)}
    ops = 4.0 * heads * d * tokens * (tokens + 1) / 2
    name = f"SDPA causal B1 H{heads} T{tokens} D{d} f32"
    task = Task(name, order, "us", 1, Target(ratio=2.5, share=0.55), ops={"f32": ops})
    yield Suite("attention", threads, sides(threads, TORCH, COMPILED, ONNX), (task,))


def passes(rows: int, columns: int) -> tuple[Task, ...]:
    """Softmax, norms and chains of so many rows and columns."""
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
    """Softmax, norms and chains of 1024 rows of 4096."""
    everybody = sides(threads, NUMPY, TORCH, COMPILED, ONNX)
    yield Suite("elementwise", threads, everybody, passes(ROWS, COLUMNS))
