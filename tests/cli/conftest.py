"""Fixtures with a fake language model, so that commands are tested without model files and kernels."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner, Result

from camshaft.errors import ContextError
from camshaft.generate.options import GenerateOptions
from camshaft.generate.session import Conversation

TIMINGS = SimpleNamespace(first_token_s=0.25, prompt_tokens_per_s=100.0, generated_tokens_per_s=50.0)


class FakeGeneration:
    def __init__(self, pieces: list[Any]) -> None:
        self.pieces, self.finish_reason, self.timings = pieces, "stop", TIMINGS
        self.prompt_tokens, self.tokens = 3, len(pieces)

    def __iter__(self) -> Iterator[str]:
        for piece in self.pieces:
            if isinstance(piece, BaseException):
                raise piece
            yield piece


class FakeSession:
    def __init__(self, calls: list[Any], pieces: list[Any]) -> None:
        self.calls, self.pieces = calls, pieces

    def generate(self, prompt: str, options: GenerateOptions) -> FakeGeneration:
        self.calls.append((id(self), prompt, options))
        return FakeGeneration(list(self.pieces))

    def close(self) -> None:
        FakeModel.closed_sessions.append(id(self))


class FakeTemplate:
    def render(self, messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return "".join(f"<{m['role']}>{m['content']}<end>" for m in messages) + "<assistant>"


class FakeModel:
    """Records how it was made and called; `pieces` is what it says."""

    pieces: ClassVar[list[Any]] = ["Hel", "lo"]
    made: ClassVar[dict[str, Any]] = {}
    calls: ClassVar[list[Any]] = []
    closed = 0
    closed_sessions: ClassVar[list[int]] = []
    timings = SimpleNamespace(load_s=0.5, compile_s=0.125)
    plans = SimpleNamespace(origins={"prompt": "cached"})
    kv_cache = "f16"
    chat_template = FakeTemplate()

    def __init__(self, path_or_name: str, **options: Any) -> None:
        FakeModel.made = {"model": path_or_name, **options}
        self.name, self.backend, self.threads = Path(path_or_name).stem, "simd", options.get("threads", 2)
        self.sessions: list[FakeSession] = []

    def __enter__(self) -> FakeModel:
        return self

    def __exit__(self, *error: object) -> None:
        FakeModel.closed += 1

    def tokenize(self, text: str) -> list[int]:
        return list(range(1, 6))

    def generate(self, prompt: Any, options: GenerateOptions, **keywords: Any) -> FakeGeneration:
        if prompt == "too long":
            raise ContextError("3000 tokens and\n2048 fit")
        FakeModel.calls.append((prompt, options.merge(keywords)))
        return FakeGeneration(list(FakeModel.pieces))

    def generate_batch(self, prompts: Any, options: GenerateOptions, **keywords: Any) -> SimpleNamespace:
        FakeModel.calls.append((prompts, options.merge(keywords)))
        each = SimpleNamespace(timings=SimpleNamespace(generated_tokens_per_s=20.0))
        return SimpleNamespace(generations=(each,) * len(prompts), texts=list)

    def conversation(self, options: GenerateOptions) -> Conversation:
        return Conversation(self, options)  # type: ignore[arg-type]

    def session(self) -> FakeSession:
        return FakeSession(FakeModel.calls, FakeModel.pieces)

    def describe_plan(self) -> SimpleNamespace:
        thunks = (
            SimpleNamespace(name="blk.0.norm", op="rms_norm", variant="rows", reason="the only one"),
            SimpleNamespace(name="blk.0.q", op="quantized_matmul", variant="dot4", reason="fastest of 3"),
        )
        sizes = {"arena_nbytes": 1_000, "temp_nbytes_sum": 3_000, "weights_nbytes": 98_000_000, "kv_cache_nbytes": 64}
        return SimpleNamespace(thunks=thunks, waits=(False, True), **sizes)


@pytest.fixture
def lm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[FakeModel]]:
    fake = ModuleType("camshaft.generate.language_model")
    vars(fake)["LanguageModel"] = FakeModel
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    monkeypatch.setenv("CAMSHAFT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(FakeModel, "pieces", ["Hel", "lo"])
    monkeypatch.setattr(FakeModel, "calls", [])
    monkeypatch.setattr(FakeModel, "closed_sessions", [])
    monkeypatch.setattr(FakeModel, "closed", 0)
    sys.modules.pop("camshaft.generate.benchmark", None)
    yield FakeModel
    sys.modules.pop("camshaft.generate.benchmark", None)  # it was imported over the fakes


@pytest.fixture
def model_file(tmp_path: Path) -> str:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"GGUF")
    return str(path)


class Cli:
    """Runs the app in this process."""

    def __call__(self, *arguments: str, stdin: str | bytes | None = None) -> Result:
        app = importlib.import_module("camshaft.cli.main").app
        return CliRunner().invoke(app, list(arguments), input=stdin)


@pytest.fixture
def cli() -> Cli:
    return Cli()
