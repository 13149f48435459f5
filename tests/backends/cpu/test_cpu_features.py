"""What kernels may use of the CPU: levels that cut it down, and the system's leave for AMX."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from camshaft.backends.cpu.features import names, permitted, usable
from camshaft.emit.target import LEVELS
from camshaft.errors import SettingError
from camshaft.setting_values import CPU_LEVELS
from tests.support.needs import require_level

AMX = LEVELS["amx"]
# as LLVM's host features are: what is there and what is not
HOST = ",".join(f"+{name}" for name in sorted(AMX.features | {"sse4.2", "avx512vbmi", "vaes", "popcnt"})) + ",-avxvnni"
# What a kernel asks on the second machine of a session: lanes, features, and vectors of 512 bits where they are asked for.
ASKED = """
from camshaft.backends.cpu import compile, device
text = compile.assembly('define <16 x float> @f(<16 x float> %a) { %r = fadd <16 x float> %a, %a  ret <16 x float> %r }')
made = device.cpu_device()
print(made.lanes, sum(name.startswith("avx512") for name in made.features), "zmm" in text, device._machine_key()[:9999])
"""


def test_settings_name_the_levels_that_there_are() -> None:
    assert tuple(LEVELS) == CPU_LEVELS
    page = (Path(__file__).parents[3] / "docs" / "backends.md").read_text("utf-8")
    assert not [name for name in LEVELS if f"| `{name}` |" not in page]


@pytest.mark.parametrize("name", [name for name, level in LEVELS.items() if level.architecture == "x86_64"])
def test_a_level_takes_away_what_lies_above_it(name) -> None:
    if name == "avx-vnni":
        with pytest.raises(SettingError, match=r"avx-vnni: this CPU lacks avxvnni; wanted one of sse4, avx2, avx512"):
            usable(HOST, name, lambda: True)
        return
    kept = names(usable(HOST, name, lambda: True))
    assert kept - {"sse4.2", "popcnt"} == LEVELS[name].features
    said = usable(HOST, name, lambda: True).split(",")
    assert not AMX.features - LEVELS[name].features - {part[1:] for part in said if part.startswith("-")}


def test_what_the_name_of_a_cpu_brings_is_turned_off() -> None:
    assert "-i8mm" in usable("+neon,+dotprod", "neon-dotprod").split(",")


def test_tiles_that_the_system_refuses_are_not_there() -> None:
    assert names(usable(HOST, None, lambda: False)) == names(HOST) - {"amx-tile", "amx-int8", "amx-bf16"}
    assert names(usable(HOST, None, lambda: True)) == names(HOST)
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists() and "amx_tile" not in cpuinfo.read_text("utf-8"):
        assert not permitted()


def asked(level: str) -> list[str]:
    environment = {**os.environ, "CAMSHAFT_CPU_FEATURES": level}
    done = subprocess.run([sys.executable, "-c", ASKED], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split(maxsplit=3)


def test_the_setting_holds_for_code_lanes_and_keys() -> None:
    require_level("avx512")
    cut, whole = asked("avx2"), asked("")
    assert cut[:3] == ["8", "0", "False"]
    assert [whole[0], whole[2]] == ["16", "True"]
    assert int(whole[1]) >= 5
    assert cut[3] != whole[3]
