"""The command as a process: startup, signals, pipes."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import camshaft
from camshaft.cli.main import COMMANDS
from tests.support.quick import full

HEAVY = ("rich", "numpy", "llvmlite", "tokenizers", "jinja2", "huggingface_hub")


def test_the_command_line_starts_without_the_heavy_packages() -> None:
    code = f"import sys, camshaft.cli.main as m; m.make_app(); print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.full
def test_a_model_of_texts_imports_no_encoder_of_images() -> None:
    code = "import sys, camshaft.generate.language_model; print(*(m for m in sys.modules if 'vision' in m))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = {name.rpartition(".")[2] for name in done.stdout.split()}
    assert found == {"vision", "tokens", "runs", "prompts", "images"}


def test_a_named_command_reads_no_other() -> None:
    code = """
import sys
from camshaft.cli.main import COMMANDS, main
sys.argv = ["camshaft", "models"]
try:
    main()
finally:
    print([name for name in {*COMMANDS.values()} if f"camshaft.cli.commands.{name}" in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "['model_files.models']"


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_a_command_has_no_threads_of_blas_and_leaves_the_environment_as_it_is() -> None:
    code = """
import os
from camshaft.cli.sampling_options import SamplingOptions
before = dict(os.environ)
SamplingOptions(greedy=True).generate()
print(len(os.listdir("/proc/self/task")), dict(os.environ) == before)
"""
    free = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=free)
    assert done.stdout == "1 True\n"


@pytest.mark.parametrize("start", ["camshaft", "camshaft.cli"])
def test_the_version_is_told_without_typer_or_any_heavy_package(start: str) -> None:
    code = f"""
import runpy, sys
sys.argv = ["camshaft", "--version"]
runpy.run_module({start!r}, run_name="__main__")
print([name for name in ("typer", *{HEAVY!r}) if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"camshaft {camshaft.__version__}", "[]"]


def test_the_version_is_an_option_that_goes_before_a_command(cli) -> None:
    result = cli("--version", "doctor")
    assert (result.exit_code, result.stdout) == (0, f"camshaft {camshaft.__version__}\n")
    assert "--version" in cli("--help").stdout


def test_the_script_starts_where_the_modules_do() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["scripts"] == {"camshaft": "camshaft.cli.__main__:main"}


@pytest.mark.parametrize("arguments", [(), ("cache", "clear"), *(full(tuple(name.split())) for name in COMMANDS)])
def test_a_short_h_is_help(cli, arguments: tuple[str, ...]) -> None:
    short, long = cli(*arguments, "-h"), cli(*arguments, "--help")
    assert (short.exit_code, short.stdout) == (0, long.stdout)
    assert "-h, --help" in short.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_plain_help(cli, command: str) -> None:
    result = cli(*command.split(), "--help")
    assert result.exit_code == 0
    assert f"Usage: camshaft {command}" in result.stdout or f" {command} [OPTIONS]" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ("models --nosuch", "no such option: --nosuch; see 'camshaft models --help'"),
        ("nosuch", "no such command 'nosuch'; see 'camshaft --help'"),
        ("cache clearr", "no such command 'clearr' (did you mean 'clear'?); see 'camshaft cache --help'"),
        ("models --jsn", "no such option: --jsn (did you mean --json?); see 'camshaft models --help'"),
        ("generate --threads 0", "0; wanted 1 or more; see 'camshaft generate --help'"),
        ("serve --port 99999", "99999; wanted 0 to 65535; see 'camshaft serve --help'"),
        ("bench serve http://a:1", "http://a:1 is an address; wanted a model, or --url http://a:1"),
        ("generate", "by -p TEXT or by --file FILE; see 'camshaft generate --help'"),
        ("generate -p x -n -2", "'--max-tokens'"),
        ("generate -p x --threads x", "'--threads'"),
        ("generate -p x --top-p 2", "--top-p=2.0: wanted a number above 0 and up to 1"),
        ("generate one two three", "(three); see 'camshaft generate --help'"),
    ],
)
def test_a_usage_error_is_one_line(cli, arguments: str, wanted: str) -> None:
    result = cli(*arguments.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("camshaft: ")
    assert wanted in result.stderr


def test_without_a_command_there_is_help(cli) -> None:
    result = cli()
    assert result.exit_code == 2
    assert "Usage: camshaft" in result.output
    assert "doctor" in result.output


def test_a_closed_pipe_ends_the_command_without_a_word() -> None:
    code = """
import camshaft.cli.main as m
from camshaft.cli.command import command
@m.app.command()
@command
def loud() -> None:
    for _ in range(100_000):
        print("camshaft")
m.main()
"""
    child = subprocess.Popen([sys.executable, "-c", code, "loud"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.read(10)
    child.stdout.close()
    assert child.stderr.read() == b""
    child.stderr.close()
    assert child.wait(20) == 1


@pytest.mark.skipif(os.name == "nt", reason="descriptors of POSIX")
@pytest.mark.parametrize("closed", [full(0), 1, full(2)])
def test_a_closed_standard_stream_is_the_null_device(closed: int, tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "camshaft.cli", "models"],
        env=os.environ | {"CAMSHAFT_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
        preexec_fn=lambda: os.close(closed),
        stdout=None if closed == 1 else subprocess.PIPE,
        stderr=None if closed == 2 else subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0
    assert not done.stdout
    assert closed == 2 or "Traceback" not in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_a_terminated_command_cleans_up(tmp_path) -> None:
    code = """
import tempfile, time
import camshaft.cli.main as m
@m.app.command()
def slow() -> None:
    with tempfile.TemporaryDirectory(dir=".", prefix="work"):
        print("ready", flush=True)
        time.sleep(30)
m.main()
"""
    child = subprocess.Popen([sys.executable, "-c", code, "slow"], cwd=tmp_path, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    child.terminate()
    child.stdout.close()
    assert child.wait(20) == 128 + 15
    assert list(tmp_path.iterdir()) == []
