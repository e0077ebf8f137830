"""headers: circles between the native headers of a layer, and classes that share a name.

A header leads to those of its own layer that it includes, and to those that define what it declares
ahead (`class Server;`): what two headers need of each other belongs into a third one below both.
Class names are unique over the headers of the extension. Nested classes, and those of sources,
tests, the simulator, fuzzers and benchmarks, are seen in one place only and may be called as they
like.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from graph import ways_round

__all__ = ["ONE_MACHINE", "circles", "namesakes"]

# Header: why it may declare ahead what includes it.
ONE_MACHINE = {"native/node/commands.hpp": "a table of methods of Session, which Session reads"}

_FREE = ("sim", "fuzz", "bench")
_COMMENT = re.compile(r"//[^\n]*")
_INCLUDED = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
_AHEAD = re.compile(r"^(?:class|struct) (\w+);", re.M)
_DEFINED = re.compile(
    r"^(?:class|struct|union|enum class) (?:\[\[\w+\]\] )?(\w+)(?: final)?"
    r"(?:\s*:(?!:)[^;{]*)?\s*\{",
    re.M,
)

Where = tuple[PurePosixPath, int, str]  # file, line, message


def circles(root: Path, files: Iterable[PurePosixPath]) -> Iterator[Where]:
    """Yield one header of each circle; the message has the way round."""
    texts = _headers(root, files)
    homes = {(path.parts[1], name): path for path, _, name in _classes(texts)}
    leads: dict[PurePosixPath, list[PurePosixPath]] = {}
    for path, text in texts.items():
        ahead = [] if str(path) in ONE_MACHINE else _AHEAD.findall(text)
        named = [PurePosixPath("native", target) for target in _INCLUDED.findall(text)]
        named += [homes[path.parts[1], name] for name in ahead if (path.parts[1], name) in homes]
        leads[path] = [other for other in named if other in texts and other != path]
    for way in ways_round(leads):
        yield way[0], 1, " -> ".join(f"{step.parent.name}/{step.name}" for step in way)


def namesakes(root: Path, files: Iterable[PurePosixPath]) -> Iterator[Where]:
    """Yield every class whose name another one had before."""
    first: dict[str, PurePosixPath] = {}
    for path, line, name in _classes(_headers(root, files)):
        if name in first:
            yield path, line, f"class {name} is in {first[name]}, too"
        first.setdefault(name, path)


def _headers(root: Path, files: Iterable[PurePosixPath]) -> dict[PurePosixPath, str]:
    return {
        path: _COMMENT.sub("", (root / path).read_text(encoding="utf-8"))
        for path in files
        if path.suffix == ".hpp"
        and path.parts[0] in ("native", "bindings")
        and path.parts[1] not in _FREE
        and "test" not in path.stem.split("_")
    }


def _classes(texts: Mapping[PurePosixPath, str]) -> Iterator[Where]:
    for path, text in texts.items():
        for match in _DEFINED.finditer(text):
            yield path, text.count("\n", 0, match.start(1)) + 1, match[1]
