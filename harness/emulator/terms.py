"""Terms: expressions of AMD's pseudocode in Python, each with the type of its value.

This module knows only terms. `expressions` reads them from the pseudocode.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.emulator import arithmetic as ar
from harness.emulator.arithmetic import Type

INPUTS = ("S0", "S1", "S2", "D0", "SCC", "VCC", "EXEC", "SIMM", "LANE", "OPSEL")

_SUFFIX = re.compile(r"^(bf|[uifb]|fp|bf)(\d+)$")


class Untranslatable(Exception):
    """The pseudocode is not arithmetic on an instruction's own operands."""


@dataclass
class Term:
    """An expression: Python text and the type of its value. literal: its value if it is a number."""

    text: str
    type: Type
    literal: Any = None


def arithmetic(operator: str, left: Term, right: Term) -> Term:
    if left.literal is not None and right.literal is not None and left.type[0] == right.type[0] == "int":
        python = {"&&": "and", "||": "or", "/": "//", "<>": "!="}.get(operator, operator)
        value = int(eval(f"{left.literal} {python} {right.literal}"))
        return Term(str(value), ("int", max(left.type[1], right.type[1])), value)
    if operator in ("&&", "||"):
        return Term(f"({truth(left)} {operator[0]} {truth(right)})", ("bool", 1))
    if operator == "**":
        kind = left.type if left.type[0] == "f" else ("f", 32)
        power = converted(right, ("i", 32))
        return Term(f"_power({converted(left, kind)}, {power})", ("power", kind[1]), None)
    if "power" in (left.type[0], right.type[0]) and operator == "*":
        factor, other = (left, right) if left.type[0] == "power" else (right, left)
        inside = factor.text.partition(", ")[2][:-1]
        return Term(f"ar.ldexp({other.text}, {inside})", other.type)
    if operator in ("<<", ">>"):
        kind = left.type if left.type[0] != "int" else ("i", 64 if left.type[1] == 64 else 32)
        return Term(
            f"_shift_{'left' if operator == '<<' else 'right'}({converted(left, kind)}, "
            f"{converted(right, ('u', 32))}, {kind[1]})",
            kind,
        )
    kind = common(left, right)
    a, b = converted(left, kind), converted(right, kind)
    if operator == "<>":  # ordered and not equal: false for a NaN
        return Term(f"(({a} < {b}) | ({a} > {b}))", ("bool", 1))
    if operator in ("==", "!=", "<", ">", "<=", ">="):
        return Term(f"({a} {operator} {b})", ("bool", 1))
    if kind[0] == "bf":
        return Term(f"ar.cast({a} {operator} {b}, ('f', 32), {kind})", kind)
    if kind[0] == "f":
        if operator == "/":
            return Term(f"ar.divided({a}, {b})", kind)
        return Term(f"({a} {operator} {b})", kind)
    if operator == "/":
        operator = "//"
    if kind[0] == "bool":
        return Term(f"({a} {operator} {b})", kind)
    text = f"({a} {operator} {b})"
    return Term(text if kind[1] in (32, 64) else f"ar.typed(ar.bits({text}, {kind}), {kind})", kind)


def common(left: Term, right: Term) -> Type:
    a, b = left.type, right.type
    if a[0] == "int":
        return _holding(b, left.literal) if b[0] != "int" else ("i", 32)
    if b[0] == "int":
        return _holding(a, right.literal)
    if a == b:
        return a
    if "f" in (a[0], b[0]) or "bf" in (a[0], b[0]):
        floats = [kind for kind in (a, b) if kind[0] in ("f", "bf")]
        if len(floats) == 2 and "bf" in (a[0], b[0]):
            return ("f", 32)
        return max(floats, key=lambda kind: kind[1])
    if a[0] == "bool" or b[0] == "bool":
        return b if a[0] == "bool" else a
    return ("u" if "u" in (a[0], b[0]) and max(a[1], b[1]) >= 0 else "i", max(a[1], b[1]))


