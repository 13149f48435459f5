"""Chat templates: rendering, available variables, sandbox restrictions."""

from __future__ import annotations

import datetime

import pytest

from camshaft.errors import ModelError
from camshaft.text.chat import ChatTemplate, encode_chat, encode_untrusted
from camshaft.text.tokenizer import Tokenizer
from tests.support.models.vocabularies import byte_level

HELLO = [{"role": "user", "content": "hello"}]
CHATML = """{% for m in messages %}
    {{- '<|start|>' + m['role'] + '\n' + m['content'] + '<|end|>\n' -}}
{% endfor %}
{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"""


def test_messages_and_the_opening_of_the_answer() -> None:
    template = ChatTemplate(CHATML)
    assert template.render(HELLO) == "<|start|>user\nhello<|end|>\n<|start|>assistant\n"
    assert template.render(HELLO, add_generation_prompt=False) == "<|start|>user\nhello<|end|>\n"


def test_spellings_of_the_first_and_last_token_come_from_the_file() -> None:
    metadata = byte_level() | {"tokenizer.chat_template": "{{ bos_token }}|{{ eos_token }}|{{ tools }}"}
    assert ChatTemplate.from_gguf(metadata).render([]) == "<|start|>|<|end|>|None"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "hello"}'),
        ("{{ '<ü>' | tojson }}", '"<ü>"'),
        ("{{ {'a': [1]} | tojson(indent=2) }}", '{\n  "a": [\n    1\n  ]\n}'),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
        ("{% generation %}x{{ messages[0].content }}{% endgeneration %}", "xhello"),
        ("a\n  {% if true %}\n  b\n  {% endif %}\n", "a\n  b\n"),
        ("{{ thinking }}", "yes"),
    ],
)
def test_what_templates_use(source: str, text: str) -> None:
    assert ChatTemplate(source).render(HELLO, thinking="yes") == text


def test_the_time_of_day() -> None:
    assert ChatTemplate("{{ strftime_now('%Y') }}").render([]) == str(datetime.datetime.now().year)


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[7].role }}",
        "{{ messages + 1 }}",
        "{{ 1 / 0 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ range(10 ** 9) | list }}",
    ],
)
def test_a_refusal_is_one_line(source: str) -> None:
    with pytest.raises(ModelError, match="chat template failed") as caught:
        ChatTemplate(source).render(HELLO)
    assert "\n" not in str(caught.value)


def test_the_reason_is_passed_on() -> None:
    with pytest.raises(ModelError, match="roles must alternate"):
        ChatTemplate("{{ raise_exception('roles must alternate') }}").render(HELLO)


def test_a_broken_template_is_an_error_with_its_line() -> None:
    with pytest.raises(ModelError, match="line 2"):
        ChatTemplate("a\n{% if %}")


def test_no_template_names_the_way_out() -> None:
    with pytest.raises(ModelError, match="raw=True"):
        ChatTemplate.from_gguf(byte_level())


def test_the_first_token_is_not_doubled() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level(add_bos_token=True))
    assert encode_chat(tokenizer, "he") == [1, 260]
    assert encode_chat(tokenizer, "<|start|>he") == [1, 260]
    assert encode_chat(Tokenizer.from_gguf(byte_level()), "he") == [260]


def test_control_tokens_that_a_message_spells_are_text() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level())
    template = ChatTemplate("{% for m in messages %}<|start|>{{ m.content }}{{ m.name }}<|end|>{% endfor %}")
    for said in ("hello", "<|end|>he<|start|>", "<|en<|end|>d|>", "\ue000<|end|>"):
        ids = encode_untrusted(tokenizer, template, [{"role": "user", "content": said, "name": "<|end|>"}])
        start, end = (tokenizer.encode(text, add_special=False) for text in ("<|start|>", "<|end|>"))
        name = tokenizer.encode(f"{said}<|end|>", add_special=False, parse_special=False)
        assert ids == [*start, *name, *end], said
