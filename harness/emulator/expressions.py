"""Parses expressions of AMD's pseudocode from tokens."""

from __future__ import annotations

import numpy as np

from harness.emulator import terms
from harness.emulator.arithmetic import Type
from harness.emulator.calls import called
from harness.emulator.terms import Term, Untranslatable
from harness.emulator.tokens import Tokens

_WORDS = {"if", "then", "elsif", "else", "endif", "for", "in", "do", "endfor", "declare", "break"}


class Expressions(Tokens):
    """variables, constants: the known names, with their types and values. reads: the INPUTS that were read."""

    def __init__(self, code: str, d0_bits: int) -> None:
        super().__init__(code)
        self.variables: dict[str, Type] = {"D0": ("u", d0_bits)}
        self.constants: dict[str, int] = {}
        self.reads: set[str] = set()

    def expression(self) -> Term:
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
        return Term(f"np.where({terms.truth(test)}, {terms.converted(yes, kind)}, {terms.converted(no, kind)})", kind)

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

    def binary(self, level: int) -> Term:
        if level == len(self.LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        while self.peek() in self.LEVELS[level]:
            operator = self.take()
            left = terms.arithmetic(operator, left, self.binary(level + 1))
        return left

    def unary(self) -> Term:
        operator = self.peek()
        if operator in ("-", "+", "~", "!"):
            self.take()
            term = self.unary()
            if operator == "+":
                return term
            if operator == "!":
                return Term(f"(~{terms.truth(term)})", ("bool", 1))
            if term.literal is not None:
                value = -term.literal if operator == "-" else ~term.literal
                return Term(
                    f"({value!r})" if value == value and abs(value) != np.inf else f"({operator}np.inf)",
                    term.type,
                    value,
                )
            if operator == "-" and term.type[0] == "u":
                return Term(f"(-ar.typed({term.text}, ('i', {term.type[1]})))", ("i", term.type[1]))
            if operator == "~" and term.type[0] == "bool":
                return Term(f"(~{term.text})", term.type)
            text = f"({operator}{term.text})"
            if term.type[0] == "u" and term.type[1] not in (32, 64):
                text = f"ar.bits({text}, {term.type})"
            return Term(text, term.type)
        return self.suffixed(self.primary())

    def suffixed(self, term: Term) -> Term:
        while self.peek() in (".", "["):
            if self.take() == ".":
                word = self.take()
                if word == "IEEE":
                    term = Term("np.True_", ("bool", 1))
                    continue
                kind = terms.type_of(word)
                if term.literal is not None:
                    number = term.literal
                    term = Term(repr(number), ("int", 0), number) if kind[0] in "ui" else term
                    continue
                term = Term(f"ar.typed({terms.raw(term, term.type)}, {kind})", kind)
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
                    low, width = high, int(terms.number(second))
                else:
                    low, width = second, int(terms.number(high)) - int(terms.number(second)) + 1
                if width < 1:
                    raise Untranslatable(f"a slice of {width} bits")
                raw = terms.raw(term, term.type)
                kind = ("u", width)
                term = Term(f"_extract({raw}, {terms.converted(low, ('u', 32))}, {width})", kind)
            else:
                raw = terms.raw(term, term.type)
                term = Term(f"(_extract({raw}, {terms.converted(high, ('u', 32))}, 1) != 0)", ("bool", 1))
            self.take("]")
        return term

    def primary(self) -> Term:
        group, token = self.tokens[self.at]
        if group == "cast":
            self.take()
            width, letter = token.split("'")
            self.take("(")
            term = self.expression()
            self.take(")")
            kind: Type = ({"U": "u", "I": "i", "F": "f", "B": "u"}[letter], int(width))
            if letter == "B" and term.type[0] in ("f", "bf"):
                return Term(terms.raw(term, term.type), kind)
            return Term(terms.cast(term, kind), kind)
        if group in ("sized", "number"):
            self.take()
            return terms.number_of(token)
        if token == "(":
            self.take()
            term = self.expression()
            self.take(")")
            return Term(f"({term.text})", term.type, term.literal)
        if token == "{":
            return self.concatenation()
        if group != "name" or token in _WORDS:
            raise Untranslatable(f"{token!r}")
        self.take()
        if self.peek() == "(":
            return self.call(token)
        return self.named(token)

    def named(self, name: str) -> Term:
        if name in self.constants:
            return Term(str(self.constants[name]), ("int", 0), self.constants[name])
        constants = {"INF": "np.inf", "PI": "np.pi"}
        if name in constants:
            return Term(constants[name], ("int", 0), float(eval(constants[name])))
        if name in ("SIMM16", "SIMM32"):
            self.reads.add("SIMM")
            return Term("SIMM", ("u", 32))
        if name == "laneId":
            self.reads.add("LANE")
            return Term("LANE", ("u", 32))
        if name == "WAVE_MODE":
            return Term("np.True_", ("bool", 1))
        if name == "OPSEL":
            self.reads.add("OPSEL")
            return Term("np.uint32(OPSEL)", ("u", 32))
        if name == "SCC":
            self.reads.add("SCC")
            return Term("SCC", ("bool", 1))
        if name == "VCC":
            self.reads.add("VCC")
            for word in (".", "u64", "[", "laneId", "]"):
                self.take(word)
            if self.peek() == "." and self.peek(1) == "u64":
                self.take(), self.take()
                return Term("VCC.astype(np.uint64)", ("u", 64))
            return Term("VCC", ("bool", 1))
        if name in ("S0", "S1", "S2", "D0"):
            self.reads.add(name)
            if self.peek() == "." and (kind := terms.type_of(str(self.peek(1)))):
                self.take(), self.take()
                return Term(f"ar.typed({name}, {kind})", kind)
            return Term(name, ("u", 0))
        if name in self.variables:
            return Term(terms.local(name), self.variables[name])
        raise Untranslatable(f"it reads {name}")

    def read_variable(self, name: str, kind: Type | None) -> Term:
        if name == "D0":
            self.reads.add("D0")
            return Term(f"ar.typed(D0, {kind})", kind or ("u", 32))
        return Term(terms.local(name), self.variables[name])

    def call(self, name: str) -> Term:
        if name in ("isNAN", "isSignalNAN", "isQuietNAN", "cvtToQuietNAN"):
            return self.of_nan(name)
        arguments = []
        self.take("(")
        while self.peek() != ")":
            arguments.append(self.expression())
            if self.peek() == ",":
                self.take()
        self.take(")")
        return called(name, arguments)

    def of_nan(self, name: str) -> Term:
        """isNAN(64'F(x)): applied to x itself, because a conversion would make a signalling NaN quiet."""
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
            return Term(f"ar.quiet({term.text})", term.type)
        return Term(f"{functions[name]}({term.text})", ("bool", 1))

    def concatenation(self) -> Term:
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
            width += bits if part.type[0] != "int" else terms.width_of(part)
        if not text or width > 64:
            raise Untranslatable(f"a concatenation of {width} bits")
        return Term(f"ar.typed({text}, ('u', {width}))", ("u", width))