def _holding(kind: Type, literal: Any) -> Type:
    """The type, or its 32-bit form if the integer `literal` needs more bits than it has: two bits times 8 do not fit
    two bits."""
    short = kind[0] in ("u", "i") and 0 < kind[1] < 32 and isinstance(literal, int)
    return (kind[0], 32) if short and literal.bit_length() > kind[1] else kind


def number(term: Term) -> Any:
    if term.literal is None:
        raise Untranslatable(f"{term.text} should be a constant")
    return term.literal


def truth(term: Term) -> str:
    if term.literal is not None:
        return f"np.bool_({bool(term.literal)})"
    return term.text if term.type[0] == "bool" else f"({term.text} != 0)"


def converted(term: Term, kind: Type) -> str:
    """The text of a term as a value of a type. Numbers keep their value, integers wrap."""
    if term.literal is not None:
        return constant(term.literal, kind)
    if term.type == kind:
        return term.text
    if term.type[0] == "power":
        raise Untranslatable("a power that is no factor")
    if term.type[1] == 0:
        return f"ar.typed({term.text}, {kind})"
    return cast(term, kind)


def cast(term: Term, kind: Type) -> str:
    if term.literal is not None:
        return constant(term.literal, kind)
    if term.type[1] == 0:
        return f"ar.typed({term.text}, {kind})"
    if kind[1] > 64:
        raise Untranslatable(f"{kind[1]} bits")
    return f"ar.cast({term.text}, {term.type}, {kind})"


def raw(term: Term, kind: Type) -> str:
    """The text of a term's bits, after conversion to a type."""
    if term.type[1] == 0 and term.type[0] == "u":
        return term.text
    if kind[1] > 64:
        raise Untranslatable(f"{kind[1]} bits")
    return f"ar.bits({converted(term, kind)}, {kind})"


def type_of(word: str) -> Type:
    found = _SUFFIX.match(word)
    if not found:
        raise Untranslatable(f".{word}")
    letter, width = found[1], int(found[2])
    if letter == "bf" and width == 16:
        return ("bf", 16)
    if letter == "f" and width in (16, 32, 64):
        return ("f", width)
    return ("i" if letter == "i" else "u", width)


def number_of(token: str) -> Term:
    sized = re.match(r"^(\d+)'(-?)(0x[0-9a-fA-F]+|\d+)", token)
    if sized:
        value = int(sized[3], 0) * (-1 if sized[2] else 1)
        return Term(str(value), ("int", int(sized[1])), value)
    if "." in token or (token.endswith("F") and not token.startswith("0x")):
        number = float(token.rstrip("F"))
        return Term(repr(number), ("int", 0), number)
    value = int(token.rstrip("UL"), 0)
    return Term(str(value), ("int", 64 if token.endswith("LL") else 0), value)


def width_of(term: Term) -> int:
    if term.type[1] == 0:
        raise Untranslatable("a constant without a width")
    return term.type[1]


def constant(value: Any, kind: Type) -> str:
    dtype = dtype_name(kind)
    if kind[0] in ("f", "bf"):
        text = repr(float(value)).replace("inf", "np.inf").replace("nan", "np.nan")
        return f"{dtype}({text})"
    if kind[0] == "bool":
        return f"np.bool_({bool(value)})"
    width = 64 if kind[1] > 32 else 32
    wrapped = int(value) & ((1 << min(kind[1] or 32, 64)) - 1)
    if kind[0] == "i" and wrapped >> (kind[1] - 1):
        wrapped -= 1 << kind[1]
    return f"np.{'int' if kind[0] == 'i' else 'uint'}{width}({wrapped})"


def dtype_name(kind: Type) -> str:
    return f"np.{np.dtype(ar.dtype_of(kind)).name}" if kind[0] != "bool" else "np.bool_"


def local(name: str) -> str:
    return name if name in INPUTS else f"t_{name}"
