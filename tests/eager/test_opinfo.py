"""Ops on arrays against torch, on the samples by which torch tests its own ops (OpInfo)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

import camshaft as cs
from camshaft.errors import CamshaftError

pytestmark = pytest.mark.oracle
SKIP = object()


def same(name: str) -> Callable[..., Any]:
    """The op of that name on tensors and numbers; a sample with keywords is not for it."""
    return lambda *args, **kwargs: SKIP if kwargs else getattr(cs, name)(*args)


def over(name: str, default: Any = None) -> Callable[..., Any]:
    """A reduction: dim, keepdim and dtype in torch's words."""

    def reduced(x: Any, dim: Any = default, keepdim: bool = False, dtype: Any = None) -> Any:
        axis = tuple(dim) if isinstance(dim, list | tuple) else dim
        if axis == () or (isinstance(axis, tuple) and name.startswith("arg")):
            return SKIP  # torch reduces all axes, NumPy none
        return getattr(cs, name)(x, axis=axis, keepdims=keepdim)

    return reduced


def cat(tensors: Any, dim: int = 0) -> Any:
    flat = any(t.ndim == 1 and not len(t) for t in tensors) and any(t.ndim > 1 for t in tensors)
    return SKIP if flat else cs.concat(list(tensors), axis=dim)  # torch joins vectors without elements to anything


def split(x: Any, size: Any, dim: int = 0) -> Any:
    n = x.shape[dim]
    sizes = [min(size, n - start) for start in range(0, n, size)] if isinstance(size, int) else list(size)
    made = cs.split(x, sizes=tuple(sizes), axis=dim)
    return made if isinstance(made, tuple) else (made,)


def clamp(x: Any, low: Any = None, high: Any = None, **named: Any) -> Any:
    return cs.clip(x, named.get("min", low), named.get("max", high))


def norm(name: str) -> Callable[..., Any]:
    def normed(x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5) -> Any:
        if len(shape) != 1 or weight is None or (name == "layer_norm" and bias is None) or not eps:
            return SKIP
        return getattr(cs, name)(x, weight, *([bias] if name == "layer_norm" else []), eps=eps)

    return normed


