"""Chat templates whose messages have lists of parts, and those that take texts alone."""

from __future__ import annotations

from camshaft.text.chat import ChatTemplate

PARTS = (
    "{% for m in messages %}{{ m['role'] }}{% if m['content'][0]['type'] == 'image' %}:{% else %}: {% endif %}"
    "{% for part in m['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}{% elif part['type'] == 'image' %}<image>"
    "{% endif %}{% endfor %};{% endfor %}"
)
EITHER = (
    "{% for m in messages %}{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %};{% endfor %}"
)
TEXTS = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] }};{% endfor %}"
WRITES_LISTS = "{% for m in messages %}{{ m['content'] }};{% endfor %}"


def test_a_template_of_parts_gets_texts_as_parts() -> None:
    template = ChatTemplate(PARTS)
    assert (template.wants_parts, template.takes_images) == (True, True)
    mixed = [{"type": "image"}, {"type": "text", "text": "b"}]
    said = template.render([{"role": "system", "content": "a"}, {"role": "user", "content": mixed}])
    assert said == "system: a;user:<image>b;"


def test_other_templates_get_texts() -> None:
    found = {name: ChatTemplate(name) for name in (EITHER, TEXTS, WRITES_LISTS)}
    assert [(t.wants_parts, t.takes_images) for t in found.values()] == [
        (False, True),
        (False, False),
        (False, False),
    ]
    assert found[TEXTS].render([{"role": "user", "content": "a"}]) == "user: a;"
