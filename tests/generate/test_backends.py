"""The same model on every backend, fed simd's tokens: equal choices wherever simd's margin is clear."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from camshaft import LanguageModel
from camshaft.backends.registry import backend_named
from tests.support.fixtures import TINY_MODELS, tiny_logits, tiny_model
from tests.support.models.files import require_default_model
from tests.support.models.tiny_families import difference_of
from tests.support.needs import require
from tests.support.quick import full, quick_of

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n",
    "Once upon a time, in a village by the sea, there lived",
)
CONTEXT, N_TOKENS = 128, 48
# activations -> the margin from which on the choice is the same, and the mean divergence allowed. A sum in another order turns
# an 8-bit code now and then, and every later layer turns more of them: within a few layers two targets differ by about as much
# as either does from the float64 truth (0.0033).
BOUNDS = {"f32": (0.02, 1e-4), "q8": (1.0, 6e-3)}
# Backend -> tokens after the first prompt on SmolLM2, few where they are slow. `pytest -m soak` gives each all prompts, and alone
# has each backend with both: tiny models run the kernels of f32, and f32 on WebGPU takes 40 s of a CPU.
SIZES = {"scalar": 16, "c": 16, "webgpu": 8, "cuda": N_TOKENS}
# Where they are; CI has none.
ELSEWHERE = ("cuda",)
ONLY_IN_SOAK = [("f32", "webgpu"), ("f32", "c"), ("q8", "scalar")]


def require_backend(name: str) -> None:
    """Fails where a backend is missing that CI has; skips the test for others."""
    reason = backend_named(name).absent()
    if name in ELSEWHERE and reason is not None:
        pytest.skip(f"{name}: {reason}")
    require(reason is None, f"{name}: {reason}")


def run(path: Path, backend: str | None, activations: str, texts: list[list[int]]) -> list[np.ndarray]:
    """The logits of every position of token sequences."""
    with LanguageModel(path, backend=backend, context=CONTEXT, activations=activations, sessions=1) as lm:
        return [lm.logits(ids) for ids in texts]


def continued(prompts: tuple[str, ...]) -> list[list[int]]:
    """Prompts with the 48 tokens that simd finds likeliest after each."""
    with LanguageModel(require_default_model(), context=CONTEXT, activations="f32", sessions=1) as lm:
        return [likeliest(lm, lm.tokenize(prompt)) for prompt in prompts]


@pytest.fixture(scope="module")
def ids() -> list[int]:
    return continued(PROMPTS[:1])[0]


@pytest.fixture(scope="module")
def texts() -> list[list[int]]:
    return continued(PROMPTS)


def likeliest(lm: LanguageModel, ids: list[int]) -> list[int]:
    """The ids, then 48 more."""
    with lm.session() as session:
        logits, found = session.process(ids), list(ids)
        for _ in range(N_TOKENS):
            found.append(int(logits.argmax()))
            logits = session.process(found[-1:])
        return found


@pytest.fixture(scope="module")
def usual(request: pytest.FixtureRequest, ids: list[int]) -> tuple[str, np.ndarray]:
    return request.param, run(require_default_model(), None, request.param, [ids])[0]


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def compare(got: np.ndarray, want: np.ndarray, activations: str) -> None:
    margin, most = BOUNDS[activations]
    top = np.sort(want, -1)
    clear = top[:, -1] - top[:, -2] > margin
    assert clear.any()
    np.testing.assert_array_equal(got.argmax(-1)[clear], want.argmax(-1)[clear])
    p, q = softmax(want), softmax(got)
    divergence = float((p * (np.log(p + 1e-300) - np.log(q + 1e-300))).sum(-1).mean())
    equal = (got.argmax(-1) == want.argmax(-1)).mean()
    print(f"{activations}: equal choices {equal:.3f}, mean divergence {divergence:.1e}")
    assert divergence <= most


@pytest.mark.parametrize(
    ("usual", "backend"),
    [full(*case) for case in product(BOUNDS, SIZES) if case not in ONLY_IN_SOAK],
    indirect=["usual"],
)
def test_the_model_says_the_same(backend: str, ids: list[int], usual: tuple[str, np.ndarray]) -> None:
    require_backend(backend)
    activations, wanted = usual
    (got,) = run(require_default_model(), backend, activations, [ids[: len(ids) - N_TOKENS + SIZES[backend]]])
    compare(got, wanted[: len(got)], activations)


@pytest.mark.soak
@pytest.mark.parametrize("backend", SIZES)
@pytest.mark.parametrize("activations", BOUNDS)
def test_the_whole_comparison(activations: str, backend: str, texts: list[list[int]]) -> None:
    require_backend(backend)
    path = require_default_model()
    pairs = zip(run(path, backend, activations, texts), run(path, None, activations, texts), strict=True)
    for got, want in pairs:
        compare(got, want, activations)


@pytest.mark.parametrize(
    ("name", "backend"),
    quick_of(product(["llama", "qwen2", "qwen3"], SIZES), [("qwen2", "scalar")]),
)
def test_tiny_models_agree_with_their_frozen_logits(name: str, backend: str, tmp_path: Path) -> None:
    require_backend(backend)
    ids, want = tiny_logits(name)
    with LanguageModel(tiny_model(name, tmp_path), backend=backend, context=CONTEXT, activations="f32") as lm:
        np.testing.assert_allclose(lm.logits(ids), want, atol=1e-4)


@pytest.mark.soak
@pytest.mark.parametrize("name", TINY_MODELS)
@pytest.mark.parametrize("backend", ["webgpu", "cuda"])
def test_every_tiny_model_agrees_on_gpus(backend: str, name: str, tmp_path: Path) -> None:
    require_backend(backend)
    assert difference_of(name, tmp_path, backend=backend) < 1e-3
