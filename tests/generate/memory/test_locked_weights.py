"""Weights that are kept in memory: by what the system says of this process, and where it cannot be."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from camshaft import LanguageModel
from camshaft.errors import PlanError, SettingError
from camshaft.plan.memory.allocate import keep_in_memory
from tests.support.fixtures import tiny_model

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")


def locked_nbytes() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmLck:")[1].split()[0])


@pytest.mark.parametrize("threads", [1, 2])
def test_all_weights_are_locked_while_the_model_is_open(threads: int, tmp_path: Path) -> None:
    path, before = tiny_model("llama", tmp_path), locked_nbytes()
    with LanguageModel(path, context=64, threads=threads) as lm:
        assert locked_nbytes() == before
        wanted = lm.logits([1, 2, 3])
    with LanguageModel(path, context=64, threads=threads, mlock=True) as lm:
        assert locked_nbytes() - before >= lm.plans.weights.nbytes
        assert np.array_equal(lm.logits([1, 2, 3]), wanted)


def test_what_cannot_be_locked_is_an_error() -> None:
    with pytest.raises(
        PlanError, match=r"1125899906842624 bytes of weights cannot be kept in memory: .*; see ulimit -l"
    ):
        keep_in_memory(np.lib.stride_tricks.as_strided(np.zeros(8, np.uint8), (1 << 50,), (1,)))


@pytest.mark.parametrize("value", [1, "yes", None])
def test_another_value_is_refused(value: object, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"mlock .*; wanted True or False"):
        LanguageModel(tiny_model("llama", tmp_path), context=64, threads=1, mlock=value)  # type: ignore[arg-type]


def test_experts_in_files_are_not_locked(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="the experts of this model are in files"):
        LanguageModel(tiny_model("qwen3moe", tmp_path), context=64, threads=1, experts_resident=0.01, mlock=True)
