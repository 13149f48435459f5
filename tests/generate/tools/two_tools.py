"""Two tools, and a call of one of them."""

from __future__ import annotations

from camshaft.generate.tools.styles import Tool

NUMBER = {"type": "integer", "minimum": 10, "maximum": 99}
TOOLS = (
    Tool(
        "add",
        "Adds.",
        {"type": "object", "properties": {"a": NUMBER}, "required": ["a"], "additionalProperties": False},
    ),
    Tool("stop.now", parameters={"type": "object", "properties": {}, "additionalProperties": False}),
)
HERMES_TEXT = '<tool_call>\n{"name": "add", "arguments": {"a": 12}}\n</tool_call>'
