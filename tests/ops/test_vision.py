"""Vision ops: their references against torch, what they do beyond samples, and how a convolution is computed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import camshaft as cs
from camshaft import ops
from camshaft.backends.cpu.device import cpu_device
from camshaft.dtypes import as_dtype
from camshaft.graph.passes.decompose import expand_composites, parts_of
from camshaft.ops.op import NodeSpec, read
from camshaft.ops.spec import TensorSpec
from camshaft.ops.vision.conv import by_outputs
from camshaft.ops.vision.windows import conv_of
from camshaft.validation.run import run_variant
from tests.support.samples import samples


def spec(*shape: int) -> TensorSpec:
    return TensorSpec(shape, as_dtype("f32"))


def node(x: tuple[int, ...], w: tuple[int, ...], **attrs: Any) -> NodeSpec:
    specs = spec(*x), spec(*w)
    return NodeSpec(specs, ops.get("conv2d").infer(specs, attrs), attrs)


def test_a_convolution_of_single_elements_reads_the_image_in_place() -> None:
    (blocked,) = (v for v in ops.get("conv2d").variants if v.name == "blocked")
    build: Any = blocked.build(node((1, 64, 14, 14), (32, 64, 1, 1)), cpu_device("simd"))
    assert not build.scratch
    assert [replace(launch.arrays[1], shape=None) for launch in build.launches] == [read(0)]


def test_windows_are_never_in_memory() -> None:
    for variant in ops.get("conv2d").variants[:2]:
        build: Any = variant.build(node((2, 16, 14, 14), (32, 16, 3, 3), padding=1), cpu_device("simd"))
        assert [s.bounds for s in build.scratch] == [(2 * 16 * 16 * 16,)]  # the padded image alone
        build = variant.build(node((2, 16, 14, 14), (32, 16, 3, 3)), cpu_device("simd"))
        assert not build.scratch


def test_padding_is_multiplied_by_infinite_weights() -> None:
    x, w = np.ones((1, 2, 4, 35), np.float32), np.ones((3, 2, 3, 3), np.float32)
    w[1, 0, 0, 0] = np.inf
    op, given = ops.get("conv2d"), node(x.shape, w.shape, padding=1)
    device = cpu_device("simd")
    (want,) = op.reference((x, w), given.attrs)
    for variant in op.variants:
        if variant.supports(given, device) is None:
            (found,) = run_variant(variant, given, device, (x, w))
            np.testing.assert_array_equal(found, want, err_msg=variant.name)


def test_windows_of_three_rows_are_computed_by_half_the_products_or_three_quarters() -> None:
    (winograd,) = (v for v in ops.get("conv2d").variants if v.name == "winograd")
    simd = cpu_device("simd")
    build: Any = winograd.build(node((1, 64, 56, 56), (64, 64, 3, 3), padding=1), simd)
    weights, image = build.scratch
    assert weights.bounds == (6 * 64, 64 * 3)
    assert image.bounds[0] == 6 * 64
    build = winograd.build(node((1, 128, 56, 56), (128, 128, 3, 3), stride=2, padding=1), simd)
    weights, image = build.scratch
    assert weights.bounds == (6 * 128, 128 * 3)
    assert image.bounds[0] == 9 * 128 * 2  # of even and of odd columns
    assert winograd.supports(node((1, 4, 9, 9), (4, 4, 3, 5), stride=1, dilation=(1, 2)), simd) is None


@pytest.mark.parametrize(("channels", "size", "blocks"), [(512, 14, 1), (256, 28, 6)])
def test_weights_of_more_bytes_than_the_image_are_read_once(channels: int, size: int, blocks: int) -> None:
    given = node((1, channels, size, size), (channels, channels, 3, 3), stride=2, padding=1)
    target = replace(cpu_device("simd"), lanes=16)
    assert by_outputs.shape_of(conv_of(given.inputs, given.attrs), target).blocks == blocks


def test_a_transposed_convolution_is_one_convolution() -> None:
    assert parts_of(ops.get("conv_transpose2d")).count("conv2d") == 1
    graph = cs.Graph()
    x, w = graph.input("x", (1, 4, 5, 6), "f32"), graph.input("w", (4, 3, 4, 4), "f32")
    graph.output("y", cs.conv_transpose2d(x, w, stride=2, padding=1))
    (conv,) = (n for n in expand_composites(graph).nodes if n.op.name == "conv2d")
    assert conv.inputs[1].shape == (3 * 4, 4, 2, 2)  # 2 x 2 results between two elements, by a quarter of w each


def test_a_resized_infinity_stays_where_it_is() -> None:
    x = np.zeros((1, 40), np.float32)
    x[0, 3] = np.inf
    y = cs.resize_bilinear(x, size=(1, 80), antialias=False)
    assert np.isfinite(y[0, 12:]).all()


def test_one_use_of_an_index_out_of_bounds_reads_nothing_outside() -> None:
    x = np.arange(5, dtype=np.float32)
    y = cs.resample(x, np.array([-(2**31), 2**31 - 1], np.int32), np.ones((2, 2), np.float32))
    assert y.tolist() == [1.0, 7.0]


# --- torch ---------------------------------------------------------------------------------------------------------------
def convolved(torch: Any, name: str, inputs: list[Any], attrs: dict[str, Any]) -> Any:
    """torch's convolution, with padding before and after done apart."""
    x, w = inputs
    given = dict(attrs)
    padding = given.pop("padding", 0)
    pairs = padding if isinstance(padding, tuple) else (padding,) * (x.ndim - 2)
    pairs = [p if isinstance(p, tuple) else (p, p) for p in pairs]
    if name == "conv_transpose2d":
        return torch.nn.functional.conv_transpose2d(x, w, padding=tuple(p[0] for p in pairs), **given)
    flat = [n for pair in reversed(pairs) for n in pair]
    return getattr(torch.nn.functional, name)(torch.nn.functional.pad(x, flat), w, **given)


