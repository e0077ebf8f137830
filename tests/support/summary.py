"""A pytest plugin: lines that plugins have for the end of pytest's output, those of workers too.

    summary.add(config, "title", "a line")      # in any process
    summary.lines(config, "title")              # where the session ends, those of all processes

pytest-xdist runs tests in workers, whose plugins cannot write to the terminal.
"""

from __future__ import annotations

from typing import Any

import pytest

_SECTIONS = pytest.StashKey[dict[str, list[str]]]()
_FROM_WORKER = "kvferry_summary"


def add(config: pytest.Config, title: str, line: str) -> None:
    """One more line under that title."""
    _sections(config).setdefault(title, []).append(line)


def lines(config: pytest.Config, title: str) -> list[str]:
    """What was said under that title so far."""
    return _sections(config).get(title, [])


def _sections(config: pytest.Config) -> dict[str, list[str]]:
    return config.stash.setdefault(_SECTIONS, {})


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[_FROM_WORKER] = _sections(session.config)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    for title, said in getattr(node, "workeroutput", {}).get(_FROM_WORKER, {}).items():
        for line in said:
            add(node.config, title, line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for title, said in _sections(terminalreporter.config).items():
        terminalreporter.section(title)
        for line in said:
            terminalreporter.line(line)
