"""tools/modules.py: circles of imports and classes of one name are found."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import modules
import pytest
import tidy

ROOT = Path(__file__).resolve().parents[2]
P = "src/kvferry/cache/"


def plant(root: Path, files: dict[str, str]) -> list[PurePosixPath]:
    """Write the files into a tree; return their paths."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return [PurePosixPath(path) for path in files]


CIRCLES = {
    "of two": {
        P + "a.py": "from kvferry.cache.b import B",
        P + "b.py": "from kvferry.cache.a import A",
    },
    "in a function": {
        P + "a.py": "def f():\n    from kvferry.cache.b import B",
        P + "b.py": "import kvferry.cache.a",
    },
    "for types": {
        P + "a.py": "if TYPE_CHECKING:\n    from kvferry.cache import b",
        P + "b.py": "from kvferry.cache.a import A",
    },
    "through a package": {
        P + "__init__.py": "from kvferry.cache.a import A",
        P + "a.py": "from kvferry.cache import A",
    },
    "by a relative import": {P + "a.py": "from . import b", P + "b.py": "from .a import A"},
}


@pytest.mark.parametrize("files", CIRCLES.values(), ids=CIRCLES)
def test_circle_is_found(tmp_path: Path, files: dict[str, str]) -> None:
    ((_, line, way),) = modules.circles(tmp_path, plant(tmp_path, files))
    assert line == 1
    assert way.startswith("a circle of imports: kvferry.cache")
    assert way.count("->") == 2


def test_modules_that_use_a_third_are_no_circle(tmp_path: Path) -> None:
    one_way = {
        "src/kvferry/__init__.py": "from kvferry.cache.a import A",
        P + "a.py": "from kvferry.cache.c import C\nfrom kvferry import __version__",
        P + "b.py": "from kvferry.cache import a, c",
        P + "c.py": "from typing import Any",
    }
    assert list(modules.circles(tmp_path, plant(tmp_path, one_way))) == []


def test_a_class_with_the_name_of_another_one_is_found(tmp_path: Path) -> None:
    files = plant(
        tmp_path,
        {
            P + "a.py": "class Chunk: ...\nclass _Part: ...",
            P + "b.py": "class _Part: ...\nclass Chunk: ...",
            "tests/unit/test_a.py": "class Chunk: ...",
        },
    )
    assert list(modules.namesakes(tmp_path, files)) == [
        (PurePosixPath(P + "b.py"), 2, f"{P}a.py has a class Chunk already")
    ]


@pytest.mark.full  # `make check` runs it
def test_this_tree_has_neither() -> None:
    files = list(tidy.source_files(ROOT))
    assert [*modules.circles(ROOT, files), *modules.namesakes(ROOT, files)] == []
