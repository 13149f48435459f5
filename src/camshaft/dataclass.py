"""The decorator `dataclass` of the standard library, of whose methods only `__init__` is compiled at import.

The library compiles up to seven methods of each class, which took half of the time of importing camshaft's own modules.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Callable
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True, repr=True, kw_only=False, slots=False):
        """Returns the class as `dataclasses.dataclass` does, or a decorator if `cls` is None. It has no `InitVar`."""

        def made(cls):
            if slots:  # only the library makes the class anew
                return dataclasses.dataclass(cls, frozen=frozen, eq=eq, repr=repr, kw_only=kw_only, slots=True)
            cls.__doc__ = cls.__doc__ or cls.__name__  # the library would write the signature, which takes 0.3 ms
            # the library checks the bases, and compiles the two methods that refuse changes, of a frozen class that has some
            checked = frozen and dataclasses.is_dataclass(cls)
            dataclasses.dataclass(cls, init=False, repr=False, eq=False, kw_only=kw_only, frozen=checked)
            methods = {"__init__": _init(cls, frozen)} | ({"__repr__": _repr} if repr else {})
            if eq:
                methods |= _compared(cls) if frozen else {**_compared(cls), "__hash__": None}
            _add(cls, methods | (_refusals(cls) if frozen else {}))
            cls.__dataclass_params__.frozen = frozen  # asked of the bases of a class
            return cls

        return made if cls is None else made(cls)


class _Factory:
    """The default of an argument whose value comes from the field's `default_factory`."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


def _compiled(cls: type, name: str, parameters: str, body: str, known: dict[str, Any]) -> Callable[..., Any]:
    exec(compile(f"def {name}({parameters}):\n {body}", f"<{cls.__qualname__}>", "exec"), known)
    method: Callable[..., Any] = known[name]
    method.__qualname__ = f"{cls.__qualname__}.{name}"
    return method


def _compiled_later(cls: type, name: str, parameters: str, body: str) -> Callable[..., Any]:
    """A method that compiles itself when it is first called."""

    def first(*arguments: object) -> object:
        method = _compiled(cls, name, parameters, body, {})
        setattr(cls, name, method)
        return method(*arguments)

    return first


def _init(cls: type, frozen: bool) -> Callable[..., Any]:
    """`__init__`; that of a frozen class stores by `object.__setattr__`."""
    known: dict[str, Any] = {"_set": object.__setattr__, "_FACTORY": _FACTORY}
    parameters, named, body = ["self"], list[str](), list[str]()
    for field in dataclasses.fields(cls):
        name = value = parameter = field.name
        if field.default_factory is not dataclasses.MISSING:
            known[f"_{name}"], parameter = field.default_factory, f"{name}=_FACTORY"
            value = f"_{name}() if {name} is _FACTORY else {name}" if field.init else f"_{name}()"
        elif field.default is not dataclasses.MISSING:
            known[f"_{name}"], parameter = field.default, f"{name}=_{name}"
        if field.init:
            (named if field.kw_only else parameters).append(parameter)
        if field.init or field.default_factory is not dataclasses.MISSING:
            body.append(f"_set(self, '{name}', {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    every = [*parameters, "*", *named] if named else parameters
    return _compiled(cls, "__init__", ", ".join(every), "; ".join(body) or "pass", known)


@reprlib.recursive_repr()
def _repr(self: Any) -> str:
    shown = (f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _compared(cls: type) -> dict[str, Callable[..., Any]]:
    """`__eq__` and `__hash__`, of tuples of the fields that are compared and hashed."""
    fields = dataclasses.fields(cls)
    compared = "({})".format("".join(f"{{0}}.{field.name}," for field in fields if field.compare))
    hashed = "".join(f"self.{field.name}," for field in fields if (field.compare if field.hash is None else field.hash))
    same = f"{compared.format('self')} == {compared.format('other')} if other.__class__ is self.__class__"
    return {
        "__eq__": _compiled_later(cls, "__eq__", "self, other", f"return {same} else NotImplemented"),
        "__hash__": _compiled_later(cls, "__hash__", "self", f"return hash(({hashed}))"),
    }


def _refusals(cls: type) -> dict[str, Callable[..., Any]]:
    """`__setattr__` and `__delattr__` of a frozen class: they refuse its fields, and in its own instances every name."""
    names = frozenset(field.name for field in dataclasses.fields(cls))

    def check(self: object, name: str, verb: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot {verb} field {name!r}")

    def __setattr__(self: Any, name: str, value: object) -> None:
        check(self, name, "assign to")
        object.__setattr__(self, name, value)

    def __delattr__(self: Any, name: str) -> None:
        check(self, name, "delete")
        object.__delattr__(self, name)

    return {"__setattr__": __setattr__, "__delattr__": __delattr__}


def _add(cls: type, methods: dict[str, Any]) -> None:
    """Adds the methods that the class does not define. Python's own `__hash__ = None` beside an `__eq__` is no definition."""
    own = dict(vars(cls))
    for name, method in methods.items():
        if name not in own or (name == "__hash__" and own[name] is None and "__eq__" in own):
            setattr(cls, name, method)
