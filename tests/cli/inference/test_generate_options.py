"""Options of `camshaft generate` reach the library; those that cannot be used are one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from camshaft.generate.grammar.grammar import Grammar
from camshaft.generate.options import GenerateOptions
from camshaft.generate.sampling.parameters import Sampling
from camshaft.generate.speculation.speculator import Speculation
from tests.cli import conftest


def test_options_reach_the_library_and_the_rest_keep_its_defaults(cli: Any, lm: Any, model_file: str) -> None:
    options = "-n 7 --greedy --raw --temperature 0.5 --seed 3 --threads 1 --backend scalar --context 64"
    result = cli("generate", model_file, "-p", "Hi", *options.split(), "--activations", "f32")
    assert result.exit_code == 0, result.stderr
    wanted = {"threads": 1, "backend": "scalar", "context": 64, "activations": "f32", "sessions": 1}
    assert lm.made == {"model": model_file} | wanted
    [(prompt, given)] = lm.calls
    sampling = Sampling(greedy=True, temperature=0.5, seed=3)
    assert (prompt, given) == ("Hi", GenerateOptions(max_tokens=7, raw=True, sampling=sampling))
    cli("generate", model_file, "-p", "Hi")
    assert lm.made == {"model": model_file, "context": 2048, "sessions": 1}


def test_one_option_gives_the_form_of_the_answer(cli: Any, lm: Any, model_file: str, tmp_path: Path) -> None:
    schema, lark, gbnf = tmp_path / "schema.json", tmp_path / "rules.lark", tmp_path / "rules.gbnf"
    schema.write_text('{"type": "null"}', "utf-8")
    lark.write_text("start: /a/", "utf-8")
    gbnf.write_text('root ::= "a"', "utf-8")
    wanted = {
        ("--json-schema", "{}"): Grammar.json_schema({}),
        ("--json-schema-file", str(schema)): Grammar.json_schema({"type": "null"}),
        ("--regex", "[ab]"): Grammar.regex("[ab]"),
        ("--grammar-file", str(lark)): Grammar.lark("start: /a/"),
        ("--grammar-file", str(gbnf)): Grammar.gbnf('root ::= "a"'),
    }
    for given, grammar in wanted.items():
        assert cli("generate", model_file, "-p", "Hi", *given).exit_code == 0
        assert lm.calls.pop()[1].grammar == grammar
    gbnf.write_bytes(b"\xff")
    wrong = {
        ("--regex", "a", "--json-schema", "{}"): "--json-schema and --regex are given; wanted one of them",
        ("--json-schema", "{"): "the JSON schema is not JSON",
        ("--grammar-file", str(gbnf)): "rules.gbnf: is not UTF-8: byte 0 is wrong",
    }
    for given, message in wrong.items():
        result = cli("generate", model_file, "-p", "Hi", *given)
        assert (result.exit_code, message in result.stderr) == (2, True), result.stderr


def test_speculation_and_kept_prompts_are_options_of_generate_and_chat(
    cli: Any, lm: Any, model_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("generate", model_file, "-p", "Hi", "--speculate", "off", "--prompt-cache", "auto")
    assert (lm.calls[-1][1].speculate, lm.calls[-1][1].prompt_cache) == (None, "auto")
    counts = Speculation("ngram", 3, 10, 7)
    made = conftest.FakeGeneration.__init__

    def making(self: Any, *rest: Any) -> None:
        made(self, *rest)
        self.speculation, self.kept_tokens = counts, 16

    monkeypatch.setattr(conftest.FakeGeneration, "__init__", making)
    result = cli("generate", model_file, "-p", "Hi", "--speculate", "ngram", "--json", "--verbose")
    assert lm.calls[-1][1].speculate == "ngram"
    report = json.loads(result.stdout)
    assert report["speculation"] == {"kind": "ngram", "runs": 3, "drafted": 10, "accepted": 7, "acceptance": 0.7}
    assert report["kept_tokens"] == 16
    assert "camshaft: speculation: 7 of 10 drafted tokens accepted (70%), in 3 runs" in result.stderr
    assert "16 of these tokens were kept" in result.stderr
    assert cli("chat", model_file, "--speculate", model_file, "--prompt-cache", "a.prompt", stdin="").exit_code == 0
    assert lm.calls[-1].prompt_cache == "a.prompt"
    assert lm.calls[-1].speculate.name == "tiny"
    assert lm.closed == 4


def test_stop_texts_a_system_message_and_no_limit(cli: Any, lm: Any, model_file: str) -> None:
    assert cli("generate", model_file, "-p", "Hi", "--stop", "a", "--stop", "b", "-n", "-1").exit_code == 0
    assert lm.calls[0] == ("Hi", GenerateOptions(stop=("a", "b"), max_tokens=-1))
    cli("generate", model_file, "-p", "Hi", "--system", "Be brief.")
    assert lm.calls[1][0] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert cli("generate", model_file, "-p", "Hi", "-n", "-2").exit_code == 2


def test_every_option_of_sampling_reaches_the_library(cli: Any, lm: Any, model_file: str) -> None:
    """Under llama.cpp's names."""
    options = "--temp 0.5 "
    options += "--typical 0.9 --top-n-sigma 2 --xtc-probability 0.5 --xtc-threshold 0.2 --repeat-penalty 1.1 --repeat-last-n -1"
    options += (
        " --presence-penalty 0.5 --frequency-penalty -0.25 --dry-multiplier 0.8 --dry-base 2 --dry-allowed-length 3"
    )
    options += " --dry-penalty-last-n -1 --logit-bias 15+1.5 --logit-bias 7-inf --logit-bias 15-1"
    breakers = ["--dry-sequence-breaker", "\\n", "--dry-sequence-breaker", "a\\b"]
    result = cli("generate", model_file, "-p", "Hi", *options.split(), *breakers)
    assert result.exit_code == 0, result.stderr
    wanted = Sampling(
        temperature=0.5,
        typical_p=0.9,
        top_n_sigma=2,
        xtc_probability=0.5,
        xtc_threshold=0.2,
        repeat_penalty=1.1,
        repeat_last_n=-1,
        presence_penalty=0.5,
        frequency_penalty=-0.25,
        dry_multiplier=0.8,
        dry_base=2,
        dry_allowed_length=3,
        dry_penalty_last_n=-1,
        dry_sequence_breakers=["\n", "a\\b"],
        logit_bias={15: 0.5, 7: float("-inf")},
    )
    assert lm.calls[-1][1].sampling == wanted
    mirostat = "--mirostat 2 --mirostat-lr 0.2 --mirostat-ent 3 --dry-sequence-breaker x --dry-sequence-breaker none"
    assert cli("generate", model_file, "-p", "Hi", *mirostat.split()).exit_code == 0
    assert lm.calls[-1][1].sampling == Sampling(mirostat=2, mirostat_lr=0.2, mirostat_ent=3, dry_sequence_breakers=())


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_end_tokens_that_are_ignored_are_never_drawn(cli: Any, lm: Any, model_file: str, command: str) -> None:
    prompt = ["-p", "Hi"] if command == "generate" else []
    result = cli(command, model_file, *prompt, "--ignore-eos", "--logit-bias", "2+5", "--logit-bias", "4+1", stdin="")
    assert result.exit_code == 0, result.stderr
    given = lm.calls[-1][1] if command == "generate" else lm.calls[-1]
    assert given.ignore_eos
    assert given.sampling.logit_bias == {2: float("-inf"), 9: float("-inf"), 4: 1.0}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--mirostat 1", "--mirostat=1: wanted 2, or 0 for none; version 1 is not supported"),
        ("--typical 0", "--typical-p=0.0: wanted a number above 0 and up to 1"),
        ("--xtc-threshold 2", "--xtc-threshold=2.0: wanted a number from 0 to 1"),
        ("--logit-bias 5", "--logit-bias '5'; wanted TOKEN+BIAS or TOKEN-BIAS, such as 15043+1.5 or 15043-inf"),
        ("--logit-bias 5+x", "--logit-bias '5+x'; wanted TOKEN+BIAS or TOKEN-BIAS, such as 15043+1.5 or 15043-inf"),
        (
            "--mirostat 2 --repeat-penalty 2",
            "--repeat-penalty=2.0 with --mirostat=2: wanted one of them; mirostat",
        ),
    ],
)
def test_a_wrong_option_of_sampling_is_one_line(cli: Any, lm: Any, model_file: str, given: str, said: str) -> None:
    result = cli("generate", model_file, "-p", "Hi", *given.split())
    assert (result.exit_code, result.stdout, lm.calls) == (2, "", [])
    assert result.stderr.startswith(f"camshaft: {said}")
    assert result.stderr.count("\n") == 1
