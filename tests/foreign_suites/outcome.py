"""What came of a suite, and the list of what is left out of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Skips:
    """Which tests are left out, and why: a file of reasons with the names that each is for.

    A name that begins with "/" is a regular expression for the beginning of names, as in Valkey's
    own lists.
    """

    reasons: dict[str, list[str]]

    @classmethod
    def read(cls, name: str) -> Skips:
        text = (Path(__file__).parent / name).read_text(encoding="utf-8")
        return cls(yaml.safe_load(text))

    def entries(self) -> list[str]:
        return [entry for names in self.reasons.values() for entry in names]

    def has(self, name: str) -> bool:
        return any(_fits(entry, name) for entry in self.entries())

    def unused(self, names: list[str]) -> list[str]:
        """The entries that are for none of these names."""
        return [entry for entry in self.entries() if not any(_fits(entry, name) for name in names)]


@dataclass
class Outcome:
    """One suite, or one unit of it."""

    suite: str
    unit: str
    skips: Skips
    passed: int = 0
    failed: dict[str, str] = field(default_factory=dict)  # name: why
    skipped: list[str] = field(default_factory=list)
    note: str = ""
    output: str = ""

    def line(self) -> str:
        ran = self.passed + len(self.failed)
        note = f"; {self.note}" if self.note else ""
        left_out = len(self.skipped)
        return f"{self.suite} {self.unit}: {self.passed} of {ran} passed, {left_out} left out{note}"


def _fits(entry: str, name: str) -> bool:
    if entry.startswith("/"):
        return re.match(entry[1:], name) is not None
    return entry == name
