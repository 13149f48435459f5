"""Examples for fine-tuning from a JSONL file: texts, prompts with completions, or chats, as tokens of which some are learned.

A line is {"text": ...}, all of which is learned, {"prompt": ..., "completion": ...}, of which the completion is, or
{"messages": [{"role": ..., "content": ...}, ...]}, of which the assistant's turns are, as the model's chat template writes them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from camshaft.errors import FormatError, ModelError, reason_of
from camshaft.formats.mapped import shown_value
from camshaft.text.chat import ChatTemplate, encode_chat
from camshaft.text.tokenizer import Tokenizer

Made = TypeVar("Made")


@dataclass(frozen=True)
class Example:
    """The tokens of an example, and for each whether it is learned."""

    tokens: tuple[int, ...]
    learned: tuple[bool, ...]


def read_examples(
    path: str | os.PathLike[str], tokenizer: Tokenizer, template: Callable[[], ChatTemplate], length: int
) -> list[Example]:
    """The examples of a file, one a line; empty lines are skipped. `template` is called where a line has messages.

    Raises FormatError, naming the line, for one that is not a JSON object of these kinds, teaches nothing, or has more than
    `length` tokens; and for a file without examples.
    """

    return read_lines(path, lambda where, line: example_of(where, line, tokenizer, template, length))


def example_of(
    where: str, line: bytes, tokenizer: Tokenizer, template: Callable[[], ChatTemplate], length: int
) -> Example:
    """The example of one line. FormatError as `read_examples`."""
    given = object_of(where, line)
    kind = next((kind for kind in _KINDS if set(given) >= set(kind)), None)
    if kind is None:
        raise FormatError(f"{where}: got {shown_value(given)}; wanted text, prompt and completion, or messages")
    return _example(where, _KINDS[kind], given, tokenizer, template, length)


def read_pairs(
    path: str | os.PathLike[str], tokenizer: Tokenizer, template: Callable[[], ChatTemplate], length: int
) -> list[tuple[Example, Example]]:
    """The pairs of a file, one a line: the answer that is chosen and the one that is rejected, each after the prompt.

    A line is {"prompt": ..., "chosen": ..., "rejected": ...}: texts, or a list of messages with an answer's text or messages.
    Raises FormatError as `read_examples`."""

    def pair(where: str, line: bytes) -> tuple[Example, Example]:
        given = object_of(where, line)
        if not set(given) >= {"prompt", "chosen", "rejected"}:
            raise FormatError(f"{where}: got {shown_value(given)}; wanted prompt, chosen and rejected")
        chosen, rejected = (
            _example(where, kind, one, tokenizer, template, length)
            for kind, one in (_answered(given, answer) for answer in ("chosen", "rejected"))
        )
        if chosen == rejected:
            raise FormatError(f"{where}: chosen and rejected are the same tokens; wanted two answers")
        return chosen, rejected

    return read_lines(path, pair)


def _answered(given: Mapping[str, Any], answer: str) -> tuple[_Kind, dict[str, Any]]:
    """A prompt with one of its answers, as a line of the kinds below."""
    prompt, text = given["prompt"], given[answer]
    if not isinstance(prompt, list):
        return _completion, {"prompt": prompt, "completion": text}
    turns = text if isinstance(text, list) else [{"role": "assistant", "content": text}]
    return _last_turn, {"messages": [*prompt, *turns]}


def read_lines(path: str | os.PathLike[str], parse: Callable[[str, bytes], Made]) -> list[Made]:
    """What `parse` makes of each line's place and bytes."""
    return [parse(f"{os.fspath(path)}, line {number}", line) for number, _, line in lines_of(path)]


def lines_of(path: str | os.PathLike[str]) -> Iterator[tuple[int, int, bytes]]:
    """The lines of a file that are not empty: the number of each from 1, where it starts, and its bytes.

    Raises FormatError if the file cannot be read, or has no such line."""
    start, is_empty = 0, True
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    is_empty = False
                    yield number, start, line
                start += len(line)
    except OSError as error:
        raise FormatError(f"{os.fspath(path)}: cannot be read: {reason_of(error)}") from None
    if is_empty:
        raise FormatError(f"{os.fspath(path)}: has no line; wanted one JSON object a line")


