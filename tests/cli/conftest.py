"""Fixtures with a fake language model, so that commands are tested without model files and kernels."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner, Result

from camshaft.errors import ContextError
from camshaft.generate.generation import TokenLogprob
from camshaft.generate.options import GenerateOptions
from camshaft.generate.tools.reasoning import AnswerReader, channel_reader

TIMINGS = SimpleNamespace(first_token_s=0.25, prompt_tokens_per_s=100.0, generated_tokens_per_s=50.0)


class FakeGeneration:
    def __init__(self, pieces: list[Any], on_end: Callable[[str], None] = lambda text: None) -> None:
        self.pieces, self.finish_reason, self.timings, self.on_end = pieces, "stop", TIMINGS, on_end
        self.prompt_tokens, self.tokens, self.is_full, self.text = 3, len(pieces), False, ""
        self.speculation, self.kept_tokens = None, 0
        self.logprobs = [TokenLogprob(5, "Hel", -0.5, (TokenLogprob(5, "Hel", -0.5), TokenLogprob(6, "x", -2.0)))]

    def __iter__(self) -> Iterator[str]:
        for piece in self.pieces:
            if isinstance(piece, BaseException):
                raise piece
            self.text += piece
            yield piece
        self.on_end(self.text)

    def close(self) -> None:
        self.on_end = lambda text: None


class FakeConversation:
    def __init__(self, system: str | None, context_shift: bool) -> None:
        self.messages = [{"role": "system", "content": system}] if system is not None else []
        self.dropped, self.context_shift = 0, context_shift
        self.said: list[str] = []

    def reader(self) -> AnswerReader | None:
        return channel_reader(FakeModel.chat_template)  # type: ignore[arg-type]

    def say(self, text: str) -> FakeGeneration:
        self.said.append(text)
        if text == "too long":
            raise ContextError("3000 tokens and\n2048 fit")
        if text == "interrupt":
            raise KeyboardInterrupt
        if text == "drop":
            self.dropped += 4
        asked = [*self.messages, {"role": "user", "content": text}]

        def take(answer: str) -> None:
            self.messages = [*asked, {"role": "assistant", "content": answer}]

        answer = FakeGeneration(list(FakeModel.pieces), take)
        answer.finish_reason = "length" if text == "fill" else "stop"
        return answer


class FakeModel:
    """Records how it was made and called; `pieces` is what it says."""

    pieces: ClassVar[list[Any]] = ["Hel", "lo"]
    made: ClassVar[dict[str, Any]] = {}
    calls: ClassVar[list[Any]] = []
    closed = 0
    talk: ClassVar[FakeConversation]
    timings = SimpleNamespace(load_s=0.5, compile_s=0.125)
    plans = SimpleNamespace(origins={"prompt": "cached"}, experts=None)
    tokenizer = SimpleNamespace(eos_ids=frozenset({2, 9}))
    kv_cache = "f16"
    chat_template = SimpleNamespace(source="")

    def __init__(self, path_or_name: str, **options: Any) -> None:
        FakeModel.made = {"model": path_or_name, **options}
        self.name, self.backend, self.threads = Path(path_or_name).stem, "simd", options.get("threads", 2)

    def __enter__(self) -> FakeModel:
        return self

    def __exit__(self, *error: object) -> None:
        FakeModel.closed += 1

    def tokenize(self, text: str) -> list[int]:
        return list(range(1, 6))

    def generate(self, prompt: Any = None, options: Any = None, **more: Any) -> FakeGeneration:
        if prompt == "too long":
            raise ContextError("3000 tokens and\n2048 fit")
        messages = more.pop("messages", None)
        more.pop("images", None)
        FakeModel.calls.append((messages or prompt, options.merge(more)))
        return FakeGeneration(list(FakeModel.pieces))

    def generate_batch(self, prompts: Any, options: GenerateOptions, **keywords: Any) -> SimpleNamespace:
        FakeModel.calls.append((prompts, options.merge(keywords)))
        each = SimpleNamespace(timings=SimpleNamespace(generated_tokens_per_s=20.0))
        return SimpleNamespace(generations=(each,) * len(prompts), texts=list)

    def conversation(self, options: GenerateOptions, *, system: str | None, context_shift: bool) -> FakeConversation:
        FakeModel.calls.append(options)
        FakeModel.talk = FakeConversation(system, context_shift)
        return FakeModel.talk

    def describe_plan(self) -> SimpleNamespace:
        sizes: dict[str, Any]
        thunks = (
            SimpleNamespace(name="blk.0.norm", op="rms_norm", variant="rows", reason="the only one"),
            SimpleNamespace(name="blk.0.q", op="quantized_matmul", variant="dot4", reason="fastest of 3"),
        )
        sizes = {"arena_nbytes": 1_000, "temp_nbytes_sum": 3_000, "weights_nbytes": 98_000_000, "kv_cache_nbytes": 64}
        sizes |= {"state_nbytes": 2_000, "window_nbytes": 40, "window": 7, "ring_rows": 16, "copy_nbytes": 2_500}
        sizes |= {"mapped": "experts", "mapped_nbytes": 90_000_000, "resident_nbytes": 20_000_000}
        return SimpleNamespace(thunks=thunks, waits=(False, True), **sizes)


@pytest.fixture
def lm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[FakeModel]]:
    fake = ModuleType("camshaft.generate.language_model")
    vars(fake)["LanguageModel"] = FakeModel
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    monkeypatch.setenv("CAMSHAFT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(FakeModel, "pieces", ["Hel", "lo"])
    monkeypatch.setattr(FakeModel, "calls", [])
    monkeypatch.setattr(FakeModel, "closed", 0)
    sys.modules.pop("camshaft.generate.measures.benchmark", None)
    yield FakeModel
    sys.modules.pop("camshaft.generate.measures.benchmark", None)  # it was imported over the fakes


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