def group_norm(x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    if weight is None or bias is None or eps <= 0:  # torch takes the root of a negative sum
        return SKIP
    return cs.group_norm(x, weight, bias, groups=groups, eps=eps)


def cross_entropy(x: Any, target: Any, weight: Any = None, **named: Any) -> Any:
    if weight is not None or target.dtype.kind != "i" or x.ndim > 2:  # torch has classes second, not last
        return SKIP
    return cs.cross_entropy(x, target, **named)


def loss(name: str) -> Callable[..., Any]:
    return lambda x, target, **named: (
        SKIP if "weight" in named or x.shape != target.shape else getattr(cs, name)(x, target, **named)
    )


def softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    scaled = cs.multiply(x, beta)
    return cs.where(cs.greater(scaled, threshold), x, cs.divide(cs.softplus(scaled), beta))


def transpose(x: Any, first: int, second: int) -> Any:
    axes = list(range(x.ndim))
    if axes:
        axes[first], axes[second] = axes[second], axes[first]
    return cs.transpose(x, axes)


_SAME = """
abs ceil cos erf exp floor isnan log logical_not rsqrt sigmoid sin sqrt square tanh trunc matmul maximum minimum
floor_divide remainder logical_and logical_or logical_xor dot outer
"""
OPS: dict[str, Callable[..., Any]] = {
    **{name: same(name) for name in _SAME.split()},
    "add": same("add"), "sub": same("subtract"), "mul": same("multiply"), "div": same("divide"), "pow": same("power"),
    "neg": same("negate"), "round": same("round"), "eq": same("equal"), "ne": same("not_equal"), "lt": same("less"),
    "le": same("less_equal"), "gt": same("greater"), "ge": same("greater_equal"), "clone": same("copy"),
    "reciprocal": lambda x: cs.reciprocal(x) if x.dtype.kind in "fV" else SKIP,  # NumPy's of integers are integers
    "where": lambda a, condition, b: cs.where(condition, a, b),
    "clamp": clamp,
    **{name: over(ours) for name, ours in {
        "sum": "sum", "prod": "prod", "mean": "mean", "amax": "max", "amin": "min", "argmax": "argmax", "argmin": "argmin",
    }.items()},
    "cat": cat,
    "split": split,
    "transpose": transpose,
    "permute": lambda x, dims: cs.transpose(x, dims),
    "index_select": lambda x, dim, index: cs.gather(x, index) if dim == 0 and x.ndim else SKIP,
    "softmax": lambda x, dim, dtype=None: SKIP if dtype else cs.softmax(x, axis=dim),
    "log_softmax": lambda x, dim, dtype=None: SKIP if dtype else cs.log_softmax(x, axis=dim),
    "expm1": same("expm1"), "log1p": same("log1p"), "tan": same("tan"),
    "nn.functional.relu": lambda x, inplace=False: cs.relu(x),
    "nn.functional.leaky_relu": lambda x, slope=0.01, inplace=False: cs.leaky_relu(x, negative_slope=slope),
    "nn.functional.elu": lambda x, alpha=1.0, inplace=False: cs.elu(x, alpha=float(alpha)),
    "nn.functional.mish": lambda x, inplace=False: cs.mish(x),
    "nn.functional.hardswish": lambda x, inplace=False: cs.hard_swish(x),
    "nn.functional.softplus": softplus,
    "nn.functional.group_norm": group_norm,
    "nn.functional.cross_entropy": cross_entropy,
    "nn.functional.mse_loss": loss("mse_loss"),
    "nn.functional.l1_loss": loss("l1_loss"),
    "nn.functional.silu": lambda x, inplace=False: cs.silu(x),
    "nn.functional.gelu": lambda x, approximate="none": (cs.gelu if approximate == "tanh" else cs.gelu_erf)(x),
    "nn.functional.layer_norm": norm("layer_norm"),
    "nn.functional.rms_norm": norm("rms_norm"),
}  # fmt: skip
DTYPES = ("float32", "bfloat16", "int64", "bool")
RTOL = {"float32": 2e-5, "bfloat16": 2e-2, "bool": 2e-3}  # as in NumPy, functions of booleans are of f16
# torch's own conventions: x // 0 and x % 0 of integers raise there, and its reductions refuse other empty axes than NumPy's
_REFUSED = (RuntimeError, IndexError, ValueError, TypeError, ZeroDivisionError)


@functools.cache
def _infos() -> dict[str, Any]:
    pytest.importorskip("torch")
    pytest.importorskip("expecttest", reason="torch's tables of samples import it")
    from torch.testing._internal.common_methods_invocations import op_db

    infos: dict[str, Any] = {}
    for info in op_db:
        if (
            not info.variant_test_name or info.name == "div"
        ):  # div has variants by rounding mode only, first the one without
            infos.setdefault(info.name, info)
    return infos


def _numbers(value: Any) -> Any:
    import torch

    wide = value.detach().to(torch.float64) if isinstance(value, torch.Tensor) else value
    return np.asarray(wide, np.float64)


def _compare(name: str, dtype: str, got: Any, wanted: Any, what: str) -> None:
    pairs = zip(got, wanted, strict=True) if isinstance(wanted, list | tuple) else [(got, wanted)]
    for one, other in pairs:
        a, b = _numbers(one), _numbers(other)
        assert a.shape == b.shape, what
        tolerance = RTOL.get(dtype, 1e-6)  # torch gives f32 for functions of integers
        np.testing.assert_allclose(
            a, b, rtol=tolerance, atol=tolerance * max(1.0, np.abs(b[np.isfinite(b)]).max(initial=0)), err_msg=what
        )


def _array(value: Any) -> Any:
    """A tensor as an array, alone or in a list."""
    import torch

    if isinstance(value, list | tuple) and any(isinstance(x, torch.Tensor) for x in value):
        return [_array(x) for x in value]
    if not isinstance(value, torch.Tensor):
        return value
    plain = value.detach().resolve_neg().resolve_conj()
    return plain.view(torch.int16).numpy().view(bfloat16) if value.dtype == torch.bfloat16 else plain.numpy()


def _takes(info: Any, dtype: Any) -> bool:
    return dtype in info.supported_dtypes("cpu")


@pytest.mark.parametrize("name", OPS)
def test_an_op_agrees_with_torch_on_its_samples(name: str) -> None:
    """Every sample of every dtype that both have: the same values and shapes; nothing that torch takes is refused."""
    import torch

    info = _infos()[name]
    torch.manual_seed(0)
    compared, refused = 0, []
    for dtype in DTYPES:
        kind = getattr(torch, dtype)
        if not _takes(info, kind):
            continue
        for i, sample in enumerate(info.sample_inputs("cpu", kind)):
            what = f"{name} of {dtype}, sample {i}: {sample.args} {sample.kwargs}"[:300]
            try:
                wanted = info.op(sample.input, *sample.args, **sample.kwargs)
            except _REFUSED:
                continue
            try:
                got = _result(name, sample)
            except CamshaftError as error:
                refused.append(f"{what}: {error}")
                continue
            if got is not SKIP:
                _compare(name, dtype, got, wanted, what)
                compared += 1
    assert compared
    assert not refused, "\n".join(refused)


def _result(name: str, sample: Any) -> Any:
    """What camshaft makes of a sample of torch's; SKIP if it is not for the op."""
    with np.errstate(all="ignore"):
        given = [_array(x) for x in (sample.input, *sample.args)]
        return OPS[name](*given, **{key: _array(value) for key, value in sample.kwargs.items()})
