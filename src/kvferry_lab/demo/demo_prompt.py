"""The demo's prompt: real text, found wherever the package was installed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import kvferry
from kvferry.base.errors import UsageError
from kvferry_lab.transformer import encode

__all__ = ["DemoPrompt", "load_prompt"]

_FIRST = ("ARCHITECTURE.md", "README.md")
_PACKAGE = Path(kvferry.__file__).parent


@dataclass(frozen=True)
class DemoPrompt:
    """Tokens, and the files that they were read from."""

    tokens: list[int]
    sources: list[str]


def load_prompt(tokens: int, package: Path = _PACKAGE) -> DemoPrompt:
    """Read the project's documents, or where there are none the package's own sources.

    Raises:
        UsageError: There is not that much text.
    """
    text, sources = b"", []
    for path, name in _documents(package):
        if len(text) >= tokens:
            break
        text += path.read_bytes()
        sources.append(name)
    if len(text) + 1 < tokens:
        raise UsageError(f"the documents here make {len(text) + 1} tokens, not {tokens}")
    return DemoPrompt(encode(text)[:tokens], sources)


def _documents(package: Path) -> Iterator[tuple[Path, str]]:
    """Files and what to call them."""
    root = package.parents[1]  # of a checkout: <root>/src/kvferry
    if (root / "pyproject.toml").is_file() and root / "src" / "kvferry" == package:
        first = [path for name in _FIRST if (path := root / name).is_file()]
        for path in [*first, *sorted((root / "docs").rglob("*.md"))]:
            yield path, str(path.relative_to(root))
    for path in sorted(package.rglob("*.py")):
        yield path, str(path.relative_to(package.parent))
