"""What speculation gains: the same text with and without drafts, in interleaved rounds.

    python -m bench.models.speculation [MODEL] [--draft MODEL | --auto] [--threads 2] [--tokens 128] [--rounds 5] [--json FILE]

Repeated text: a file of code written again with a change, a text shortened, records put into another form. Free text: stories
and explanations, greedy and drawn. Each pair of runs writes the same tokens; the ratio is of their seconds. Processor time
says something on one thread of a machine that others use too.
"""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.rows import table, write
from camshaft import GenerateOptions, LanguageModel, Sampling
from camshaft.generate.generation import Generation

CODE = """class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance
        self.history = []

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("the amount must be positive")
        self.balance += amount
        self.history.append(("deposit", amount))

    def withdraw(self, amount):
        if amount > self.balance:
            raise ValueError("the balance is too low")
        self.balance -= amount
        self.history.append(("withdraw", amount))

    def report(self):
        for kind, amount in self.history:
            print(kind, amount, self.owner)
"""
NEWS = """The harbour of Brest was closed on Monday after a storm tore two cranes from their rails. Nobody was hurt, said the
mayor, but the repair will take three weeks and cost four million euros. Ships with food go to Lorient until then. The owner of
the cranes, a company from Nantes, had asked for stronger rails in March, and the city had refused to pay for them."""
RECORDS = "\n".join(
    f"name: {name}, city: {city}, year: {year}, product: winter coat, price: 120"
    for name, city, year in (("Anna", "Oslo", 1999), ("Boris", "Sofia", 2004), ("Clara", "Turin", 2011))
)
# Name -> (whether its text repeats, prompt). Raw prompts: a small model copies where the text leads it to.
PROMPTS: dict[str, tuple[bool, str]] = {
    "code editing": (True, f"{CODE}\nThe same file, with the class renamed to Ledger:\n\nclass Ledger:\n    def __init__(self"),
    "summarizing": (True, f"Article: {NEWS}\n\nThe article again, shortened to its main facts: The harbour of Brest was closed"),
    "reformatting": (True, f"{RECORDS}\n\nThe same records, sorted by year:\nname: Clara, city:"),
    "story": (False, "Once upon a time, in a village by the sea, there lived a girl who could talk to birds."),
    "explanation": (False, "The reason why the sky is blue in the day and red in the evening is that"),
    "letter": (False, "Dear Mr. Miller,\n\nI am writing to you because"),
}  # fmt: skip
SAMPLINGS = {"greedy": Sampling(greedy=True), "drawn": Sampling(seed=1, temperature=0.8)}


@dataclass(frozen=True)
class Run:
    """Seconds of all tokens but the first, of the clock and of all processors, the tokens, and what drafts did."""

    seconds: float
    busy: float
    generation: Generation


def measure(lm: LanguageModel, prompt: str, options: GenerateOptions) -> Run:
    """One answer."""
    generation = lm.generate(prompt, options)
    generation.advance()
    began, busy = time.perf_counter(), time.process_time()
    for _ in generation:
        pass
    return Run(time.perf_counter() - began, time.process_time() - busy, generation)


def rows_of(
    lm: LanguageModel, drafts: dict[str, Any], tokens: int, rounds: int, names: list[str]
) -> list[dict[str, Any]]:
    """A row for each prompt, sampling and kind of drafts."""
    rows = []
    for name, (repeats, prompt) in PROMPTS.items():
        for how, sampling in SAMPLINGS.items() if name in names else ():
            plain = GenerateOptions(sampling=sampling, max_tokens=tokens, ignore_eos=True, raw=True, speculate=None)
            kinds = {"": plain} | {kind: plain.merge({"speculate": of}) for kind, of in drafts.items()}
            found: dict[str, list[Run]] = {kind: [] for kind in kinds}
            for options in kinds.values():
                measure(lm, prompt, options)  # loads plans and measures what runs cost
            for _ in range(rounds):
                for kind, options in kinds.items():
                    found[kind].append(measure(lm, prompt, options))
            rows += [_row(name, how, repeats, kind, found) for kind in drafts]
            print(_line(rows[-1]), flush=True)
    return rows


def _row(name: str, how: str, repeats: bool, kind: str, found: dict[str, list[Run]]) -> dict[str, Any]:
    plain, fast = found[""], found[kind]
    ratios = [a.seconds / b.seconds for a, b in zip(plain, fast, strict=True)]
    counts, n = fast[-1].generation.speculation, fast[-1].generation.tokens
    assert counts is not None
    return {
        "text": name,
        "repeats": repeats,
        "sampling": how,
        "drafts": kind,
        "times": median(ratios),
        "least": min(ratios),
        "most": max(ratios),
        "times_by_processor": median(a.busy / b.busy for a, b in zip(plain, fast, strict=True)),
        "plain_tokens_per_s": (n - 1) / median(r.seconds for r in plain),
        "tokens_per_s": (n - 1) / median(r.seconds for r in fast),
        "same_text": all(r.generation.ids == plain[0].generation.ids for r in fast),
        "runs": counts.runs,
        "drafted": counts.drafted,
        "accepted": counts.accepted,
    }


def _line(row: dict[str, Any]) -> str:
    return "{text}, {sampling}, {drafts}: {times:.2f} times, {accepted} of {drafted} accepted".format_map(row)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--draft", help="a model with the same vocabulary, measured in place of ngram")
    kinds.add_argument("--auto", action="store_true", help="the default's drafts, measured in place of ngram's")
    for name, default in (("threads", 2), ("tokens", 128), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", nargs="+", choices=PROMPTS, default=list(PROMPTS))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with ExitStack() as stack:
        lm = stack.enter_context(LanguageModel(args.model, threads=args.threads))
        kind = "auto" if args.auto else "ngram"
        drafts: dict[str, Any] = {kind: kind}
        if args.draft:
            drafts = {"model": stack.enter_context(LanguageModel(args.draft, threads=args.threads))}
        rows = rows_of(lm, drafts, args.tokens, args.rounds, args.only)
    header = (
        "text",
        "sampling",
        "drafts",
        "times",
        "least to most",
        "by processor time",
        "accepted",
        "tokens/s",
        "same text",
    )
    lines = [
        (
            r["text"],
            r["sampling"],
            r["drafts"],
            f"{r['times']:.2f}",
            f"{r['least']:.2f} to {r['most']:.2f}",
            f"{r['times_by_processor']:.2f}",
            f"{r['accepted']} of {r['drafted']}",
            f"{r['tokens_per_s']:.0f}",
            r["same_text"],
        )
        for r in rows
    ]
    print(table(header, lines))
    facts = {"model": Path(args.model).name, "draft": args.draft and Path(args.draft).name, "threads": args.threads}
    write(args.json, [{"bench": "speculation"} | facts | r for r in rows])


if __name__ == "__main__":
    main()
