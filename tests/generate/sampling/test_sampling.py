"""Sampling: every field is checked by name, and the sampling ops' inputs are filled correctly."""

from __future__ import annotations

import dataclasses
from typing import Any, get_type_hints

import numpy as np
import pytest

from camshaft import LanguageModel
from camshaft.errors import CamshaftError, SettingError
from camshaft.generate.options import GENERATE_RULES, GenerateKeywords, GenerateOptions, generate_options
from camshaft.generate.sampling.form import NO_TOKEN, recent_tokens
from camshaft.generate.sampling.parameters import SAMPLING_RULES, Sampling
from camshaft.generate.sampling.sampler import seed_words

WRONG = [
    *[("temperature", v) for v in (-0.1, float("nan"), float("inf"), 10**400, "hot", None, True)],
    *[("top_k", v) for v in (-1, 2**31, 1.5, None)],
    *[("top_p", v) for v in (0, -0.5, 1.1, float("nan"))],
    *[("min_p", v) for v in (-0.1, 1.5, float("nan"))],
    *[("repeat_penalty", v) for v in (0, -1.0, float("inf"))],
    *[(name, v) for name in ("repeat_last_n", "dry_penalty_last_n") for v in (-2, 2**31, 2.0)],
    *[("seed", v) for v in (-1, 2**64, 1.0, True)],
    *[("greedy", v) for v in (1, None)],
    *[("typical_p", v) for v in (0, 1.5, None)],
    *[("top_n_sigma", v) for v in (-2, float("nan"), "1")],
    *[(name, v) for name in ("xtc_probability", "xtc_threshold") for v in (-0.1, 1.5, None)],
    *[(name, v) for name in ("presence_penalty", "frequency_penalty") for v in (float("inf"), "1")],
    *[("dry_multiplier", v) for v in (-1, float("inf"))],
    *[("dry_base", v) for v in (0.5, 0, None)],
    *[("dry_allowed_length", v) for v in (0, -1, 1.5)],
    *[("dry_sequence_breakers", v) for v in ("", ["a", ""], [b"a"], "x" * 41, None)],
    *[("mirostat", v) for v in (1, 3, -1, True, 2.0)],
    *[(name, v) for name in ("mirostat_lr", "mirostat_ent") for v in (-1, float("nan"))],
    *[
        ("logit_bias", v)
        for v in ([(1, 2)], {-1: 1}, {"a": 1}, {1: float("nan")}, {1: "x"}, {True: 1}, {2**31: 1}, None)
    ],
]


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_a_wrong_field_is_named(field, value) -> None:
    with pytest.raises(SettingError, match=f"{field}=.*: wanted ") as caught:
        Sampling(**{field: value})
    assert isinstance(caught.value, CamshaftError)
    assert "\n" not in str(caught.value)


def test_every_field_has_a_rule_and_its_default_fits() -> None:
    for options, rules in ((Sampling(), SAMPLING_RULES), (GenerateOptions(), GENERATE_RULES)):
        assert set(rules) == {f.name for f in dataclasses.fields(options)}
    assert not Sampling().is_greedy


def test_every_option_of_generating_is_a_keyword_of_the_same_type() -> None:
    """The keywords of `lm.generate(...)`, which type checkers see, are the fields of GenerateOptions and Sampling."""
    keywords, options, sampling = (
        get_type_hints(kind, localns={"LanguageModel": LanguageModel})
        for kind in (GenerateKeywords, GenerateOptions, Sampling)
    )
    assert keywords == options | sampling


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("max_tokens", v) for v in (-2, True, "3", 1.5, None)],
        *[("stop", v) for v in (5, [None], b"x", None, {"a": 1, 2: 3})],
        *[("sampling", v) for v in (None, {"greedy": True}, Sampling)],
        *[("logprobs", v) for v in (-1, True, "3", 1.5)],
        *[(name, v) for name in ("ignore_eos", "raw") for v in (1, None, "no")],
    ],
)
def test_a_wrong_option_of_generating_is_named(field: str, value: Any) -> None:
    with pytest.raises(SettingError, match=f"GenerateOptions {field}=.*: wanted "):
        GenerateOptions(**{field: value})


