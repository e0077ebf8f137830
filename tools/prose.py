"""prose: what a file says to people, apart from what it says to machines.

Of Python the docstrings and comments, of C++ the comments, of Markdown all but fenced blocks and
the targets of links. The rest of a file is its code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["Block", "code", "docstrings", "fences", "prose"]

Block = tuple[int, str]  # the line where it begins, its text without the marks of comments

# Whichever begins first, so that no mark inside of another one counts. A text in three quotes that
# begins its line is a docstring, or is written like one.
_LONG = r'"""(?P<inner>[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*)"""'
_SHORT = r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"'
_SINGLE = r"'[^'\\\n]*(?:\\.[^'\\\n]*)*'"
_PYTHON = re.compile(
    rf"(?P<doc>(?:(?<=\n)[ \t]*|\A)[rR]?{_LONG})|{_LONG.replace('?P<inner>', '?:')}"
    rf"|'''[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'''|{_SHORT}|{_SINGLE}|(?P<comment>#[^\n]*)",
    re.DOTALL,
)
_CPP = re.compile(
    rf'R"(\w*)\(.*?\)\1"|{_SHORT}|(?<![0-9a-fA-F]){_SINGLE}|(?P<comment>//[^\n]*|/\*.*?\*/)',
    re.DOTALL,
)
_SHELL = re.compile(r"(?P<comment>(?<!\S)#[^\n]*)")
_KINDS = {".py": _PYTHON, ".pyi": _PYTHON, ".cpp": _CPP, ".hpp": _CPP, ".js": _CPP}
_FENCE = re.compile(r"^ *(`{3,}).*?^ *\1`*", re.MULTILINE | re.DOTALL)
_TARGET = re.compile(r"(?<=\])\([^)\s]*\)")
_MARK = re.compile(r"^[ \t]*(?:#+|//+) ?", re.MULTILINE)


def prose(suffix: str, text: str) -> Iterator[Block]:
    """Yield what people read in a file of this suffix; comments of consecutive lines are one."""
    if suffix == ".md":
        yield 1, _TARGET.sub("", _FENCE.sub(lambda match: "\n" * match[0].count("\n"), text))
        return
    if suffix == ".py":
        yield from docstrings(text)
    yield from _comments(_KINDS[suffix], text)


def code(suffix: str, text: str) -> str:
    """Return the file without its comments and docstrings."""
    return _KINDS.get(suffix, _SHELL).sub(_no_prose, text)


def _no_prose(match: re.Match[str]) -> str:
    return "" if match.lastgroup in ("doc", "comment") else match[0]


def fences(text: str) -> str:
    """Return the fenced blocks of a page."""
    return "\n".join(match[0] for match in _FENCE.finditer(text))


def docstrings(text: str) -> Iterator[Block]:
    """Yield every docstring of a module, with the line where it begins."""
    for match in _PYTHON.finditer(text):
        if match["doc"]:
            yield text.count("\n", 0, match.start("inner")) + 1, match["inner"]


def _comments(pattern: re.Pattern[str], text: str) -> Iterator[Block]:
    first, block = 0, list[str]()
    line = offset = 0
    for match in pattern.finditer(text):
        if not match["comment"]:
            continue
        line += text.count("\n", offset, match.start())
        offset = match.start()
        if block and line + 1 > first + len(block):
            yield first, "\n".join(block)
            block = []
        if not block:
            first = line + 1
        block[line + 1 - first :] = _MARK.sub("", match[0]).split("\n")
    if block:
        yield first, "\n".join(block)
