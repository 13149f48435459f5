"""Conversations whose answers are messages in channels: what becomes part of the messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from camshaft import LanguageModel
from camshaft.formats.gguf.file import open_gguf
from tests.support.fixtures import tiny_model
from tests.support.models.files import changed_model

MARKS = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"]
TEMPLATE = "{% for m in messages %}{{ m.content }}<|end|>{% endfor %}{# <|channel|>analysis<|message|> #}"


@pytest.mark.full
def test_messages_get_the_final_text_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_gguf(tiny_model("llama", tmp_path)) as file:
        tokens, types = (list(file.metadata[f"tokenizer.ggml.{name}"]) for name in ("tokens", "token_type"))
    tokens[-6:], types[-6:] = MARKS, [3] * 6
    keys = {"tokens": tokens, "token_type": [int(t) for t in types], "merges": ["i n"]}
    path = changed_model(
        "llama",
        tmp_path,
        keys={f"tokenizer.ggml.{name}": value for name, value in keys.items()} | {"tokenizer.chat_template": TEMPLATE},
    )
    with LanguageModel(path, context=128, threads=1) as lm:
        text = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi."
        answer = [*lm.tokenize(text, add_special=False), lm.tokenizer.vocabulary.ids["<|return|>"]]
        script = iter(answer)
        monkeypatch.setattr(lm.samplers, "alone", lambda sampler: lambda history: next(script))
        with lm.conversation(greedy=True) as talk:
            said = talk.say("Yes?", max_tokens=-1)
            assert "".join(said) == text
            assert said.finish_reason == "stop"
            assert talk.messages[-1] == {"role": "assistant", "content": "Hi."}
            reader = talk.reader()
            assert reader is not None
            assert (reader.text_of(text), reader.thought) == ("Hi.", "Hm.")
