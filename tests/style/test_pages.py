"""tools/pages.py: the pages of this tree hold, and a broken link or example is reported."""

from __future__ import annotations

from pathlib import Path

import pages
import pytest

pytestmark = pytest.mark.presence


@pytest.mark.parametrize("page", pages.pages(), ids=lambda page: str(page.relative_to(pages.ROOT)))
def test_links_of_this_tree(page: Path) -> None:
    assert list(pages.broken_links(page)) == []


@pytest.mark.parametrize("page", pages.pages(), ids=lambda page: str(page.relative_to(pages.ROOT)))
def test_examples_of_this_tree(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(pages.ROOT)
    assert pages.failed_examples(page) == 0


def test_broken_links(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# One `Two`, three\n\n## Again\n\n## Again\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Here\n"
        "[a](other.md) [b](other.md#one-two-three) [c](#here) [d](https://example.com/nowhere)\n"
        "[e](other.md#again-1) `[f](nowhere.md)`\n"
        "```\n[g](nowhere.md)\n```\n"
        "[h](nowhere.md) [i](other.md#four)\n"
        "[j](#there)\n"
    )
    assert list(pages.broken_links(page)) == [
        (7, "no such file: nowhere.md"),
        (7, "no such heading: other.md#four"),
        (8, "no such heading: #there"),
    ]


def test_examples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\n>>> 1 + 1\n2\n```\n")
    assert pages.failed_examples(page) == 0
    page.write_text("```python\n>>> 1 + 1\n2\n>>> 1 + 2\n4\n```\n")
    assert pages.failed_examples(page) == 1
    assert "Expected:\n    4" in capsys.readouterr().out
