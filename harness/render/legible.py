"""Make text from outside fit to be shown: no invisible or reordering characters, no paths, and coloured source.

Strangers write the submissions' names, sources and output. The template escapes markup (jinja2, autoescape). Here a
character that is invisible, or changes how its neighbours are read, is replaced by its name: an escape sequence starts
with ‹U+001B›, a right-to-left override is ‹U+202E› (https://trojansource.codes, CVE-2021-42574).
"""

from __future__ import annotations

import re
import time
import unicodedata

from markupsafe import Markup, escape
from pygments.lexers import PythonLexer
from pygments.token import Comment, Keyword, Name, Number, String, _TokenType

HIGHLIGHTED_CHARACTERS = 200_000
"""A longer source is shown without colours. Nobody reads such a source for them, and they take several times its
size."""

HIGHLIGHTED_S = 1.0
"""The processor time for colouring a source. Beyond it the source is shown without colours: some patterns of Pygments
take quadratic time in the length of a line or of a blank stretch."""

_UNUSUAL = re.compile(r"^[^\n]{2000}|(?<!\s)\s{500}", re.MULTILINE)
"""Text that readable sources do not contain and that takes Pygments long."""

_PATH = re.compile(r"(?<![\w.:/<~-])/(?:[\w.@+~%=-]+/)+[\w.@+~%=-]*")
"""An absolute path of at least two names."""
_KNOWN = (
    re.compile(r"(?<=/)(?:site|dist)-packages/.+"),
    re.compile(r"(?<=/)(?:python\d[\d.]*|submissions|problems|reference|harness)/.+"),
)
_HOME = re.compile(r"/(?:home|Users)/[^/]+/?")

_INVISIBLE = ("Cc", "Cf", "Cs", "Zl", "Zp")
# The first entry that contains a token's type gives the class in report.css. Other tokens get none.
_CLASSES = (
    (Comment, "c"),
    (String, "s"),
    (Number, "m"),
    (Keyword, "k"),
    (Name.Decorator, "d"),
    (Name.Function, "f"),
    (Name.Class, "f"),
    (Name.Builtin, "b"),
)


def legible(text: str) -> str:
    """Return `text` with every control, format and surrogate character replaced by its name, except newline and tab."""
    # A printable string has no such character. The three visible characters that Python calls unprintable are ignored.
    if text.isprintable() or text.replace("\N{NO-BREAK SPACE}", "").replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(_named(character) for character in text)


def without_paths(text: str) -> str:
    """Return `text` without the directories in paths of a machine, since a page may be passed on.

    In paths of packages, of Python and of this checkout's folders, the rest of the path stays.
    """
    return _PATH.sub(lambda found: _seen_from_here(found[0]), text) if "/" in text else text


def _seen_from_here(path: str) -> str:
    if path.startswith(("/dev/", "/proc/", "/sys/")):
        return path
    for known in _KNOWN:
        if found := known.search(path):
            return found[0]
    return "~" if _HOME.fullmatch(path) else f"…/{path.rstrip('/').rpartition('/')[2]}"


def tail(text: str, characters: int) -> str:
    """Return the end of `text`, with a note on how much is left out."""
    if len(text) <= characters:
        return text
    return f"[the first {len(text) - characters:,} characters are left out]\n{text[-characters:]}"


def highlighted(source: str) -> Markup:
    """Return Python `source` as lines of HTML, each after an empty <i> that report.css numbers."""
    text = legible(source.replace("\r\n", "\n"))
    coloured = len(text) <= HIGHLIGHTED_CHARACTERS and not _UNUSUAL.search(text)
    pieces = (_pieces(text) if coloured else None) or [escape(text)]
    lines = Markup().join(pieces).split("\n")
    if lines[-1] == "":
        lines.pop()
    return Markup("\n").join(Markup("<i></i>") + line for line in lines)


def _named(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in _INVISIBLE:
        return character
    return f"‹U+{ord(character):04X}›"


def _pieces(text: str) -> list[Markup] | None:
    """Return the coloured tokens of `text`, or None if that takes longer than HIGHLIGHTED_S."""
    until_s = time.thread_time() + HIGHLIGHTED_S
    pieces = []
    for kind, value in PythonLexer(stripnl=False, ensurenl=False).get_tokens(text):
        if time.thread_time() > until_s:
            return None
        pieces.append(_piece(kind, value))
    return pieces


def _piece(kind: _TokenType, value: str) -> Markup:
    """Return a token, coloured line by line, so that no element spans two lines."""
    name = next((name for holder, name in _CLASSES if kind in holder), None)
    if name is None:
        return escape(value)
    lines = [Markup('<b class="{}">{}</b>').format(name, line) if line else Markup() for line in value.split("\n")]
    return Markup("\n").join(lines)
