"""Tiny random models that see images, against frozen logits of transformers and tokens of its processors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from camshaft import GenerateOptions, LanguageModel, Sampling
from camshaft.errors import ContextError
from camshaft.formats.gguf.file import open_gguf
from camshaft.generate.engine.engine import Engine
from camshaft.generate.engine.request import Update
from camshaft.generate.vision.tokens import ImageToken
from camshaft.models.files.quantize import quantize
from camshaft.models.vision.projectors import PROJECTORS
from tests.support.models.images import TINY_VISION, opened, prompts_of, tiny_vision, vision_difference
from tests.support.quick import quick_of

TOLERANCE = 1e-3
QUICK = ("idefics3",)


def _projector(name: str, folder: Path) -> str:
    with open_gguf(tiny_vision(name, folder)[1]) as file:
        return str(file.metadata["clip.projector_type"])


def test_there_is_a_tiny_model_of_every_projector(tmp_path: Path) -> None:
    assert {_projector(name, tmp_path) for name in TINY_VISION} == set(PROJECTORS)
    assert all(logits.std(axis=0).mean() >= 1 for name in TINY_VISION for *_, logits in prompts_of(name))


@pytest.mark.parametrize("name", quick_of(TINY_VISION, QUICK))
def test_logits_and_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    with opened(name, tmp_path) as lm:
        assert vision_difference(name, lm) < TOLERANCE


@pytest.mark.full
@pytest.mark.parametrize("chunk", [7, 1])
@pytest.mark.parametrize("name", TINY_VISION)
def test_chunks_and_single_tokens_give_the_same(name: str, chunk: int, tmp_path: Path) -> None:
    with opened(name, tmp_path) as lm:
        assert vision_difference(name, lm, chunk=chunk) < TOLERANCE


@pytest.mark.parametrize("name", quick_of(TINY_VISION, QUICK))
def test_a_session_beside_another_says_the_same(name: str, tmp_path: Path) -> None:
    (first, second) = prompts_of(name)
    with opened(name, tmp_path) as lm, lm.session() as one, lm.session() as other:
        ids = [lm.prompt_ids(text, raw=True, images=images) for text, images, *_ in (first, second)]
        inside = 0 if lm.plans.seeing.together else 2
        n = inside + next(at for at, i in enumerate(ids[0]) if isinstance(i, ImageToken))
        one.process(ids[0][:n])
        other.process(ids[1])
        found = one.process(ids[0][n:])
        assert np.abs(found - first[4][-1]).max() < TOLERANCE


@pytest.mark.full
@pytest.mark.parametrize("name", TINY_VISION)
def test_a_quantized_encoder_says_about_the_same(name: str, tmp_path: Path) -> None:
    text, mmproj = tiny_vision(name, tmp_path)
    quantize(mmproj, tmp_path / "q8.gguf", "Q8_0")
    given = {"activations": "f32", "threads": 1, "context": 256, "sessions": 1}
    with LanguageModel(text, mmproj=tmp_path / "q8.gguf", **given) as lm:  # type: ignore[arg-type]
        spread = min(float(logits.std()) for *_, logits in prompts_of(name))
        assert vision_difference(name, lm) < 0.15 * spread  # 0.1 at most


@pytest.mark.full
def test_tokens_that_see_each_other_come_at_once(tmp_path: Path) -> None:
    text, images, *_ = prompts_of("gemma3")[0]
    with opened("gemma3", tmp_path) as lm, lm.session() as session:
        ids = lm.prompt_ids(text, raw=True, images=images)
        n = 1 + next(at for at, i in enumerate(ids) if isinstance(i, ImageToken))
        with pytest.raises(ContextError, match="the tokens end inside an image; wanted all"):
            session.process(ids[:n])


@pytest.mark.full
def test_a_text_beside_an_image_whose_tokens_see_each_other_has_the_bits_of_one_beside_a_text(tmp_path: Path) -> None:
    text, images, *_ = prompts_of("gemma3")[0]
    with opened("gemma3", tmp_path) as lm:
        cache, other = lm.plans.cache, lm.prompt_ids(text, raw=True, images=images)
        found = []
        for beside in ([9], other):
            slots = cache.open_slot(), cache.open_slot()
            for slot, n in zip(slots, (5, len(other)), strict=True):
                cache.reserve(slot, n)
            lm.plans.run([40, 41, 42, 43], range(4), [slots[0]] * 4, (), alike=True)
            places = [4, *range(len(beside))], [slots[0], *[slots[1]] * len(beside)]
            found.append(lm.plans.run([44, *beside], *places, (0,), alike=True).copy())
            for slot in slots:
                cache.close_slot(slot)
        np.testing.assert_array_equal(found[1], found[0])


@pytest.mark.parametrize("name", quick_of(TINY_VISION, QUICK))
def test_a_batch_and_an_engine_say_what_each_says_alone(name: str, tmp_path: Path) -> None:
    greedy = GenerateOptions(max_tokens=4, sampling=Sampling(temperature=0), ignore_eos=True)
    with opened(name, tmp_path) as lm, Engine(lm) as engine:
        prompts = [lm.prompt_ids(text, raw=True, images=images) for text, images, *_ in prompts_of(name)]
        alone = []
        for ids in prompts:
            generation = lm.generate(ids, greedy)
            alone.append("".join(generation))
        assert lm.generate_batch(prompts, greedy).texts() == alone
        for _ in range(2):  # the second time from shared blocks
            heard: list[list[Update]] = [[], []]
            requests = engine.submit_all(
                [(ids, greedy, updates.append) for ids, updates in zip(prompts, heard, strict=True)]
            )
            while any(r.clock.ended == 0 for r in requests):
                engine.step()
            assert ["".join(update.text for update in updates) for updates in heard] == alone
        assert requests[1].cached_tokens > 0 or engine.prefixes is None
