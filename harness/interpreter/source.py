"""Rewrites the constructs of a kernel that mean something else to Triton's compiler than to Python.

    in the kernel                   Python does                          the compiler does, and so do we
    a and b, a or b, not a          truth of a block: always true        element by element
    min(a, b), max(a, b)            compares truth: returns one block    tl.minimum, tl.maximum
    for i in range(...)             i is a Python number                 i is an int32 scalar (types promote by it)
    x: tl.float32 = 0.0             x is a Python number                 x is a float32 scalar
    m, l = 0.0, 1.0                 Python numbers                       float32 scalars
    a < b < c                       as with `and`                        element by element, if this version has it

Applied to the syntax tree of each kernel before Triton's own transformation. Scalars keep Python's short-circuit.

A kernel that another function defines sees that function's names, as when compiled (`scope`). An annotation that has
the word constexpr makes a constexpr, also as a string (`from __future__ import annotations`).
"""

from __future__ import annotations

import ast
import builtins
import inspect
from collections.abc import Callable
from contextlib import suppress
from types import FunctionType
from typing import Any

import triton
import triton.language as tl
from triton.runtime import interpreter as upstream
from triton.runtime.interpreter import interpreter_semantic
from triton.runtime.jit import _normalize_ty

from harness.interpreter.refusal import CannotInterpret

COMPARES_CHAINS = hasattr(upstream, "_InterpreterComparison")
upstream_transformer = upstream.FunctionRewriter.ast_transformer
upstream_rewrite = upstream.FunctionRewriter.rewrite_ast


class Transformer:
    """Replaces FunctionRewriter.ast_transformer: our pass, then upstream's."""

    def visit(self, tree: ast.AST) -> ast.AST:
        for definition in tree.body if isinstance(tree, ast.Module) else ():
            if isinstance(definition, ast.FunctionDef):
                forget_annotations(definition)
        return upstream_transformer.visit(ast.fix_missing_locations(CompilerMeaning().visit(tree)))


def rewrite_ast(self: Any) -> Any:
    """Replaces FunctionRewriter.rewrite_ast. That runs a kernel without readable source as plain Python, and a kernel
    within another function without the names of that function."""
    try:
        inspect.getsourcelines(self.fn)
    except (OSError, TypeError) as error:
        raise CannotInterpret(f"the source of kernel {self.fn.__name__} cannot be read: {error}") from error
    made = upstream_rewrite(self)
    if self.fn.__closure__:
        made = FunctionType(made.__code__, scope(self.fn), made.__name__, made.__defaults__)
    made.__annotations__ = {
        name: "constexpr" if "constexpr" in _normalize_ty(kind) else kind
        for name, kind in self.fn.__annotations__.items()  # upstream knows no string but "constexpr" and "tl.constexpr"
    }
    return made


def scope(function: Any) -> dict[str, Any]:
    """The names that a function sees: those of its module, and of the functions around it as they are now."""
    if not function.__closure__:
        return function.__globals__
    around = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__, strict=True):
        with suppress(ValueError):  # not assigned yet
            around[name] = cell.cell_contents
    return function.__globals__ | around


def forget_annotations(definition: ast.FunctionDef) -> None:
    """Remove annotations, which name what the definition's surroundings know. `rewrite_ast` takes them from the
    original function."""
    arguments = definition.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        argument.annotation = None
    definition.returns = None


class CompilerMeaning(ast.NodeTransformer):
    """Replaces each construct of the table above by a call to the function below that does what the compiler does."""

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        name = "kernel_and" if isinstance(node.op, ast.And) else "kernel_or"
        no_arguments = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        return call(node, name, [ast.Lambda(args=no_arguments, body=value) for value in node.values])

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return call(node, "kernel_not", [node.operand]) if isinstance(node.op, ast.Not) else node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        if len(node.ops) > 1 and not COMPARES_CHAINS:
            raise CannotInterpret(
                f"`{ast.unparse(node)}`: triton {triton.__version__} does not compile a chained comparison"
            )
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
            return ast.copy_location(
                ast.Call(ast.Name("kernel_extreme", ast.Load()), [node.func, *node.args], node.keywords), node
            )
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        if node.value is None or "constexpr" in ast.unparse(node.annotation):
            return node
        return ast.copy_location(ast.Assign([node.target], node.value), node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.value, ast.Tuple):
            node.value = call(node, "kernel_tuple", [node.value])
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.target, ast.Name) and isinstance(node.iter, ast.Call) and is_range(node.iter.func):
            # Upstream makes a tensor of every value that a kernel assigns, as the compiler does.
            index = node.target.id
            node.body.insert(0, ast.Assign([ast.Name(index, ast.Store())], ast.Name(index, ast.Load())))
        return node


def call(node: ast.AST, name: str, arguments: list[Any]) -> ast.Call:
    return ast.copy_location(ast.Call(ast.Name(name, ast.Load()), arguments, []), node)


def is_range(function: ast.AST) -> bool:
    """True if `function` is written `range` or `<module>.range`. A static_range counts at compile time."""
    return getattr(function, "id", None) == "range" or getattr(function, "attr", None) == "range"


def is_block(value: Any) -> bool:
    return isinstance(value, tl.tensor) and value.type.is_block()


def kernel_and(*operands: Callable[[], Any]) -> Any:
    return connective(operands, interpreter_semantic.logical_and, absorbing=False)


def kernel_or(*operands: Callable[[], Any]) -> Any:
    return connective(operands, interpreter_semantic.logical_or, absorbing=True)


def connective(operands: tuple[Callable[[], Any], ...], elementwise: Callable[..., Any], absorbing: bool) -> Any:
    """`and` (absorbing False) or `or` (absorbing True) of values that are evaluated one by one."""
    value = operands[0]()
    for operand in operands[1:]:
        if not is_block(value):
            if bool(value) is absorbing:
                return value
            value = operand()
            continue
        other = operand()
        if isinstance(other, tl.tensor):
            value = elementwise(value, other)
        elif bool(other) is absorbing:
            return other
    return value


def kernel_not(value: Any) -> Any:
    return interpreter_semantic.not_(value) if is_block(value) else not value


def kernel_extreme(function: Callable[..., Any], *operands: Any, **named: Any) -> Any:
    """The call `function(*operands)` where a kernel writes min or max: Triton's function if it is the builtin on
    tensors."""
    builtin = function is builtins.min or function is builtins.max
    if not builtin or len(operands) < 2 or not any(isinstance(operand, tl.tensor) for operand in operands):
        return function(*operands, **named)
    pick = tl.core.minimum if function is builtins.min else tl.core.maximum
    result = operands[0]
    for operand in operands[1:]:
        result = pick(result, operand, _semantic=interpreter_semantic)
    return result


def kernel_tuple(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """`values` with floats as scalars. Integers stay, because a tuple of them may be a shape."""
    return tuple(interpreter_semantic.to_tensor(v) if isinstance(v, float) else v for v in values)


FUNCTIONS = (kernel_and, kernel_or, kernel_not, kernel_extreme, kernel_tuple)
