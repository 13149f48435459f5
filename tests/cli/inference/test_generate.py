"""`camshaft generate`: streamed text, JSON output, one-line errors, quiet Ctrl-C."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from camshaft.errors import CamshaftError, StoreError


def test_text_goes_to_stdout_and_ends_its_line(cli: Any, lm: Any, model_file: str) -> None:
    result = cli("generate", model_file, "-p", "Hi")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "Hello\n", "")
    assert lm.closed == 1


def test_json_is_one_object_with_the_documented_keys(cli: Any, lm: Any, model_file: str) -> None:
    result = cli("generate", model_file, "-p", "Hi", "--json")
    assert result.stdout.count("\n") == 1
    wanted_timings = {"load_s": 0.5, "compile_s": 0.125, "first_token_s": 0.25}
    wanted_timings |= {"prompt_tokens_per_s": 100.0, "generated_tokens_per_s": 50.0}
    wanted = {"model": "tiny", "backend": "simd", "threads": 2, "prompt_tokens": 3, "tokens": 2}
    wanted |= {
        "kept_tokens": 0,
        "finish_reason": "stop",
        "plans": {"prompt": "cached"},
        "text": "Hello",
        "timings": wanted_timings,
    }
    assert json.loads(result.stdout) == wanted
    result = cli("generate", model_file, "-p", "Hi", "--json", "--logprobs", "2")
    assert lm.calls[-1][1].logprobs == 2
    top = [{"id": 5, "token": "Hel", "logprob": -0.5}, {"id": 6, "token": "x", "logprob": -2.0}]
    wanted |= {"logprobs": [{"id": 5, "token": "Hel", "logprob": -0.5, "top": top}]}
    assert json.loads(result.stdout) == wanted


def test_prompt_from_stdin_with_broken_utf8(cli: Any, lm: Any, model_file: str) -> None:
    assert cli("generate", model_file, "-p", "-", stdin=b"a\xffb").exit_code == 0
    assert lm.calls[0][0] == "a\N{REPLACEMENT CHARACTER}b"


def test_an_error_is_one_line_and_status_2(cli: Any, lm: Any, model_file: str) -> None:
    result = cli("generate", model_file, "-p", "too long")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "camshaft: 3000 tokens and 2048 fit\n"
    assert lm.closed == 1


@pytest.mark.parametrize(
    ("model", "wanted"),
    [
        ("nosuch", "unknown model 'nosuch'; known: smollm2; hf:OWNER/REPO/FILE or the path of a .gguf works too"),
        (
            "Smol-LM2",
            "unknown model 'Smol-LM2'; did you mean smollm2? known: smollm2; "
            "hf:OWNER/REPO/FILE or the path of a .gguf works too",
        ),
        ("nosuch.gguf", "no such file: nosuch.gguf"),
        ("hf:only/two", "'hf:only/two': wanted hf:OWNER/REPO/FILE.gguf"),
    ],
)
def test_a_model_that_is_not_there(cli: Any, lm: Any, model: str, wanted: str) -> None:
    result = cli("generate", model, "-p", "Hi")
    assert (result.exit_code, result.stderr) == (2, f"camshaft: {wanted}\n")


def test_ctrl_c_closes_the_model_and_ends_with_130(cli: Any, lm: Any, model_file: str) -> None:
    lm.pieces = ["Hel", KeyboardInterrupt()]
    result = cli("generate", model_file, "-p", "Hi")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "Hel", "\n")
    assert lm.closed == 1


def test_an_error_after_some_text_still_has_its_line(cli: Any, lm: Any, model_file: str) -> None:
    lm.pieces = ["Hel", CamshaftError("gone")]
    result = cli("generate", model_file, "-p", "Hi")
    assert (result.exit_code, result.stdout, result.stderr) == (2, "Hel\n", "camshaft: gone\n")


@pytest.mark.parametrize("folder", ["/cache", "/elsewhere"])
def test_an_error_of_the_store_says_how_to_move_it(
    cli: Any, lm: Any, model_file: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not one of a file that the caller named."""
    monkeypatch.setenv("CAMSHAFT_CACHE_DIR", "/cache")
    lm.pieces = [StoreError(f"{folder}/objects/0: cannot be written: No space left on device")]
    result = cli("generate", model_file, "-p", "Hi")
    wanted = f"camshaft: {folder}/objects/0: cannot be written: No space left on device"
    wanted += " (CAMSHAFT_CACHE_DIR moves the cache)\n" if folder == "/cache" else "\n"
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", wanted)


