"""lm-eval, unchanged, against a server on a socket: scores of choices and of whole texts, and texts up to stop strings, by
tasks of this file. It asks the server for its tokenizer. It is in the extra `clients`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from string import ascii_letters
from typing import Any

import numpy as np
import pytest

from camshaft import GenerateOptions, LanguageModel, Sampling
from camshaft.generate.engine.engine import Engine
from camshaft.serve.models.served import Served
from tests.serve.conftest import serving

pytestmark = pytest.mark.oracle

N_TOKENS = 24
DOCUMENTS = [
    {"text": "The Rhine flows", "choices": [" north", " uphill", " in and an", " héllo"], "answer": 0},
    {"text": "Ten less four are", "choices": [" six", " seven of them"], "answer": 1},
    {"text": "Water and an anchor in the inn", "choices": [" sink", " swim", " on the water"], "answer": 2},
    {"text": "q", "choices": ["u", "z"], "answer": 1},
    {"text": "", "choices": ["Yes", "No"], "answer": 0},
]
TOLD = [each["text"] for each in DOCUMENTS if each["text"]]
# How lm-eval asks -> arguments of its model. Prompts are token ids, unless they are not `tokenized_requests`.
WAYS: Mapping[str, dict[str, Any]] = {
    "one by one": {},
    "batches": {"batch_size": 3},
    "at once": {"num_concurrent": 4, "batch_size": 2},
    "texts": {"tokenized_requests": False},
    "batches of texts at once": {"tokenized_requests": False, "num_concurrent": 2, "batch_size": 2},
}


@pytest.fixture(scope="module")
def url(roomy: LanguageModel) -> Iterator[str]:
    with Engine(roomy) as engine, serving(Served("tiny", engine)) as address:
        yield address


@pytest.fixture(scope="module")
def greedy(roomy: LanguageModel) -> list[str]:
    """What the model says after each text of `TOLD`, without a stop string."""
    options = GenerateOptions(max_tokens=N_TOKENS, sampling=Sampling(greedy=True), raw=True)
    return ["".join(roomy.generate(text, options)) for text in TOLD]


@pytest.fixture(scope="module")
def documents(roomy: LanguageModel) -> list[dict[str, Any]]:
    """`DOCUMENTS`, and one whose first choice is what the model would say itself."""
    for text in ascii_letters:
        ids = roomy.tokenize(text, add_special=False)
        likeliest = roomy.detokenize([int(roomy.logits(ids)[-1].argmax())])
        if likeliest.isascii() and likeliest.isprintable() and len(roomy.tokenize(text + likeliest)) == len(ids) + 1:
            return [*DOCUMENTS, {"text": text, "choices": [likeliest, "and"], "answer": 0}]
    raise AssertionError("after each letter the likeliest token is not a letter")


@pytest.fixture(scope="module")
def stop(greedy: list[str]) -> str:
    """Characters in the middle of the first answer."""
    return greedy[0][5:7]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory, documents: list[dict[str, Any]], stop: str) -> list[dict[str, Any]]:
    """A task of each kind that asks for log probabilities or texts."""
    folder = tmp_path_factory.mktemp("lm_eval")

    def task(name: str, documents: list[dict[str, Any]], metric: str, **how: Any) -> dict[str, Any]:
        file = folder / f"{name}.jsonl"
        file.write_text("".join(json.dumps(each) + "\n" for each in documents), "utf-8")
        source = {"data_files": {"test": str(file)}, "cache_dir": str(folder / "cache")}
        rows = {"dataset_path": "json", "dataset_kwargs": source, "test_split": "test"}
        return {"task": name, **rows, "metric_list": [{"metric": metric}], **how}

    choose = {"doc_to_text": "{{text}}", "doc_to_choice": "choices", "doc_to_target": "answer", "target_delimiter": ""}
    told = [{"text": text} for text in TOLD]
    until = {"until": [stop, "\n\n\n"], "max_gen_toks": N_TOKENS, "do_sample": False, "temperature": 0}
    go_on = {"doc_to_text": "{{text}}", "doc_to_target": "{{text}}", "generation_kwargs": until}
    whole = {"doc_to_text": "", "doc_to_target": "{{text}}"}
    return [
        task("choices", documents, "acc", output_type="multiple_choice", **choose),
        task("texts", told, "exact_match", output_type="generate_until", **go_on),
        task("rolling", told, "bits_per_byte", output_type="loglikelihood_rolling", **whole),
    ]


def evaluated(
    url: str, tasks: list[dict[str, Any]], path: str = "completions", *, is_chat: bool = False, **how: Any
) -> dict[str, Any]:
    """What lm-eval finds: the results and the samples of each task, in the order of the documents."""
    lm_eval = pytest.importorskip("lm_eval")
    from lm_eval.tasks import TaskManager

    arguments = {"model": "tiny", "base_url": f"{url}/v1/{path}", "max_length": 1500, "max_retries": 1, **how}
    found = lm_eval.simple_evaluate(
        model=f"local-{path.replace('/', '-')}",
        model_args=arguments,
        tasks=tasks,
        task_manager=TaskManager(include_defaults=False),
        apply_chat_template=is_chat,
        bootstrap_iters=0,
    )
    samples = {name: sorted(each, key=lambda one: one["doc_id"]) for name, each in found["samples"].items()}
    return {"results": found["results"], "samples": samples}


def score(lm: LanguageModel, context: list[int], following: list[int]) -> tuple[float, bool]:
    """The log probability of tokens after others by the logits of the whole, and whether each is the likeliest."""
    logits = lm.logits(context + following).astype(np.float64)[len(context) - 1 : -1]
    peaks = logits.max(axis=1)
    own = logits[np.arange(len(following)), following]
    return float((own - peaks - np.log(np.exp(logits - peaks[:, None]).sum(axis=1))).sum()), bool((own == peaks).all())


@pytest.mark.parametrize("way", WAYS)
def test_scores_and_texts_are_those_of_the_model(
    url: str,
    roomy: LanguageModel,
    documents: list[dict[str, Any]],
    tasks: list[dict[str, Any]],
    greedy: list[str],
    stop: str,
    way: str,
) -> None:
    def ids(text: str) -> list[int]:
        return roomy.tokenize(text, add_special=False)

    begin = [roomy.tokenizer.bos_id]
    found = evaluated(url, tasks, **WAYS[way])
    choices, texts, rolling = (found["samples"][task["task"]] for task in tasks)
    right = 0
    for sample, each in zip(choices, documents, strict=True):
        context = ids(each["text"])
        wholes = [ids(each["text"] + choice) for choice in each["choices"]]
        wanted = [score(roomy, whole[: len(context)] or begin, whole[len(context) :]) for whole in wholes]
        for (got,), (own, is_greedy) in zip(sample["resps"], wanted, strict=True):
            assert got == (pytest.approx(own, abs=1e-3), is_greedy), sample
        right += int(np.argmax([own for own, _ in wanted])) == each["answer"]
    assert choices[-1]["resps"][0][0][1], "the last document's first choice is what the model says itself"
    assert found["results"]["choices"]["acc,none"] == right / len(documents)
    assert [sample["resps"] for sample in texts] == [[[text.split(stop)[0]]] for text in greedy]
    for sample in rolling:
        assert sample["resps"][0] == pytest.approx([score(roomy, begin, ids(sample["doc"]["text"]))[0]], abs=1e-3)


def test_texts_without_a_tokenizer(url: str, tasks: list[dict[str, Any]], greedy: list[str], stop: str) -> None:
    found = evaluated(url, tasks[1:2], tokenizer_backend=None, num_concurrent=2, batch_size=3)
    assert [sample["resps"] for sample in found["samples"]["texts"]] == [[[text.split(stop)[0]]] for text in greedy]


def test_answers_of_chats(url: str, roomy: LanguageModel, tasks: list[dict[str, Any]], stop: str) -> None:
    found = evaluated(url, tasks[1:2], "chat/completions", is_chat=True, num_concurrent=2)
    options = GenerateOptions(max_tokens=N_TOKENS, sampling=Sampling(greedy=True), stop=(stop, "\n\n\n"))
    wanted = ["".join(roomy.generate(messages=[{"role": "user", "content": text}], options=options)) for text in TOLD]
    assert [sample["resps"] for sample in found["samples"]["texts"]] == [[[text]] for text in wanted]
