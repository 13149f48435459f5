"""The lines of models that see images, by the names in their files: encoders of several have the same sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# A line, and how names spell it; what is fine-tuned of one has a name of its own, or that of its line in it.
_LINES = {
    "SmolVLM": r"smolvlm",
    "SmolVLM2": r"smolvlm2",
    "Idefics3": r"idefics3",
    "Gemma 3": r"gemma-?3",
    "Gemma 3n": r"gemma-?3n",
    "Gemma 4": r"gemma-?4",
    "LFM2-VL": r"lfm-?2-?vl",
    "LFM2.5-VL": r"lfm-?2\.5-?vl",
    "Qwen2-VL": r"qwen-?2-?vl",
    "Qwen2.5-VL": r"qwen-?2\.5-?vl",
    "Qwen3-VL": r"qwen-?3-?vl",
    "Qwen3.5": r"qwen-?3\.5",
    "Qwen3.6": r"qwen-?3\.6",
    "Pixtral": r"pixtral",
    "Mistral Small": r"mistral-small",
    "Ministral 3": r"ministral-3",
}
# Words of a name end where neither a letter nor a digit follows.
_PATTERNS = {line: re.compile(rf"(?<![a-z0-9]){spelled}(?![a-z0-9.])") for line, spelled in _LINES.items()}
_KEYS = ("general.basename", "general.name")


def line_of(metadata: Mapping[str, Any]) -> str:
    """The line that a file's metadata names, empty for none or several."""
    for key in _KEYS:
        name = metadata.get(key)
        plain = re.sub(r"[\s_-]+", "-", name.lower()) if isinstance(name, str) else ""
        found = [line for line, pattern in _PATTERNS.items() if pattern.search(plain)]
        if len(found) == 1:
            return found[0]
    return ""
