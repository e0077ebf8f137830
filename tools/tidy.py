"""tidy: the house rules that a program can check, over every source file of the tree.

    python tools/tidy.py [--aims] [ROOT]

Prints ``file:line: message`` for each finding and exits 1 if there is one. ``--aims`` adds the
files that are longer than their kind aims for, which is allowed. STYLE.md gives the reasons.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import callers
import headers
import modules
import roles
import words

# Lowest first. A module may use its own layer's part and anything lower; those that share a line
# do not see each other: what two of them need moves one line down.
CPP_LAYERS = (
    ("base",),
    ("mem", "codec", "resp", "net"),
    ("redis", "cache"),
    ("node", "connector", "directory"),
    ("bindings",),
)
CPP_FREE = ("sim", "fuzz", "bench")  # see everything, seen by nobody; so do *_test.cpp
PY_LAYERS = (
    ("_native",),
    ("base",),
    ("chunks", "config", "metrics"),
    ("client", "http", "embedded", "rpc"),
    ("connectors",),
    ("cache",),
    ("testing", "sharing"),
    ("server",),
    ("cli", "integrations"),
)
# What programs import by these paths; no module of ours does.
PY_FREE = ("__init__", "__main__", "errors", "node")
LAB = "kvferry_lab"  # sees all of the product, which sees nothing of it

# The one way to start threads; and what is no part of a product that runs for long: who measures
# sees it end.
THREADS_FREE = ("base", "testing")

WIDTH = 100
# Kind: (lines aimed at, ceiling).
LIMITS = {
    "header": (120, 240),
    "source": (250, 700),
    "C++ test": (300, 600),
    "module": (200, 600),
    "test module": (250, 600),
}
# Path: why this file may be longer than its ceiling.
WAIVERS: dict[str, str] = {}

# What Python may weigh in all: folders, what is counted, the ceiling. Who needs more raises one
# in the commit that needs it, and says there why nothing else could go.
WEIGHTS: tuple[tuple[tuple[str, ...], str, int], ...] = (
    (("src/kvferry", "src/kvferry_lab"), "modules", 400),
    (("src/kvferry",), "lines", 53_900),
    (("src/kvferry_lab", "benchmarks"), "lines", 20_500),
)

SKIPPED = ("build", "dist", "node_modules")  # and what begins with a dot, except .ci
GENERATED = ("src/kvferry/_native.pyi",)
SOURCES = (".cpp", ".hpp", ".py", ".pyi", ".md", ".toml", ".json", ".sh", ".yaml", ".yml", ".txt")
CODE = (".cpp", ".hpp", ".py", ".sh")
UNTABBED = (".cpp", ".hpp", ".py", ".pyi", ".md", ".toml", ".json", ".sh", ".yaml", ".yml")

_INCLUDE = re.compile(r'\s*#\s*include\s+(<|")([^>"]+)[>"]')
_PYTHON_HEADER = re.compile(r"Python\.h$|nanobind/")
_SOCKET_HEADER = re.compile(r"(sys/(socket|epoll|poll|un)|poll|netdb|(netinet|arpa)/\w+)\.h$")
_BARE_THREAD = re.compile(
    r"^(threading\.(Thread|Timer)|_thread\.start_new_thread|"
    r"(concurrent\.)?futures\.ThreadPoolExecutor)$"
)
_MACHINE_PATH = re.compile(r"(?<![\w.:/<>$}~-])/(home|root|Users|work)/\w")
_NOTE = re.compile(r"(?:#|//).*\b(TOD[O]|FIXM[E]|XX[X])\b(.*)")
_TYPED_NOTE = re.compile(r"\((soon|perf|security|test)\): \S")


class Finding(NamedTuple):
    """One broken rule; prints as ``file:line: message``."""

    path: PurePosixPath
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


def check(root: Path, waivers: Mapping[str, str] = WAIVERS, aims: bool = False) -> list[Finding]:
    """Return what breaks the rules under ``root``, in the order of the paths."""
    findings: list[Finding] = []
    files = list(source_files(root))
    for path in files:
        text = (root / path).read_text(encoding="utf-8")
        lines = text.splitlines()
        rules = [_lines(path, lines), _size(path, len(lines), waivers, aims)]
        if path.suffix in (".cpp", ".hpp"):
            rules += [_header_comment(path, lines), _includes(path, lines)]
        if path.parts[:2] == ("src", "kvferry") and path.suffix == ".py":
            rules += [_imports(path, text), _threads(path, text)]
        findings += [finding for rule in rules for finding in rule]
    findings += _style_table(root)
    findings += _weights(root, files)
    findings += [Finding(*where) for where in callers.uncalled(root, files)]
    findings += [Finding(*where) for where in headers.circles(root, files)]
    findings += [Finding(*where) for where in headers.namesakes(root, files)]
    findings += [Finding(*where) for where in modules.circles(root, files)]
    findings += [Finding(*where) for where in modules.namesakes(root, files)]
    findings += [Finding(*where) for where in words.nameless(root, files)]
    findings += [Finding(*where) for where in roles.namesakes(files)]
    return findings


def _style_table(root: Path) -> Iterator[Finding]:
    """Whether the page that people read has the layers that are checked."""
    page = PurePosixPath("STYLE.md")
    if not (root / page).exists():
        return
    text = " ".join((root / page).read_text(encoding="utf-8").split())
    for layers in (CPP_LAYERS, PY_LAYERS):
        parts = (", ".join(parts) for parts in layers)
        table = " < ".join(f"{{{part}}}" if "," in part else part for part in parts)
        if f" {table} " not in text:
            yield Finding(page, 1, f"its layers are not those of tools/tidy.py: {table}")


def _weights(
    root: Path,
    files: Sequence[PurePosixPath],
    weights: Sequence[tuple[tuple[str, ...], str, int]] = WEIGHTS,
) -> Iterator[Finding]:
    """Whether the Python of some folders weighs more than it may."""
    for folders, what, ceiling in weights:
        inside = [
            path
            for path in files
            if path.suffix == ".py" and any(path.is_relative_to(folder) for folder in folders)
        ]
        count = len(inside)
        if what == "lines":
            texts = ((root / path).read_text(encoding="utf-8") for path in inside)
            count = sum(len(text.splitlines()) for text in texts)
        if count > ceiling:
            where = " and ".join(folders)
            message = f"{count} {what} in {where}, the ceiling is {ceiling} (WEIGHTS)"
            yield Finding(PurePosixPath("tools/tidy.py"), 1, message)


def source_files(root: Path) -> Iterator[PurePosixPath]:
    """Yield every file that the rules speak of, relative to ``root``, sorted."""
    for entry in sorted(root.rglob("*")):
        path = PurePosixPath(entry.relative_to(root).as_posix())
        hidden = any(part.startswith(".") and part != ".ci" for part in path.parts)
        if hidden or any(part in SKIPPED for part in path.parts) or str(path) in GENERATED:
            continue
        if (path.suffix in SOURCES or path.name in ("Makefile", "run")) and entry.is_file():
            yield path


def _lines(path: PurePosixPath, lines: Sequence[str]) -> Iterator[Finding]:
    """Width, tabs, paths of one machine, notes without a type."""
    fenced = False
    for number, line in enumerate(lines, 1):
        fenced ^= path.suffix == ".md" and line.lstrip().startswith("```")
        exempt = fenced or "://" in line or (path.suffix == ".md" and line.startswith("|"))
        if path.suffix in (".cpp", ".hpp", ".py", ".md") and len(line) > WIDTH and not exempt:
            yield Finding(path, number, f"{len(line)} columns, {WIDTH} is the limit")
        if path.suffix in UNTABBED and "\t" in line:
            yield Finding(path, number, "a tab character")
        if found := _MACHINE_PATH.search(line):
            yield Finding(path, number, f"a path of one machine: {found[0]}...")
        note = _NOTE.search(line) if path.suffix in CODE else None
        if note and not _TYPED_NOTE.match(note[2]):
            form = "(soon|perf|security|test): sentence"
            yield Finding(path, number, f"{note[1]} without a type; write it as TODO{form}")


def _kind(path: PurePosixPath) -> str | None:
    if path.suffix == ".hpp":
        return "header"
    if path.suffix == ".cpp":
        return "C++ test" if path.name.endswith("_test.cpp") else "source"
    if path.suffix == ".py":
        return "test module" if path.parts[0] == "tests" else "module"
    return None


def _size(
    path: PurePosixPath, count: int, waivers: Mapping[str, str], aims: bool
) -> Iterator[Finding]:
    """The ceiling of the file's kind, unless waived; with ``aims`` its aim."""
    kind = _kind(path)
    if kind is None:
        return
    aim, ceiling = LIMITS[kind]
    if count > ceiling and str(path) not in waivers:
        yield Finding(path, ceiling + 1, f"{count} lines, the ceiling of a {kind} is {ceiling}")
    elif aims and count > aim:
        yield Finding(path, aim + 1, f"{count} lines, a {kind} aims for {aim}")


