"""How a server is laid out on a cluster, and what it refuses."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("starlette")

from typer.testing import CliRunner

from camshaft.cli.main import make_app
from camshaft.cluster.serving import Replicas, deployment_names, read_replicas, router_options
from camshaft.cluster.specs import cluster_specs, on_nodes
from camshaft.errors import SettingError
from camshaft.serve.models.config import ServerConfig
from camshaft.serve.models.entry import EMBEDDING
from camshaft.serve.models.spec import ModelSpec


def test_the_number_of_replicas() -> None:
    assert [read_replicas(text) for text in ("2", "0:3")] == [Replicas(2, 2), Replicas(0, 3)]
    for text in ("0", "", "3:2", "-1", "a", "1:", "0:0", "1:2:3"):
        with pytest.raises(SettingError, match="wanted a number from 1 up, or LEAST:MOST"):
            read_replicas(text)
    assert Replicas(2, 2).options(16) == {"num_replicas": 2}
    scaled = {"min_replicas": 0, "max_replicas": 3, "target_ongoing_requests": 16}
    assert Replicas(0, 3).options(16) == {"autoscaling_config": scaled}


def test_names_and_sizes_for_ray() -> None:
    specs = [ModelSpec("", name, options={"sessions": 5, "context": 33}) for name in ("a/b:c", "a b:c")]
    assert deployment_names(specs) == ["0-a-b-c", "1-a-b-c"]
    assert router_options(specs[0]) == {"most_blocks": 15, "slack": 2}
    limited = ModelSpec("", "a", options={"sessions": 5, "context": 33, "cache_tokens": 50})
    assert router_options(limited)["most_blocks"] == 4


def test_models_for_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("m.gguf", "a.gguf", "p.gguf"):
        (tmp_path / name).touch()
    spec = ModelSpec("m.gguf", "m", options={"adapters": (("a.gguf", 0.5),)})
    (found,) = cluster_specs(ServerConfig((spec,)))
    assert (found.model, found.options["adapters"]) == (str(tmp_path / "m.gguf"), ((str(tmp_path / "a.gguf"), 0.5),))
    assert cluster_specs(ServerConfig((ModelSpec("smollm2", "m"),)))[0].model == "smollm2"
    drafted = on_nodes(ModelSpec("m.gguf", "m", speculate="a.gguf"))
    assert drafted.draft_model == str(tmp_path / "a.gguf")
    assert on_nodes(ModelSpec("m.gguf", "m", speculate="ngram")).speculate == "ngram"
    of_batch = on_nodes(ModelSpec("m.gguf", "m", options={"mmproj": "p.gguf"}))
    assert of_batch.options["mmproj"] == str(tmp_path / "p.gguf")
    refused = {
        "none for embedding": ServerConfig((ModelSpec("m", "m", kind=EMBEDDING),)),
        "idle_unload_seconds of 'm'": ServerConfig((ModelSpec("m", "m", idle_s=1.0),)),
        "mmproj of 'm' with --ray: a cluster's server takes no images": ServerConfig(
            (ModelSpec("m", "m", options={"mmproj": "p.gguf"}),)
        ),
        "memory_limit with --ray": ServerConfig((ModelSpec("m", "m"),), 1),
    }
    for message, config in refused.items():
        with pytest.raises(SettingError, match=message):
            cluster_specs(config)


def test_wrong_options_and_a_missing_extra_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").touch()
    batch = ["batch", "m.gguf", str(tmp_path / "in"), str(tmp_path / "out"), "--ray", "auto"]
    serve = ["serve", "m.gguf", "--ray", "auto"]
    monkeypatch.setitem(sys.modules, "ray", None)
    for arguments, message in {
        tuple(batch): "camshaft batch --ray needs the package 'ray': pip install 'camshaft[cluster]'",
        tuple(serve): "camshaft serve --ray needs the package 'ray': pip install 'camshaft[cluster]'",
        (*serve, "--port", "0"): "port 0 with --ray; wanted the number of a port",
        ("serve", "--replicas", "2"): "--replicas is for --ray; wanted both",
        (*serve, "--log", "-"): "--log - with --ray; wanted a file, which is written on the head node of the cluster",
        (*serve, "--slot-save-path", "."): "--slot-save-path is for a server of one process; --ray was given too",
        (*serve, "--replicas", "x"): "--replicas 'x'; wanted a number from 1 up, or LEAST:MOST such as 1:4",
    }.items():
        ran = CliRunner().invoke(make_app([arguments[0]]), list(arguments))
        assert (ran.exit_code, ran.stderr) == (2, f"camshaft: {message}\n")
