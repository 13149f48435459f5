"""What a run leaves: a history that resumes, a report that a browser draws, event files; validation and stopping early."""

from __future__ import annotations

import json
import re
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from camshaft import train
from camshaft.errors import CamshaftError, FormatError, MissingExtraError, PlanError, StoreError, TrainingError
from camshaft.train.memory import memory_by_kind
from camshaft.train.record.history import History, Point
from camshaft.train.record.recorder import TAGS, Events, Recorder, Records, page
from camshaft.train.trainer import Progress
from tests.support.browser import probed
from tests.support.fixtures import tiny_model
from tests.support.quick import full
from tests.train.by_references import by_references  # noqa: F401 - a fixture
from tests.train.small import examples, flat, loss, parameters, same

X, Y = examples()
POINTS = [Point(n, 3.0 / n, 1e-3 * n, 0.5, 0.25, 2.5 / n if n % 10 == 0 else None, 64 + n % 3) for n in range(1, 101)]
MEMORY = {
    "weights": 98_000_000,
    "parameters": 5_000_000,
    "optimizer": 10_000_000,
    "activations and gradients": 480_000_000,
}


@pytest.mark.parametrize(("width", "dark"), [(500, True), full(1280, False)])
def test_the_report_draws_every_curve_and_fits_its_window(width: int, dark: bool, tmp_path: Path) -> None:
    text = page("a <b>run</b>", {"data": "</script>"}, POINTS, MEMORY, 400, 1.0)
    probe = """
    const count = (what) => document.querySelectorAll(what).length;
    byId('log').click();
    const edge = [...document.querySelectorAll('main *')].filter((e) => e.getBoundingClientRect().right > innerWidth + 1).length;
    return { curves: ['loss', 'rate', 'norm', 'speed'].map((id) => count(`#${id} path.curve`)), dots: count('#loss circle'),
      limit: count('#norm .peak'), parts: count('#memory rect'), edge, bold: count('h1 b'),
      heading: document.querySelector('h1').textContent,
      numbers: [...document.querySelectorAll('svg text')].filter((t) => /NaN|undefined|Infinity/.test(t.textContent)).length,
      tiles: [...document.querySelectorAll('.tile b')].map((t) => t.textContent), wide: document.documentElement.scrollWidth };
    """
    found = probed(text, probe, tmp_path, width=width, dark=dark)
    assert found["errors"] == found["console"] == []
    assert (found["curves"], found["dots"], found["limit"]) == ([3, 1, 1, 1], 10, 1)
    assert (found["parts"], found["edge"], found["numbers"], found["bold"]) == (4, 0, 0, 0)
    assert (found["heading"], found["wide"] <= width) == ("a <b>run</b>", True)
    assert found["tiles"] == ["0.03062", "0.025", "100 / 400", "260 /s", "00:25", "593 MB"]


@pytest.mark.full
def test_a_report_of_one_step_without_finite_numbers_is_a_page_too(tmp_path: Path) -> None:
    point = Point(1, float("nan"), 0.0, float("inf"), 0.0)
    found = probed(
        page("x", {}, [point], {}, 1, None), "return { svgs: document.querySelectorAll('svg').length };", tmp_path
    )
    assert (found["errors"], found["console"], found["svgs"]) == ([], [], 5)


def test_a_history_goes_on_after_the_steps_that_are_done(tmp_path: Path) -> None:
    with History(tmp_path, 0) as history:
        for n in range(1, 6):
            history.add(Progress(n, 1.0 / n, 0.1, 0.2, 0.3, 2.0 if n == 3 else None), 7)
    path = tmp_path / "history.jsonl"
    path.write_text(path.read_text("utf-8") + '{"step": 6, "lo', "utf-8")
    with History(tmp_path, 3) as history:
        assert [p.step for p in history.points] == [1, 2, 3]
        history.add(Progress(4, 9.0, 0.1, 0.2, 0.3), 8)
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert [(row["step"], row["loss"], row["tokens"], row["validation"]) for row in rows[2:]] == [
        (3, 1 / 3, 7, 2.0),
        (4, 9.0, 8, None),
    ]
    for line in (
        "{",
        "[]",
        '{"step": 1, "more": 2}',
        '{"step": "1", "loss": 1, "lr": 1, "gradient_norm": 1, "seconds": 1}',
    ):
        path.write_text(line, "utf-8")
        with pytest.raises(FormatError, match=r"line 1: got .*; wanted "):
            History(tmp_path, 3)
    assert History(tmp_path, 0).points == []
    (tmp_path / "x").write_text("")
    with pytest.raises(StoreError, match=r"history\.jsonl: cannot be"):
        History(tmp_path / "x", 0)


