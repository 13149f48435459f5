"""Teach SmolLM2 a fixed reply format by QLoRA, and count the held-out replies that have it before and after.

    python -m bench.train.fixed_format [--examples 300] [--epochs 1] [--held-out 60] [--threads 2] [--json FILE]

A message is a sentence such as "Ann buys 3 pears."; the reply is {"who": "Ann", "does": "buy", "thing": "pear", "n": 3}. A reply
is formatted if it is JSON with these keys in this order and values of these types, and exact if the values are right too. The
names and things that are held out are in no example.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np

from bench.rows import write
from camshaft import LanguageModel, Sampling, train

MODEL = "smollm2"
NAMES = ["Ann", "Bob", "Carla", "Dan", "Eva", "Frank", "Gina", "Hugo", "Ida", "Jack"]
NAMES += ["Kim", "Leo", "Mia", "Nils", "Olga", "Paul", "Rosa", "Sam", "Tina", "Uwe"]
NEW_NAMES = ["Vera", "Will", "Yara", "Zack", "Nora", "Oskar"]
THINGS = ["apple", "pear", "plum", "lamp", "book", "chair", "stone", "bottle", "ticket", "shirt", "spoon", "candle"]
NEW_THINGS = ["banana", "hammer", "pencil", "guitar"]
VERBS = {"buy": "buys", "sell": "sells", "find": "finds", "lose": "loses", "want": "wants"}
KEYS = {"who": str, "does": str, "thing": str, "n": int}
Example = tuple[str, str]


def examples(n: int, seed: int, names: list[str], things: list[str]) -> list[Example]:
    """Sentences with their replies."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(n):
        who, thing, verb = (str(rng.choice(list(words))) for words in (names, things, VERBS))
        count = int(rng.integers(2, 100))
        reply = json.dumps({"who": who, "does": verb, "thing": thing, "n": count})
        made.append((f"{who} {VERBS[verb]} {count} {thing}s.", reply))
    return made


def is_formatted(reply: str) -> bool:
    """Whether a reply is one JSON object with KEYS in their order, of their types."""
    try:
        value = json.loads(reply)
    except ValueError:
        return False
    return isinstance(value, dict) and list(value) == list(KEYS) and all(type(value[k]) is KEYS[k] for k in KEYS)


def score(lm: LanguageModel, wanted: list[Example]) -> dict[str, float]:
    """The shares of replies that are formatted, and exact."""
    replies = lm.generate_batch([said for said, _ in wanted], max_tokens=48, sampling=Sampling(greedy=True)).texts()
    formatted = sum(map(is_formatted, replies)) / len(wanted)
    return {
        "formatted": formatted,
        "exact": sum(r == reply for r, (_, reply) in zip(replies, wanted, strict=True)) / len(wanted),
    }


def learn(folder: Path, n: int, options: train.FinetuneOptions, threads: int) -> train.FinetuneResult:
    """Train an adapter on n examples, in a folder."""
    lines = [
        {"messages": [{"role": "user", "content": said}, {"role": "assistant", "content": reply}]}
        for said, reply in examples(n, 1, NAMES, THINGS)
    ]
    data = folder / "examples.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return train.finetune(MODEL, data, folder / "adapter.gguf", options=options, threads=threads)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("examples", 300), ("epochs", 1), ("held-out", 60), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    wanted = examples(args.held_out, 2, NEW_NAMES, NEW_THINGS)
    with LanguageModel(MODEL, threads=args.threads, context=512) as lm:
        before = score(lm, wanted)
    with tempfile.TemporaryDirectory() as folder:
        result = learn(Path(folder), args.examples, train.FinetuneOptions(epochs=args.epochs), args.threads)
        with LanguageModel(MODEL, threads=args.threads, context=512, adapters=[result.path]) as lm:
            after = score(lm, wanted)
    losses = [result.first_loss, result.last_loss]
    print(f"before: {before}\nafter {result.n_steps} steps in {result.seconds:.0f} s, losses {losses}: {after}")
    row = {"before": before, "after": after, "seconds": result.seconds, "steps": result.n_steps, "losses": losses}
    write(args.json, [{name: value for name, value in vars(args).items() if name != "json"} | row])


if __name__ == "__main__":
    main()
