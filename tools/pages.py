"""The Markdown pages: every link leads somewhere, every ``>>>`` example says what it prints.

    python tools/pages.py [PAGE ...]    all pages of the tree by default
    python tools/pages.py --words       how long the pages under docs/ are

Prints ``file:line: message`` for each finding and exits 1 if there is one. Links to other hosts
are not followed. Tables that `tools/settings.py` writes are counted apart.
"""

from __future__ import annotations

import doctest
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INDEX = ROOT / "docs" / "README.md"

_LINK = re.compile(r"(?<!\\)\]\(\s*<?([^)\s>]+)")
_HEADING = re.compile(r"#{1,6}\s+(.*?)\s*#*$")
_GENERATED = re.compile(r"<!-- (settings|metrics|decisions)\b.*?<!-- end of \1 -->", re.DOTALL)
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def pages() -> list[Path]:
    """Return every Markdown page of the tree, without what was built or is hidden."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("[!.]*/**/*.md")]
    return sorted(page for page in found if page.relative_to(ROOT).parts[0] != "build")


def broken_links(page: Path) -> Iterator[tuple[int, str]]:
    """Yield line and message for each link to a file or heading that is not there."""
    for number, line in _prose(page):
        for target in _LINK.findall(re.sub(r"`[^`]*`", "", line)):
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            name, _, anchor = target.partition("#")
            path = (page.parent / name) if name else page
            if not path.exists():
                yield number, f"no such file: {target}"
            elif anchor and path.suffix == ".md" and anchor not in anchors(path):
                yield number, f"no such heading: {target}"


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, made the way GitHub makes them."""
    found: set[str] = set()
    for _, line in _prose(page):
        if match := _HEADING.match(line):
            words = re.sub(r"[^\w\- ]", "", match[1].lower()).replace(" ", "-")
            copies = sum(
                1 for anchor in found if re.fullmatch(rf"{re.escape(words)}(-\d+)?", anchor)
            )
            found.add(f"{words}-{copies}" if copies else words)
    return found


def failed_examples(page: Path) -> int:
    """Run the page's ``>>>`` examples, printing those that fail; return how many did."""
    text = "\n".join(_examples(page))
    test = doctest.DocTestParser().get_doctest(text, {}, str(page), str(page), 0)
    runner = doctest.DocTestRunner(optionflags=_FLAGS)
    runner.run(test)
    return runner.failures


def words(page: Path) -> tuple[int, int]:
    """Return how many words, with white space between, a page has: written, and generated."""
    text = page.read_text(encoding="utf-8")
    written = len(_GENERATED.sub("", text).split())
    return written, len(text.split()) - written


def operator_pages() -> list[Path]:
    """Return the index of the documentation and the guides in its first section, for operators."""
    section = INDEX.read_text(encoding="utf-8").split("\n## ")[1]
    linked = (INDEX.parent / target.partition("#")[0] for target in _LINK.findall(section))
    return [INDEX, *sorted({page.resolve() for page in linked if page.suffix == ".md"})]


def _prose(page: Path) -> Iterator[tuple[int, str]]:
    """Yield number and text of the lines outside of fences."""
    fenced = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def _examples(page: Path) -> Iterator[str]:
    """Yield the page with its fence marks blanked, so that line numbers stay and examples end."""
    for line in page.read_text(encoding="utf-8").splitlines():
        yield "" if line.lstrip().startswith("```") else line


def main(arguments: list[str]) -> int:
    """Check the pages; return the exit status."""
    if arguments == ["--words"]:
        counted = {page: words(page) for page in sorted(INDEX.parent.rglob("*.md"))}
        for page, (written, generated) in counted.items():
            print(f"{written:6} {generated:6}  {page.relative_to(ROOT)}")
        total = [sum(column) for column in zip(*counted.values(), strict=True)]
        print(f"{total[0]:6} {total[1]:6}  all: written, generated")
        print(f"{sum(words(page)[0] for page in operator_pages()):6}         operator's")
        return 0
    failed = False
    for page in [Path(name).resolve() for name in arguments] or pages():
        shown = page.relative_to(ROOT) if page.is_relative_to(ROOT) else page
        for number, message in broken_links(page):
            print(f"{shown}:{number}: {message}")
            failed = True
        failed |= failed_examples(page) > 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
