"""roles: file names that occur twice in a language, for things that are not the same.

A name of a file that is there twice says that both play the same part; which part that is stands in
`ROLES`. In some folders files are called after what they are about, which is elsewhere: `ABOUT`.
Header, source and test of a name in one folder are one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

__all__ = ["ABOUT", "ROLES", "namesakes"]

# Name: what each file that is called so does in its folder.
ROLES = {
    "__init__": "says what the package is, and has its public names",
    "actions": "what instances of a controller are asked to do",
    "aio": "the calls for asyncio",
    "answers": "what HTTP calls answer, as JSON",
    "app": "the HTTP application: its routes, and what stands behind them",
    "clients": "the clients that are compared",
    "completions": "finished requests on their way back to the caller",
    "errors": "the exceptions, and the path that programs import them by",
    "explain": "where the chunks of a prompt are, or why they are not",
    "identity": "which fields make bytes comparable",
    "listener": "accepts connections and serves them",
    "memory": "values in the memory of this process",
    "native": "what the users of a native object share",
    "node": "a node in Python, and the path that programs import it by",
    "report": "writes the results of its folder, for people and as files",
    "routes": "HTTP paths, and who answers them",
    "run": "does what its folder is for, from its settings to its results",
    "sync": "the blocking calls",
    "worker": "the connections of one I/O thread, and the rounds of its loop",
}

# Folder: what a file in it has to do with the one of the same name elsewhere.
ABOUT = {
    "benchmarks": "measures it",
    "src/kvferry/cli": "is the command for it",
    "src/kvferry_lab/cli": "is the command for it",
    "src/kvferry/client/pure": "is the same without the extension",
    "src/kvferry/config": "has its settings",
    "src/kvferry_lab/doctor": "examines it",
    "native/bench": "makes or measures it",
    "native/sim": "simulates it",
}

Where = tuple[PurePosixPath, int, str]  # file, line, message

_LANGUAGES = {"src": "Python", "benchmarks": "Python", "native": "C++"}
_SUFFIXES = (".py", ".cpp", ".hpp")


def namesakes(files: Iterable[PurePosixPath]) -> Iterator[Where]:
    """Yield each file that has the name of another one, and no role that both play."""
    first: dict[tuple[str, str], PurePosixPath] = {}
    for path in files:
        language = _LANGUAGES.get(path.parts[0])
        if language is None or path.suffix not in _SUFFIXES or str(path.parent) in ABOUT:
            continue
        other = first.setdefault((language, path.stem), path)
        if other.parent != path.parent and path.stem not in ROLES:
            yield path, 1, f"{other} has this name; rename one, or see tools/roles.py"
