"""modules: circles of imports between the Python modules, and names of classes that occur twice.

An import counts wherever it stands: in a function, and for types alone. A package leads to what its
``__init__`` imports, and who imports a name of a package leads to the module where that name is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from graph import ways_round

__all__ = ["NAMED_BY_USERS", "circles", "namesakes"]

# Classes of one name: why.
NAMED_BY_USERS = {"KvferryConnector": "vLLM and LMCache load a class by this name, each its own"}

Where = tuple[PurePosixPath, int, str]  # file, line, message


def circles(root: Path, files: Iterable[PurePosixPath]) -> Iterator[Where]:
    """Yield one module of each circle; the message has the way round."""
    modules = {_name(path): path for path in files if _ours(path)}
    leads = {}
    for name, path in modules.items():
        package = name if path.stem == "__init__" else name.rpartition(".")[0]
        targets = _targets(ast.parse((root / path).read_text(encoding="utf-8")), package, modules)
        leads[name] = sorted(set(targets) - {name})
    for way in ways_round(leads):
        yield modules[way[0]], 1, "a circle of imports: " + " -> ".join(way)


def namesakes(root: Path, files: Iterable[PurePosixPath]) -> Iterator[Where]:
    """Yield every class of the package that has the name of another one, but for private ones."""
    first: dict[str, PurePosixPath] = {}
    for path in filter(_ours, files):
        for node in ast.walk(ast.parse((root / path).read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
                continue
            if node.name in first and node.name not in NAMED_BY_USERS:
                yield path, node.lineno, f"{first[node.name]} has a class {node.name} already"
            first.setdefault(node.name, path)


def _ours(path: PurePosixPath) -> bool:
    return path.suffix == ".py" and (path.parts[0] == "benchmarks" or path.parts[0] == "src")


def _name(path: PurePosixPath) -> str:
    parts = path.with_suffix("").parts
    parts = parts[1:] if parts[0] == "src" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _targets(tree: ast.Module, package: str, modules: Mapping[str, PurePosixPath]) -> Iterator[str]:
    """The modules that a tree imports, without those that it only passes on the way there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join(
                [*(above if node.level else []), *([node.module] if node.module else [])]
            )
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                if inner in modules:
                    yield inner
                elif base in modules and base != "kvferry":  # of which we take the version alone
                    yield base
