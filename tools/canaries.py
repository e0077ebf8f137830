"""canaries: bugs planted into the native client, and whether the simulation finds them.

    python tools/canaries.py [NAME ...]

Each changes one line in a copy of a source. The copy is compiled and linked with what `make native`
has built, and the simulation looks for a schedule in which a rule is broken, from the seed that
found it last. Prints the seed, after how many steps it was found, and the rule; exits 1 if one was
not found within 100 million steps.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "release"
PLANTED = ROOT / "build" / "canaries"
SCHEDULES_MAX = 600_000  # of 160 steps in the mean


class Canary(NamedTuple):
    """A bug: what a line of a source would be if it were there."""

    name: str
    source: str  # under native/redis
    right: str
    wrong: str
    seed: int  # that found it when it was written

    def plant(self, root: Path = ROOT) -> str:
        """Return the source with the bug in it. Raises: ValueError when the line is not there."""
        text = (root / "native" / "redis" / self.source).read_text(encoding="utf-8")
        if text.count(self.right) != 1:
            raise ValueError(f"{self.source} has not once: {self.right}")
        return text.replace(self.right, self.wrong)


class Finding(NamedTuple):
    """Where the simulation found a bug."""

    seed: int
    steps: int
    rule: str


CANARIES = (
    Canary(  # the buffer of a SET that was given up is sent on
        "withdrawal",
        "connection.cpp",
        "if (!pacing_.answered(work) && (lends || !withdrawn)) {",
        "if (!pacing_.answered(work) && !withdrawn) {",
        303,
    ),
    Canary(  # ASK is followed without an ASKING
        "redirect",
        "router.cpp",
        "command.asking = true;",
        "command.asking = false;",
        336,
    ),
    Canary(  # the next connection goes on in the middle of the reply that was cut
        "half-reply",
        "replies.cpp",
        "  parser_ = resp::Parser(static_cast<std::int64_t>(value_bytes_max_));\n",
        "",
        22,
    ),
    Canary(  # a small command goes between the head of a SET and its value
        "early-head",
        "pacing.cpp",
        "if (role_ == Role::kData && (held_ || replies_.overdue() > 0)) return;",
        "if (role_ == Role::kData && replies_.overdue() > 0) return;",
        9586,
    ),
    Canary(  # nobody dials while the breaker is open
        "breaker",
        "connection.cpp",
        "if (!server_.available() && role_ == Role::kData && !first_) return kNever;",
        "if (!server_.available() && role_ == Role::kData) return kNever;",
        5,
    ),
    Canary(  # what was far once is far for ever
        "far-near",
        "server.cpp",
        "gate_.set_far(trips_.shortest() >= kFarAway);",
        "if (trips_.shortest() >= kFarAway) gate_.set_far(true);",
        80,
    ),
)


def build(canary: Canary) -> Path:
    """Compile the bug and link it into a simulation of its own; return that program."""
    PLANTED.mkdir(parents=True, exist_ok=True)
    source = PLANTED / f"{canary.name}.cpp"
    source.write_text(canary.plant(), encoding="utf-8")
    planted, program = source.with_suffix(".o"), PLANTED / f"sim-{canary.name}"
    ninja = str(Path(sys.executable).with_name("ninja"))
    _run([ninja, "kvferry-sim"])
    listed = _run([ninja, "-t", "commands", "kvferry-sim"]).splitlines()
    compiles = next(line for line in listed if f"/native/redis/{canary.source}" in line)
    words = shlex.split(compiles)
    for option in ("-MT", "-MF", "-o", "-c"):
        at = words.index(option)
        del words[at : at + 2]
    words.remove("-MD")
    _run([*words, "-c", str(source), "-o", str(planted)])
    # What the object defines is not taken from the library.
    link = listed[-1].replace(" -o kvferry-sim ", f" {planted} -o {program} ")
    _run(["sh", "-c", link])
    return program


def find(program: Path, seed: int, schedules: int = SCHEDULES_MAX) -> Finding | None:
    """Return the first of these schedules in which a rule is broken."""
    run = subprocess.run(
        [program, "--from", str(seed), "--count", str(schedules)],
        capture_output=True,
        text=True,
        check=False,
    )
    broken = re.search(r"^seed (\d+): (.*)$", run.stdout, re.M)
    steps = re.search(r"(\d+) steps", run.stdout)
    if broken is None or steps is None:
        return None
    return Finding(int(broken[1]), int(steps[1]), broken[2])


def _run(command: list[str]) -> str:
    return subprocess.run(command, cwd=BUILD, check=True, stdout=subprocess.PIPE, text=True).stdout


def main(names: list[str]) -> int:
    """Look for the bugs of these names, or for all."""
    missed = 0
    for canary in CANARIES:
        if names and canary.name not in names:
            continue
        found = find(build(canary), canary.seed)
        if found is None:
            missed += 1
            print(f"{canary.name}: not found", flush=True)
        else:
            print(
                f"{canary.name}: seed {found.seed}, after {found.steps:,} steps: {found.rule}",
                flush=True,
            )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
