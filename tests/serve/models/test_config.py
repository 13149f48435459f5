"""The file of a server's models: what is wrong in it is named when the server starts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from camshaft import LanguageModel
from camshaft.errors import ModelError, SettingError
from camshaft.generate.engine.engine import Engine
from camshaft.serve.models.config import read_config
from camshaft.serve.models.served import Served
from camshaft.serve.models.spec import ModelSpec, cards_of
from tests.support.fixtures import tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files that are not opened."""
    for name in ("one.gguf", "bert.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models = 1", "'models' is 1; wanted a list"),
        ("models = []", "'models' is empty"),
        ("x", "is not TOML"),
        ("colour = 1\n[[models]]\nmodel='one.gguf'", "the field 'colour' is not supported"),
        ("[[models]]\nmodel='one.gguf'\ntreads=1", r"the field 'models\[0\].treads' is not supported"),
        ("[[models]]\nname='a'", r"the field 'models\[0\].model' is missing"),
        ("[[models]]\nmodel='one.gguf'\nslots=0", r"'models\[0\].slots' is 0; wanted a whole number"),
        ("memory_limit='1 ZB'\n[[models]]\nmodel='one.gguf'", "'memory_limit' is \"1 ZB\"; wanted a size"),
        ("[[models]]\nmodel='bert.gguf'\nrerank=true\npooling='cls'", r"'models\[0\].pooling' with rerank = true"),
        ("[[models]]\nmodel='bert.gguf'\nembed=true\nslots=1", r"'models\[0\].slots' with embed = true"),
        ("[[models]]\nmodel='one.gguf'\npooling='cls'", r"'models\[0\].pooling' without embed"),
        ("[[models]]\nmodel='one.gguf'\nadapters={a=1}", r"models\[0\].adapters.a is 1; wanted an object"),
        ("[[models]]\nmodel='one.gguf'\n[[models]]\nmodel='one.gguf'", "two models are named 'one'"),
        ("[[models]]\nmodel='none.gguf'", "no such file: none.gguf"),
        ("[[models]]\nmodel='one.gguf'\nadapters={a='none'}", "no such adapter: .*none"),
        ("context=1979-05-27\n[[models]]\nmodel='one.gguf'", "'context' is \"1979-05-27\"; wanted a whole number"),
        (
            "[[models]]\nmodel='one.gguf'\nadapters={a={path='x',strength=1" + "0" * 400 + "}}",
            "'.*strength' is 10+[.]{3}; wanted",
        ),
        ("[[models]]\nmodel='one.gguf'\nadapters={a={path='x',strength=nan}}", "'.*strength' is NaN; wanted a number"),
        ("[[models]]\nmodel='one.gguf'\nadapters={''='x'}", "'models.0..adapters' has \"\"; wanted a name"),
        ("x=" + "[" * 20_000, "is nested too deeply"),
        (
            "memory_limit='" + "9" * 400 + " GiB'\n[[models]]\nmodel='one.gguf'",
            "'memory_limit' is \"9+.*; wanted a size",
        ),
        ("memory_limit='\u0663 GiB'\n[[models]]\nmodel='one.gguf'", "'memory_limit' is .*; wanted a size"),
        ("[[models]]\nmodel='one.gguf'\nname=''", r"'models\[0\].name' is \"\"; wanted a name"),
        (
            "[[models]]\nmodel='one.gguf'\nalias='a\\tb'\nname=\"a\\nb\"",
            r"'models\[0\].name' is \"a\\nb\"; wanted a name",
        ),
        ("[[models]]\nmodel='one.gguf'\nkv_cache='q7'", r"'models\[0\]': kv_cache 'q7'; wanted one of"),
        ("[[models]]\nmodel='one.gguf'\nactivations='q7'", r"'models\[0\]': activations 'q7'; wanted one of"),
        (
            "speculate=' '\n[[models]]\nmodel='one.gguf'",
            "'speculate' is \" \"; wanted 'auto', 'ngram', a draft model or 'off'",
        ),
        ("speculate='small'\n[[models]]\nmodel='one.gguf'", "'small'"),
        ("[[models]]\nmodel='bert.gguf'\nembed=true\nspeculate='ngram'", r"'models\[0\].speculate' with embed = true"),
        ("[[models]]\nmodel='one.gguf'\nbackend='q7'", r"'models\[0\]': no backend or device 'q7'"),
        ("[[models]]\nmodel='one.gguf'\ncontext=2000000\nslots=2000000", r"'models\[0\]': .*fewer than 2\^31 tokens"),
        (
            "[[models]]\nmodel='bert.gguf'\nembed=true\npooling='max'",
            r"'models\[0\].pooling' is \"max\"; wanted \"mean\"",
        ),
    ],
)
def test_what_is_wrong_in_the_file_is_named(folder: Path, text: str, message: str) -> None:
    path = folder / "wrong.toml"
    path.write_text(text, "utf-8")
    with pytest.raises((SettingError, ModelError), match=message):
        cards_of(read_config(path, ModelSpec("", "")).specs)


