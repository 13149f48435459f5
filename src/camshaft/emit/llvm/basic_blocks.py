"""The text of a function in LLVM IR while it is written: names, lines, basic blocks, and `if_`, `else_`, `loop` over them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from camshaft.errors import KernelError

if TYPE_CHECKING:
    from camshaft.emit.llvm.builder import Value


@dataclass(kw_only=True, eq=False)
class FunctionText:
    """The text of one function while it is written: `allocas` at its entry, then `lines`."""

    lines: list[str] = field(default_factory=list)
    allocas: list[str] = field(default_factory=list)
    count: int = 0

    def fresh(self, prefix: str = "v") -> str:
        """A new name of a value."""
        self.count += 1
        return f"%{prefix}.{self.count}"

    def label(self, prefix: str) -> str:
        """A new name of a basic block, to jump to and to `open` once."""
        self.count += 1
        return f"{prefix}.{self.count}"

    def write(self, text: str) -> None:
        """Write an instruction without a result."""
        self.lines.append(f"  {text}")


class BasicBlocks(FunctionText):
    """A function's basic blocks, and jumps between them."""

    def __init__(self) -> None:
        super().__init__()
        self._closed = False  # the last block ends with a jump or a return
        self._if: tuple[str, int] | None = None  # the `done` label of the last if_, and the number of lines at its end

    def open(self, label: str) -> None:
        """Begin the block; the previous block falls through to it."""
        self.goto(label)
        self.lines.append(f"{label}:")
        self._closed = False

    def goto(self, label: str) -> None:
        self._close(f"br label %{label}")

    def ret(self, value: Value | None = None) -> None:
        self._close(f"ret {value or 'void'}")

    def _close(self, text: str) -> None:
        """Terminate the block, unless it is terminated."""
        if not self._closed:
            self.write(text)
        self._closed = True

    def goto_if(self, condition: Value, label: str) -> None:
        self._branch(condition, label, following := self.label("next"), following)

    def goto_unless(self, condition: Value, label: str) -> None:
        self._branch(condition, following := self.label("next"), label, following)

    def _branch(self, condition: Value, yes: str, no: str, following: str) -> None:
        self._close(f"br {condition}, label %{yes}, label %{no}")
        self.open(following)

    @contextmanager
    def if_(self, condition: Value) -> Iterator[None]:
        then, other, done = self.label("then"), self.label("else"), self.label("done")
        self._branch(condition, then, other, then)
        yield
        self.goto(done)
        self.open(other)
        self.open(done)
        self._if = done, len(self.lines)

    @contextmanager
    def else_(self) -> Iterator[None]:
        """Right after an `if_`. KernelError anywhere else."""
        if self._if is None or self._if[1] != len(self.lines):
            raise KernelError("else_ must come right after an if_")
        done, _ = self._if
        del self.lines[-2:]  # back into the block of `else`: its jump, and `done`
        yield
        self.open(done)

    @contextmanager
    def loop(self) -> Iterator[str]:
        """An endless loop. Yields the label of the block after it, to jump to."""
        head, done = self.label("loop"), self.label("done")
        self.open(head)
        yield done
        self.goto(head)
        self.open(done)
