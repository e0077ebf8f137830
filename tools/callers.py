"""callers: functions that nothing calls, in both languages.

A name is enough: a function counts as called when its name stands anywhere but where it is declared
or defined, other than in tests, the simulator and the fuzzers. So one that shares its name with
another is not found, and none is found that is called. In C++ the functions that headers declare
are looked at. In Python, methods of classes whose base is somebody else's are left out, because
that base calls them, and so are tests; pages and settings of tools count as callers, too.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

__all__ = ["CALLED_ELSEWHERE", "uncalled"]

# Name: who calls it, where no file of this tree does.
CALLED_ELSEWHERE = {
    "arelease": "programs: the asyncio client of a cache server",
    "page_nbytes": "programs: what a namespace over pages is opened with",
}

_CPP_FREE = ("sim", "fuzz")  # what only these call is there for tests
_CPP_NOT_CODE = re.compile(r"""//[^\n]*|R"\((?:.|\n)*?\)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'""")
# A type and a name before a bracket: `Nanos due(`, `std::string Server::text(`. Not `return due(`.
_CPP_DECLARED = re.compile(r"(?:\b(\w+)|(?<=\S)>)[&*]*\s+(?:\w+::)*([a-z_]\w*)\s*\(")
_CPP_NO_TYPE = frozenset(("if", "return", "else", "case", "co_return", "new", "throw", "not"))
_OPEN_BASES = ("ABC", "Protocol", "Generic", "NamedTuple", "Exception", "Enum", "IntEnum", "Struct")
_LISTS = ("__all__", "CALLED_ELSEWHERE")  # to stand there is no call
_PAGES = (".md", ".toml", ".yaml", ".yml", ".sh", ".json")

Where = tuple[PurePosixPath, int, str]  # file, line, message


def uncalled(root: Path, files: Iterable[PurePosixPath]) -> Iterator[Where]:
    """Yield the functions among `files` that nothing calls."""
    paths = [path for path in files if path.parts[0] != "tests"]
    yield from _uncalled_cpp(root, paths)
    yield from _uncalled_python(root, paths)


def _uncalled_cpp(root: Path, paths: list[PurePosixPath]) -> Iterator[Where]:
    texts = {
        path: _CPP_NOT_CODE.sub(_only_lines, (root / path).read_text(encoding="utf-8"))
        for path in paths
        if path.suffix in (".cpp", ".hpp") and not _is_cpp_test(path)
    }
    mentions = Counter(word for text in texts.values() for word in re.findall(r"\w+", text))
    declared = Counter(name for text in texts.values() for name, _ in _declared(text))
    for path, text in texts.items():
        for name, offset in _declared(text) if path.suffix == ".hpp" else ():
            if mentions[name] == declared[name] and name not in CALLED_ELSEWHERE:
                yield path, text.count("\n", 0, offset) + 1, _finding(name)


def _finding(name: str) -> str:
    return f"nothing calls {name}, tests apart"


def _is_cpp_test(path: PurePosixPath) -> bool:
    of_tests = path.parts[0] == "native" and path.parts[1] in _CPP_FREE
    return of_tests or "test" in path.stem.split("_")


def _declared(text: str) -> Iterator[tuple[str, int]]:
    for match in _CPP_DECLARED.finditer(text):
        if match[1] not in _CPP_NO_TYPE:
            yield match[2], match.start(2)


def _only_lines(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")


def _uncalled_python(root: Path, paths: list[PurePosixPath]) -> Iterator[Where]:
    trees = {
        path: list(ast.walk(ast.parse((root / path).read_text(encoding="utf-8"), str(path))))
        for path in paths
        if path.suffix == ".py"
    }
    called = {name for nodes in trees.values() for name in _mentioned(nodes)}
    for path in paths:
        if path.suffix in _PAGES or path.name == "Makefile" or path.parts[0] == "bindings":
            called.update(re.findall(r"\w+", (root / path).read_text(encoding="utf-8")))
    for path, nodes in trees.items():
        for function in _own_functions(nodes):
            name = function.name
            known = name in called or name in CALLED_ELSEWHERE
            if not known and not name.startswith(("__", "test_")):
                yield path, function.lineno, _finding(name)


def _mentioned(nodes: list[ast.AST]) -> Iterator[str]:
    """Every name that is used, and every word of a text that is nothing but a dotted name."""
    listed = {
        id(inner)
        for node in nodes
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in _LISTS
        for inner in ast.walk(node)
    }
    for node in nodes:
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and id(node) not in listed:
            text = node.value if isinstance(node.value, str) else ""
            if re.fullmatch(r"[\w.:]+", text):
                yield from re.split(r"[.:]", text)


def _own_functions(nodes: list[ast.AST]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions but the methods of a class that completes somebody else's."""
    ours = set(_OPEN_BASES)
    others: set[ast.AST] = set()
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            ours.add(node.name)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kvferry"):
            ours.update(alias.asname or alias.name for alias in node.names)
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            bases = {re.split(r"[.\[]", ast.unparse(base))[-1] for base in node.bases}
            if not {base.rstrip("]") for base in bases} <= ours:
                others.update(node.body)
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node not in others:
            yield node
