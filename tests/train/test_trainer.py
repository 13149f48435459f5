"""The loop: a resumed run has the bits of one that never stopped, checkpoints are whole, and errors name what came."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft import train
from camshaft.errors import CamshaftError, StoreError, TrainingError
from tests.train.by_references import by_references  # noqa: F401 - a fixture
from tests.train.small import examples, loss, parameters, same

X, Y = examples()
pytestmark = pytest.mark.usefixtures("by_references")


def trainer(folder: Path | None = None, seed: int = 3, start: int = 0, **options: Any) -> train.Trainer:
    data = train.Batches((X, Y), 8, seed)
    rate = train.cosine(1e-2, 7, warmup=2)
    given = {"clip": 0.5, "average": 0.5, "backend": "scalar", **options}
    return train.Trainer(loss, parameters(start), train.AdamW(), data, lr=rate, folder=folder, **given)


def test_a_resumed_run_is_equal_to_the_bit_to_one_that_never_stopped(tmp_path: Path) -> None:
    whole = trainer()
    seen: list[train.Progress] = []
    losses = whole.run(7, seen.append)
    assert [p.step for p in seen] == list(range(1, 8))
    assert [p.loss for p in seen] == losses

    def interrupt(progress: train.Progress) -> None:
        if progress.step == 5:
            raise KeyboardInterrupt

    first = trainer(tmp_path, save_every=2)
    with pytest.raises(KeyboardInterrupt):
        first.run(7, interrupt)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000004.safetensors", "step-00000005.safetensors"]
    second = trainer(tmp_path, start=9)
    assert second.resume() == 5
    assert second.run(7) == losses[5:]
    assert same(second.parameters, whole.parameters)
    assert same(second.averages, whole.averages)
    assert second.run(7) == []

    with pytest.raises(
        TrainingError, match=r"was trained on 'Batches: 8 of 40 examples, seed 3, .*wanted 'Batches.*seed 4"
    ):
        trainer(tmp_path, seed=4).resume()
    with pytest.raises(CamshaftError, match=r"step-00000007.safetensors: states: got .*average/layers.*does not have"):
        trainer(tmp_path, average=None).resume()
    (tmp_path / "step-00000008.safetensors").write_bytes(b"half of one")
    with pytest.raises(CamshaftError, match=r"step-00000008\.safetensors: is not a readable safetensors file"):
        trainer(tmp_path).resume()


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    bad = X.copy()
    bad[-1] = np.inf
    whole = train.Batches((X, Y), 8, 3)
    stopped = train.Trainer(
        loss, parameters(), train.AdamW(), lambda n: whole(n) if n < 2 else (bad[-8:], Y[-8:]),
        lr=1e-2, clip=0.5, average=0.5, backend="scalar", folder=tmp_path, save_every=1,
    )  # fmt: skip
    with pytest.raises(
        TrainingError, match=r"step 3: .*batch\[0\].*The last checkpoint is .*step-00000002.safetensors"
    ):
        stopped.run(7)
    assert stopped.step.number == 2
    again = trainer(tmp_path)
    with pytest.raises(TrainingError, match="was trained on 'a function'"):
        again.resume()


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trainer(tmp_path)
    made.save()
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def full(*given: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("io.FileIO", type("Full", (io.FileIO,), {"write": full}))
    with pytest.raises(StoreError, match=r"step-00000000\.safetensors: cannot be written: no space left on device"):
        made.save()
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    with pytest.raises(StoreError, match="the folder cannot be made"):
        trainer(tmp_path / next(iter(before)) / "below").save()


def test_batches_and_windows_follow_from_the_seed() -> None:
    data = train.Batches((np.arange(10), np.arange(10) * 2), 3, seed=5)
    epoch = np.concatenate([data(n)[0] for n in range(3)])
    assert len(set(epoch.tolist())) == 9
    assert not np.array_equal(epoch, np.concatenate([data(n)[0] for n in range(3, 6)]))
    np.testing.assert_array_equal(data(1)[0], epoch[3:6])
    np.testing.assert_array_equal(data(4)[1], 2 * data(4)[0])
    x, y = train.Windows(np.arange(9), 8, 50)(0)
    assert set(x[:, 0].tolist()) == {0}
    np.testing.assert_array_equal(y, x + 1)
    assert (x.dtype, x.shape) == (np.int32, (50, 8))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: train.Batches((X, Y[:3]), 2), r"got arrays \[40, 70\], \[3, 70\]; wanted one or more with as many"),
        (lambda: train.Batches((X, Y), 41), "Batches: got 41; wanted 1 to the 40 examples"),
        (lambda: train.Windows(np.arange(4), 4, 1), "Windows: got 4; wanted 1 to the 3 tokens"),
        (lambda: train.Windows(X, 4, 1), r"got float32 \[40, 70\]; wanted the tokens of a text"),
        (lambda: train.Batches((X,), 2, -1), "got the seed -1"),
        (lambda: trainer(save_every=2), "got save_every=2 without a folder"),
        (lambda: trainer().save(), "a Trainer without a folder"),
        (lambda: trainer().run(-1), "wanted a number of steps"),
        (lambda: train.Trainer(loss, parameters(), train.SGD(), [X], lr=0.1), "wanted a function of the step"),  # type: ignore[arg-type]
        (lambda: train.Trainer(loss, parameters(), train.SGD(), train.Batches((X,), 2), lr="x"), "got lr='x'"),  # type: ignore[arg-type]
    ],
)
def test_what_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(CamshaftError, match=message):
        make()