def test_stop_is_one_text_or_several() -> None:
    assert GenerateOptions(stop="end").stop_strings == ("end",)
    assert GenerateOptions(stop=["a", "b"]).stop_strings == ("a", "b")
    assert GenerateOptions(stop=()).stop_strings == ()


def test_keywords_replace_options_and_an_unknown_one_is_a_type_error() -> None:
    given = GenerateOptions(max_tokens=3, raw=True)
    assert generate_options(given, {"max_tokens": 5}) == GenerateOptions(max_tokens=5, raw=True)
    assert generate_options(None, {}, given) == given
    with pytest.raises(TypeError, match="max_token"):
        generate_options(None, {"max_token": 5})  # type: ignore[typeddict-unknown-key]
    with pytest.raises(SettingError, match=r"options came as dict; wanted a camshaft\.GenerateOptions"):
        generate_options({"max_tokens": 5}, {})  # type: ignore[arg-type]


def test_limits_are_allowed() -> None:
    Sampling(temperature=0, top_k=0, top_p=1, min_p=1, repeat_penalty=0.5, repeat_last_n=0, seed=2**64 - 1)
    Sampling(temperature=np.float32(0.5), top_k=np.int64(3))  # type: ignore[arg-type]


def test_mirostat_refuses_what_it_would_leave_out() -> None:
    for given in ({"typical_p": 0.5}, {"dry_multiplier": 1}, {"presence_penalty": 1}, {"xtc_probability": 1}):
        [(name, value)] = given.items()
        with pytest.raises(SettingError, match=f"Sampling {name}={value} with mirostat=2: wanted one of them"):
            Sampling(mirostat=2, **given)  # type: ignore[arg-type]
    Sampling(mirostat=2, top_k=3, top_p=0.5, logit_bias={5: 1})


def test_biases_and_breakers_are_copied() -> None:
    biases, breakers = {5: 1}, ["a"]
    sampling = Sampling(logit_bias=biases, dry_sequence_breakers=breakers)
    biases[5], breakers[0] = 2, "b"
    assert (sampling.logit_bias, sampling.dry_sequence_breakers) == ({5: 1.0}, ("a",))
    assert repr(sampling) == "Sampling(dry_sequence_breakers=('a',), logit_bias={5: 1.0})"
    assert hash(sampling) == hash(Sampling(dry_sequence_breakers="a"))


def test_temperature_0_and_greedy_are_greedy() -> None:
    assert Sampling(temperature=0).is_greedy
    assert Sampling(greedy=True).is_greedy


def test_numbers_of_any_size_and_kind_are_checked_and_used() -> None:
    with pytest.raises(SettingError, match="temperature"):
        Sampling(temperature=10**400)
    assert seed_words(Sampling(seed=np.int32(5)).start_seed(), 1) == (5, 0, 1)  # type: ignore[arg-type]


def test_a_given_seed_is_kept_and_a_missing_one_is_new_each_time() -> None:
    assert Sampling(seed=5).start_seed() == 5
    assert Sampling().start_seed() != Sampling().start_seed()


def test_a_penalty_of_1_or_over_no_tokens_is_none() -> None:
    assert not Sampling().has_penalty
    assert not Sampling(repeat_penalty=1.2, repeat_last_n=0).has_penalty
    assert Sampling(repeat_penalty=1.2).has_penalty
    assert Sampling(repeat_penalty=1.2, repeat_last_n=-1).has_penalty


def test_seed_words_hold_the_whole_seed_and_the_step() -> None:
    assert seed_words(0x1122334455667788, 9) == (0x55667788, 0x11223344, 9)


def test_recent_tokens_are_the_different_ids_of_the_last_n() -> None:
    np.testing.assert_array_equal(recent_tokens([9, 1, 2, 1, 3], 4, 6), [1, 2, 3, *[NO_TOKEN] * 3])
    np.testing.assert_array_equal(recent_tokens([9, 1], 0, 3), [NO_TOKEN] * 3)
