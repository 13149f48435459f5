"""What generating by a grammar costs: the time of masks a token, its share of a token's time, and the making of a grammar.

    python -m bench.grammars [--threads 2] [--tokens 150] [--rounds 5] [--json FILE]

SmolLM2 generates by a JSON schema, as any JSON object, by an expression that lets everything through, and without a grammar, in
interleaved rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.rows import table, write
from camshaft import Grammar, LanguageModel
from camshaft.generate.grammar.matcher import GrammarCompiler, Matcher

MODEL, PROMPT = "smollm2", "List people in a JSON array."
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}},
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}
FORMS: dict[str, Grammar | None] = {
    "none": None,
    "schema": Grammar.json_schema({"type": "array", "items": PERSON, "minItems": 8}),
    "JSON object": Grammar.json(),
    "any text": Grammar.regex(r"(.|\n)*"),
}


@dataclass
class Spent:
    """Seconds in masks and in consumed tokens, and the number of masks."""

    seconds: float = 0.0
    n: int = 0


@contextmanager
def timed() -> Iterator[Spent]:
    """Matchers add up what they take."""
    spent, mask, consume = Spent(), Matcher.mask, Matcher.consume

    def timed_mask(self: Matcher) -> Any:
        began = time.perf_counter()
        found = mask(self)
        spent.seconds, spent.n = spent.seconds + time.perf_counter() - began, spent.n + 1
        return found

    def timed_consume(self: Matcher, token: int) -> None:
        began = time.perf_counter()
        consume(self, token)
        spent.seconds += time.perf_counter() - began

    Matcher.mask, Matcher.consume = timed_mask, timed_consume  # type: ignore[method-assign]
    try:
        yield spent
    finally:
        Matcher.mask, Matcher.consume = mask, consume  # type: ignore[method-assign]


def measure(lm: LanguageModel, grammar: Grammar | None, tokens: int) -> tuple[float, float]:
    """(seconds of masks a token, tokens a second) of one answer."""
    with timed() as spent:
        generation = lm.generate(PROMPT, grammar=grammar, seed=1, max_tokens=tokens, ignore_eos=True)
        "".join(generation)
    return spent.seconds / max(spent.n, 1), generation.timings.generated_tokens_per_s


def row(name: str, found: list[tuple[float, float]]) -> dict[str, Any]:
    """The medians of a form's rounds."""
    masks, rates = [each[0] for each in found], [each[1] for each in found]
    share = median(mask * rate for mask, rate in found)
    rate = {"tokens_per_s": median(rates), "least": min(rates), "most": max(rates)}
    return {"form": name, "mask_us": 1e6 * median(masks), "share": share, **rate}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("threads", 2), ("tokens", 150), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with LanguageModel(MODEL, threads=args.threads) as lm:
        began = time.perf_counter()
        compiler = GrammarCompiler(lm.tokenizer, lm.config.vocab_size)
        making = time.perf_counter() - began
        for grammar in filter(None, FORMS.values()):
            compiler.compile(grammar)
        compiling = time.perf_counter() - began - making
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in FORMS}
        for _ in range(args.rounds):
            for name, grammar in FORMS.items():
                found[name].append(measure(lm, grammar, args.tokens))
    rows = [row(name, each) for name, each in found.items()]
    print(f"vocabulary {1e3 * making:.0f} ms, {len(FORMS) - 1} grammars {1e3 * compiling:.1f} ms")
    lines = [(r["form"], f"{r['mask_us']:.0f}", f"{r['share']:.1%}", f"{r['tokens_per_s']:.0f}") for r in rows]
    print(table(("form", "mask us/token", "share", "tokens/s"), lines))
    write(args.json, [r | {"vocabulary_ms": 1e3 * making, "compile_ms": 1e3 * compiling} for r in rows])


if __name__ == "__main__":
    main()
