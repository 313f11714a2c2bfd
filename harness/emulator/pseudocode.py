"""AMD's pseudocode for an instruction, translated once to a Python function over numpy arrays.

    translated("D0.f32 = S0.f32 + S1.f32")  ─► Semantics: inputs it reads, outputs it writes, apply(**inputs)

Inputs and outputs are raw bits: S0, S1, S2 and D0 as uint32 or uint64, SCC as bool, VCC as bool by lane (also for the
lane masks that other encodings have in its place), SIMM as int. Every lane runs every statement: an `if` becomes a
mask, and an assignment under a mask keeps what was there. Loops are unrolled. What has no such translation (memory,
other lanes, jumps) raises Untranslatable.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.emulator import arithmetic as ar
from harness.emulator.arithmetic import Type

INPUTS = ("S0", "S1", "S2", "D0", "SCC", "VCC", "EXEC", "SIMM", "LANE", "OPSEL")

_TOKEN = re.compile(
    r"\s*(?:(?P<cast>\d+'[UIFB](?=\())|(?P<sized>\d+'-?(?:0x[0-9a-fA-F]+|\d+)(?:\.\d+)?[UIF]?)"
    r"|(?P<width>\d+'[UIFB])"
    r"|(?P<number>0x[0-9a-fA-F]+U?L{0,2}|\d+\.\d+F?|\d+U?L{0,2}F?)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<op>\*\*|\+:|<<|>>|<=|>=|==|!=|<>|&&|\|\||\+=|-=|[-+*/%&|^~!<>=?:;,.(){}\[\]]))"
)
_SUFFIX = re.compile(r"^(bf|[uifb]|fp|bf)(\d+)$")
_WORDS = {"if", "then", "elsif", "else", "endif", "for", "in", "do", "endfor", "declare", "break"}


class Untranslatable(Exception):
    """The pseudocode says something that is no arithmetic on an instruction's own operands."""


@dataclass(frozen=True)
class Semantics:
    """What an instruction does to one lane. reads, writes: of `INPUTS`."""

    reads: frozenset[str]
    writes: frozenset[str]
    apply: Callable[..., dict[str, Any]]
    source: str


@dataclass
class _Term:
    """An expression: Python text, and the type of what it gives. literal: a number as it stands."""

    text: str
    type: Type
    literal: Any = None


def translated(code: str, *, d0_bits: int = 32) -> Semantics:
    """Raises Untranslatable."""
    translator = _Translator(code, d0_bits)
    try:
        translator.block(())
        if translator.peek() is not None:
            raise Untranslatable(f"{translator.peek()}")
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise Untranslatable(f"{type(error).__name__}: {error}") from None
    outputs = ", ".join(f"{name!r}: {name}" for name in sorted(translator.writes))
    lines = ["def apply(" + ", ".join(INPUTS) + "):", *translator.lines, f"    return {{{outputs}}}"]
    source = "\n".join(lines)
    scope: dict[str, Any] = {"np": np, "ar": ar, **_FUNCTIONS}
    exec(compile(source, "<pseudocode>", "exec"), scope)
    return Semantics(frozenset(translator.reads), frozenset(translator.writes), scope["apply"], source)