def test_event_files_have_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Any] = []

    class Writer:
        def __init__(self, folder: str, purge_step: int | None) -> None:
            written.append((folder, purge_step))

        def add_scalar(self, tag: str, value: float, step: int) -> None:
            written.append((tag, value, step))

        def close(self) -> None:
            written.append("closed")

    monkeypatch.setitem(sys.modules, "tensorboardX", SimpleNamespace(SummaryWriter=Writer))
    with Events(tmp_path, 9) as events:
        events.add(POINTS[9])
    assert written[0] == (str(tmp_path), 10)
    assert written[-1] == "closed"
    assert {tag for tag, _, step in written[1:-1] if step == 10} == {*TAGS, "tokens per second"}
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(
        MissingExtraError, match=r"TensorBoard's event files needs the package 'tensorboardX'.*\[tensorboard\]"
    ):
        Records(tensorboard=tmp_path).check()
    with pytest.raises(StoreError, match="not writable"):
        Records(report=tmp_path).check()


def test_a_report_that_cannot_be_written_does_not_hide_the_run_s_own_error(tmp_path: Path) -> None:
    folder = tmp_path / "reports"

    def run() -> Recorder:
        folder.mkdir()
        made = Recorder(Records(folder / "r.html"), tmp_path / "run", 0, 100, "a run", {}, None, lambda: ())
        return made.__enter__()

    (tmp_path / "run").mkdir()
    for error, raised in ((ValueError("loss"), nullcontext()), (None, pytest.raises(StoreError, match=r"r\.html"))):
        recorder = run()
        recorder.add(Progress(1, 3.0, 1e-3, 0.5, 1.0), 64)
        folder.rmdir()
        with raised, pytest.warns(UserWarning, match="not up to date") if error else nullcontext():
            recorder.__exit__(type(error) if error else None, error, None)


