"""Kernel bodies that break a rule of the language, each with the error that must name its line."""

import inspect
import re

import pytest

from camshaft.dtypes import f32, i32
from camshaft.errors import KernelError, VerifyError
from camshaft.lang import ir, kernel
from camshaft.lang.verifier.verify import verify

ARRAYS = (
    ir.ArrayParam("x", f32, (4, 64)),
    ir.ArrayParam("y", i32, (64,)),
    ir.ArrayParam("out", f32, (4, 64), writable=True),
)


def collected_in(cases):
    """A decorator: adds a kernel body that must fail with its message, at its line marked `# here` if there is one."""

    def broken(message):
        def add(function):
            cases.append(pytest.param(function, message, id=function.__name__))
            return function

        return add

    return broken


def here(function):
    """The line marked `# here` in the function's source."""
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if "# here" in line)


def expect_named_error(function, message):
    """The error of the kernel with this body has the message, and names kernel and line."""
    with pytest.raises((KernelError, VerifyError), match=re.escape(message)) as raised:
        verify(kernel(function).trace(ARRAYS))
    assert str(raised.value).startswith(f"kernel {function.__name__}, line {here(function)}: ")