def test_a_draft_model_is_opened_and_released_with_its_model(tmp_path: Path) -> None:
    model, path = tiny_model("llama", tmp_path), tmp_path / "models.toml"
    shutil.copy(model, tmp_path / "small.gguf")  # of equal weights, so that other tests have its plans too
    path.write_text(
        "context = 48\nslots = 3\nthreads = 1\nactivations = 'f32'\nspeculate = 'small.gguf'\n[[models]]\nmodel = 'llama.gguf'\n"
        "[[models]]\nmodel = 'llama.gguf'\nname = 'plain'\nspeculate = 'off'\n", "utf-8"
    )  # fmt: skip
    drafted, plain = read_config(path, ModelSpec("", "")).specs
    assert (drafted.draft_model, plain.draft_model, plain.speculate) == (str(tmp_path / "small.gguf"), None, None)
    assert [*drafted.shared_nbytes.values()] == [(tmp_path / "small.gguf").stat().st_size]
    assert (plain.file_nbytes, plain.shared_nbytes) == (model.stat().st_size, {})
    served, alone = drafted.open(), plain.open()
    assert isinstance(served, Served)
    assert isinstance(alone, Served)
    assert served.draft is not None
    draft = served.draft.lm
    assert served.engine.drafts_by == draft.name
    assert (draft.context, draft.plans.cache.n_slots, alone.draft, alone.engine.drafts_by) == (48, 3, None, None)
    assert served.nbytes == alone.nbytes
    assert min(served.shared_nbytes.values()) > 0
    assert {"single", "decode.2", "decode.4", "decode.8"} <= {*draft.plans.origins}  # before requests come
    served.close()
    alone.close()
    with pytest.raises(ModelError, match="is closed"):
        draft.check_open()


def test_memory_has_the_copies_that_prompts_may_share(tmp_path: Path) -> None:
    with LanguageModel(tiny_model("mamba2", tmp_path), context=64, sessions=2, threads=1) as lm:
        with Engine(lm, prefix_cache=False) as engine:
            alone = Served("m", engine).nbytes
        with Engine(lm) as engine:
            assert engine.prefixes is not None
            assert engine.prefixes.has_states
            assert Served("m", engine).nbytes - alone == engine.prefixes.most_states_nbytes > 0


def test_models_share_the_draft_model_that_they_name(tmp_path: Path) -> None:
    path = tmp_path / "models.toml"
    shutil.copy(tiny_model("llama", tmp_path), tmp_path / "small.gguf")
    path.write_text(
        "threads = 1\nactivations = 'f32'\nspeculate = 'small.gguf'\ncontext = 32\n"
        "[[models]]\nmodel = 'llama.gguf'\nname = 'one'\nslots = 2\n"
        "[[models]]\nmodel = 'llama.gguf'\nname = 'two'\nslots = 3\ncontext = 48\n"
        "[[models]]\nmodel = 'llama.gguf'\nname = 'other'\nslots = 1\nactivations = 'q8'\n", "utf-8"
    )  # fmt: skip
    cards = cards_of(read_config(path, ModelSpec("", "")).specs)
    one, two, other = served = [card.open() for card in cards]
    drafts = [each.draft for each in served if isinstance(each, Served) and each.draft is not None]
    assert drafts[0].lm is drafts[1].lm is not drafts[2].lm
    assert (drafts[0].lm.context, drafts[0].lm.plans.cache.n_slots) == (48, 3)
    assert [*one.shared_nbytes] == [*two.shared_nbytes] != [*other.shared_nbytes]
    one.close()
    drafts[0].close()  # again: nothing
    drafts[1].lm.check_open()
    with pytest.raises(ModelError, match="is closed"):
        (two.close(), drafts[1].lm.check_open())
    again = cards[0].open()
    assert isinstance(again, Served)
    assert again.draft is not None
    again.draft.lm.check_open()
    again.close()
    other.close()


def test_what_cannot_draft_is_refused_and_released(tmp_path: Path) -> None:
    options = {"context": 48, "sessions": 3, "threads": 1, "activations": "f32"}
    spec = ModelSpec(
        str(tiny_model("llama", tmp_path)), "tiny", options=options, speculate=str(tiny_model("mamba", tmp_path))
    )
    with pytest.raises(SettingError, match="in an engine a model with recurrent layers cannot draft"):
        spec.open()
