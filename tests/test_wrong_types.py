"""Wrong types at the public surface: each is one CamshaftError that names what came."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import camshaft as cs
from camshaft.errors import CamshaftError, ModelError, PlanError
from camshaft.formats.gguf.file import open_gguf
from camshaft.generate.language_model import LanguageModel
from camshaft.models.files.pull import pull
from camshaft.ops.op import KernelVariant
from tests.support.fixtures import tiny_model

X = np.ones(3, np.float32)
SQUARE = np.ones((2, 2), np.float32)
MASKED = np.ma.masked_array([1.0, 2.0], [False, True])


def graph() -> cs.Graph:
    made = cs.Graph()
    made.output("y", cs.exp(made.input("x", (3,), "f32")))
    return made


def without_output() -> cs.Graph:
    made = cs.Graph()
    cs.exp(made.input("x", (3,), "f32"))
    return made


def on_graph(call: Callable[[cs.Graph, cs.Tensor], object]) -> Callable[[object], object]:
    def run(_: object) -> object:
        made = cs.Graph()
        return call(made, made.input("x", (3,), "f32"))

    return run


def variant(build: object) -> KernelVariant:
    return KernelVariant("wrong", frozenset({"simd"}), build)  # type: ignore[arg-type]


# What is called with the wrong value, the value, words of the message.
Row = tuple[Callable[[Any], object], object, str]
COMPILE: list[Row] = [
    (cs.compile, 3, "compile: got 3; wanted a camshaft.Graph"),
    (cs.compile, None, "got None; wanted a camshaft.Graph"),
    (cs.compile, cs.Graph(), "computes nothing; wanted an output"),
    (cs.compile, without_output(), "1 node) computes nothing; wanted an output"),
    (lambda v: cs.compile(graph(), threads=v), True, "threads=True: wanted 1 to 1024"),
    (lambda v: cs.compile(graph(), threads=v), "a", "threads='a'"),
    (lambda v: cs.compile(graph(), backend=v), 3, "no backend or device 3"),
    (lambda v: cs.compile(graph(), activations=v), 3, "activations 3"),
    (lambda v: cs.compile(graph(), weights=v), 3, "weights=3; wanted Weights or None"),
    (lambda v: cs.compile(graph(), memory=v), 3, "memory=3; wanted a dict"),
    (lambda v: cs.compile(graph(), strict=v), 3, "strict=3; wanted True or False"),
    (lambda v: cs.compile(graph(), tune=v), "a", "tune='a'; wanted True or False"),
    (lambda v: cs.compile(graph(), sync=v), 3, "sync 3"),
    (cs.jit, 3, "jit: got 3; wanted a function"),
    (lambda v: cs.jit(lambda a: a + 1)(v), MASKED, "masked array"),
    (lambda v: cs.register_variant("add", v), 3, "got 3; wanted a KernelVariant"),
    (lambda v: cs.register_variant(v, variant(graph)), 3, "no op 3"),
    (lambda v: cs.register_variant("add", variant(v)), 3, "the build 3; wanted a function"),
    (lambda v: cs.register_variant("add", variant(graph), v), 3, "the module 3; wanted its name"),
    (cs.select_kernels, 3, "got 3; wanted what validate_backends returns"),
    (cs.validate_backends, 3, "got 3; wanted a list of backends' names"),
    (cs.validate_backends, "simd", "got 'simd'; wanted a list"),
    (cs.table, 3, "no backend or device 3"),
    (cs.device, None, "no backend or device None"),
    (cs.set_backend_override, 3, "no backend or device 3"),
]
GRAPH: list[Row] = [
    (lambda v: cs.Graph().input(v, (3,), "f32"), 3, "input: got the name 3"),
    (lambda v: cs.Graph().input(v, (3,), "f32"), "", "input: got the name ''"),
    (lambda v: cs.Graph().input("x", v, "f32"), "ab", "input 'x': got the shape 'ab'"),
    (lambda v: cs.Graph().input("x", v, "f32"), None, "got the shape None"),
    (lambda v: cs.Graph().input("x", v, "f32"), (1.5,), "got the shape (1.5,)"),
    (lambda v: cs.Graph().input("x", v, "f32"), (True,), "got the shape (True,)"),
    (lambda v: cs.Graph().input("x", (3,), v), None, "no dtype None"),
    (lambda v: cs.Graph().input("x", (3,), v), "f99", "no dtype 'f99'"),
    (lambda v: cs.Graph().input("x", (3,), "f32", v), 3, "got the device 3"),
    (lambda v: cs.Graph().on(v).__enter__(), 3, "got the device 3"),
    (lambda v: cs.Graph().scope(v).__enter__(), 3, "scope: got the name 3"),
    (lambda v: cs.Graph().place(v, "cpu"), "a", "no node of this graph made 'a'"),
    (lambda v: cs.Graph().constant("c", v), [1.0], "constant 'c' got [1.0]; wanted an ndarray"),
    (lambda v: cs.Graph().constant(v, X), 3, "constant: got the name 3"),
    (lambda v: cs.Graph().state("s", v), 3, "state 's': got 3"),
    (lambda v: cs.Graph().reshape(v, (3,)), "a", "reshape: got 'a'; wanted tensors"),
    (lambda v: cs.Graph().rows(v, 0, 1), "a", "rows: got 'a'; wanted tensors"),
    (lambda v: cs.Graph().output("y", v), 3, "output 'y': got 3"),
    (on_graph(lambda g, x: g.output(3, x)), None, "output: got the name 3"),  # type: ignore[arg-type]
    (on_graph(lambda g, x: g.node(3, x)), None, "no op 3"),  # type: ignore[arg-type]
    (on_graph(lambda g, x: g.node("sofmax", x)), None, "did you mean softmax"),
    (on_graph(lambda g, x: g.node("exp", None)), None, "exp: got None; wanted tensors, arrays and numbers"),
    (on_graph(lambda g, x: cs.exp(x, eps=1)), None, "exp() got an unexpected keyword argument 'eps'"),
    (on_graph(lambda g, x: cs.rms_norm(x, X, eps="a")), None, "rms_norm: got eps='a'; wanted a number"),
    (on_graph(lambda g, x: cs.sum(x, axis="a")), None, "sum: got axes a"),
    (on_graph(lambda g, x: g.custom(3.5, [x], [])), None, "custom: got 3.5"),
    (on_graph(lambda g, x: g.custom(print, 3, [])), None, "got inputs=3; wanted a list"),  # type: ignore[arg-type]
    (on_graph(lambda g, x: g.custom(print, ["a"], [])), None, "got 'a'; wanted tensors"),  # type: ignore[list-item]
]
ARRAYS: list[Row] = [
    (cs.exp, None, "exp: got None; wanted tensors, arrays and numbers"),
    (cs.softmax, {}, "softmax: got a dict, {}"),
    (lambda v: cs.add(X, v), object(), "add: got a object"),
    (lambda v: cs.matmul(SQUARE, v), None, "matmul: got None"),
    (cs.exp, np.array([None]), "dtype('O')"),
    (cs.exp, "a", "'exp' not supported for the input types"),
    (cs.softmax, b"a", "dtype('S1')"),
    (cs.exp, [1, [2]], "exp: [1, [2]] is not an array"),
    (cs.exp, MASKED, "exp: a masked array would lose its mask"),
    (cs.exp, 1j, "exp: got 1j; wanted tensors of f32"),
    (lambda v: cs.exp(X, out=v), "a", "must be of ArrayType"),
    (lambda v: cs.cast(X, to=v), 3, "no dtype 3"),
    (lambda v: cs.sum(X, axis=v), "a", "sum: got axis='a': 'str' object cannot be interpreted as an integer"),
    (lambda v: cs.concat([X, X], axis=v), [0], "concat: got axis=[0]: 'list' object cannot be interpreted"),
    (lambda v: cs.arange(size=v), 3, "arange: got nothing; wanted start and step"),
    (cs.stft, X, "stft: got f32[3]; wanted x and window"),
    (cs.add, X, "add() takes from 2 to 3 positional arguments but 1 was given"),
    (lambda v: cs.matmul(SQUARE, SQUARE, transpose_b=v), "a", "got transpose_b='a'; wanted True or False"),
    (lambda v: cs.table().choice(v, X), "nope", "no op 'nope'"),
    (lambda v: cs.table().choice(v, X), 3, "no op 3"),
]
FILES: list[Row] = [
    (pull, 3, "pull: got 3; wanted the name of a model"),
    (LanguageModel, None, "got the model None"),
    (LanguageModel, 3, "got the model 3"),
    (open_gguf, None, "got the path None"),
    (open_gguf, 3, "got the path 3"),
]


@pytest.mark.parametrize(("call", "value", "words"), [*COMPILE, *GRAPH, *ARRAYS, *FILES])
def test_a_wrong_type_is_named(call: Callable[[Any], object], value: object, words: str) -> None:
    with pytest.raises(CamshaftError) as caught:
        call(value)
    assert words in str(caught.value)


def result_after_a_text(plan: cs.ExecutionPlan) -> object:
    submitted = plan.submit(x=X)
    submitted.wait(30)
    return submitted.result("a")  # type: ignore[arg-type]


RUN: list[tuple[Callable[[cs.ExecutionPlan], object], str]] = [
    (lambda p: p.run(x=None), "input 'x': got None"),
    (lambda p: p.run(x="a"), "input 'x' came as <U1 []"),
    (lambda p: p.run(x=[1, [2]]), "input 'x': [1, [2]] is not an array"),
    (lambda p: p.run(x=MASKED), "input 'x': a masked array"),
    (lambda p: p.run(3), "got 3; wanted inputs by name"),  # type: ignore[arg-type]
    (lambda p: p.submit(x=object()), "input 'x'"),
    (result_after_a_text, "the timeout is 'a'"),
    (lambda p: p.set_extent("a", 3), "got the extent 'a'; wanted an Extent"),  # type: ignore[arg-type]
    (lambda p: p.profile(x=X, runs="a"), "'a' runs"),  # type: ignore[arg-type]
    (lambda p: p.profile(x=X, warmup="a"), "'a' warm-up"),  # type: ignore[arg-type]
]


def test_a_plan_names_wrong_types_and_is_closed_for_good() -> None:
    with cs.compile(graph(), backend="scalar", threads=1) as plan:
        for call, words in RUN:
            with pytest.raises(CamshaftError) as caught:
                call(plan)
            assert words in str(caught.value)
    for closed in (plan.__enter__, lambda: plan.run(x=X), lambda: plan.submit(x=X), lambda: plan.profile(x=X)):
        with pytest.raises(PlanError, match="the plan is closed"):
            closed()


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanguageModel]:
    path: Path = tiny_model("llama", tmp_path_factory.mktemp("models"))
    with LanguageModel(path, context=64, sessions=1, threads=1, backend="simd") as model:
        yield model


def _processed(lm: LanguageModel, ids: Any) -> Any:
    with lm.session() as session:
        return session.process(ids)


MODEL: list[tuple[Callable[[Any], object], str]] = [
    (lambda lm: lm.generate("a", stop=5), "stop=5: wanted a text or a list of texts"),
    (
        lambda lm: lm.generate("a", stop=["b", ""]),
        "stop=['b', '']: wanted a text or a list of texts, none of them empty",
    ),
    (lambda lm: lm.generate("a", stop=[None]), "stop=[None]: wanted"),
    (lambda lm: lm.generate("a", max_tokens="a"), "max_tokens='a'"),
    (lambda lm: lm.generate("a", sampling=3), "sampling=3"),
    (lambda lm: lm.generate("a", 3), "options came as int"),
    (lambda lm: lm.generate(5), "prompt came as int"),
    (lambda lm: lm.generate(b"ab"), "prompt came as bytes"),
    (lambda lm: lm.generate(bytearray(b"ab")), "came as bytearray"),
    (lambda lm: lm.generate(["a"]), "token id 'a'"),
    (lambda lm: lm.generate_batch(5), "prompts came as int; wanted a list"),
    (lambda lm: lm.generate_batch(b"ab"), "prompts came as bytes"),
    (lambda lm: lm.generate_batch([5]), "prompt came as int"),
    (lambda lm: lm.logits(b"ab"), "token ids came as bytes"),
    (lambda lm: lm.logits("ab"), "token ids came as str"),
    (lambda lm: lm.logits(None), "token ids came as NoneType"),
    (lambda lm: lm.logits(np.ma.masked_array([1, 2], [False, True])), "token id masked"),
    (lambda lm: lm.logits([1], chunk="a"), "chunk 'a'"),
    (lambda lm: _processed(lm, [1, 10**6]), "token id 1000000"),
    (lambda lm: _processed(lm, [-1]), "token id -1"),
    (lambda lm: _processed(lm, "ab"), "token ids came as str"),
    (lambda lm: lm.tokenize(None), "the text came as NoneType"),
    (lambda lm: lm.tokenize(5), "the text came as int"),
    (lambda lm: lm.detokenize(None), "token ids came as NoneType"),
    (lambda lm: lm.detokenize(b"ab"), "token ids came as bytes"),
    (lambda lm: lm.detokenize(["a"]), "token id 'a'"),
    (lambda lm: LanguageModel(lm.name, context="a"), "context 'a'"),
    (lambda lm: LanguageModel(lm.name, threads="a"), "threads='a'"),
    (lambda lm: LanguageModel(lm.name, activations=[]), "activations []"),
    (lambda lm: LanguageModel(lm.name, kv_cache=[]), "kv_cache []"),
]


def test_a_model_names_wrong_types_and_is_closed_for_good(lm: LanguageModel) -> None:
    for call, words in MODEL:
        with pytest.raises(CamshaftError) as caught:
            call(lm)
        assert words in str(caught.value)
    assert repr(lm).endswith("backend simd, 1 thread, context 64)")
    lm.close()
    for closed in (lm.__enter__, lambda: lm.generate([1]), lambda: lm.logits([1]), lm.session, lm.conversation):
        with pytest.raises(ModelError, match="is closed"):
            closed()
    assert repr(lm).endswith(", closed)")
