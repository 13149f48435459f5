"""The verifier: whether Kernel IR is well formed. It runs before a kernel is emitted and after each pass.

verify.py walks the blocks (scopes, flow, variables, loops); values.py has the rules of single values and accesses, tiles.py
those of tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from camshaft.dtypes import boolean, i64
from camshaft.lang import ir, tile_ir, traversal
from camshaft.lang.verifier.scope import Scope, vector_index, wanted_index
from camshaft.lang.verifier.tiles import tile_rule
from camshaft.lang.verifier.values import value_rule

# Scratch is on a worker thread's stack on a CPU and in workgroup memory on a GPU.
MAX_SCRATCH_NBYTES = (1 << 20) + (64 << 10)


def verify(kernel: ir.KernelIR) -> None:
    """Raise VerifyError, with the kernel and the line, at the first violation of a language rule."""
    _Walk(kernel).run()


class _Walk:
    """One pass over the IR, in program order."""

    def __init__(self, kernel: ir.KernelIR) -> None:
        self.kernel, self.scope = kernel, Scope(kernel)
        self.open: set[ir.Block] = set()
        self.home: dict[ir.Value, ir.Block] = {}
        self.var_home: dict[ir.Var, tuple[ir.Block, bool]] = {}
        self.tiles: dict[tile_ir.Tile, ir.Block] = {}

    def run(self) -> None:
        self.parameters()
        self.grid()
        self.scratch()
        self.block(self.kernel.body)

    # --- what the kernel declares --------------------------------------------------------------------------------
    def parameters(self) -> None:
        names = [a.name for a in (*self.kernel.arrays, *self.kernel.scratch)]
        self.require(len(set(names)) == len(names), 0, f"two arrays have one name: {', '.join(names)}")
        scalars = self.kernel.scalars
        self.require(len(set(scalars)) == len(scalars), 0, f"two scalars have one name: {', '.join(scalars)}")
        for array in (*self.kernel.arrays, *self.kernel.scratch):
            good = bool(array.shape) and all(isinstance(n, int) and n > 0 for n in array.shape)
            self.require(good, 0, f"{array.name} has the shape {array.shape}: wanted positive sizes")
            self.require(array.name.isidentifier(), 0, f"an array is named {array.name!r}: wanted an identifier")

    def grid(self) -> None:
        self.require(bool(self.kernel.grid), 0, "the grid has no axis")
        for dim in self.kernel.grid:
            known = dim.scalar is None or dim.scalar in self.kernel.scalars
            self.require(known, 0, f"the grid names the scalar {dim.scalar!r}; there are {self.kernel.scalars}")
            self.require(dim.size >= 0 and dim.divisor >= 1, 0, f"the grid has an axis of {dim}")

    def scratch(self) -> None:
        total = sum(prod(a.shape) * a.dtype.nbytes for a in self.kernel.scratch)
        line = max((a.line for a in self.kernel.scratch), default=0)
        self.require(total <= MAX_SCRATCH_NBYTES, line, f"{total} bytes of scratch: at most {MAX_SCRATCH_NBYTES}")

    # --- blocks --------------------------------------------------------------------------------------------------
    def block(self, block: ir.Block, index: ir.Value | None = None) -> None:
        self.require(block not in self.open, 0, "a block is nested in itself")
        self.open.add(block)
        if index is not None:
            self.define(index, block)
        for item in block.statements:
            self.operands(item)
            if isinstance(item, ir.Value):
                value_rule(self.scope, item)
                if item.op == "var_get":
                    self.variable(item.attr, item.line)
                self.define(item, block)
            else:
                self.statement(item, block)
        self.open.discard(block)

    def define(self, value: ir.Value, block: ir.Block) -> None:
        if value in self.home:
            raise self.scope.fail(value.line, f"{value!r} is recorded twice")
        self.home[value] = block

    def operands(self, item: ir.Value | ir.Statement) -> None:
        for arg in traversal.operands(item):
            home = self.home.get(arg)
            if home is None or home not in self.open:
                where = "before it is made" if home is None else "outside the block that made it"
                raise self.scope.fail(item.line, f"{arg!r} is used {where}")

    def statement(self, item: ir.Statement, block: ir.Block) -> None:
        rule = _RULES.get(type(item))
        if rule is None:
            raise self.scope.fail(item.line, f"no rule for the statement {type(item).__name__}")
        if isinstance(item, ir.VarNew):
            self.var_new(item, block)
        elif isinstance(item, tile_ir.TILE_STATEMENTS):
            if isinstance(item, tile_ir.TileNew):
                self.tiles[item.tile] = block
            tile_rule(self.scope, {tile for tile, home in self.tiles.items() if home in self.open}, item)
        else:
            rule(self, item)

    def require(self, condition: bool, line: int, message: str) -> None:
        if not condition:
            raise self.scope.fail(line, message)

    # --- variables -----------------------------------------------------------------------------------------------
    def var_new(self, item: ir.VarNew, block: ir.Block) -> None:
        var, init = item.var, item.var.init
        self.require(var not in self.var_home, item.line, "a variable is made twice")
        same = init.dtype == var.dtype and init.width == var.width
        self.require(same, item.line, f"a variable of {var.dtype}, width {var.width}, starts as {init!r}")
        self.require(var.dtype not in ir.ARITHMETIC_DTYPE, item.line, f"{var.dtype} is for storage: no variable of it")
        self.require(not (var.identity and var.width), item.line, "an accumulator of explicit vectors")
        self.var_home[var] = (block, self.scope.in_lanes)

    def variable(self, var: ir.Var, line: int) -> bool:
        """Return whether the variable was declared inside k.lanes. VerifyError if it is out of scope."""
        home, made_in_lanes = self.var_home.get(var, (None, False))
        self.require(home in self.open, line, "a variable is used outside the block that made it")
        return made_in_lanes

    def var_set(self, item: ir.VarSet) -> None:
        var, value, scope = item.var, item.value, self.scope
        made_in_lanes = self.variable(var, item.line)
        fits = value.dtype == var.dtype and value.width in (0, var.width)
        self.require(fits, item.line, f"{value!r} set into a variable of {var.dtype}, width {var.width}")
        if var.width:
            flow = not scope.in_lanes and not scope.masked and value not in scope.varying
            self.require(flow, item.line, "an explicit vector variable is set where lanes differ")
        counts = scope.in_lanes and not made_in_lanes and var not in scope.varying_vars and _reads(value, var)
        self.require(not counts, item.line, "a uniform variable counts lanes inside k.lanes; use k.accumulator")

    # --- memory --------------------------------------------------------------------------------------------------
    def store(self, item: ir.Store) -> None:
        scope, array, value = self.scope, item.array, item.value
        self.require(array.writable, item.line, f"{array.name} is read-only")
        wanted = ir.arithmetic_dtype(array.dtype)
        self.require(value.dtype == wanted, item.line, f"{value!r} into {array.name} of {array.dtype}: wanted {wanted}")
        wanted_index(scope, array, item.indices, item.line)
        if value.width:
            vector_index(scope, array, item.indices, item.count, item.line)
            self.require(value not in scope.varying, item.line, "a vector stored must be uniform")
            return
        self.require(item.count is None, item.line, "a count without an explicit vector")
        if all(i not in scope.varying for i in item.indices):
            same = value not in scope.varying
            self.require(same, item.line, f"every lane stores another value to one element of {array.name}")
        elif not item.scattered:
            self.require(
                scope.contiguous(array, item.indices),
                item.line,
                f"lanes of {array.name} are not contiguous; ask for k.scatter",
            )

    def prefetch(self, item: ir.Prefetch) -> None:
        wanted_index(self.scope, item.array, item.indices, item.line, bounds=False)

    # --- flow ----------------------------------------------------------------------------------------------------
    def bounds(self, item: ir.Lanes | ir.Range) -> None:
        for bound in (item.start, item.stop):
            good = bound.dtype == i64 and not bound.width and bound not in self.scope.varying
            self.require(good, item.line, f"a loop's bound is {bound!r}: wanted a uniform i64")
        self.require(not self.scope.in_lanes, item.line, "a loop inside k.lanes; unroll it with Python's range")

    def lanes(self, item: ir.Lanes) -> None:
        self.bounds(item)
        self.require(not self.scope.masked, item.line, "k.lanes inside a k.when that varies by lane")
        self.scope.in_lanes = True
        self.block(item.body, item.index)
        self.scope.in_lanes = False

    def range(self, item: ir.Range) -> None:
        self.bounds(item)
        self.require(isinstance(item.step, int) and item.step > 0, item.line, f"step {item.step}: wanted above 0")
        self.block(item.body, item.index)

    def when(self, item: ir.When) -> None:
        scope, condition = self.scope, item.condition
        good = condition.dtype == boolean and not condition.width
        self.require(good, item.line, f"k.when of {condition!r}: wanted a boolean that is not an explicit vector")
        outer = scope.masked
        scope.masked = outer or condition in scope.varying
        self.block(item.body)
        scope.masked = outer

    def barrier(self, item: ir.Barrier) -> None:
        self.require(not self.scope.in_lanes and not self.scope.masked, item.line, "a barrier that not all lanes reach")


def _reads(value: ir.Value, var: ir.Var) -> bool:
    """Return whether the value depends on the variable."""
    seen, todo = {value}, [value]
    while todo:
        found = todo.pop()
        if found.op == "var_get" and found.attr is var:
            return True
        todo += [arg for arg in found.args if arg not in seen]
        seen.update(found.args)
    return False


_RULES: dict[type, Callable[[_Walk, Any], None]] = {
    ir.VarNew: lambda walk, item: None,  # statement() calls var_new, which also needs the block
    ir.VarSet: _Walk.var_set,
    ir.Store: _Walk.store,
    ir.Lanes: _Walk.lanes,
    ir.Range: _Walk.range,
    ir.When: _Walk.when,
    ir.Barrier: _Walk.barrier,
    ir.Prefetch: _Walk.prefetch,
    **dict.fromkeys(tile_ir.TILE_STATEMENTS, lambda walk, item: None),  # lang/verifier/tiles.py has their rules
}