class _Translator:
    def __init__(self, code: str, d0_bits: int) -> None:
        code = re.sub(r"//[^\n]*", "", code)
        self.tokens: list[tuple[str, str]] = []
        at = 0
        while code[at:].strip():
            found = _TOKEN.match(code, at)
            if not found:
                raise Untranslatable(f"{code[at : at + 20]!r}")
            self.tokens.append((str(found.lastgroup), found[0].strip()))
            at = found.end()
        self.at = 0
        self.lines: list[str] = []
        self.variables: dict[str, Type] = {"D0": ("u", d0_bits)}
        self.constants: dict[str, int] = {}
        self.reads: set[str] = set()
        self.writes: set[str] = set()
        self.masks = 0
        self.breaks: list[str] = []

    # tokens

    def peek(self, ahead: int = 0) -> str | None:
        return self.tokens[self.at + ahead][1] if self.at + ahead < len(self.tokens) else None

    def take(self, expected: str | None = None) -> str:
        token = self.tokens[self.at][1]
        if expected is not None and token != expected:
            raise Untranslatable(f"{token!r} where {expected!r} should be")
        self.at += 1
        return token

    def say(self, line: str) -> None:
        self.lines.append("    " + line)

    # statements

    def block(self, masks: tuple[str, ...]) -> None:
        while (token := self.peek()) is not None and token not in ("elsif", "else", "endif", "endfor"):
            if token == ";":
                self.take()
            elif token == "if":
                self.condition(masks)
            elif token == "for":
                self.loop(masks)
            elif token == "declare":
                self.declaration()
            elif token == "break":
                self.take()
                self.say(f"{self.breaks[-1]} = {self.breaks[-1]} | {' & '.join(masks) or 'True'}")
            else:
                self.assignment(masks)

    def condition(self, masks: tuple[str, ...]) -> None:
        before: list[str] = []
        self.take("if")
        while True:
            test = self.truth(self.expression())
            self.take("then")
            self.masks += 1
            name = f"m{self.masks}"
            self.say(f"{name} = {test}")
            own = (*masks, *(f"~{one}" for one in before), name)
            self.block(own)
            before.append(name)
            token = self.take()
            if token == "elsif":
                continue
            if token == "else":
                self.block((*masks, *(f"~{one}" for one in before)))
                self.take("endif")
            return

    def loop(self, masks: tuple[str, ...]) -> None:
        self.take("for")
        name = self.take()
        self.take("in")
        first = int(self.number(self.expression()))
        self.take(":")
        last = int(self.number(self.expression()))
        self.take("do")
        begin = self.at
        self.masks += 1
        done = f"k{self.masks}"
        self.say(f"{done} = np.False_")
        self.breaks.append(done)
        for count in range(first, last + 1):
            self.at = begin
            self.constants[name] = count
            self.block((*masks, f"~{done}"))
        self.breaks.pop()
        del self.constants[name]
        self.take("endfor")

    def declaration(self) -> None:
        self.take("declare")
        name = self.take()
        self.take(":")
        width, letter = self.take().split("'")
        if self.peek() == "[":
            raise Untranslatable("an array")
        self.variables[name] = ({"U": "u", "I": "i", "F": "f", "B": "u"}[letter], int(width))
        self.say(f"{_local(name)} = np.zeros_like({self.first_input()}).astype({_dtype(self.variables[name])})")

    def first_input(self) -> str:
        return "S0"

    def assignment(self, masks: tuple[str, ...]) -> None:
        name = self.take()
        target = "D0" if name in ("D0", "D") else name
        if self.peek() == "[" and target == "VGPR":  # VGPR[laneId][VDST.u32] is this lane's own result
            for word in ("[", "laneId", "]", "[", "VDST", ".", "u32", "]"):
                self.take(word)
            target = "D0"
        slices, kind = self.place()
        operation = self.take()
        if operation not in ("=", "+=", "-="):
            raise Untranslatable(f"{name} {operation}")
        value = self.expression()
        if self.peek() == "=":  # EXEC.u64[laneId] = D0.u64[laneId] = ...
            raise Untranslatable("a chain of assignments")
        if target in ("ROUND_MODE", "prev_mode"):
            return
        if target in ("PC", "EXEC", "M0", "MEM", "S0", "D1", "VGPR", "SGPR"):
            raise Untranslatable(f"it writes {target}")
        if target == "SCC":
            return self.store("SCC", self.truth(value), masks, ("bool", 1))
        if target == "VCC" or (slices and slices[0] == "lane"):
            return self.store("VCC", self.truth(value), masks, ("bool", 1))
        if operation != "=":
            old = self.read_variable(target, kind)
            value = self.arithmetic(operation[0], old, value)
        if slices:
            self.insert(target, slices, kind, value, masks)
        else:
            self.whole(target, kind, value, masks)

    def place(self) -> tuple[Any, Type | None]:
        """What follows a name on the left: slices and suffixes."""
        slices: Any = None
        kind: Type | None = None
        while self.peek() in ("[", "."):
            if self.take() == ".":
                kind = _type(self.take())
                continue
            if self.peek() == "laneId":
                self.take()
                slices = ("lane",)
            else:
                high = self.expression()
                if self.peek() == ":":
                    self.take()
                    low = self.expression()
                    slices = ("range", self.number(high), self.number(low))
                else:
                    slices = ("bit", high)
            self.take("]")
        return slices, kind

    def store(self, name: str, text: str, masks: tuple[str, ...], kind: Type) -> None:
        if name in INPUTS:
            self.writes.add(name)
        local = _local(name)
        known = name in self.variables or name in INPUTS
        if masks and known:
            if name in INPUTS:
                self.reads.add(name)
            self.say(f"{local} = np.where({' & '.join(masks)}, {text}, {local})")
        else:
            self.say(f"{local} = {text}")
        if name not in INPUTS:
            self.variables[name] = kind

    def whole(self, target: str, kind: Type | None, value: _Term, masks: tuple[str, ...]) -> None:
        if target == "D0":
            width = self.variables["D0"][1]
            source = kind or (value.type if value.type[0] != "int" else ("u", width))
            text = f"({self.raw(value, source)}).astype({_dtype(('u', width))})"
            return self.store("D0", text, masks, ("u", width))
        declared = self.variables.get(target)
        if masks and declared is not None:
            kind = declared
        final = kind or declared or (value.type if value.type[0] != "int" else ("i", 32))
        self.store(target, self.converted(value, final), masks, final)

    def insert(self, target: str, slices: Any, kind: Type | None, value: _Term, masks: tuple[str, ...]) -> None:
        if target != "D0" and target not in self.variables:
            self.variables[target] = ("u", 64)
            self.say(f"{_local(target)} = np.zeros(np.shape(S0), np.uint64)")
        held = self.variables[target]
        if held[0] not in ("u", "i"):
            raise Untranslatable(f"a part of {held}")
        if target == "D0":
            self.reads.add("D0")
        if slices[0] == "bit":
            place, width = self.converted(slices[1], ("u", 32)), 1
        else:
            place, width = str(slices[2]), slices[1] - slices[2] + 1
        source = (kind[0], width) if kind and kind[0] in ("u", "i") else kind or ("u", width)
        if source[0] == "bool" or width == 1:
            source = ("u", 1)
        text = f"_insert({_local(target)}, {place}, {width}, {self.raw(value, source)})"
        if target == "D0":
            text = f"({text}).astype({_dtype(held)})"
        self.store(target, text, masks, held)

    # expressions

    def expression(self) -> _Term:
        test = self.binary(0)
        if self.peek() != "?":
            return test
        self.take("?")
        yes = self.expression()
        self.take(":")
        no = self.expression()
        kind = yes.type if yes.type[0] != "int" else no.type
        if kind[0] == "int":
            kind = ("i", 32)
            if yes.literal is not None and no.literal is not None and test.literal is not None:
                return yes if test.literal else no
        if kind[0] == "bool":
            kind = ("u", 32)
        return _Term(f"np.where({self.truth(test)}, {self.converted(yes, kind)}, {self.converted(no, kind)})", kind)

    LEVELS = (
        ("||",),
        ("&&",),
        ("|",),
        ("^",),
        ("&",),
        ("==", "!=", "<>"),
        ("<", ">", "<=", ">="),
        ("<<", ">>"),
        ("+", "-"),
        ("*", "/", "%"),
        ("**",),
    )

    def binary(self, level: int) -> _Term:
        if level == len(self.LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        while self.peek() in self.LEVELS[level]:
            operator = self.take()
            left = self.arithmetic(operator, left, self.binary(level + 1))
        return left

    def arithmetic(self, operator: str, left: _Term, right: _Term) -> _Term:
        if left.literal is not None and right.literal is not None and left.type[0] == right.type[0] == "int":
            python = {"&&": "and", "||": "or", "/": "//", "<>": "!="}.get(operator, operator)
            value = int(eval(f"{left.literal} {python} {right.literal}"))
            return _Term(str(value), ("int", max(left.type[1], right.type[1])), value)
        if operator in ("&&", "||"):
            return _Term(f"({self.truth(left)} {operator[0]} {self.truth(right)})", ("bool", 1))
        if operator == "**":
            kind = left.type if left.type[0] == "f" else ("f", 32)
            power = self.converted(right, ("i", 32))
            return _Term(f"_power({self.converted(left, kind)}, {power})", ("power", kind[1]), None)
        if "power" in (left.type[0], right.type[0]) and operator == "*":
            factor, other = (left, right) if left.type[0] == "power" else (right, left)
            inside = factor.text.partition(", ")[2][:-1]
            return _Term(f"ar.ldexp({other.text}, {inside})", other.type)
        if operator in ("<<", ">>"):
            kind = left.type if left.type[0] != "int" else ("i", 64 if left.type[1] == 64 else 32)
            return _Term(
                f"_shift_{'left' if operator == '<<' else 'right'}({self.converted(left, kind)}, "
                f"{self.converted(right, ('u', 32))}, {kind[1]})",
                kind,
            )
        kind = self.common(left, right)
        a, b = self.converted(left, kind), self.converted(right, kind)
        if operator == "<>":  # ordered, and not equal: false of a NaN
            return _Term(f"(({a} < {b}) | ({a} > {b}))", ("bool", 1))
        if operator in ("==", "!=", "<", ">", "<=", ">="):
            return _Term(f"({a} {operator} {b})", ("bool", 1))
        if kind[0] == "bf":
            return _Term(f"ar.cast({a} {operator} {b}, ('f', 32), {kind})", kind)
        if kind[0] == "f":
            if operator == "/":
                return _Term(f"ar.divided({a}, {b})", kind)
            return _Term(f"({a} {operator} {b})", kind)
        if operator == "/":
            operator = "//"
        if kind[0] == "bool":
            return _Term(f"({a} {operator} {b})", kind)
        text = f"({a} {operator} {b})"
        return _Term(text if kind[1] in (32, 64) else f"ar.typed(ar.bits({text}, {kind}), {kind})", kind)

    def common(self, left: _Term, right: _Term) -> Type:
        a, b = left.type, right.type
        if a[0] == "int":
            return b if b[0] != "int" else ("i", 32)
        if b[0] == "int" or a == b:
            return a
        if "f" in (a[0], b[0]) or "bf" in (a[0], b[0]):
            floats = [kind for kind in (a, b) if kind[0] in ("f", "bf")]
            if len(floats) == 2 and "bf" in (a[0], b[0]):
                return ("f", 32)
            return max(floats, key=lambda kind: kind[1])
        if a[0] == "bool" or b[0] == "bool":
            return b if a[0] == "bool" else a
        return ("u" if "u" in (a[0], b[0]) and max(a[1], b[1]) >= 0 else "i", max(a[1], b[1]))

    def unary(self) -> _Term:
        operator = self.peek()
        if operator in ("-", "+", "~", "!"):
            self.take()
            term = self.unary()
            if operator == "+":
                return term
            if operator == "!":
                return _Term(f"(~{self.truth(term)})", ("bool", 1))
            if term.literal is not None:
                value = -term.literal if operator == "-" else ~term.literal
                return _Term(
                    f"({value!r})" if value == value and abs(value) != np.inf else f"({operator}np.inf)",
                    term.type,
                    value,
                )
            if operator == "-" and term.type[0] == "u":
                return _Term(f"(-ar.typed({term.text}, ('i', {term.type[1]})))", ("i", term.type[1]))
            if operator == "~" and term.type[0] == "bool":
                return _Term(f"(~{term.text})", term.type)
            text = f"({operator}{term.text})"
            if term.type[0] == "u" and term.type[1] not in (32, 64):
                text = f"ar.bits({text}, {term.type})"
            return _Term(text, term.type)
        return self.suffixed(self.primary())

    def suffixed(self, term: _Term) -> _Term:
        while self.peek() in (".", "["):
            if self.take() == ".":
                word = self.take()
                if word == "IEEE":
                    term = _Term("np.True_", ("bool", 1))
                    continue
                kind = _type(word)
                if term.literal is not None:
                    number = term.literal
                    term = _Term(repr(number), ("int", 0), number) if kind[0] in "ui" else term
                    continue
                term = _Term(f"ar.typed({self.raw(term, term.type)}, {kind})", kind)
                continue
            if self.peek() == "laneId":
                self.take()
                self.take("]")
                raise Untranslatable("another register's lane")
            high = self.expression()
            if self.peek() in (":", "+:"):
                counted = self.take() == "+:"
                second = self.expression()
                if counted:
                    low, width = high, int(self.number(second))
                else:
                    low, width = second, int(self.number(high)) - int(self.number(second)) + 1
                if width < 1:
                    raise Untranslatable(f"a slice of {width} bits")
                raw = self.raw(term, term.type)
                kind = ("u", width)
                term = _Term(f"_extract({raw}, {self.converted(low, ('u', 32))}, {width})", kind)
            else:
                raw = self.raw(term, term.type)
                term = _Term(f"(_extract({raw}, {self.converted(high, ('u', 32))}, 1) != 0)", ("bool", 1))
            self.take("]")
        return term

    def primary(self) -> _Term:
        group, token = self.tokens[self.at]
        if group == "cast":
            self.take()
            width, letter = token.split("'")
            self.take("(")
            term = self.expression()
            self.take(")")
            kind: Type = ({"U": "u", "I": "i", "F": "f", "B": "u"}[letter], int(width))
            if letter == "B" and term.type[0] in ("f", "bf"):
                return _Term(self.raw(term, term.type), kind)
            return _Term(self.cast(term, kind), kind)
        if group in ("sized", "number"):
            self.take()
            return _number(token)
        if token == "(":
            self.take()
            term = self.expression()
            self.take(")")
            return _Term(f"({term.text})", term.type, term.literal)
        if token == "{":
            return self.concatenation()
        if group != "name" or token in _WORDS:
            raise Untranslatable(f"{token!r}")
        self.take()
        if self.peek() == "(":
            return self.call(token)
        return self.named(token)

    def named(self, name: str) -> _Term:
        if name in self.constants:
            return _Term(str(self.constants[name]), ("int", 0), self.constants[name])
        constants = {"INF": "np.inf", "PI": "np.pi"}
        if name in constants:
            return _Term(constants[name], ("int", 0), float(eval(constants[name])))
        if name in ("SIMM16", "SIMM32"):
            self.reads.add("SIMM")
            return _Term("SIMM", ("u", 32))
        if name == "laneId":
            self.reads.add("LANE")
            return _Term("LANE", ("u", 32))
        if name == "WAVE_MODE":
            return _Term("np.True_", ("bool", 1))
        if name == "OPSEL":
            self.reads.add("OPSEL")
            return _Term("np.uint32(OPSEL)", ("u", 32))
        if name == "SCC":
            self.reads.add("SCC")
            return _Term("SCC", ("bool", 1))
        if name == "VCC":
            self.reads.add("VCC")
            for word in (".", "u64", "[", "laneId", "]"):
                self.take(word)
            if self.peek() == "." and self.peek(1) == "u64":
                self.take(), self.take()
                return _Term("VCC.astype(np.uint64)", ("u", 64))
            return _Term("VCC", ("bool", 1))
        if name in ("S0", "S1", "S2", "D0"):
            self.reads.add(name)
            if self.peek() == "." and (kind := _type(str(self.peek(1)))):
                self.take(), self.take()
                return _Term(f"ar.typed({name}, {kind})", kind)
            return _Term(name, ("u", 0))
        if name in self.variables:
            return _Term(_local(name), self.variables[name])
        raise Untranslatable(f"it reads {name}")

    def read_variable(self, name: str, kind: Type | None) -> _Term:
        if name == "D0":
            self.reads.add("D0")
            return _Term(f"ar.typed(D0, {kind})", kind or ("u", 32))
        return _Term(_local(name), self.variables[name])

    def call(self, name: str) -> _Term:
        if name in ("isNAN", "isSignalNAN", "isQuietNAN", "cvtToQuietNAN"):
            return self.of_nan(name)
        arguments = []
        self.take("(")
        while self.peek() != ")":
            arguments.append(self.expression())
            if self.peek() == ",":
                self.take()
        self.take(")")
        conversion = re.match(r"^([uif]|bf)(\d+)_to_([uif]|bf)(\d+)$", name)
        if conversion and (conversion[1] != "bf" or conversion[2] == "16") and conversion[4] != "8":
            source: Type = (conversion[1], int(conversion[2]))
            return _Term(
                f"ar.cast({self.converted(arguments[0], source)}, {source}, {(conversion[3], int(conversion[4]))})",
                (conversion[3], int(conversion[4])),
            )
        texts = [one.text for one in arguments]
        kind = arguments[0].type if arguments else ("u", 32)
        if name == "signext":
            return _Term(f"{texts[0]}.astype(np.int64)", ("i", 64))
        if name == "signext_from_bit":
            width = self.converted(arguments[1], ("u", 32))
            return _Term(f"_sign_extended({self.raw(arguments[0], kind)}, {width}, {kind})", kind)
        if name == "fma":
            return _Term(f"ar.fma({', '.join(texts)})", kind)
        if name == "ldexp":
            return _Term(f"ar.ldexp({texts[0]}, {self.converted(arguments[1], ('i', 32))})", kind)
        if name in _MINMAX and len(arguments) in (2, 3):
            return _Term(f"{_MINMAX[name]}({', '.join(texts)})", _type(name.split("_")[-1]))
        simple = {
            "floor": "np.floor({})",
            "trunc": "np.trunc({})",
            "abs": "np.abs({})",
            "sqrt": "ar.exact(np.sqrt, {})",
            "log2": "ar.exact(np.log2, {})",
            "fract": "({0} - np.floor({0}))",
        }
        if name in simple:
            return _Term(simple[name].format(*texts), kind)
        if name == "pow":
            return _Term(f"ar.exact(np.exp2, {texts[1]})", arguments[1].type)
        if name == "exponent":
            return _Term(f"ar.exponent({texts[0]})", ("i", 32))
        if name == "mantissa":
            return _Term(f"ar.mantissa({texts[0]})", kind)
        if name == "sign":
            return _Term(f"np.signbit({texts[0]})", ("bool", 1))
        if name == "isEven":
            return _Term(f"(np.mod({texts[0]}, 2.0) == 0)", ("bool", 1))
        if name == "bitCount":
            return _Term(f"ar.population({texts[0]})", ("i", 32))
        if name == "BYTE_PERMUTE":
            return _Term(f"ar.byte_permute({texts[0]}, {texts[1]})", ("u", 8))
        if name == "ABSDIFF":
            return _Term(f"(np.maximum({texts[0]}, {texts[1]}) - np.minimum({texts[0]}, {texts[1]}))", ("u", 32))
        raise Untranslatable(f"it calls {name}")

    def of_nan(self, name: str) -> _Term:
        """isNAN(64'F(x)): asked of x itself, since a conversion makes a signalling NaN quiet."""
        self.take("(")
        wrapped = self.peek() == "64'F"
        if wrapped:
            self.take()
            self.take("(")
        term = self.expression()
        if wrapped:
            self.take(")")
        self.take(")")
        functions = {"isNAN": "np.isnan", "isSignalNAN": "ar.is_signalling", "isQuietNAN": "ar.is_quiet"}
        if name == "cvtToQuietNAN":
            return _Term(f"ar.quiet({term.text})", term.type)
        return _Term(f"{functions[name]}({term.text})", ("bool", 1))

    def concatenation(self) -> _Term:
        self.take("{")
        parts = []
        while self.peek() != "}":
            parts.append(self.expression())
            if self.peek() == ",":
                self.take()
        self.take("}")
        text, width = "", 0
        for part in reversed(parts):
            bits = 32 if part.type[1] == 0 else part.type[1]
            piece = f"ar.bits({part.text}, {part.type}).astype(np.uint64) << np.uint64({width})"
            if part.type[1] == 0:
                piece = f"{part.text}.astype(np.uint64) << np.uint64({width})"
            if part.literal is None:
                text = f"{text} | ({piece})" if text else f"({piece})"
            elif part.literal:
                raise Untranslatable("a constant in a concatenation")
            width += bits if part.type[0] != "int" else _width_of(part)
        if not text or width > 64:
            raise Untranslatable(f"a concatenation of {width} bits")
        return _Term(f"ar.typed({text}, ('u', {width}))", ("u", width))

    # types

    def number(self, term: _Term) -> Any:
        if term.literal is None:
            raise Untranslatable(f"{term.text} should be a constant")
        return term.literal

    def truth(self, term: _Term) -> str:
        if term.literal is not None:
            return f"np.bool_({bool(term.literal)})"
        return term.text if term.type[0] == "bool" else f"({term.text} != 0)"

    def converted(self, term: _Term, kind: Type) -> str:
        """The text of a term as a value of a type: numbers keep their value, integers wrap."""
        if term.literal is not None:
            return _constant(term.literal, kind)
        if term.type == kind:
            return term.text
        if term.type[0] == "power":
            raise Untranslatable("a power that is no factor")
        if term.type[1] == 0:
            return f"ar.typed({term.text}, {kind})"
        return self.cast(term, kind)

    def cast(self, term: _Term, kind: Type) -> str:
        if term.literal is not None:
            return _constant(term.literal, kind)
        if term.type[1] == 0:
            return f"ar.typed({term.text}, {kind})"
        if kind[1] > 64:
            raise Untranslatable(f"{kind[1]} bits")
        return f"ar.cast({term.text}, {term.type}, {kind})"

    def raw(self, term: _Term, kind: Type) -> str:
        """The text of a term's bits, as a value of a type first."""
        if term.type[1] == 0 and term.type[0] == "u":
            return term.text
        if kind[1] > 64:
            raise Untranslatable(f"{kind[1]} bits")
        return f"ar.bits({self.converted(term, kind)}, {kind})"


def _type(word: str) -> Type:
    found = _SUFFIX.match(word)
    if not found:
        raise Untranslatable(f".{word}")
    letter, width = found[1], int(found[2])
    if letter == "bf" and width == 16:
        return ("bf", 16)
    if letter == "f" and width in (16, 32, 64):
        return ("f", width)
    return ("i" if letter == "i" else "u", width)


def _number(token: str) -> _Term:
    sized = re.match(r"^(\d+)'(-?)(0x[0-9a-fA-F]+|\d+)", token)
    if sized:
        value = int(sized[3], 0) * (-1 if sized[2] else 1)
        return _Term(str(value), ("int", int(sized[1])), value)
    if "." in token or (token.endswith("F") and not token.startswith("0x")):
        number = float(token.rstrip("F"))
        return _Term(repr(number), ("int", 0), number)
    value = int(token.rstrip("UL"), 0)
    return _Term(str(value), ("int", 64 if token.endswith("LL") else 0), value)


def _width_of(term: _Term) -> int:
    if term.type[1] == 0:
        raise Untranslatable("a constant without a width")
    return term.type[1]


def _constant(value: Any, kind: Type) -> str:
    dtype = _dtype(kind)
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


def _dtype(kind: Type) -> str:
    return f"np.{np.dtype(ar.dtype_of(kind)).name}" if kind[0] != "bool" else "np.bool_"


def _local(name: str) -> str:
    return name if name in INPUTS else f"t_{name}"


def _extract(raw: Any, low: Any, width: int) -> Any:
    mask = raw.dtype.type((1 << width) - 1 if width < 64 else (1 << 64) - 1)
    found = (raw >> np.asarray(low).astype(raw.dtype)) & mask
    return found.astype(np.uint32) if width <= 32 and found.dtype != np.uint32 else found


def _insert(held: Any, low: Any, width: int, value: Any) -> Any:
    unsigned = held.dtype if held.dtype.kind == "u" else np.dtype(f"u{held.dtype.itemsize}")
    word = held.view(unsigned)
    place = np.asarray(low).astype(unsigned)
    mask = unsigned.type((1 << width) - 1 if width < 64 else (1 << 64) - 1) << place
    return ((word & ~mask) | ((value.astype(unsigned) << place) & mask)).view(held.dtype)


def _shift_left(value: Any, count: Any, width: int) -> Any:
    return _shift(value, count, width, lambda a, b: a << b, lambda a: np.zeros_like(a))


def _shift_right(value: Any, count: Any, width: int) -> Any:
    return _shift(
        value,
        count,
        width,
        lambda a, b: a >> b,
        lambda a: a >> a.dtype.type(a.dtype.itemsize * 8 - 1) if a.dtype.kind == "i" else np.zeros_like(a),
    )


def _shift(value: Any, count: Any, width: int, within: Any, beyond: Any) -> Any:
    value, count = np.asarray(value), np.asarray(count)
    most = value.dtype.itemsize * 8 - 1
    shifted = within(value, np.minimum(count, most).astype(value.dtype))
    if np.any(count > most):
        shifted = np.where(count > most, beyond(np.broadcast_to(value, np.shape(shifted))), shifted)
    kind = ("i" if value.dtype.kind == "i" else "u", width)
    return shifted if width in (32, 64) else ar.typed(ar.bits(shifted, kind), kind)


def _sign_extended(raw: Any, width: Any, kind: Type) -> Any:
    whole = 32 if kind[1] <= 32 else 64
    signed = raw.view(np.int32 if whole == 32 else np.int64)
    shift = (whole - np.clip(width, 1, whole)).astype(signed.dtype)
    return np.where(np.asarray(width) == 0, signed.dtype.type(0), (signed << shift) >> shift)


def _power(base: Any, power: Any) -> Any:
    raise AssertionError("a power is folded into ldexp")


_MINMAX = {}
for _kind in ("f16", "f32", "f64"):
    _MINMAX[f"v_max_{_kind}"], _MINMAX[f"v_min_{_kind}"] = "ar.largest", "ar.smallest"
    _MINMAX[f"v_max3_{_kind}"], _MINMAX[f"v_min3_{_kind}"] = "_largest3", "_smallest3"
for _kind in ("i16", "u16", "i32", "u32"):
    _MINMAX[f"v_max_{_kind}"], _MINMAX[f"v_min_{_kind}"] = "np.maximum", "np.minimum"
    _MINMAX[f"v_max3_{_kind}"], _MINMAX[f"v_min3_{_kind}"] = "_maximum3", "_minimum3"

_FUNCTIONS = {
    "_extract": _extract,
    "_insert": _insert,
    "_shift_left": _shift_left,
    "_shift_right": _shift_right,
    "_sign_extended": _sign_extended,
    "_power": _power,
    "_largest3": lambda a, b, c: ar.largest(ar.largest(a, b), c),
    "_smallest3": lambda a, b, c: ar.smallest(ar.smallest(a, b), c),
    "_maximum3": lambda a, b, c: np.maximum(np.maximum(a, b), c),
    "_minimum3": lambda a, b, c: np.minimum(np.minimum(a, b), c),
}
