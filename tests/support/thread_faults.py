"""Work of background threads that raises on demand, and the list of all threads that there are.

    @scenario("write")
    def store_and_write(fault: Fault) -> None:
        fault.breaks(Writer, "_next")

`tests/unit/test_threads.py` runs each scenario with several kinds of errors, and asserts that every
kind of thread that the product starts has one.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kvferry
from support.stamps import until

__all__ = ["LIMIT_S", "SCENARIOS", "Fault", "kinds", "scenario"]

LIMIT_S = 30.0
Scenario = Callable[["Fault"], None]
# Each with the kind of its thread, and with errors that are ordinary there, and not counted.
SCENARIOS: list[tuple[str, Scenario, tuple[type[Exception], ...]]] = []

_SOURCES = Path(kvferry.__file__).parent


class Fault:
    """Calls that raise while it is on.

    Args:
        error: Makes what is raised.
        folder: For what a scenario needs on the disk.
    """

    def __init__(self, error: Callable[[], Exception], folder: Path) -> None:
        self.error = error
        self.folder = folder
        self.raised = 0
        self._on = True
        self._broken: list[tuple[object, str, Any]] = []

    def __call__(self, call: Callable[..., Any] = lambda *_: None) -> Callable[..., Any]:
        """Raises while it is on, and is `call` afterwards."""

        def run(*args: Any, **named: Any) -> Any:
            if self._on:
                self.raised += 1
                raise self.error()
            return call(*args, **named)

        return run

    def breaks(self, owner: Any, name: str) -> None:
        """Have a function of a class or module raise, also where it is used already."""
        self._broken.append((owner, name, getattr(owner, name)))
        setattr(owner, name, self(getattr(owner, name)))

    def met(self, times: int = 1) -> None:
        """Wait until it was raised so often."""
        until(lambda: self.raised >= times, LIMIT_S)

    def over(self) -> None:
        """From now on all goes well."""
        self._on = False

    def mend(self) -> None:
        """Put back what was broken."""
        self._on = False
        for owner, name, call in reversed(self._broken):
            setattr(owner, name, call)


def scenario(kind: str, *ordinary: type[Exception]) -> Callable[[Scenario], Scenario]:
    """What becomes of this kind of thread, and of who needs it, when its work raises.

    Args:
        ordinary: What is raised there without a fault: a connection that ends.
    """

    def add(run: Scenario) -> Scenario:
        SCENARIOS.append((kind, run, ordinary))
        return run

    return add


def kinds() -> Iterator[tuple[str, str]]:
    """Where the product starts threads, and of which kind; as its sources say."""
    for path in sorted(_SOURCES.rglob("*.py")):
        if path.name == "threads.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            started = isinstance(node, ast.Call) and ast.unparse(node.func)
            if isinstance(node, ast.Call) and started in ("Guarded", "Workers"):
                kind = node.args[1] if len(node.args) > 1 else None
                where = f"{path.relative_to(_SOURCES)}:{node.lineno}"
                assert isinstance(kind, ast.Constant), f"{where}: the kind of a thread is a text"
                assert isinstance(kind.value, str)
                yield where, kind.value
