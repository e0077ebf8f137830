"""The cases of resp-compatibility that use only commands which a node has."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from foreign_suites.outcome import Outcome, Skips
from support.node_server import NodeServer
from support.resp import ReplyError

LIMIT_S = 600

_CASE = re.compile(r"^test: (.*) (passed|failed)$")
_WHY = re.compile(r"^FailedTest\(name='(.*?)', reason=(.*)\)$")


def run(checkout: Path, node: NodeServer) -> Outcome:
    """Run them."""
    outcome = Outcome("resp-compatibility", "cts.json", Skips.read("resp.yaml"))
    cases = json.loads((checkout / "cts.json").read_text(encoding="utf-8"))
    used = {command for case in cases for command in _commands(case)}
    ours = {command for command in used if _has(node, command)}
    fitting = [case for case in cases if _commands(case) <= ours]
    outcome.note = f"{len(cases) - len(fitting)} of {len(cases)} use other commands"
    outcome.skipped = [case["name"] for case in fitting if outcome.skips.has(case["name"])]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as chosen:
        json.dump([case for case in fitting if not outcome.skips.has(case["name"])], chosen)
        chosen.flush()
        command = [sys.executable, "resp_compatibility.py", "--host", node.host]
        command += ["--port", str(node.port), "--testfile", chosen.name, "--show-failed"]
        done = subprocess.run(
            command, cwd=checkout, capture_output=True, text=True, timeout=LIMIT_S
        )
    outcome.output = done.stdout + done.stderr
    if done.returncode != 0:
        outcome.failed["resp_compatibility.py"] = outcome.output.strip().splitlines()[-1]
    read(outcome)
    return outcome


def read(outcome: Outcome) -> None:
    """Take the cases out of what the suite has printed."""
    for line in outcome.output.splitlines():
        if match := _CASE.match(line):
            if match[2] == "passed":
                outcome.passed += 1
            else:
                outcome.failed[match[1]] = ""
        elif match := _WHY.match(line):
            outcome.failed[match[1]] = match[2]


def _has(node: NodeServer, command: str) -> bool:
    try:
        node.cli(command)
    except ReplyError as error:
        return not str(error).startswith("ERR unknown command")
    return True


def _commands(case: dict[str, Any]) -> set[str]:
    return {words.split()[0].lower() for words in case["command"]}
