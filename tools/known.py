"""known: the names that a tree has, by what they belong to.

Words stand in code outside of comments and docstrings; of texts for people those count alone that
cannot be words of a sentence. Classes have members, their own and those of their bases; modules
have attributes; files have paths.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from prose import code

__all__ = ["Known", "words_of"]

_MADE = (PurePosixPath("src/kvferry/_native.pyi"),)
_NO_PRODUCT = ("tests", "tools", "benchmarks")
_ABOUT_NAMES = ("tools/words.py", "tests/style/")  # whose code names what need not exist
_CODE = (
    ".py",
    ".pyi",
    ".cpp",
    ".hpp",
    ".js",
    ".sh",
    ".cmake",
    ".toml",
    ".yaml",
    ".yml",
    ".json",
    ".css",
    ".html",
    ".txt",
    ".ini",
    ".service",
)
_CODE_NAMES = ("Makefile", "run", "CMakeLists.txt", "Dockerfile", ".gitignore")
_STRING = re.compile(r'"""(?:\\.|[^\\])*?"""|"((?:\\.|[^"\\\n])*)"|\'((?:\\.|[^\'\\\n])*)\'')
# In a text for people: what no sentence has as a word.
_NO_WORD = re.compile(
    r"--?[a-z][\w-]+|\w*[_\d]\w*|[A-Z][A-Z]+|\w*[a-z][A-Z]\w*|[\w.]*\w\.\w+|\w+(?=\()"
)
_SENTENCE = re.compile(r"[a-z]{2} [a-z]{2}")
_OWN = re.compile(r"\b(?:self|cls)\.(\w+)")
_CPP_CLASS = re.compile(
    r"\b(?:class|struct|union|enum)\s+(?:class\s+)?(?:\[\[\w+\]\]\s*)?(\w+)(?:\s+final)?\s*"
    r"(?::([^{;()]*))?\{"
)
_CPP_BASE = re.compile(r"(\w+)(?:<[^>]*>)?\s*(?:,|$)")
_CPP_MEMBER = re.compile(r"\b([A-Z]\w*)(?:<[^<>;(]*>)?::(~?\w+)")
_BRACE = re.compile(r"[{}]")
_PLAIN_BASES = ("object", "ABC", "Protocol", "Generic")
_ALWAYS = {"__init__", "__name__", "__doc__", "__class__"}


class Known:
    """The names of the files under `root`.

    Attributes:
        words: What stands in code, wherever.
        product: What stands in the code of the product.
        attributes: What stands behind a dot or an arrow in code, and keywords of calls.
    """

    def __init__(self, root: Path, files: Iterable[PurePosixPath]) -> None:
        self.words: set[str] = set()
        self.product: set[str] = set()
        self.attributes: set[str] = set()
        self._ends: set[str] = set()  # of paths, at each slash
        self._modules: dict[str, set[str]] = defaultdict(set)
        self._stems: dict[str, set[str]] = defaultdict(set)  # by the last part of a module's name
        self._members: dict[str, set[str]] = defaultdict(set)
        self._bases: dict[str, set[str]] = defaultdict(set)
        self._taken: dict[str, set[str]] = defaultdict(set)  # parameters of what makes an object
        made = [path for path in _MADE if (root / path).exists()]
        for path in (*files, *made):
            for place in (path, *path.parents[:-1]):
                self._ends.update("/".join(place.parts[at:]) for at in range(len(place.parts)))
            found = {path.name, *re.findall(r"\w+", str(path))}
            is_code = path.suffix in _CODE or path.name in _CODE_NAMES
            if is_code and not str(path).startswith(_ABOUT_NAMES):
                found |= self._read(path, (root / path).read_text(encoding="utf-8"))
            self.words |= found
            if path.parts[0] not in _NO_PRODUCT:
                self.product |= found
        for name in list(self._modules):
            above, _, last = name.rpartition(".")
            self._stems[last] |= self._modules[name]
            if above:
                self._modules[above].add(last)
                self._stems[above.rpartition(".")[2]].add(last)

    def path(self, name: str) -> bool:
        """Whether a file or folder has this path, or one that ends so."""
        return name.rstrip("/") in self._ends

    def module(self, name: str) -> bool:
        """Whether `name` is a module of ours, or leads to what one has."""
        parts = name.split(".")
        for count in range(len(parts), 0, -1):
            if (module := ".".join(parts[:count])) in self._modules:
                rest = parts[count:]
                if not rest:
                    return True
                if rest[0] not in self._modules[module]:
                    return False
                return len(rest) == 1 or self.member(rest[0], rest[1]) is not False
        return False

    def is_class(self, name: str) -> bool:
        """Whether a class of ours has this name."""
        return name in self._members

    def of_module(self, stem: str, name: str) -> bool | None:
        """Whether a module whose name ends so has this attribute; None: there is no such module."""
        return name in self._stems[stem] if stem in self._stems else None

    def member(self, owner: str, name: str) -> bool | None:
        """Whether a class has this member; None: it, or a base of it, is somebody else's."""
        line = [owner, *self._above(owner)]
        if any(name in self._members.get(one, ()) for one in line):
            return True
        ours = all(one in self._members or one in _PLAIN_BASES for one in line)
        return False if ours else None

    def takes(self, owner: str, name: str) -> bool:
        """Whether what makes objects of a class, or of a base of it, has this parameter."""
        return any(name in self._taken[one] for one in (owner, *self._above(owner)))

    def _above(self, owner: str) -> list[str]:
        """The bases of a class, and theirs."""
        found: list[str] = []
        ahead = [owner]
        while ahead:
            new = self._bases.get(ahead.pop(), set()) - {owner, *found}
            found += new
            ahead += new
        return found

    def _read(self, path: PurePosixPath, text: str) -> set[str]:
        rest = code(path.suffix, text)
        self.attributes.update(re.findall(r"(?:\.|->|::|\(|, )(\w+)", rest))
        if path.suffix in (".py", ".pyi") and not path.name.startswith("test_"):
            self._read_python(path, text)
        elif path.suffix in (".cpp", ".hpp"):
            self._read_cpp(path, rest)
        return set(words_of(rest))

    def _read_python(self, path: PurePosixPath, text: str) -> None:
        parts = path.with_suffix("").parts
        parts = parts[1:] if parts[0] in ("src", "tools", "tests") and len(parts) > 1 else parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        lines = text.split("\n")
        for scope, body in _bodies(ast.parse(text, str(path))):
            bound = set(_bound(body))
            if scope is None:
                self._modules[name] |= bound
                continue
            source = "\n".join(lines[scope.lineno - 1 : scope.end_lineno])
            self._bases[scope.name].update(_last(base) for base in scope.bases)
            self._members[scope.name] |= bound | _ALWAYS
            for node in scope.body:
                if isinstance(node, ast.FunctionDef) and node.name in ("__init__", "__new__"):
                    self._taken[scope.name].update(
                        one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)
                    )
            self._members[scope.name].update(_OWN.findall(source))  # mypy knows that it has these
            self.attributes |= bound

    def _read_cpp(self, path: PurePosixPath, text: str) -> None:
        space = path.parts[1] if path.parts[0] == "native" else path.parts[0]
        for match in _CPP_CLASS.finditer(text):
            depth, end = 1, match.end()
            while depth and (brace := _BRACE.search(text, end)):
                depth += 1 if brace[0] == "{" else -1
                end = brace.end()
            self._members[match[1]].update(re.findall(r"~?\w+", text[match.end() : end]))
            self._bases[match[1]].update(_CPP_BASE.findall(match[2] or ""))
        for owner, name in _CPP_MEMBER.findall(text):
            self._members[owner].add(name)
        self._modules[f"native.{space}"].update(re.findall(r"\w+", text))