def _header_comment(path: PurePosixPath, lines: Sequence[str]) -> Iterator[Finding]:
    """A native header opens with the comment that is its manual."""
    if path.suffix == ".hpp" and path.parts[0] == "native":
        opening = next((line for line in lines if line and line != "#pragma once"), "")
        if not opening.startswith("//"):
            yield Finding(path, 1, "no opening comment that says what this is")


def _includes(path: PurePosixPath, lines: Sequence[str]) -> Iterator[Finding]:
    """The layers of the C++ side, and which of them may know sockets and Python."""
    source = path.parts[1] if path.parts[0] == "native" and len(path.parts) > 2 else path.parts[0]
    free = source in CPP_FREE or path.name.endswith("_test.cpp")
    if not free and _rank(CPP_LAYERS, source) is None:
        yield Finding(path, 1, f"{source} has no layer; give it one in tools/tidy.py")
        return
    for number, line in enumerate(lines, 1):
        if not (match := _INCLUDE.match(line)):
            continue
        quote, target = match.groups()
        if _PYTHON_HEADER.search(target) and source != "bindings":
            yield Finding(path, number, f"{target}: only bindings/ knows Python")
        elif _SOCKET_HEADER.match(target) and source == "resp":
            yield Finding(path, number, f"{target}: resp/ knows no sockets")
        elif quote == '"' and "/" not in target:
            if source != "bindings":
                yield Finding(path, number, f"{target}: write it as seen from native/")
        elif quote == '"' and not free:
            module = target.split("/")[0]
            if message := _forbidden(CPP_LAYERS, source, module):
                yield Finding(path, number, message)