def pooled(torch: Any, name: str, inputs: list[Any], attrs: dict[str, Any]) -> Any:
    given = {
        "max": {"dilation": attrs.get("dilation", 1)},
        "average": {"count_include_pad": attrs.get("include_pad", True)},
    }
    mode = attrs.get("mode", "max")
    function = {"max": torch.nn.functional.max_pool2d, "average": torch.nn.functional.avg_pool2d}[mode]
    return function(*inputs, attrs["kernel"], attrs.get("stride"), attrs.get("padding", 0), **given[mode])


def patches(torch: Any, name: str, inputs: list[Any], attrs: dict[str, Any]) -> Any:
    (x,) = inputs
    batched = x if x.ndim == 4 else x[None]
    stride = attrs.get("stride", attrs["patch"])
    made = torch.nn.functional.unfold(
        batched, attrs["patch"], attrs.get("dilation", 1), attrs.get("padding", 0), stride
    ).mT
    return made if x.ndim == 4 else made[0]


def resized(torch: Any, name: str, inputs: list[Any], attrs: dict[str, Any]) -> Any:
    (x,) = inputs
    size = attrs["size"] if isinstance(attrs["size"], tuple) else (attrs["size"],) * 2
    wide = x[(None,) * (4 - x.ndim)]
    given = {"antialias": attrs.get("antialias", True), "align_corners": attrs.get("align_corners", False)}
    made = torch.nn.functional.interpolate(wide, size, mode=name.removeprefix("resize_"), **given)
    return made.reshape(*x.shape[:-2], *size)


TORCH = {
    **dict.fromkeys(("conv1d", "conv2d", "conv_transpose2d"), convolved),
    "pool2d": pooled,
    "im2col": patches,
    "resize_bilinear": resized,
    "resize_bicubic": resized,
}


@pytest.mark.oracle
@pytest.mark.parametrize("name", TORCH)
def test_references_agree_with_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    for sample in samples(name):
        wide = [np.asarray(a, np.float64) for a in sample.inputs]
        (wanted,) = ops.get(name).reference(wide, sample.attrs)
        given = [torch.from_numpy(a) for a in wide]
        found = TORCH[name](torch, name, given, dict(sample.attrs)).numpy()
        np.testing.assert_allclose(np.float64(wanted), found, rtol=1e-9, atol=1e-11, err_msg=sample.name)


@pytest.mark.oracle
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [False, True])
def test_resizing_agrees_with_torch_for_many_sizes(mode: str, antialias: bool) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    for _ in range(40):
        h, w, *size = rng.integers(1, 40, 4).tolist()
        x = rng.normal(size=(1, 1, h, w))
        (made,) = ops.get(f"resize_{mode}").reference([x], {"size": tuple(size), "antialias": antialias})
        wanted = torch.nn.functional.interpolate(torch.from_numpy(x), size, mode=mode, antialias=antialias).numpy()
        np.testing.assert_allclose(np.float64(made), wanted, rtol=1e-9, atol=1e-11, err_msg=f"{h}x{w} to {size}")
