"""What the read path decided when it was looked at last: a table in words, and marks of many cases.

    cd tests; python -m support.read_path_pins 1234     what case 1234 decides, in words
    cd tests; python -m support.read_path_pins "asks first, 10 ms, 60 %"     a line of the table
    cd tests; python -m support.read_path_pins --check table      what of it is not as it was
    cd tests; python -m support.read_path_pins --check 1000 40    the same of 40 cases from 1000 on
    cd tests; python -m support.read_path_pins --write  write tests/data/read_path.txt anew

Whoever means to change a decision writes the file anew, and says in the commit what differs.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from support.read_path import Replay, on_clock, replay
from support.read_path_cases import random_case, row, table
from support.timed_store import FakeClock

PINS = Path(__file__).parents[1] / "data" / "read_path.txt"
CASES, BLOCK = 10_000, 40  # random cases, and how many of them a line has
HEAD = """\
# What the read path of a cache decides; tests/property/test_read_path.py compares. Written by
#     cd tests; python -m support.read_path_pins --write
#
# Requests one after the other: their times to a first token, as parts of the time of computing,
# and why not all is loaded, with how many of 24 chunks were. At the end a digest of all decisions.
"""
MIDDLE = """\
# Random cases: the number of the first one, a digest of the decisions of forty, and a mark of each.
"""
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def digest(happened: Replay) -> bytes:
    return hashlib.sha256("\n".join(happened.lines).encode()).digest()


def table_lines(clock: FakeClock) -> Iterator[str]:
    """The lines of the table."""
    for name, case in table():
        happened = replay(case, clock)
        yield f"{row(name, happened)} | {digest(happened).hex()[:6]}"


def block_line(first: int, clock: FakeClock) -> str:
    """The line of the random cases from this one on."""
    found = [digest(replay(random_case(first + at), clock)) for at in range(BLOCK)]
    marks = "".join(LETTERS[each[0] % 64] + LETTERS[each[1] % 64] for each in found)
    return f"{first:05d} {hashlib.sha256(b''.join(found)).hexdigest()[:8]} {marks}"


def pinned() -> tuple[list[str], dict[int, str]]:
    """The lines of the table, and those of random cases by their first one."""
    lines = [line for line in PINS.read_text().splitlines() if not line.startswith("#")]
    blocks = {int(line[:5]): line for line in lines if line[:5].isdigit()}
    return [line for line in lines if not line[:5].isdigit()], blocks


def differences(line: str, now: str) -> list[int]:
    """Which cases of a block are not as they were; all, if no mark says so."""
    (first, _, old), (_, _, new) = line.split(), now.split()
    found = [at for at in range(BLOCK) if old[2 * at : 2 * at + 2] != new[2 * at : 2 * at + 2]]
    return [int(first) + at for at in (found or range(BLOCK) if line != now else [])]


def words(happened: Replay) -> str:
    """What happened, line by line."""
    return "\n".join((repr(happened.case), *happened.lines))


def changed_table(clock: FakeClock) -> str:
    """The first line of the table that is not as it was, in words; empty: none."""
    for was, now in zip_longest(pinned()[0], table_lines(clock)):
        if was != now:
            case = dict(table())[(now or was or "").partition(": ")[0]]
            return f"was {was}\nnow {now}\n{words(replay(case, clock))}"
    return ""


def changed_cases(first: int, count: int, clock: FakeClock) -> str:
    """The first block of these cases that is not as it was, in words; empty: none."""
    _, blocks = pinned()
    for number in range(first, first + count, BLOCK):
        if changed := differences(blocks[number], block_line(number, clock)):
            said = words(replay(random_case(changed[0]), clock))
            return f"cases {changed} decide something else; the first one:\n{said}"
    return ""


def main() -> None:
    with on_clock() as clock:
        if sys.argv[1:] == ["--write"]:
            blocks = [block_line(first, clock) for first in range(0, CASES, BLOCK)]
            lines = [*table_lines(clock), MIDDLE.rstrip(), *blocks]
            PINS.write_text(HEAD + "".join(f"{line}\n" for line in lines))
            return
        if sys.argv[1] == "--check":
            which = sys.argv[2:]
            if which == ["table"]:
                sys.exit(changed_table(clock) or 0)
            sys.exit(changed_cases(int(which[0]), int(which[1]), clock) or 0)
        (name,) = sys.argv[1:]
        case = random_case(int(name)) if name.isdigit() else dict(table())[name]
        print(words(replay(case, clock)))


if __name__ == "__main__":
    main()
