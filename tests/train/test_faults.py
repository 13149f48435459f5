"""What goes wrong in a run of fine-tuning, and what is left of it: bad lines, a full disk, losses that are not numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft import train
from camshaft.errors import CamshaftError, FormatError, ModelError, StoreError, TrainingError
from camshaft.text.chat import ChatTemplate
from camshaft.train import checkpoint
from camshaft.train.tuning.data.examples import read_examples
from tests.support.fixtures import tiny_model
from tests.train.by_references import by_references  # noqa: F401 - a fixture
from tests.train.small import examples, loss, parameters, same

LINES = [{"prompt": f"{i} and", "completion": " some more"} for i in range(8)]
OPTIONS = train.FinetuneOptions(steps=4, batch=2, lr=1e-2)
CHAT = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": %s}]}'


def written(folder: Path, lines: list[Any] = LINES) -> Path:
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"[" * 100_000, "line 1: is nested too deeply"),
        (b'{"text": "caf\xe9"}', "line 1: .*invalid continuation byte.*; wanted a JSON object in UTF-8"),
        ('{"text": "a"}'.encode("utf-16"), "line 1: .*; wanted a JSON object in UTF-8"),
        (b'{"prompt": "a", "completion": ""}', "line 1: has no token to learn; wanted an answer"),
        ((CHAT % '""').encode(), "line 1: message 2 of the assistant is empty; wanted an answer"),
        ((CHAT % "null").encode(), "line 1: message 2 of the assistant is empty"),
    ],
)
def test_lines_that_cannot_be_learned_are_named(line: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(line + b"\n")
    template = ChatTemplate("{% for m in messages %}<{{ m.role }}> {{ m.content }}\n{% endfor %}")
    with train.LoraModel(tiny_model("llama", tmp_path)) as model, pytest.raises(FormatError, match=message):
        read_examples(path, model.tokenizer, lambda: template, 40)


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "a b"}\r\n')
    with train.LoraModel(tiny_model("llama", tmp_path)) as model:
        assert len(read_examples(tmp_path / "data.jsonl", model.tokenizer, lambda: ChatTemplate("x"), 40)) == 1


@pytest.mark.parametrize(
    ("run", "error", "message"),
    [
        (
            lambda d: train.finetune(d / "llama.gguf", d / "data.jsonl", d / "no" / "a.gguf"),
            StoreError,
            "does not exist",
        ),
        (
            lambda d: train.LoraModel(d / "llama.gguf", train.LoraConfig(rank=10**8)),
            ModelError,
            "got rank=100000000; wanted at most 64, the greatest that a matrix has",
        ),
        (lambda d: train.LoraModel(d / "llama.gguf", train.LoraConfig(targets=())), ModelError, "got no target"),
    ],
)
def test_a_run_that_cannot_end_does_not_begin(
    run: Callable[[Path], Any], error: type[CamshaftError], message: str, tmp_path: Path
) -> None:
    tiny_model("llama", tmp_path)
    written(tmp_path)
    with pytest.raises(error, match=message):
        run(tmp_path)


@pytest.mark.usefixtures("by_references")
def test_a_loss_that_is_no_number_leaves_the_last_good_step(tmp_path: Path) -> None:
    x, y = examples()
    bad = x.copy()
    bad[:] = np.nan
    trainer = train.Trainer(
        loss, parameters(), train.AdamW(), lambda n: (bad if n == 3 else x, y), lr=1e-2, folder=tmp_path, save_every=50
    )
    with pytest.raises(TrainingError, match=r"step 4: the loss is nan.* The last checkpoint is .*step-00000003"):
        trainer.run(9)
    other = train.Trainer(loss, parameters(1), train.AdamW(), lambda n: (x, y), lr=1e-2, folder=tmp_path)
    assert other.resume() == 3
    assert same(other.parameters, trainer.parameters)


@pytest.mark.usefixtures("by_references")
def test_a_validation_that_is_no_number_keeps_the_checkpoint_before(tmp_path: Path) -> None:
    x, y = examples()
    bad = np.full_like(x, np.nan)
    trainer = train.Trainer(
        loss, parameters(), train.AdamW(), lambda n: (x, y), lr=1e-2, folder=tmp_path, save_every=2,
        validation=train.Validation([(bad, y)], every=3),
    )  # fmt: skip
    with pytest.raises(TrainingError, match=r"validation loss is nan.*The last checkpoint is .*step-00000002"):
        trainer.run(9)


@pytest.mark.usefixtures("by_references")
def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    x, y = examples()
    one, two = (
        train.Trainer(loss, parameters(), train.AdamW(), lambda n: (x, y), lr=1e-2, folder=tmp_path) for _ in range(2)
    )

    def second(progress: train.Progress) -> None:
        with pytest.raises(TrainingError, match="another run writes its checkpoints there; wanted another folder"):
            two.run(1)

    one.run(1, second)
    assert two.resume() == 1
    two.run(2)
    data, out = written(tmp_path), tmp_path / "a.gguf"
    with checkpoint.owned(tmp_path / "a.gguf.checkpoints"), pytest.raises(TrainingError, match="another run"):
        train.finetune(tiny_model("llama", tmp_path), data, out, options=OPTIONS)


@pytest.mark.usefixtures("by_references")
def test_a_run_goes_on_with_the_model_and_the_file_with_which_it_began(tmp_path: Path) -> None:
    base, data, out = tiny_model("llama", tmp_path), written(tmp_path), tmp_path / "a.gguf"
    more: dict[str, Any] = {"options": OPTIONS, "folder": tmp_path / "folder", "resume": True, "force": True}

    def stop(progress: train.Progress, steps: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), pytest.warns(match="folder has no checkpoint to go on from"):
        train.finetune(base, data, out, each=stop, **more)
    with pytest.raises(TrainingError, match=r"was trained on .*scale 2.*; wanted .*scale 1"):
        train.finetune(base, data, out, lora=train.LoraConfig(alpha=8.0), **more)
    train.finetune(base, data, out, **more)
    merged = tmp_path / "merged.gguf"
    train.merge(base, out, merged)
    with pytest.raises(TrainingError, match=r"was trained on .*lora of the model"):
        train.finetune(merged, data, tmp_path / "b.gguf", **more)

    def swap(progress: train.Progress, steps: int) -> None:
        data.write_text(data.read_text("utf-8").replace("more", "less"), "utf-8")

    with pytest.raises(FormatError, match=r"line \d: is another one than before the first step"):
        train.finetune(base, data, out, each=swap, **{**more, "folder": tmp_path / "other", "resume": False})


@pytest.mark.usefixtures("by_references")
def test_an_adapter_is_refused_for_a_model_that_it_was_merged_into(tmp_path: Path) -> None:
    from camshaft.generate.stored.header_cache import open_model_file
    from camshaft.models.adapters.adapter import open_adapters

    base, data, out = tiny_model("llama", tmp_path), written(tmp_path), tmp_path / "a.gguf"
    train.finetune(base, data, out, options=OPTIONS)
    train.merge(base, out, tmp_path / "merged.gguf")
    for path, fits in ((base, True), (tmp_path / "merged.gguf", False)):
        opened = open_model_file(path)
        with opened.file:
            if fits:
                open_adapters(opened.file, [out], lambda: opened.base_digest).close()  # noqa: B023 - called here
                continue
            with pytest.raises(FormatError, match="is of another model"):
                open_adapters(opened.file, [out], lambda: opened.base_digest)  # noqa: B023


@pytest.mark.usefixtures("by_references")
def test_a_full_disk_is_one_line_and_the_checkpoint_before_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = examples()
    trainer = train.Trainer(loss, parameters(), train.AdamW(), lambda n: (x, y), lr=1e-2, folder=tmp_path, save_every=1)
    written_at, save = [], checkpoint.write_safetensors

    def full(path: Path, *given: Any) -> None:
        written_at.append(path)
        if len(written_at) == 3:
            raise StoreError(f"{path}: cannot be written: No space left on device")
        save(path, *given)

    monkeypatch.setattr(checkpoint, "write_safetensors", full)
    with pytest.raises(StoreError, match=r"step-00000003.safetensors: cannot be written: No space left on device"):
        trainer.run(9)
    assert checkpoint.newest(tmp_path) == tmp_path / "step-00000002.safetensors"
    assert [p for p in tmp_path.iterdir() if p.name.startswith(".")] == []


@pytest.mark.usefixtures("by_references")
def test_an_error_of_what_is_called_after_a_step_loses_no_step(tmp_path: Path) -> None:
    x, y = examples()
    trainer = train.Trainer(loss, parameters(), train.AdamW(), lambda n: (x, y), lr=1e-2, folder=tmp_path)

    def fails(progress: train.Progress) -> None:
        if progress.step == 2:
            raise StoreError("report.html: cannot be written: No space left on device")

    with pytest.raises(StoreError, match="report"):
        trainer.run(9, fails)
    assert checkpoint.newest(tmp_path) == tmp_path / "step-00000002.safetensors"
