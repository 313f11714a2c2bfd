"""Translates AMD's pseudocode for an instruction once to a Python function over numpy arrays.

    translated("D0.f32 = S0.f32 + S1.f32")  ─► Semantics: inputs it reads, outputs it writes, apply(**inputs)

Inputs and outputs are raw bits: S0, S1, S2 and D0 as uint32 or uint64, SCC as bool, VCC as bool by lane (also for the
lane masks that other encodings use instead), SIMM as int. Every lane runs every statement. An `if` becomes a mask, and
an assignment under a mask keeps the old value elsewhere. Loops are unrolled. Pseudocode without such a translation
(memory, other lanes, jumps) raises Untranslatable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.emulator import arithmetic as ar
from harness.emulator import terms
from harness.emulator.arithmetic import Type
from harness.emulator.bitfields import FUNCTIONS
from harness.emulator.expressions import Expressions
from harness.emulator.terms import INPUTS, Term, Untranslatable


@dataclass(frozen=True)
class Semantics:
    """The effect of an instruction on one lane. reads, writes: names of `INPUTS`."""

    reads: frozenset[str]
    writes: frozenset[str]
    apply: Callable[..., dict[str, Any]]
    source: str


def translated(code: str, *, d0_bits: int = 32) -> Semantics:
    """Translate pseudocode. Raises Untranslatable."""
    translator = _Translator(code, d0_bits)
    try:
        translator.block(())
        if translator.peek() is not None:
            raise Untranslatable(f"{translator.peek()}")
    except (IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise Untranslatable(f"{type(error).__name__}: {error}") from None
    if not translator.writes:  # it sets no register: s_setvskip
        raise Untranslatable("it writes nothing that is known here")
    outputs = ", ".join(f"{name!r}: {name}" for name in sorted(translator.writes))
    lines = ["def apply(" + ", ".join(INPUTS) + "):", *translator.lines, f"    return {{{outputs}}}"]
    source = "\n".join(lines)
    scope: dict[str, Any] = {"np": np, "ar": ar, **FUNCTIONS}
    exec(compile(source, "<pseudocode>", "exec"), scope)
    return Semantics(frozenset(translator.reads), frozenset(translator.writes), scope["apply"], source)


class _Translator(Expressions):
    """Translates statements. lines: lines of Python. writes: the names of INPUTS that they write."""

    def __init__(self, code: str, d0_bits: int) -> None:
        super().__init__(code, d0_bits)
        self.lines: list[str] = []
        self.writes: set[str] = set()
        self.masks = 0
        self.breaks: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append("    " + line)

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
            test = terms.truth(self.expression())
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
        first = int(terms.number(self.expression()))
        self.take(":")
        last = int(terms.number(self.expression()))
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
        kind = self.variables[name] = ({"U": "u", "I": "i", "F": "f", "B": "u"}[letter], int(width))
        zeros = f"np.zeros_like({self.first_input()}).astype({terms.dtype_name(kind)})"
        self.say(f"{terms.local(name)} = {zeros}")

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
            return self.store("SCC", terms.truth(value), masks, ("bool", 1))
        if target == "VCC" or (slices and slices[0] == "lane"):
            return self.store("VCC", terms.truth(value), masks, ("bool", 1))
        if operation != "=":
            old = self.read_variable(target, kind)
            value = terms.arithmetic(operation[0], old, value)
        if slices:
            self.insert(target, slices, kind, value, masks)
        else:
            self.whole(target, kind, value, masks)

    def place(self) -> tuple[Any, Type | None]:
        """Parse the slices and suffixes after a name on the left-hand side."""
        slices: Any = None
        kind: Type | None = None
        while self.peek() in ("[", "."):
            if self.take() == ".":
                kind = terms.type_of(self.take())
                continue
            if self.peek() == "laneId":
                self.take()
                slices = ("lane",)
            else:
                high = self.expression()
                if self.peek() == ":":
                    self.take()
                    low = self.expression()
                    slices = ("range", terms.number(high), terms.number(low))
                else:
                    slices = ("bit", high)
            self.take("]")
        return slices, kind

    def store(self, name: str, text: str, masks: tuple[str, ...], kind: Type) -> None:
        if name in INPUTS:
            self.writes.add(name)
        local = terms.local(name)
        known = name in self.variables or name in INPUTS
        if masks and known:
            if name in INPUTS:
                self.reads.add(name)
            self.say(f"{local} = np.where({' & '.join(masks)}, {text}, {local})")
        else:
            self.say(f"{local} = {text}")
        if name not in INPUTS:
            self.variables[name] = kind

    def whole(self, target: str, kind: Type | None, value: Term, masks: tuple[str, ...]) -> None:
        if target == "D0":
            width = self.variables["D0"][1]
            source = kind or (value.type if value.type[0] != "int" else ("u", width))
            text = f"({terms.raw(value, source)}).astype({terms.dtype_name(('u', width))})"
            return self.store("D0", text, masks, ("u", width))
        declared = self.variables.get(target)
        if masks and declared is not None:
            kind = declared
        final = kind or declared or (value.type if value.type[0] != "int" else ("i", 64 if value.type[1] == 64 else 32))
        self.store(target, terms.converted(value, final), masks, final)

    def insert(self, target: str, slices: Any, kind: Type | None, value: Term, masks: tuple[str, ...]) -> None:
        if target != "D0" and target not in self.variables:
            self.variables[target] = ("u", 64)
            self.say(f"{terms.local(target)} = np.zeros(np.shape(S0), np.uint64)")
        held = self.variables[target]
        if held[0] not in ("u", "i"):
            raise Untranslatable(f"a part of {held}")
        if target == "D0":
            self.reads.add("D0")
        if slices[0] == "bit":
            place, width = terms.converted(slices[1], ("u", 32)), 1
        else:
            place, width = str(slices[2]), slices[1] - slices[2] + 1
        source = (kind[0], width) if kind and kind[0] in ("u", "i") else kind or ("u", width)
        if source[0] == "bool" or width == 1:
            source = ("u", 1)
        text = f"_insert({terms.local(target)}, {place}, {width}, {terms.raw(value, source)})"
        if target == "D0":
            text = f"({text}).astype({terms.dtype_name(held)})"
        self.store(target, text, masks, held)
