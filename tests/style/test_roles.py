"""tools/roles.py: files of one name are found where they have no role that is declared."""

from __future__ import annotations

from collections import Counter
from pathlib import Path, PurePosixPath

import pytest
import roles
import tidy

ROOT = Path(__file__).resolve().parents[2]
A, B = "src/kvferry/cache/", "src/kvferry/server/"


def found(*paths: str) -> list[str]:
    """Which of the paths are found."""
    return [str(path) for path, _, _ in roles.namesakes(map(PurePosixPath, paths))]


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (A + "waits.py", B + "waits.py"),
        (A + "waits.py", B + "http/waits.py"),
        ("native/net/waits.hpp", "native/mem/waits.cpp"),
        ("native/net/waits_test.cpp", "native/mem/waits_test.cpp"),
    ],
)
def test_second_file_of_a_name_is_found(one: str, two: str) -> None:
    assert found(one, two) == [two]


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (A + "__init__.py", B + "__init__.py"),
        (A + "run.py", B + "run.py"),
        ("src/kvferry/config/waits.py", B + "waits.py"),
        ("benchmarks/waits.py", B + "waits.py"),
        ("native/net/waits.hpp", "native/net/waits.cpp"),
        ("native/net/waits.hpp", A + "waits.py"),
        ("bindings/waits.cpp", "native/net/waits.cpp"),
        (A + "waits.py", "tests/support/waits.py"),
        (A + "waits.py", B + "waits.js"),
    ],
)
def test_role_is_not_found(one: str, two: str) -> None:
    assert found(one, two) == []


def test_roles_are_needed() -> None:
    files = [path for path in tidy.source_files(ROOT) if path.suffix in (".py", ".cpp", ".hpp")]
    folders = {(path.parent, path.stem) for path in files if path.parts[0] in roles._LANGUAGES}
    counts = Counter(stem for folder, stem in folders if str(folder) not in roles.ABOUT)
    assert {name for name in roles.ROLES if counts[name] < 2} == set()
    named = {(str(folder), stem) for folder, stem in folders}
    for folder in roles.ABOUT:
        assert any(place == folder and counts[stem] for place, stem in named), folder
