"""How long the pages may be: all of them together, those that operators read, and one decision."""

from __future__ import annotations

import pages as checker  # of tools/

WORDS_MAX = 50_000
OPERATOR_WORDS_MAX = 25_000
DECISION_WORDS_MAX = 450

DOCS = checker.INDEX.parent


def test_all_pages_together() -> None:
    assert sum(checker.words(page)[0] for page in DOCS.rglob("*.md")) <= WORDS_MAX


def test_what_an_operator_reads() -> None:
    pages = checker.operator_pages()
    assert {"server.md", "configuration.md", "security.md"} <= {page.name for page in pages}
    assert sum(checker.words(page)[0] for page in pages) <= OPERATOR_WORDS_MAX


def test_a_decision_is_two_screens() -> None:
    lengths = {page.name: checker.words(page)[0] for page in DOCS.glob("decisions/*.md")}
    assert {name for name, length in lengths.items() if length > DECISION_WORDS_MAX} == set()


def test_generated_tables_are_counted_apart() -> None:
    written, generated = checker.words(DOCS / "guides" / "configuration.md")
    assert written > 0
    assert generated > 0