def test_a_disk_error_is_one_line_too(cli: Any, lm: Any, model_file: str) -> None:
    lm.pieces = [OSError(28, "No space left on device")]
    result = cli("generate", model_file, "-p", "Hi")
    assert (result.exit_code, result.stderr) == (2, "camshaft: no space left on device\n")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "no prompt; wanted one after the model, by -p TEXT or by --file FILE; see 'camshaft generate --help'"),
        (["Hi", "-p", "Ho"], "more than one prompt; wanted one"),
        (["-p", "Hi", "--file", "x"], "more than one prompt; wanted one"),
        (["-p", ""], "the prompt is empty"),
        (["-p", "-"], "the prompt is empty: stdin has no text"),
        (["--file", "-", "--raw"], "the prompt is empty: stdin has no text"),
        (["-p", "Hi", "--raw", "--system", "S"], "--system needs the chat template"),
        (["-p", "Hi", "--logprobs", "2"], "--logprobs needs --json"),
    ],
)
def test_prompts_and_options_that_cannot_be_used(
    cli: Any, lm: Any, model_file: str, given: list[str], said: str
) -> None:
    result = cli("generate", model_file, *given, stdin=" \n")
    assert (result.exit_code, result.stdout, lm.calls) == (2, "", [])
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_prompt_comes_from_an_argument_an_option_a_file_or_stdin(
    cli: Any, lm: Any, model_file: str, tmp_path: Path
) -> None:
    text = tmp_path / "prompt.txt"
    text.write_bytes("grün\n\xff\n\n".encode("latin-1"))
    for given in (["Hi"], ["-p", "Hi"], ["-"], ["-p", "-"], ["--file", "-"], ["-f", str(text)]):
        assert cli("generate", model_file, *given, stdin="from stdin\r\n").exit_code == 0
    read = "gr\ufffdn\n\ufffd\n"
    assert [prompt for prompt, _ in lm.calls] == ["Hi", "Hi", *["from stdin"] * 3, read]
    result = cli("generate", model_file, "--file", str(tmp_path / "none"))
    assert (result.exit_code, "none: no such file" in result.stderr) == (2, True)


def test_one_argument_with_blanks_is_a_prompt_for_the_default_model(
    cli: Any, lm: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("camshaft.models.files.pull.resolve_model", lambda *_: tmp_path)
    assert cli("generate", "Why is the sky blue?", "--threads", "1").exit_code == 0
    assert (lm.made["model"], lm.calls[0][0]) == ("smollm2", "Why is the sky blue?")
    assert cli("generate", "-", stdin="Hi").exit_code == 0
    assert (lm.made["model"], lm.calls[1][0]) == ("smollm2", "Hi")
    result = cli("generate", "Hi")
    assert (result.exit_code, "no prompt" in result.stderr) == (2, True)


def test_verbose_says_counts_and_rates_on_stderr(cli: Any, lm: Any, model_file: str) -> None:
    result = cli("generate", model_file, "-p", "Hi", "--verbose")
    assert (result.exit_code, result.stdout) == (0, "Hello\n")
    assert result.stderr.splitlines() == [
        "camshaft: model: opened in 0.50 s, prepared in 0.12 s",
        "camshaft: prompt: 3 tokens in 0.25 s, 100.0 tokens/s",
        "camshaft: answer: 2 tokens in 0.02 s, 50.0 tokens/s, ended by stop",
    ]


CHANNELS = [
    "<|channel|>analysis<|mess",
    "age|>I th",
    "ink.<|end|><|start|>assistant",
    "<|channel|>final<|message|>He",
    "llo",
]


def test_of_an_answer_in_channels_stdout_has_the_final_one(
    cli: Any, lm: Any, model_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lm, "chat_template", SimpleNamespace(source="<|channel|>analysis<|message|>"))
    monkeypatch.setattr(lm, "pieces", CHANNELS)
    result = cli("generate", model_file, "-p", "Hi")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "Hello\n", "I think.\n\n")
    assert set(lm.calls[0][1].shown_tokens) >= {"<|channel|>", "<|message|>", "<|end|>"}
    report = json.loads(cli("generate", model_file, "-p", "Hi", "--json").stdout)
    assert (report["text"], report["reasoning"]) == ("Hello", "I think.")
    chat = cli("chat", model_file, stdin="Hi\n")
    assert (chat.stdout, chat.stderr) == ("Hello\n", "I think.\n\n")


def test_with_raw_or_a_form_an_answer_is_shown_as_it_is(
    cli: Any, lm: Any, model_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lm, "chat_template", SimpleNamespace(source="<|channel|>analysis<|message|>"))
    for option in (("--raw",), ("--regex", "Hello")):
        assert cli("generate", model_file, "-p", "Hi", *option).stdout == "Hello\n"
    assert [call[1].shown_tokens for call in lm.calls] == [(), ()]


def test_thoughts_that_the_limit_cuts_end_their_line(
    cli: Any, lm: Any, model_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lm, "chat_template", SimpleNamespace(source="<|channel|>analysis<|message|>"))
    monkeypatch.setattr(lm, "pieces", CHANNELS[:2])
    result = cli("generate", model_file, "-p", "Hi")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "\n", "I th\n")
