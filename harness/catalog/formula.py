"""Formulas of a case's parameters, which podium.yml uses for costs: `2 * m * n * k`, `4 * (m + n)`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from harness.errors import ProblemError, did_you_mean

_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
_MOST_CHARS = 1000


def value(formula: str, parameters: Mapping[str, Any]) -> float:
    """The value of `formula`. It may contain numbers, parameters that are numbers, + - * / // and parentheses.

    Raises ProblemError for anything else, for a division by zero and for a negative value.
    """
    try:
        tree = ast.parse(formula[:_MOST_CHARS], mode="eval").body
        result = float(_value(tree, parameters))
    except (SyntaxError, RecursionError, ZeroDivisionError, OverflowError, ValueError) as error:
        raise ProblemError(f"the formula {formula!r} has no value: {error}") from None
    if not result >= 0:
        raise ProblemError(f"the formula {formula!r} comes to {result:g}, which is below 0")
    return result


def _value(node: ast.expr, parameters: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left, parameters), _value(node.right, parameters))
    if isinstance(node, ast.Name):
        number = parameters.get(node.id)
        if isinstance(number, int | float):
            return number
        raise ProblemError(f"{node.id} in a formula is not a number of the case", did_you_mean(node.id, parameters))
    raise ProblemError(f"a formula cannot have {ast.unparse(node)!r}", "it has numbers, parameters, + - * / // and ()")
