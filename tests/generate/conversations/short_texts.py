"""A template that takes few tokens, and options of short answers, for tests of conversations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from camshaft import Sampling
from camshaft.generate.conversation import Conversation

GREEDY = Sampling(greedy=True)
HOW: Any = {"sampling": GREEDY, "ignore_eos": True, "max_tokens": 4}


class Template:
    """Renders a message as a letter for its role and its content, so that a tiny context holds several."""

    source = ""

    def render(self, messages: Sequence[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return "".join(f"<{m['role'][0]}>{m['content']}" for m in messages) + "<a>" * add_generation_prompt


def roles(conversation: Conversation) -> str:
    return "".join(message["role"][0] for message in conversation.messages)
