"""Inner loops in assembly text for x86-64 and AArch64: what they are made of, and whether they go to the stack."""

from __future__ import annotations

import re
from collections import Counter

_LABEL = re.compile(r"(\.L\w+):")
_BRANCH = re.compile(r"^(?:b|b\.\w+|cbn?z\s+\w+,|tbn?z\s+[^,]+,[^,]+,|j\w+)\s+(\.L\w+)$")
_STACK = re.compile(r"\bq\d+\b.*\[sp\b|[xyz]mm\d+.*\(%rsp|\(%rsp.*[xyz]mm\d+")


def longest_loop(text: str) -> list[str]:
    """The instructions of the longest loop that has no other inside."""
    lines, found = _branches(text)
    inner = [a for a in found if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in found)]
    first, last = max(inner, key=lambda pair: pair[1] - pair[0])
    return [line for line in lines[first : last + 1] if not _LABEL.match(line)]


def _branches(text: str) -> tuple[list[str], list[tuple[int, int]]]:
    """Labels and instructions, and where branches go back: (first, last) lines of loops."""
    lines = [line.split("//")[0].split(" #")[0].strip() for line in text.splitlines()]
    lines = [line for line in lines if line and (_LABEL.match(line) or not line.startswith("."))]
    labels: dict[str, int] = {}
    found = []
    for i, line in enumerate(lines):
        if label := _LABEL.match(line):
            labels[label[1]] = i
        elif (branch := _BRANCH.match(line)) and branch[1] in labels:
            found.append((labels[branch[1]], i))
    return lines, found


def instructions(loop: list[str]) -> Counter[str]:
    """How often each instruction is in it."""
    return Counter(line.replace("{vex}", "").split()[0] for line in loop)


def vector_stack_accesses(loop: list[str]) -> list[str]:
    """Instructions that move a vector register to or from the stack."""
    return [line for line in loop if _STACK.search(line)]


def loop_with(text: str, word: str) -> list[str]:
    """The instructions of the loop that has the most of those that begin with `word`, and inside no loop that has any."""
    lines, found = _branches(text)
    counts = {pair: sum(_begins(line, word) for line in lines[pair[0] : pair[1] + 1]) for pair in found}
    there = [a for a in found if counts[a]]
    inner = [a for a in there if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in there)]
    first, last = max(inner, key=lambda pair: counts[pair], default=(0, -1))
    return [line for line in lines[first : last + 1] if not _LABEL.match(line)]


def _begins(line: str, word: str) -> bool:
    return line.replace("{vex}", "").split()[0].startswith(word)
