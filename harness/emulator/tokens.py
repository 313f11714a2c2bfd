"""Splits AMD's pseudocode into tokens and reads them one by one."""

from __future__ import annotations

import re

from harness.emulator.terms import Untranslatable

_TOKEN = re.compile(
    r"\s*(?:(?P<cast>\d+'[UIFB](?=\())|(?P<sized>\d+'-?(?:0x[0-9a-fA-F]+|\d+)(?:\.\d+)?[UIF]?)"
    r"|(?P<width>\d+'[UIFB])"
    r"|(?P<number>0x[0-9a-fA-F]+U?L{0,2}|\d+\.\d+F?|\d+U?L{0,2}F?)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<op>\*\*|\+:|<<|>>|<=|>=|==|!=|<>|&&|\|\||\+=|-=|[-+*/%&|^~!<>=?:;,.(){}\[\]]))"
)


class Tokens:
    """tokens: each token's group in _TOKEN and its text. at: the index of the next token."""

    def __init__(self, code: str) -> None:
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

    def peek(self, ahead: int = 0) -> str | None:
        return self.tokens[self.at + ahead][1] if self.at + ahead < len(self.tokens) else None

    def take(self, expected: str | None = None) -> str:
        token = self.tokens[self.at][1]
        if expected is not None and token != expected:
            raise Untranslatable(f"{token!r} where {expected!r} should be")
        self.at += 1
        return token
