"""Text from outside made fit to be shown: nothing invisible or reordering, no paths, source with its syntax coloured.

Submissions' names, sources and output are written by strangers. Escaping markup is the template's business (jinja2,
autoescape); here a character that would not be seen, or that would change how its neighbours are read, becomes a name
for itself: an escape sequence starts with ‹U+001B›, a right-to-left override is ‹U+202E›
(https://trojansource.codes, CVE-2021-42574).
"""

from __future__ import annotations

import re
import time
import unicodedata

from markupsafe import Markup, escape
from pygments.lexers import PythonLexer
from pygments.token import Comment, Keyword, Name, Number, String, _TokenType

HIGHLIGHTED_CHARACTERS = 200_000
"""A longer source is shown without colours: nobody reads it for those, and they take several times its size."""

HIGHLIGHTED_S = 1.0
"""Of a processor. A source whose colouring takes longer is shown without: some patterns of Pygments take the square of
a line's length, or of a blank stretch's."""

_UNUSUAL = re.compile(r"^[^\n]{2000}|(?<!\s)\s{500}", re.MULTILINE)
"""What no source written to be read has, and what takes Pygments long."""

_PATH = re.compile(r"(?<![\w.:/<~-])/(?:[\w.@+~%=-]+/)+[\w.@+~%=-]*")
"""An absolute path of two names and more."""
_KNOWN = (
    re.compile(r"(?<=/)(?:site|dist)-packages/.+"),
    re.compile(r"(?<=/)(?:python\d[\d.]*|submissions|problems|reference|harness)/.+"),
)
_HOME = re.compile(r"/(?:home|Users)/[^/]+/?")

_INVISIBLE = ("Cc", "Cf", "Cs", "Zl", "Zp")
# The first that holds a token's type names its class in report.css; other tokens stay as they are.
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
    """`text` with every control, format and half surrogate character but newline and tab replaced by its name."""
    # What Python calls printable has no such character; the three that it does not and that are seen are looked past.
    if text.isprintable() or text.replace("\N{NO-BREAK SPACE}", "").replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(_named(character) for character in text)


def without_paths(text: str) -> str:
    """`text` with what lies before a file in a path of somebody's machine left out: a page is passed on.

    Of packages, of Python and of this checkout's own folders the rest of the path stays.
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
    """The last of `text`, saying how much of it is left out."""
    if len(text) <= characters:
        return text
    return f"[the first {len(text) - characters:,} characters are left out]\n{text[-characters:]}"


def highlighted(source: str) -> Markup:
    """Python `source` as lines of HTML, each after an empty <i> that report.css numbers."""
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
    """The tokens of `text`, coloured; None where that takes longer than HIGHLIGHTED_S."""
    until_s = time.thread_time() + HIGHLIGHTED_S
    pieces = []
    for kind, value in PythonLexer(stripnl=False, ensurenl=False).get_tokens(text):
        if time.thread_time() > until_s:
            return None
        pieces.append(_piece(kind, value))
    return pieces


def _piece(kind: _TokenType, value: str) -> Markup:
    """A token, coloured line by line, so that no element spans two lines."""
    name = next((name for holder, name in _CLASSES if kind in holder), None)
    if name is None:
        return escape(value)
    lines = [Markup('<b class="{}">{}</b>').format(name, line) if line else Markup() for line in value.split("\n")]
    return Markup("\n").join(lines)
