"""Generation: stop strings, finish reasons, complete characters, equal text for equal seeds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from camshaft import GenerateOptions, LanguageModel, Sampling
from camshaft.errors import SettingError
from camshaft.generate.generation import FinishReason, Generation, StopStrings
from camshaft.text.tokenizer import Detokenizer
from tests.generate.conftest import whole_text

GREEDY = Sampling(greedy=True)
PROMPT = [40, 7, 81, 200, 13]
PIECES = {i: bytes([i]) for i in range(256)}


def _spell(text: bytes) -> Callable[[], int | FinishReason]:
    """Tokens that are the bytes of a text, then the end."""
    tokens: Iterator[int] = iter(text)
    return lambda: next(tokens, "stop")


def _generation(text: bytes, stop: tuple[str, ...] = (), max_tokens: int = 100) -> Generation:
    return Generation(
        1, _spell(text), Detokenizer(PIECES.__getitem__), GenerateOptions(stop=stop, max_tokens=max_tokens)
    )


@pytest.mark.parametrize(
    ("text", "stop", "wanted"),
    [
        ("one END two", ("END",), "one "),
        ("one EN END two", ("END",), "one EN "),
        ("EEND", ("END",), "E"),
        ("aab", ("ab",), "a"),
        ("ababac rest", ("abac",), "ab"),
        ("a\n\nb", ("\n\n", "b"), "a"),
        ("xyz", ("yz", "y"), "x"),
        ("later first", ("first", "later"), ""),
        ("grün ENDE", ("ü",), "gr"),
        ("never EN", ("END",), "never EN"),
    ],
)
def test_a_stop_string_ends_the_text_before_it_wherever_the_pieces_break(
    text: str, stop: tuple[str, ...], wanted: str
) -> None:
    generation = _generation(text.encode(), stop)
    assert "".join(generation) == wanted
    assert generation.finish_reason == "stop"
    for size in range(1, len(text) + 1):
        strings, shown, stopped = StopStrings(stop), "", False
        for first in range(0, len(text), size):
            more, stopped = strings.push(text[first : first + size])
            shown += more
            if stopped:
                break
        assert shown + ("" if stopped else strings.flush()) == wanted


def test_what_may_begin_a_stop_string_is_held_back_and_no_more() -> None:
    strings = StopStrings(("END",))
    assert strings.push("say E") == ("say ", False)
    assert strings.push("N") == ("", False)
    assert strings.push("E") == ("EN", False)
    assert strings.flush() == "E"
    assert strings.flush() == ""


def test_pieces_are_whole_characters() -> None:
    pieces = list(_generation("aé漢🙂b".encode()))
    assert pieces == ["a", "é", "漢", "🙂", "b"]


@pytest.mark.parametrize(
    ("text", "wanted"), [(b"a\xf0\x9f\x99", "a\ufffd"), (b"\xffb", "\ufffdb"), (b"\xc3", "\ufffd")]
)
def test_bytes_that_never_become_a_character_come_out_as_one_replacement(text: bytes, wanted: str) -> None:
    assert "".join(_generation(text)) == wanted


def test_a_text_cut_by_max_tokens_inside_a_character_ends_before_it() -> None:
    generation = _generation("héllo".encode(), max_tokens=2)
    assert "".join(generation) == generation.text == "h"
    assert (generation.finish_reason, generation.tokens, generation.ids) == ("length", 2, list("hé".encode()[:2]))
    assert not generation.text_is_exact
    whole = _generation("héllo".encode(), max_tokens=3)
    assert ("".join(whole), whole.text_is_exact) == ("hé", True)


def test_a_stop_string_that_the_last_flush_completes_is_a_stop() -> None:
    generation = _generation(b"one\xc3", stop=("e\ufffd",))
    assert ("".join(generation), generation.finish_reason) == ("on", "stop")
    generation = _generation(b"one END", stop=("END",), max_tokens=7)
    assert ("".join(generation), generation.finish_reason) == ("one ", "stop")
    generation = _generation(b"one END", stop=("END",), max_tokens=6)
    assert ("".join(generation), generation.finish_reason) == ("one EN", "length")


def test_a_finished_piece_by_piece_text_is_the_whole_text_and_no_limit_is_none() -> None:
    generation = _generation(b"a" * 300, max_tokens=-1)
    assert "".join(generation) == generation.text == "a" * 300
    assert generation.finish_reason == "stop"


def test_an_error_ends_the_generation_and_says_so_to_its_owner() -> None:
    ended: list[str] = []

    def fail() -> int | FinishReason:
        raise ZeroDivisionError("on purpose")

    generation = Generation(
        1, fail, Detokenizer(PIECES.__getitem__), GenerateOptions(max_tokens=5), lambda _: ended.append("ended")
    )
    with pytest.raises(ZeroDivisionError):
        next(generation)
    assert list(generation) == []
    generation.close()
    assert ended == ["ended"]


def test_timings_begin_with_the_first_step_and_count_tokens() -> None:
    generation = _generation(b"abcd", max_tokens=3)
    assert generation.timings.first_token_s == generation.timings.generated_tokens_per_s == 0
    list(generation)
    timings = generation.timings
    assert 0 < timings.first_token_s < 5
    assert timings.prompt_tokens_per_s > 0
    assert timings.generated_tokens_per_s > 0


def _text(lm: LanguageModel, sampling: Sampling, **options: object) -> tuple[str, list[int]]:
    generation = lm.generate(PROMPT, **({"max_tokens": 24, "sampling": sampling, "ignore_eos": True} | options))  # type: ignore[arg-type]
    return "".join(generation), generation.ids


def test_max_tokens_are_generated_and_counted(lm: LanguageModel) -> None:
    for n in (0, 1, 2, 17):
        generation = lm.generate(PROMPT, max_tokens=n, sampling=GREEDY, ignore_eos=True)
        text = "".join(generation)
        assert (generation.tokens, generation.finish_reason) == (n, "length")
        assert generation.prompt_tokens == len(PROMPT)
        assert text == whole_text(lm, generation.ids)
    with pytest.raises(SettingError, match="max_tokens=-2: wanted a whole number"):
        lm.generate(PROMPT, max_tokens=-2)


def test_the_pieces_of_a_model_are_whole_characters_and_add_up(lm: LanguageModel) -> None:
    for seed in range(8):
        generation = lm.generate(PROMPT, max_tokens=24, sampling=Sampling(seed=seed, top_k=0), ignore_eos=True)
        pieces = list(generation)
        assert all(pieces)
        assert "".join(pieces) == whole_text(lm, generation.ids)


def test_a_model_stops_before_a_stop_string_of_its_own_text(lm: LanguageModel) -> None:
    text, ids = _text(lm, GREEDY)
    plain = [i for i in range(2, len(text) - 3) if "\ufffd" not in text[i : i + 3]]
    stop = text[plain[0] : plain[0] + 3]
    generation = lm.generate(PROMPT, max_tokens=24, sampling=GREEDY, ignore_eos=True, stop=[stop])
    assert "".join(generation) == text[: text.index(stop)]
    assert generation.finish_reason == "stop"
    assert generation.ids == ids[: generation.tokens]
    assert generation.tokens < 24
    alone = lm.generate(PROMPT, max_tokens=24, sampling=GREEDY, ignore_eos=True, stop=stop)
    assert "".join(alone) == text[: text.index(stop)], "one string is one stop string"


def test_the_end_token_ends_the_text_unless_it_is_ignored(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    _, ids = _text(lm, GREEDY)
    third = ids[2]
    before = ids[: ids.index(third)]
    monkeypatch.setattr(lm.tokenizer, "eos_ids", frozenset({third}))
    generation = lm.generate(PROMPT, max_tokens=24, sampling=GREEDY)
    list(generation)
    assert (generation.ids, generation.finish_reason) == (before, "stop")
    assert _text(lm, GREEDY)[1] == ids


def test_a_seed_gives_its_text_again_and_others_give_others(lm: LanguageModel) -> None:
    texts = {seed: _text(lm, Sampling(temperature=1.0, top_k=0, top_p=1, seed=seed)) for seed in (1, 2, 2**64 - 1)}
    for seed, text in texts.items():
        assert _text(lm, Sampling(temperature=1.0, top_k=0, top_p=1, seed=seed)) == text
    assert len({text for text, _ in texts.values()}) == 3
    free = Sampling(temperature=1.0, top_k=0, top_p=1, min_p=0)
    assert _text(lm, free) != _text(lm, free)


def test_temperature_0_top_k_1_and_a_tiny_top_p_are_greedy(lm: LanguageModel) -> None:
    wanted = _text(lm, GREEDY)
    for sampling in (
        Sampling(temperature=0),
        Sampling(top_k=1, seed=3),
        Sampling(top_p=1e-6, seed=3),
        Sampling(min_p=1),
    ):
        assert _text(lm, sampling) == wanted


def test_generations_by_turns_keep_their_own_settings(lm: LanguageModel) -> None:
    hot = Sampling(temperature=3.0, top_k=0, top_p=1, min_p=0, seed=5)
    cold = Sampling(temperature=0.01, seed=5)
    wanted = [_text(lm, hot)[1], _text(lm, cold)[1]]
    both = [lm.generate(PROMPT, max_tokens=24, sampling=s, ignore_eos=True) for s in (hot, cold)]
    running = True
    while running:
        running = [next(generation, None) for generation in both] != [None, None]
    assert [generation.ids for generation in both] == wanted


def test_a_repeat_penalty_makes_tokens_come_once(lm: LanguageModel) -> None:
    plain = _text(lm, GREEDY)[1]
    sampling = Sampling(greedy=True, repeat_penalty=1e6, repeat_last_n=64)
    penalized = _text(lm, sampling)[1]
    assert len(set(plain)) < len(plain) or penalized == plain
    assert len({*PROMPT, *penalized}) == len(PROMPT) + len(penalized)
    assert _text(lm, Sampling(greedy=True, repeat_penalty=1e6, repeat_last_n=0))[1] == plain


def test_a_message_goes_through_the_chat_template_and_raw_text_does_not(lm: LanguageModel) -> None:
    chat = lm.generate("hi", max_tokens=1, sampling=GREEDY)
    raw = lm.generate("hi", max_tokens=1, sampling=GREEDY, raw=True)
    assert raw.prompt_tokens == len(lm.tokenize("hi")) < chat.prompt_tokens
    assert lm.prompt_ids("hi", raw=False)[0] == 1  # <|im_start|>, parsed as the token


def test_each_piece_of_one_generation_goes_to_one_of_its_readers() -> None:
    text = bytes(range(97, 123)) * 2
    tokens, inside, overlaps = iter(text), threading.Lock(), []

    def next_token() -> int | str:
        if not inside.acquire(blocking=False):
            overlaps.append(1)
            return 0
        time.sleep(1e-4)  # lets another reader in
        inside.release()
        return next(tokens, "stop")

    generation = Generation(1, next_token, Detokenizer(PIECES.__getitem__), GenerateOptions(max_tokens=100))
    pieces: list[str] = []
    readers = [threading.Thread(target=lambda: pieces.extend(generation)) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert (overlaps, sorted(pieces), bytes(generation.ids)) == ([], sorted(text.decode()), text)