def object_of(where: str, line: bytes) -> dict[str, Any]:
    """The object of a line. Some editors put a byte order mark before the first one."""
    try:
        given = json.loads(line.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        what = f"is not JSON ({error.msg.lower()} at column {error.colno})"
        raise FormatError(f"{where}: {what}; wanted a JSON object in UTF-8") from None
    except UnicodeDecodeError as error:
        raise FormatError(f"{where}: {error}; wanted a JSON object in UTF-8") from None
    except RecursionError:
        raise FormatError(f"{where}: is nested too deeply; wanted a JSON object") from None
    if not isinstance(given, dict):
        raise FormatError(f"{where}: got {shown_value(given)}; wanted a JSON object")
    return given


def _example(
    where: str,
    kind: _Kind,
    given: Mapping[str, Any],
    tokenizer: Tokenizer,
    template: Callable[[], ChatTemplate],
    length: int,
) -> Example:
    try:
        tokens, learned = kind(given, tokenizer, template)
    except ModelError as error:
        raise FormatError(f"{where}: {error}") from None
    if not any(learned[1:]):
        raise FormatError(f"{where}: has no token to learn; wanted an answer")
    if len(tokens) > length:
        raise FormatError(f"{where}: has {len(tokens)} tokens; wanted at most {length} (length=)")
    return Example(tuple(tokens), tuple(learned))


def _text(given: Mapping[str, Any], tokenizer: Tokenizer, template: object) -> tuple[list[int], list[bool]]:
    tokens = [*_start(tokenizer), *_encoded(given, "text", tokenizer), *_end(tokenizer)]
    return tokens, [True] * len(tokens)


def _completion(given: Mapping[str, Any], tokenizer: Tokenizer, template: object) -> tuple[list[int], list[bool]]:
    prompt = [*_start(tokenizer), *_encoded(given, "prompt", tokenizer)]
    said = _encoded(given, "completion", tokenizer)
    answer = [*said, *_end(tokenizer)] if said else []
    return prompt + answer, [False] * len(prompt) + [True] * len(answer)


def _chat(
    given: Mapping[str, Any], tokenizer: Tokenizer, template: Callable[[], ChatTemplate]
) -> tuple[list[int], list[bool]]:
    messages = given["messages"]
    whole = isinstance(messages, list) and all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in messages)
    if not whole or not messages:
        raise ModelError(f"messages is {shown_value(messages)}; wanted a list of objects with role and content")
    render = template().render
    tokens = encode_chat(tokenizer, render(messages, add_generation_prompt=False))
    learned = [False] * len(tokens)
    for i, message in enumerate(messages):
        if message["role"] == "assistant":
            if not (message.get("content") or message.get("tool_calls")):
                raise ModelError(f"message {i + 1} of the assistant is empty; wanted an answer")
            before = encode_chat(tokenizer, render(messages[:i], add_generation_prompt=True))
            through = encode_chat(tokenizer, render(messages[: i + 1], add_generation_prompt=False))
            if tokens[: len(through)] != through or through[: len(before)] != before:
                raise ModelError(
                    f"the chat template writes message {i + 1} in another way where more follow; wanted one turn"
                )
            learned[len(before) : len(through)] = [True] * (len(through) - len(before))
    return tokens, learned


def _last_turn(
    given: Mapping[str, Any], tokenizer: Tokenizer, template: Callable[[], ChatTemplate]
) -> tuple[list[int], list[bool]]:
    """A chat of which the last turn alone is learned."""
    tokens, _ = _chat(given, tokenizer, template)
    *before, last = given["messages"]
    if last["role"] != "assistant":
        raise ModelError(f"the answer ends with a turn of {last['role']!r:.40}; wanted one of the assistant")
    start = len(encode_chat(tokenizer, template().render(before, add_generation_prompt=True)))
    return tokens, [False] * start + [True] * (len(tokens) - start)


def _encoded(given: Mapping[str, Any], key: str, tokenizer: Tokenizer) -> list[int]:
    if not isinstance(given[key], str):
        raise ModelError(f"{key} is {shown_value(given[key])}; wanted a text")
    return tokenizer.encode(given[key], add_special=False)


def _start(tokenizer: Tokenizer) -> list[int]:
    return [tokenizer.bos_id] if tokenizer.vocabulary.add_bos and tokenizer.bos_id is not None else []


def _end(tokenizer: Tokenizer) -> list[int]:
    return [] if tokenizer.eos_id is None else [tokenizer.eos_id]


_Kind = Callable[[Mapping[str, Any], Tokenizer, Callable[[], ChatTemplate]], tuple[list[int], list[bool]]]
_KINDS: dict[tuple[str, ...], _Kind] = {("messages",): _chat, ("prompt", "completion"): _completion, ("text",): _text}
