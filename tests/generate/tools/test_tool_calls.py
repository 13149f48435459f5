"""Tool calls: what grammars let a model write, and what the reader finds, however the text is cut."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from camshaft import GenerateOptions, LanguageModel, Sampling
from camshaft.errors import GrammarError, SettingError
from camshaft.formats.gguf.file import open_gguf
from camshaft.generate.tools.calls import Delta, ToolCall, ToolCallReader, call_grammar
from camshaft.generate.tools.reasoning import HARMONY, AnswerReader
from camshaft.generate.tools.styles import (
    DEEPSEEK,
    DEEPSEEK_R1,
    HARMONY_CALLS,
    HERMES,
    LLAMA_3,
    MISTRAL,
    MISTRAL_ARGS,
    Style,
    Tool,
)
from camshaft.text.vocabulary import TokenType
from tests.generate.tools.two_tools import HERMES_TEXT, NUMBER, TOOLS
from tests.support.fixtures import tiny_model
from tests.support.quick import full

pytest.importorskip("llguidance")


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanguageModel]:
    path = tiny_model("llama", tmp_path_factory.mktemp("tools"))
    with LanguageModel(path, threads=1, context=300, activations="f32", sessions=2) as made:
        yield made


def read(style: Style, pieces: list[str]) -> tuple[str, list[ToolCall], list[Delta]]:
    reader = ToolCallReader(style)
    deltas = [delta for piece in pieces for delta in reader.push(piece)] + reader.finish()
    return "".join(delta.text for delta in deltas), reader.calls, deltas


@pytest.mark.parametrize("style", [pytest.param(HERMES, id="hermes"), full(LLAMA_3, id="llama3")])
def test_what_a_model_writes_is_read_back(lm: LanguageModel, style: Style) -> None:
    seen = set()
    for seed in range(6):
        for parallel in (False, True):
            grammar = call_grammar(style, TOOLS, is_required=True, is_parallel=parallel)
            sampling = Sampling(seed=seed, temperature=3, min_p=0)
            generation = lm.generate([40, 7], GenerateOptions(sampling=sampling, grammar=grammar, max_tokens=280))
            text, calls, _ = read(style, list(generation))
            assert text == ""
            assert calls
            assert len(calls) == 1 or (parallel and not style.is_whole)
            for call in calls if generation.finish_reason == "stop" else calls[:-1]:
                seen.add(call.name)
                arguments = json.loads(call.arguments)
                assert arguments == {} if call.name == "stop.now" else arguments == {"a": arguments["a"]}
    assert seen == {"add", "stop.now"}


def test_text_may_come_instead_of_a_call(lm: LanguageModel) -> None:
    for style in (HERMES, LLAMA_3):
        grammar = call_grammar(style, TOOLS, is_required=False, is_parallel=True)
        generation = lm.generate([40, 7], seed=1, grammar=grammar, max_tokens=20)
        text, calls, _ = read(style, list(generation))
        assert (text, calls) == (generation.text, [])
    first = lm.tokenize("<tool_call>\n{", add_special=False)
    biased = {first[0]: 50.0}
    grammar = call_grammar(HERMES, TOOLS, is_required=False, is_parallel=True)
    generation = lm.generate([40, 7], seed=1, grammar=grammar, logit_bias=biased, max_tokens=40)
    assert "".join(generation).startswith("<")


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanguageModel]:
    """A model with the control tokens of the styles, in place of bytes that UTF-8 has not."""
    from tests.support.models.files import changed_model  # needs gguf

    folder = tmp_path_factory.mktemp("marked")
    metadata = open_gguf(tiny_model("llama", folder)).metadata
    texts, types = list(metadata["tokenizer.ggml.tokens"]), list(metadata["tokenizer.ggml.token_type"])
    marks = [*HARMONY_CALLS.shown, *MISTRAL_ARGS.shown, *DEEPSEEK.shown, "<|call|>", "<|return|>"]
    free = [i for i, text in enumerate(texts) if len(text) == 1 and ord(text) in (0xC0, 0xC1, *range(0xF5, 0x100))]
    free += [i for i, text in enumerate(texts) if len(text) == 1 and 0xE0 <= ord(text) < 0xF5]
    for i, mark in zip(free, marks, strict=False):
        texts[i], types[i] = mark, int(TokenType.CONTROL)
    assert set(marks) <= set(texts)
    keys = {"tokenizer.ggml.tokens": texts, "tokenizer.ggml.token_type": [int(kind) for kind in types]}
    with LanguageModel(changed_model("llama", folder, keys=keys), threads=1, context=300, activations="f32") as made:
        yield made


ENDS = ("<|end|>", "<｜tool▁call▁begin｜>")  # made probable, so that texts end and calls follow each other


@pytest.mark.parametrize("style", [MISTRAL, full(MISTRAL_ARGS), full(DEEPSEEK), DEEPSEEK_R1, HARMONY_CALLS])
def test_calls_with_control_tokens_are_read_back(marked: LanguageModel, style: Style) -> None:
    ids, reasoning = marked.tokenizer.control_ids(style.shown), HARMONY if style.is_harmony else None
    assert ids.keys() == set(style.shown)
    seen, n_parallel = set(), 0
    for seed in range(6):
        for parallel in (False, True):
            grammar = call_grammar(style, TOOLS, is_required=True, is_parallel=parallel, ids=ids)
            sampling = Sampling(
                seed=seed, temperature=3, min_p=0, logit_bias={i: 9.0 for text, i in ids.items() if text in ENDS}
            )
            how: dict[str, Any] = {"sampling": sampling, "shown_tokens": style.shown, "max_tokens": 250}
            generation = marked.generate([40, 7], grammar=grammar, **how)
            reader = AnswerReader(style, reasoning)
            text = reader.text_of("".join(generation))
            if generation.finish_reason == "stop":
                assert style.is_harmony or text == ""
                assert len(reader.calls) == 1 or (parallel and style.separator is not None)
                n_parallel += len(reader.calls) > 1
                for call in reader.calls:
                    seen.add(call.name)
                    arguments = json.loads(call.arguments)
                    assert arguments == {} if call.name == "stop.now" else arguments == {"a": arguments["a"]}
    assert seen
    assert bool(n_parallel) == (style.separator is not None)


def test_calls_of_channels_need_their_tokens() -> None:
    with pytest.raises(SettingError, match=r"calls need the control token <\|start\|>"):
        call_grammar(HARMONY_CALLS, TOOLS, is_required=True, is_parallel=False)


QUOTES = r'{"x": "\\\" }"}'
MISTRAL_TEXT = '[TOOL_CALLS] [{"name": "add", "arguments": {"a": "]}, {"}}, {"name": "b", "arguments": {}}]'
SEEK_TEXT = (
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 12}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
)
R1_TEXT = SEEK_TEXT.replace(">add<｜tool▁sep｜>", ">function<｜tool▁sep｜>add\n```json\n").replace("12}", "12}\n```")
TEXTS: list[tuple[Style, str, str, list[ToolCall]]] = [
    (MISTRAL, MISTRAL_TEXT, "", [ToolCall("add", '{"a": "]}, {"}'), ToolCall("b", "{}")]),
    (MISTRAL, f"Well [\n{MISTRAL_TEXT}", "Well [", [ToolCall("add", '{"a": "]}, {"}'), ToolCall("b", "{}")]),
    (MISTRAL, MISTRAL_TEXT[:16], "", []),
    (MISTRAL, "[TOOL", "[TOOL", []),
    (MISTRAL_ARGS, f"[TOOL_CALLS]a[ARGS]{QUOTES}[TOOL_CALLS]b[ARGS]{{}}", "", [ToolCall("a", QUOTES), ToolCall("b", "{}")]),
    (DEEPSEEK, f"So: {SEEK_TEXT}", "So:", [ToolCall("add", '{"a": 12}')]),
    (DEEPSEEK_R1, R1_TEXT, "", [ToolCall("add", '{"a": 12}')]),
    (HERMES, HERMES_TEXT, "", [ToolCall("add", '{"a": 12}')]),
    (HERMES, f"I add. \n{HERMES_TEXT}\n{HERMES_TEXT}", "I add.", [ToolCall("add", '{"a": 12}')] * 2),
    (HERMES, "a < b <tool_ca \n", "a < b <tool_ca \n", []),
    (HERMES, "  \n", "  \n", []),
    (HERMES, "", "", []),
    (HERMES, HERMES_TEXT.replace("12", '"}\\n</tool_call>"'), "", [ToolCall("add", '{"a": "}\\n</tool_call>"}')]),
    # Cut by max_tokens.
    (HERMES, HERMES_TEXT[:-12], "", [ToolCall("add", '{"a": 12}')]),
    (HERMES, HERMES_TEXT.partition("12")[0], "", [ToolCall("add", '{"a": ')]),
    (HERMES, HERMES_TEXT.partition("{")[0], "<tool_call>\n", []),
    (HERMES, HERMES_TEXT.partition("add")[0], "", []),
    (HERMES, HERMES_TEXT[:-13], "", [ToolCall("add", '{"a": 12}')]),
    (HERMES, HERMES_TEXT[:-14], "", [ToolCall("add", '{"a": 12}')]),
    (HERMES, HERMES_TEXT.partition("12")[0] + '"}', "", [ToolCall("add", '{"a": "}')]),
    (LLAMA_3, '{"name": "add", "parameters": {"a": {"b": 1}}', "", [ToolCall("add", '{"a": {"b": 1}}')]),
    (LLAMA_3, '{"name": "add", "parameters": {"a": {"b": 1}', "", [ToolCall("add", '{"a": {"b": 1}')]),
    (LLAMA_3, '{"name": "add", "parameters": {"a": {"b": 1}}}', "", [ToolCall("add", '{"a": {"b": 1}}')]),
    (LLAMA_3, 'see {"name": "add", "parameters": {}}', 'see {"name": "add", "parameters": {}}', []),
    (LLAMA_3, '{"nam', '{"nam', []),
]  # fmt: skip


@pytest.mark.parametrize(("style", "text", "said", "calls"), TEXTS)
def test_the_reader_finds_the_same_however_text_is_cut(
    style: Style, text: str, said: str, calls: list[ToolCall]
) -> None:
    rng = np.random.default_rng(len(text))
    for cut in (
        [text],
        list(text),
        *([text[i : i + n] for i in range(0, len(text), n)] for n in rng.integers(2, 30, 6)),
    ):
        found, found_calls, deltas = read(style, cut)
        assert (found, found_calls) == (said, calls)
        streamed = [ToolCall("") for _ in calls]
        for delta in deltas:
            if delta.index >= 0:
                streamed[delta.index].name += delta.name
                streamed[delta.index].arguments += delta.arguments
        assert streamed == calls


def test_a_call_after_thoughts_in_channels() -> None:
    text = (
        "<|channel|>analysis<|message|>I add.<|end|><|start|>assistant<|channel|>commentary<|message|>Wait.<|end|>"
        '<|start|>assistant<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 12}'
    )
    for pieces in ([text], list(text)):
        reader = AnswerReader(HARMONY_CALLS, HARMONY)
        deltas = [delta for piece in pieces for delta in reader.push(piece)] + reader.finish()
        assert "".join(delta.text for delta in deltas) == "Wait."
        assert (reader.thought, reader.calls) == ("I add.", [ToolCall("add", '{"a": 12}')])
        assert "".join(delta.arguments for delta in deltas if delta.index == 0) == '{"a": 12}'


def test_strict_tools_refuse_what_lenient_ones_ignore(lm: LanguageModel) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    for strict in (False, True):
        grammar = call_grammar(HERMES, [Tool("a", "", schema, strict)], is_required=True, is_parallel=False)
        if strict:
            with pytest.raises(GrammarError, match="uniqueItems"):
                lm.grammars.compile(grammar)
        else:
            assert not lm.grammars.compile(grammar).error


def test_arguments_are_an_object_though_the_schema_does_not_say_so(lm: LanguageModel) -> None:
    for schema in ({}, {"properties": {"a": NUMBER}}):
        grammar = call_grammar(HERMES, [Tool("f", "", schema)], is_required=True, is_parallel=False)
        for seed in range(4):
            sampling = Sampling(seed=seed, temperature=3, min_p=0)
            text = "".join(lm.generate([40, 7], sampling=sampling, grammar=grammar, max_tokens=60))
            assert '"arguments": {' in text