def words_of(text: str) -> Iterator[str]:
    """The names of code, and of its texts those words that are names."""
    for match in _STRING.finditer(text):
        inner = match[1] or match[2] or match[0]
        if _SENTENCE.search(inner):
            inner = " ".join(_NO_WORD.findall(inner))
        yield from re.findall(r"[\w-]+", inner)
        yield from re.findall(r"\w+", inner)
    yield from re.findall(r"\w+", _STRING.sub(" ", text))


def _last(base: ast.expr) -> str:
    return re.sub(r"\[.*", "", ast.unparse(base)).rpartition(".")[2]


Body = list[ast.stmt]


def _bodies(tree: ast.Module) -> Iterator[tuple[ast.ClassDef | None, Body]]:
    """The body of a module, as that of None, and those of its classes."""
    yield None, tree.body
    ahead: list[ast.stmt] = list(tree.body)
    while ahead:
        node = ahead.pop()
        if isinstance(node, ast.ClassDef):
            yield node, node.body
        for field in ("body", "orelse", "finalbody"):
            ahead += getattr(node, field, ())
        for handler in getattr(node, "handlers", ()):
            ahead += handler.body


def _bound(body: Body) -> Iterator[str]:
    """What statements bind, those inside of `if` and `try` too."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.For):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                yield from (name.id for name in ast.walk(target) if isinstance(name, ast.Name))
        for field in ("body", "orelse", "finalbody"):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from _bound(getattr(node, field, []))
        for handler in getattr(node, "handlers", ()):
            yield from _bound(handler.body)
