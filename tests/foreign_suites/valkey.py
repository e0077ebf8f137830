"""Valkey's own tests in Tcl, against a server that they did not start."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from foreign_suites.outcome import Outcome, Skips
from support.node_server import NodeServer

UNITS = (
    "protocol",
    "type/string",
    "expire",
    "scan",
    "keyspace",
    "introspection",
    "other",
)
# What they themselves mark as not for a server like this one.
TAGS = ("debug", "repl", "save", "latency", "reset", "config-maxmemory", "config-resetstat")
# These units go on outside of a test with what a node has not; what stands behind is not reached.
ENDS_EARLY = {"keyspace": "ends at COPY of lists, with CONFIG SET list-max-listpack-size"}
LIMIT_S = 600

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PASSED = re.compile(r"^\[ok\]: (.*) \(\d+ ms\)$")
_FAILED = re.compile(r"^\[(?:err|exception)\]: (.*)$")
_SKIPPED = re.compile(r"^\[skip\]: (.*)$")
_DONE = re.compile(r"^\[1/1 done\]")


def run(checkout: Path, node: NodeServer, unit: str) -> Outcome:
    """Run one unit."""
    skips = Skips.read("valkey.yaml")
    outcome = Outcome("valkey", unit, skips, note=ENDS_EARLY.get(unit, ""))
    with (
        tempfile.TemporaryDirectory() as home,
        tempfile.NamedTemporaryFile("w", suffix=".skip") as listed,
    ):
        copy_without_functions(checkout, Path(home))
        listed.write("\n".join(skips.entries()))
        listed.flush()
        command = ["./runtest", "--host", node.host, "--port", str(node.port), "--singledb"]
        command += ["--ignore-encoding", "--ignore-digest", "--durable", "--single", f"unit/{unit}"]
        command += ["--tags", " ".join(f"-needs:{tag}" for tag in TAGS), "--skipfile", listed.name]
        done = subprocess.run(
            command, cwd=home, capture_output=True, text=True, errors="replace", timeout=LIMIT_S
        )
    outcome.output = _COLOUR.sub("", done.stdout + done.stderr)
    read(outcome)
    return outcome


def copy_without_functions(checkout: Path, home: Path) -> None:
    """Copy the suite, without the FUNCTION FLUSH by which it prepares every server."""
    shutil.copy(checkout / "runtest", home)
    shutil.copytree(checkout / "tests", home / "tests")
    prepares = home / "tests" / "support" / "server.tcl"
    said = prepares.read_text(encoding="utf-8")
    prepares.write_text(said.replace("    r function flush\n", ""), encoding="utf-8")


def read(outcome: Outcome) -> None:
    """Take the tests out of what the suite has printed."""
    lines = outcome.output.splitlines()
    ended = [at for at, line in enumerate(lines) if _DONE.match(line)]
    if not ended:
        tail = " / ".join(lines[-3:])
        outcome.failed[outcome.unit] = f"the unit did not come to its end: {tail}"
    for at, line in enumerate(lines):
        if match := _PASSED.match(line):
            outcome.passed += 1
        elif match := _SKIPPED.match(line):
            outcome.skipped.append(match[1])
        elif (match := _FAILED.match(line)) and at < ended[0]:  # they are told again at the end
            where = f" in tests/unit/{outcome.unit}.tcl"
            if where in match[1] or not outcome.note:
                outcome.failed[match[1].removesuffix(where)] = lines[at + 1]