def _imports(path: PurePosixPath, text: str) -> Iterator[Finding]:
    """The layers of the Python package; an import inside a function counts like any other."""
    inner = path.with_suffix("").parts[2:]
    source = inner[0]
    if source in PY_FREE:
        return
    if _rank(PY_LAYERS, source) is None:
        yield Finding(path, 1, f"{source} has no layer; give it one in tools/tidy.py")
        return
    package = ("kvferry", *inner[:-1])
    for number, name in _imported(ast.parse(text, str(path)), package):
        if name == "kvferry":
            yield Finding(path, number, "import the module that is needed, not kvferry")
        elif name.split(".")[0] == LAB:
            yield Finding(path, number, f"{source} uses {LAB}, which is above it")
        elif name.startswith("kvferry.") and name != "kvferry.__version__":
            message = _forbidden(PY_LAYERS, source, name.split(".")[1])
            yield from [Finding(path, number, message)] if message else []


def _threads(path: PurePosixPath, text: str) -> Iterator[Finding]:
    """Threads have their one way, so that none of them ends unnoticed."""
    if path.parts[2] in THREADS_FREE or not re.search(r"Thread|Timer|start_new_thread", text):
        return
    for node in ast.walk(ast.parse(text, str(path))):
        if isinstance(node, ast.Call):
            names = [ast.unparse(node.func)]
        elif isinstance(node, ast.ClassDef):
            names = [ast.unparse(base) for base in node.bases]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if _BARE_THREAD.search(name):
                yield Finding(path, node.lineno, f"{name}: start threads by kvferry.base.threads")


def _imported(tree: ast.AST, package: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield line and absolute dotted name of everything that a module imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            # One finding for `from kvferry_lab import a, b`; two for `from kvferry import a, b`.
            deep = base.count(".") > 0
            names = [base] if deep else [f"{base}.{alias.name}" for alias in node.names]
            yield from ((node.lineno, name) for name in names)
        elif isinstance(node, ast.Call) and node.args:
            called, argument = ast.unparse(node.func), node.args[0]
            if called.endswith("import_module") and isinstance(argument, ast.Constant):
                yield node.lineno, str(argument.value)


def _rank(layers: Sequence[Sequence[str]], module: str) -> int | None:
    return next((rank for rank, layer in enumerate(layers) if module in layer), None)


def _forbidden(layers: Sequence[Sequence[str]], source: str, target: str) -> str | None:
    """Return why ``source`` may not use ``target``, or ``None`` when it may."""
    if target == source:
        return None
    high, low = _rank(layers, source), _rank(layers, target)
    if low is None:
        return f"{source} uses {target}, which is no layer that others may use"
    if high is None or low < high:
        return None
    relation = "beside" if low == high else "above"
    return f"{source} uses {target}, which is {relation} it"


def main() -> int:
    """Run over the tree; return the exit status."""
    parser = argparse.ArgumentParser(description="Check the house rules that a program can check.")
    default = Path(__file__).resolve().parents[1]
    parser.add_argument("root", nargs="?", type=Path, default=default, metavar="ROOT")
    parser.add_argument("--aims", action="store_true", help="also list files past their aim")
    arguments = parser.parse_args()
    findings = check(arguments.root, aims=arguments.aims)
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