@pytest.mark.full
def test_tensorboard_reads_what_the_library_writes(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    with Events(tmp_path, 0) as events:
        for point in POINTS[:3]:
            events.add(point)
    data, found, at = next(tmp_path.iterdir()).read_bytes(), [], 0
    while at < len(data):  # length u64, its checksum, the event, its checksum
        size = int.from_bytes(data[at : at + 8], "little")
        found.append(Event.FromString(data[at + 12 : at + 12 + size]))
        at += 16 + size
    values = [(v.tag, event.step, v.simple_value) for event in found for v in event.summary.value]
    assert [(step, value) for tag, step, value in values if tag == "loss/training"] == [(1, 3.0), (2, 1.5), (3, 1.0)]


def validated(folder: Path | None, patience: int | None = None) -> train.Trainer:
    """A run whose validation loss rises after some steps: its targets are those of the training, turned around."""
    watch = train.Validation([(X[:8], Y[:8]), (X[8:12], -Y[8:12])], every=2, patience=patience, weights=[1.0, 2.0])
    data = train.Batches((X, Y), 8, 3)
    options: dict[str, Any] = {"folder": folder, "save_every": 3 if folder else None, "validation": watch}
    return train.Trainer(loss, parameters(), train.AdamW(), data, lr=1e-2, **options)


@pytest.mark.usefixtures("by_references")
def test_a_run_keeps_its_best_parameters_and_stops_early_also_when_resumed(tmp_path: Path) -> None:
    whole, seen = validated(None, patience=2), list[Progress]()
    whole.run(40, seen.append)
    losses = {p.step: p.validation for p in seen if p.validation is not None}
    assert list(losses) == list(range(2, whole.step.number + 1, 2))
    lowest = min(losses, key=lambda step: losses[step] or 0.0)
    assert whole.best_validation == (lowest, losses[lowest])
    assert whole.has_stopped_early
    assert whole.step.number == lowest + 4 < 40
    assert whole.run(40) == []
    assert not same(whole.best, whole.parameters)

    def stop(progress: Progress) -> None:
        if progress.step == lowest + 1:
            raise KeyboardInterrupt

    first = validated(tmp_path, patience=2)
    with pytest.raises(KeyboardInterrupt):
        first.run(40, stop)
    second = validated(tmp_path, patience=2)
    assert second.resume() == lowest + 1
    second.run(40)
    assert (second.step.number, second.best_validation) == (whole.step.number, whole.best_validation)
    assert same(second.best, whole.best)
    assert same(second.parameters, whole.parameters)
    plain = train.Trainer(loss, parameters(), train.AdamW(), train.Batches((X, Y), 8, 3), lr=1e-2, folder=tmp_path)
    with pytest.raises(PlanError, match=r"got best/.*, which this step does not have"):
        plain.resume()


@pytest.mark.usefixtures("by_references")
def test_wrong_validations_are_refused() -> None:
    for make, message in (
        (lambda: train.Validation([], 1), "got 0 batches"),
        (lambda: train.Validation([(X, Y)], 0), "every=0; wanted 1 or more"),
        (lambda: train.Validation([(X, Y)], 1, patience=0), "patience=0"),
        (lambda: train.Validation([(X, Y)], 1, weights=[0.0]), "sum is above 0"),
    ):
        with pytest.raises(PlanError, match=message):
            make()
    with pytest.raises(PlanError, match="without a validation so far"):
        _ = train.Trainer(loss, parameters(), train.SGD(), train.Batches((X, Y), 8), lr=0.1).best
    bad = train.Validation([(X * float("nan"), Y)], 1)
    with pytest.raises(TrainingError, match="step 1: the validation loss is nan"):
        train.Trainer(loss, parameters(), train.SGD(), train.Batches((X, Y), 8), lr=0.1, validation=bad).run(2)


@pytest.mark.usefixtures("by_references")
def test_fine_tuning_writes_the_best_adapter_and_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("camshaft.train.record.recorder.memory_by_kind", lambda plans: MEMORY)
    base, data, held = tiny_model("llama", tmp_path), tmp_path / "data.jsonl", tmp_path / "held.jsonl"
    data.write_text("\n".join(json.dumps({"text": f"the {i} words" * (i + 1)}) for i in range(6)), "utf-8")
    held.write_text('{"text": "another text"}\n{"prompt": "a", "completion": " b"}\n{"text": "c"}', "utf-8")
    out, report = tmp_path / "a.gguf", tmp_path / "report.html"
    points: list[Point] = []
    options = train.FinetuneOptions(steps=6, batch=2, lr=0.0, validate_every=1, patience=1, pack=True, length=64)
    result = train.finetune(
        base, data, out, options=options, validation=held, records=Records(report), each=lambda p, n: points.append(p)
    )
    losses = [p.validation for p in points]
    assert result.best_validation == min(v for v in losses if v is not None)
    assert (result.stopped_early, result.n_steps) == (True, len(points))
    assert result.best_step == len(points) - 1
    assert all(0 < p.tokens <= 2 * 64 for p in points)
    shown = json.loads(re.findall(r'id="data">(.*?)</script>', report.read_text("utf-8"))[0])
    assert shown["columns"]["step"] == [p.step for p in points]
    assert (shown["steps"], shown["clip"], shown["memory"]) == (6, 1.0, MEMORY)
    with pytest.raises(CamshaftError, match="patience=1 without a validation file"):
        train.finetune(base, data, tmp_path / "b.gguf", options=options)


@pytest.mark.full
def test_memory_is_counted_by_kind() -> None:
    step = train.Step(loss, parameters(), train.AdamW(), average=0.9, micro_batches=2, backend="scalar", threads=1)
    with step:
        found = memory_by_kind(step.plans_of(X[:4], Y[:4]))
    size = sum(a.nbytes for a in flat(parameters()))
    assert (found["parameters"], found["optimizer"], found["averages"]) == (size, 2 * size, size)
    assert found["gradients of micro-batches"] == size
    assert found["activations and gradients"] > 0
    assert list(found)[-1] == "batch"
