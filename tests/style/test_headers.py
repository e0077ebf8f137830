"""tools/headers.py: circles of native headers and classes of one name are found."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import headers
import pytest
import tidy

ROOT = Path(__file__).resolve().parents[2]


def plant(root: Path, files: dict[str, str]) -> list[PurePosixPath]:
    """Write the files into a tree; return their paths."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return [PurePosixPath(path) for path in files]


CIRCLES = {
    "by an include": {
        "native/net/a.hpp": '#include "net/b.hpp"\nclass A {};',
        "native/net/b.hpp": '#include "net/a.hpp"\nclass B {};',
    },
    "by a declaration ahead": {
        "native/net/a.hpp": '#include "net/b.hpp"\nclass A final : B {};',
        "native/net/b.hpp": "class A;\nclass B { A& a; };",
    },
    "over three": {
        "native/net/a.hpp": '#include "net/b.hpp"\nclass A {};',
        "native/net/b.hpp": '#include "net/c.hpp"\nclass B {};',
        "native/net/c.hpp": "class A;\nclass C {};",
    },
}


@pytest.mark.parametrize("files", CIRCLES.values(), ids=CIRCLES)
def test_circle_is_found(tmp_path: Path, files: dict[str, str]) -> None:
    ((path, line, way),) = headers.circles(tmp_path, plant(tmp_path, files))
    assert (str(path), line) == ("native/net/a.hpp", 1)
    assert way.startswith("net/a.hpp -> net/b.hpp -> ")
    assert way.endswith(" -> net/a.hpp")


ONE_WAY = {
    "both use a third": {
        "native/net/a.hpp": '#include "net/c.hpp"\nclass A {};',
        "native/net/b.hpp": '#include "net/c.hpp"\n#include "net/a.hpp"\nclass B {};',
        "native/net/c.hpp": "class C {};",
    },
    "a source may use what uses its header": {
        "native/net/a.hpp": "class A {};",
        "native/net/a.cpp": '#include "net/b.hpp"',
        "native/net/b.hpp": '#include "net/a.hpp"\nclass B {};',
    },
    "a class of another layer": {
        "native/net/a.hpp": "class B;\nclass A {};",
        "native/redis/b.hpp": '#include "net/a.hpp"\nclass B {};',
    },
    "a declaration in a comment": {
        "native/net/a.hpp": '#include "net/b.hpp"\nclass A {};',
        "native/net/b.hpp": "// class A;\nclass B {};",
    },
}


@pytest.mark.parametrize("files", ONE_WAY.values(), ids=ONE_WAY)
def test_one_way_is_no_circle(tmp_path: Path, files: dict[str, str]) -> None:
    assert list(headers.circles(tmp_path, plant(tmp_path, files))) == []


def test_exceptions_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    excepted, files = headers.ONE_MACHINE, list(tidy.source_files(ROOT))
    monkeypatch.setattr(headers, "ONE_MACHINE", {})
    ways = [way for _, _, way in headers.circles(ROOT, files)]
    assert len(ways) == len(excepted)
    assert all(PurePosixPath(path).name in way for path in excepted for way in ways)


def test_class_of_a_name_that_is_taken_is_found(tmp_path: Path) -> None:
    files = {
        "native/net/a.hpp": "class A {};\nenum class Way : int { kUp };",
        "native/redis/a.hpp": "// a\nclass A final : public B {};\nstruct Way {};",
    }
    assert [str(path) + f":{line} {text}" for path, line, text in _namesakes(tmp_path, files)] == [
        "native/redis/a.hpp:2 class A is in native/net/a.hpp, too",
        "native/redis/a.hpp:3 class Way is in native/net/a.hpp, too",
    ]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("native/net/b.hpp", "class A;"),
        ("native/net/b.hpp", "// class A {};"),
        ("native/net/b.hpp", "class B {\n  struct A {};\n};"),
        ("native/net/b.hpp", "struct B::A {};"),
        ("native/net/b.cpp", "class A {};"),
        ("native/net/test_b.hpp", "class A {};"),
        ("native/sim/b.hpp", "class A {};"),
    ],
)
def test_name_is_free_elsewhere(tmp_path: Path, path: str, text: str) -> None:
    assert _namesakes(tmp_path, {"native/net/a.hpp": "class A {};", path: text}) == []


def _namesakes(root: Path, files: dict[str, str]) -> list[headers.Where]:
    return list(headers.namesakes(root, plant(root, files)))
