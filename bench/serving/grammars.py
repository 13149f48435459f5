"""What generating by a grammar costs: the time of masks a token, its share of a token's time, and the making of a grammar.

    python -m bench.serving.grammars [--threads 2] [--tokens 150] [--rounds 5] [--json FILE]

SmolLM2 generates by a JSON schema, as any JSON object, by an expression that lets everything through, and without a grammar, in
interleaved rounds. Then two engines take turns token by token, on one thread and on `--threads`: one without a grammar, the other
by each of these forms or by a schema whose text is long; which is which changes from round to round. The cost is the median of a
token's time over that of the token beside it; that of `none` shows what the measurement is worth.
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
from camshaft import GenerateOptions, Grammar, LanguageModel, Sampling
from camshaft.generate.engine.engine import Engine
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
TEXT = {"type": "object", "properties": {"text": {"type": "string", "minLength": 10_000}}, "required": ["text"]}
LONG = {
    "none": None,
    "long text": Grammar.json_schema(TEXT | {"additionalProperties": False}),
    "schema": Grammar.json_schema({"type": "array", "items": PERSON, "minItems": 99}),
    "any text": FORMS["any text"],
}
STORY, CONTEXT, N_FIRST = "Write a long story about people in a city.", 1024, 2  # the first steps process the prompt


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
        generation = lm.generate(PROMPT, grammar=grammar, seed=1, max_tokens=tokens, ignore_eos=True, speculate=None)
        "".join(generation)
    return spent.seconds / max(spent.n, 1), generation.timings.generated_tokens_per_s


def row(name: str, found: list[tuple[float, float]]) -> dict[str, Any]:
    """The medians of a form's rounds."""
    masks, rates = [each[0] for each in found], [each[1] for each in found]
    share = median(mask * rate for mask, rate in found)
    rate = {"tokens_per_s": median(rates), "least": min(rates), "most": max(rates)}
    return {"form": name, "mask_us": 1e6 * median(masks), "share": share, **rate}


def step_s(engine: Engine) -> float:
    """Seconds of a step."""
    began = time.perf_counter()
    engine.step()
    return time.perf_counter() - began


def beside(plain: Engine, other: Engine, grammar: Grammar | None, tokens: int) -> list[tuple[float, float]]:
    """Seconds of each token without a grammar, and of the one by the grammar that was generated just before or after it."""
    engines, ids = (plain, other), plain.lm.prompt_ids(STORY, raw=False)
    asked = []
    for engine, each in zip(engines, (None, grammar), strict=True):
        how = GenerateOptions(max_tokens=tokens, ignore_eos=True, grammar=each, sampling=Sampling(greedy=True))
        asked.append(engine.submit(ids, how, lambda update: None))
    for engine in engines * N_FIRST:
        engine.step()
    found = []
    for i in range(tokens - N_FIRST):
        first, second = (step_s(engine) for engine in engines[:: 1 if i % 2 else -1])
        found.append((first, second) if i % 2 else (second, first))
    if {request.generated_tokens for request in asked} != {tokens}:
        raise SystemExit(f"{[request.generated_tokens for request in asked]} tokens; wanted {tokens} of each")
    return found


def costs(threads: int, tokens: int, rounds: int) -> list[dict[str, Any]]:
    """A row per form: tokens a second of the engine with it and without a grammar beside it."""
    found: dict[str, list[list[tuple[float, float]]]] = {name: [] for name in LONG}
    with (
        LanguageModel(MODEL, threads=threads, context=CONTEXT, sessions=2) as lm,
        Engine(lm, prefix_cache=False) as one,
        Engine(lm, prefix_cache=False) as two,
    ):
        for number in range(rounds + 1):
            plain, other = (one, two)[:: 1 if number % 2 else -1]
            for name, grammar in LONG.items():
                pairs = beside(plain, other, grammar, tokens)
                found[name] += [pairs] if number else []  # the first round loads plans
    return [cost_row(name, threads, each) for name, each in found.items()]


def cost_row(name: str, threads: int, rounds: list[list[tuple[float, float]]]) -> dict[str, Any]:
    """The medians, the least and the most of rounds of pairs of seconds."""

    def spread(values: list[float]) -> dict[str, float]:
        return {"median": median(values), "least": min(values), "most": max(values)}

    rates = ([len(pairs) / sum(pair[side] for pair in pairs) for pairs in rounds] for side in (0, 1))
    cost = spread([median(by / plain for plain, by in pairs) - 1 for pairs in rounds])
    cost["median"] = median(by / plain for pairs in rounds for plain, by in pairs) - 1
    named = zip(("plain_tokens_per_s", "tokens_per_s"), map(spread, rates), strict=True)
    return {"form": f"engine, {name}", "threads": threads, **dict(named), "cost": cost}


def cost_line(row: dict[str, Any]) -> tuple[str, ...]:
    """A row as the table has it."""
    rates = [row[name] for name in ("plain_tokens_per_s", "tokens_per_s")]
    shown = [f"{rate['median']:.0f} ({rate['least']:.0f} to {rate['most']:.0f})" for rate in rates]
    cost = row["cost"]
    return (
        row["form"], str(row["threads"]), *shown, f"{cost['median']:.1%} ({cost['least']:.1%} to {cost['most']:.1%})",
    )  # fmt: skip


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
    of_engine = [row for threads in sorted({1, args.threads}) for row in costs(threads, args.tokens, args.rounds)]
    print(table(("form", "threads", "tokens/s without", "tokens/s", "cost"), [cost_line(row) for row in of_engine]))
    write(args.json, [*of_engine, *(r | {"vocabulary_ms": 1e3 * making, "compile_ms": 1e3 * compiling} for r in rows)])


if __name__ == "__main__":
    main()
