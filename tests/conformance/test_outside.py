"""The suite as it ships: a driver that is no part of the tree runs it as the guide says."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).resolve().parents[2] / "docs/guides/new-connector.md"
_LIMIT_S = 110


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """What the guide writes, in a folder of its own."""
    text = GUIDE.read_text(encoding="utf-8")
    block = text[text.index("# conftest.py\n") :].partition("```")[0]
    conftest, _, tests = block.partition("# test_my_store.py\n")
    examples = doctest.DocTestParser().get_examples(text)
    until_class = next(i for i, each in enumerate(examples) if each.source.startswith("class "))
    (tmp_path / "my_package").mkdir()
    store = "".join(each.source for each in examples[: until_class + 1])
    (tmp_path / "my_package" / "store.py").write_text(store)
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "test_my_store.py").write_text(tests)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    return tmp_path


def run_suite(package: Path, *options: str) -> tuple[int, dict[str, int], str]:
    """The exit code of pytest, how many tests ended how, and all that it said."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    ran = subprocess.run(command, cwd=package, capture_output=True, text=True, timeout=_LIMIT_S)
    counts = re.findall(r"(\d+) (passed|failed|skipped|errors?)", ran.stdout.splitlines()[-1])
    return ran.returncode, {how: int(count) for count, how in counts}, ran.stdout + ran.stderr


def test_the_driver_of_the_guide_passes(package: Path) -> None:
    code, counts, said = run_suite(package)
    assert code == 0, said
    assert counts["passed"] > 30, said


def test_a_driver_that_gives_out_damaged_values_fails_and_is_told_what_differed(
    package: Path,
) -> None:
    store = package / "my_package" / "store.py"
    text = store.read_text()
    broken = text.replace(" or zlib.crc32(value) != checksum", "")
    assert broken != text
    store.write_text(broken)
    code, counts, said = run_suite(package, "-k", "damage")
    assert code == 1, said
    assert counts["failed"] == 3, said
    assert "assert <Status.OK: 0> in (<Status.CORRUPT: 3>, " in said  # by the plug-in's rewriting
