"""camshaft's `dataclass` makes the classes that the standard library makes."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import re
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from camshaft.dataclass import dataclass

PACKAGE = Path(__file__).parents[1] / "src" / "camshaft"
NAN = float("nan")


def made(dataclass: Any) -> SimpleNamespace:
    """The same classes by one decorator or the other."""

    @dataclass(frozen=True)
    class Base:
        """A frozen class."""

        COUNT: ClassVar[int] = 3
        a: int
        b: str = "b"
        c: list[int] = field(default_factory=list, compare=False)
        d: int = field(default=4, repr=False)
        e: int = field(default=5, init=False)
        g: Any = field(default=None, hash=False)

        def own(self) -> int:
            return self.a

    @dataclass(frozen=True, kw_only=True)
    class Derived(Base):
        """Adds a keyword, a check and a value of its own."""

        f: float
        h: dict[str, int] = field(init=False, default_factory=dict)

        def __post_init__(self) -> None:
            if self.f < 0:
                raise ValueError("negative")
            object.__setattr__(self, "e", self.a + 1)

    @dataclass
    class Mutable:
        """Neither frozen nor hashable."""

        a: int
        b: Any = None

    @dataclass(frozen=True, repr=False)
    class Own:
        """Has methods of its own."""

        a: int

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return True

    @dataclass(frozen=True)
    class OwnHash:
        """Has a hash of its own."""

        a: int

        def __hash__(self) -> int:
            return 7

    @dataclass(eq=False)
    class Identity:
        """Equal to itself alone."""

        a: int = 0

    @dataclass(frozen=True)
    class Empty:
        """Has no field."""

    @dataclass(frozen=True, slots=True)
    class Slots:
        """Has slots."""

        a: int

    class Child(Base):
        """A subclass that is no dataclass of its own."""

    return SimpleNamespace(dataclass=dataclass, **{k: v for k, v in locals().items() if isinstance(v, type)})


OURS, LIBRARY = made(dataclass), made(dataclasses.dataclass)

CALLS: dict[str, Callable[[Any], Any]] = {
    "defaults": lambda m: m.Base(1),
    "all given": lambda m: m.Base(1, "x", [2], 9),
    "by name": lambda m: m.Derived(a=1, f=2.5, c=[1]),
    "missing": lambda m: m.Base(),
    "too many": lambda m: m.Base(1, "x", [2], 9, 5),
    "keyword only": lambda m: m.Derived(1, "b", [], 4, 2.5),
    "refused by its check": lambda m: m.Derived(a=1, f=-1.0),
    "equal": lambda m: [m.Base(1) == m.Base(1), m.Base(1) == m.Base(2), m.Base(1) != m.Base(1, "c")],
    "not compared": lambda m: m.Base(1, c=[1]) == m.Base(1, c=[2]),
    "another class": lambda m: [
        m.Base(1) == m.Derived(a=1, f=0.0),
        m.Base(1) == m.Child(1),
        m.Base(1) == (1, "b", 4, 5),
    ],
    "the same nan": lambda m: [m.Mutable(NAN) == m.Mutable(NAN), m.Mutable(1, NAN) == m.Mutable(1, NAN)],
    "hashes": lambda m: [hash(m.Base(1)), hash(m.Base(2)), hash(m.Derived(a=1, f=2.0)) == hash(m.Derived(a=1, f=2.0))],
    "hash without a field": lambda m: [hash(m.Base(1, g={})) == hash(m.Base(1)), m.Base(1, g={}) == m.Base(1)],
    "as keys": lambda m: {m.Base(1): 1, m.Base(1, c=[3]): 2, m.Base(2): 3},
    "hash of a list": lambda m: hash(m.OwnHash([1])),
    "unhashable field": lambda m: hash(m.Base([1])),
    "unhashable": lambda m: hash(m.Mutable(1)),
    "own methods": lambda m: [m.Own(1) == m.Own(2), hash(m.Own(3)), m.Own(1)],
    "identity": lambda m: [m.Identity() == m.Identity(), len({m.Identity(), m.Identity()})],
    "empty": lambda m: [m.Empty() == m.Empty(), hash(m.Empty()), m.Empty()],
    "slots": lambda m: [m.Slots(1), hasattr(m.Slots(1), "__dict__")],
    "assign": lambda m: setattr(m.Base(1), "a", 2),
    "assign a name of no field": lambda m: setattr(m.Base(1), "z", 2),
    "assign in a subclass": lambda m: setattr(m.Child(1), "a", 2),
    "assign a name of no field in a subclass": lambda m: setattr(m.Child(1), "z", 2),
    "delete": lambda m: delattr(m.Base(1), "a"),
    "assign to a mutable": lambda m: setattr(m.Mutable(1), "a", 2),
    "no shared list": lambda m: m.Base(1).c is m.Base(1).c,
    "replace": lambda m: dataclasses.replace(m.Base(1), b="z"),
    "as a dict": lambda m: dataclasses.asdict(m.Derived(a=1, f=2.0)),
    "copies": lambda m: [copy.copy(m.Base(1)), copy.deepcopy(m.Base(1, c=[1]))],
    "mutable of frozen": lambda m: m.dataclass(type("Wrong", (m.Base,), {})),
    "frozen of mutable": lambda m: m.dataclass(frozen=True)(type("Wrong", (m.Mutable,), {})),
    "the library's of ours": lambda m: dataclasses.dataclass(frozen=True)(type("Fit", (m.Base,), {}))(1),
    "fields": lambda m: [(f.name, f.type, f.init, f.kw_only) for f in dataclasses.fields(m.Derived)],
    "patterns": lambda m: [m.Base.__match_args__, m.Derived.__match_args__],
    "parameters": lambda m: [(p.name, p.kind) for p in inspect.signature(m.Derived).parameters.values()],
    "documentation": lambda m: [m.Base.__doc__, m.Derived.__init__.__qualname__],
}


def said(call: Callable[[Any], Any], classes: SimpleNamespace) -> str:
    """What the call gives or raises, as text."""
    try:
        return repr(call(classes))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("name", CALLS)
def test_a_class_does_what_the_librarys_does(name: str) -> None:
    for _ in range(2):  # a method compiles itself in its first call
        assert said(CALLS[name], OURS) == said(CALLS[name], LIBRARY)


@dataclass(frozen=True)
class Kept:
    """A class that pickle finds by name."""

    a: int
    b: Any = None


def test_an_instance_that_holds_itself_has_an_end() -> None:
    loop = OURS.Mutable(1)
    loop.b = loop
    assert repr(loop).endswith("Mutable(a=1, b=...)")


def test_instances_are_pickled() -> None:
    assert pickle.loads(pickle.dumps(Kept(1, "x"))) == Kept(1, "x")


def test_modules_take_the_one_that_imports_fast() -> None:
    librarys = re.compile(
        r"^from dataclasses import\s*\(?[^()\n]*\bdataclass\b|@dataclasses\.dataclass\b", re.MULTILINE
    )
    texts = {path: path.read_text("utf-8") for path in PACKAGE.rglob("*.py") if path.name != "dataclass.py"}
    found = [
        str(path.relative_to(PACKAGE))
        for path, text in texts.items()
        if librarys.search(text) and "InitVar" not in text
    ]
    assert texts
    assert found == []
