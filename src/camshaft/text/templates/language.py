"""The dialect of Jinja2 that chat templates are compiled in: the sandbox, with calls of Limits where values are made."""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.compiler import CodeGenerator, Frame, MacroRef
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from camshaft.text.templates.calls import OPERATORS, LimitedFormatter, LimitedNamespace, check_method, filters, tests
from camshaft.text.templates.limits import INTEGER_BITS, Limits, refuse

MAX_SOURCE = 1 << 17  # characters; templates have up to 30,000
MAX_NODES = 20_000  # of the syntax tree; templates have up to 4,000
_MAX_SUM = 16  # operands that are added before the result is checked
_MAX_PATTERN = 200

STATEMENTS = (
    *(nodes.Output, nodes.For, nodes.If, nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.With, nodes.Assign),
    *(nodes.AssignBlock, nodes.ExprStmt, nodes.Break, nodes.Continue),
)


class GenerationTag(Extension):
    """The tag {% generation %} ... {% endgeneration %}, which marks assistant text for training; renders its body."""

    tags = {"generation"}  # noqa: RUF012  (the base class declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Parse the statements between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class LimitedContext(Context):
    """The state of one rendering, with its Limits."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.limits = Limits()

    def derived(self, locals: dict[str, Any] | None = None) -> Context:
        """A context for a function of the caller, with the same limits."""
        context = super().derived(locals)
        assert isinstance(context, LimitedContext)
        context.limits = self.limits
        return context


class LimitedCodeGenerator(CodeGenerator):
    """Writes Python code that checks the clock at iterations and calls, and the size of values where they are made."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._repeated: set[int] = set()  # ids of the lists of statements that run more than once
        self._tests: set[int] = set()  # ids of the conditions of loops
        self._output: nodes.Node | None = None

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        """A loop."""
        self._repeated.add(id(node.body))
        if node.test is not None:
            self._tests.add(id(node.test))
        super().visit_For(node, frame)

    def visit(self, node: nodes.Node, *given: Any, **named: Any) -> Any:
        """Any node. The condition of a loop is evaluated for items that do not reach its body."""
        if id(node) not in self._tests:
            return super().visit(node, *given, **named)
        self.write("context.limits.item(")
        super().visit(node, *given, **named)
        self.write(")")
        return None

    def macro_body(self, node: Any, frame: Frame) -> tuple[Frame, MacroRef]:
        """The function of a macro or call block."""
        self._repeated.add(id(node.body))
        return super().macro_body(node, frame)

    def blockvisit(self, nodes: Iterable[nodes.Node], frame: Frame) -> None:
        """Statements; those of loops and macros begin with a check of the clock."""
        if id(nodes) in self._repeated:
            self.writeline(f"context.limits.tick({_fixed_text(nodes)})")
        super().blockvisit(nodes, frame)

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        """Only constants are evaluated at compile time: expressions might make large values."""
        if not isinstance(node, nodes.Const | nodes.TemplateData):
            raise nodes.Impossible()
        return super()._output_child_to_const(node, frame, finalize)

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        if frame.buffer is not None:
            self.write("context.limits.text(")
        else:
            self._output = node
        super()._output_child_pre(node, frame, finalize)

    def _output_child_post(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        super()._output_child_post(node, frame, finalize)
        if frame.buffer is not None:
            self.write(")")

    def visit_Add(self, node: nodes.BinExpr, frame: Frame) -> None:
        """A sum: only its result is checked, and not if it is output at once, where the output is counted."""
        start, end = ("", "") if node is self._output else ("context.limits.made(", ")")
        self.write(start)
        self._write_sum(node, frame, _MAX_SUM)
        self.write(end)

    def _write_sum(self, node: nodes.BinExpr, frame: Frame, room: int) -> None:
        self.write("(")
        if isinstance(node.left, nodes.Add) and room:
            self._write_sum(node.left, frame, room - 1)
        else:
            self.visit(node.left, frame)
        self.write(" + ")
        self.visit(node.right, frame)
        self.write(")")

    def _checked(self, check: str, write: Callable[[Any, Frame], None], node: nodes.Node, frame: Frame) -> None:
        self.write(f"context.limits.{check}(")
        write(node, frame)
        self.write(")")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        """a ~ b, checked as a sum."""
        if node is self._output:
            super().visit_Concat(node, frame)
        else:
            self._checked("made", super().visit_Concat, node, frame)

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        """[a, b]"""
        self._checked("made", super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        """{a: b}"""
        self._checked("made", super().visit_Dict, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        """(a, b), or targets of an assignment"""
        if node.ctx == "load":
            self._checked("made", super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        """a[b] and a[b:c]"""
        if isinstance(node.arg, nodes.Const):
            super().visit_Getitem(node, frame)
        else:
            check = "sliced" if isinstance(node.arg, nodes.Slice) else "item"
            self._checked(check, super().visit_Getitem, node, frame)

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        """a == b. Comparing with one constant or truth value is quick."""
        operands = [node.expr, node.ops[0].expr]
        is_quick = any(
            isinstance(operand, nodes.Const | nodes.Compare | nodes.Not | nodes.Test) for operand in operands
        )
        if is_quick and len(node.ops) == 1 and node.ops[0].op not in ("in", "notin"):
            super().visit_Compare(node, frame)
        else:
            self._checked("item", super().visit_Compare, node, frame)


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """Compiles templates with limits."""

    code_generator_class = LimitedCodeGenerator
    context_class = LimitedContext
    intercepted_binops = frozenset(OPERATORS)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols], optimized=False
        )
        self.filters, self.tests = filters(), tests()
        del self.globals["lipsum"]
        self.globals.update(
            raise_exception=_raise_exception, strftime_now=_strftime_now, namespace=LimitedNamespace, dict=dict
        )

    def _compile(self, source: str, filename: str) -> Any:
        """Compile the generated Python code, without Python's warnings about it."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return super()._compile(source, filename)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Evaluate one of OPERATORS."""
        assert isinstance(context, LimitedContext)
        if type(left) is type(right) is int and operator in "%-":  # frequent: loop.index0 % 2
            return left % right if operator == "%" else left - right
        OPERATORS[operator](context.limits, left, right)
        return context.limits.made(self.binop_table[operator](left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a method, macro or function."""
        limits: Limits = __context.limits  # type: ignore[attr-defined]
        args = check_method(limits, __obj, args, kwargs)
        limits.weigh_arguments(args, kwargs)
        return limits.made(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """str.format with limits, for the methods format and format_map; None for another value."""
        if super().wrap_str_format(value) is None:
            return None
        text, takes_mapping = str(value.__self__), value.__name__ == "format_map"

        def formatted(*args: Any, **kwargs: Any) -> str:
            if takes_mapping and (len(args) != 1 or kwargs):
                raise TypeError(f"format_map() takes exactly one argument ({len(args) + len(kwargs)} given)")
            formatter = LimitedFormatter(self)
            return formatter.vformat(text, (), args[0]) if takes_mapping else formatter.vformat(text, args, kwargs)

        return formatted


def parse(environment: LimitedEnvironment, source: str) -> nodes.Template:
    """Parse a template. Raises TemplateError for a syntax error, a statement that is not available, or a very long source."""
    if len(source) > MAX_SOURCE:
        refuse(f"it has {len(source):,} characters; at most {MAX_SOURCE:,} are allowed")
    tree = environment.parse(source)
    for count, node in enumerate(tree.find_all(nodes.Node)):
        if count == MAX_NODES:
            refuse(f"it has more than {MAX_NODES:,} parts")
        if isinstance(node, nodes.Stmt) and not isinstance(node, STATEMENTS):
            refuse(f"the statement {type(node).__name__.lower()!r} is not available")
        if isinstance(node, nodes.Const) and isinstance(node.value, int) and node.value.bit_length() > INTEGER_BITS:
            refuse(f"an integer of more than {INTEGER_BITS:,} bits")
    return tree


def _fixed_text(body: Iterable[nodes.Node]) -> int:
    """The characters of fixed text in statements, without those of loops and macros in them."""
    total = 0
    for node in body:
        if isinstance(node, nodes.TemplateData):
            total += len(node.data)
        elif not isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock):
            total += _fixed_text(node.iter_child_nodes())
    return total


def _raise_exception(message: Any) -> NoReturn:
    raise TemplateError(str(message))


def _strftime_now(pattern: str) -> str:
    if len(pattern) > _MAX_PATTERN:
        refuse(f"a time format of more than {_MAX_PATTERN} characters")
    return datetime.datetime.now().strftime(pattern)
