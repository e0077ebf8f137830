"""Finding: the outcome of one check, good or bad."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

__all__ = ["Finding", "Severity", "Unread", "fault", "info", "ok", "size_text", "warn"]


class Severity(IntEnum):
    """How much it matters, from least to most."""

    OK = 0  # as it should be
    INFO = 1  # worth knowing; nothing has to be done
    WARN = 2  # costs speed, memory or hits
    FAULT = 3  # reads or writes of the cache fail, now or as soon as it is full


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        id: Of the check: stable, for programs.
        severity: See above.
        seen: The fact.
        why: Why it matters. Empty where all is well.
        fix: The line that mends it: ``CONFIG SET ...`` for the server, ``sysctl`` for a host, of a
            configuration file, or a setting of the client. Empty where nothing is to be done.
        scope: Whose it is: server, cluster, host (this one), network or model.
        where: The servers that it was seen at; empty where it is no server's.
    """

    id: str
    severity: Severity
    seen: str
    why: str = ""
    fix: str = ""
    scope: str = "server"
    where: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Its fields, with the severity as a word."""
        return {**asdict(self), "severity": self.severity.name.lower(), "where": [*self.where]}


class Unread(Exception):
    """A check needs what this server does not show."""


def ok(check: str, seen: str) -> Finding:
    """All is well."""
    return Finding(check, Severity.OK, seen)


def info(check: str, seen: str, why: str = "", fix: str = "") -> Finding:
    """Worth knowing."""
    return Finding(check, Severity.INFO, seen, why, fix)


def warn(check: str, seen: str, why: str, fix: str) -> Finding:
    """It costs something."""
    return Finding(check, Severity.WARN, seen, why, fix)


def fault(check: str, seen: str, why: str, fix: str) -> Finding:
    """Something does not work, or will not."""
    return Finding(check, Severity.FAULT, seen, why, fix)


def size_text(size_bytes: float) -> str:
    """A number of bytes for people: ``4 MiB``, ``1.5 GiB``."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(size_bytes) < 1024:
            return f"{size_bytes:.4g} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.4g} TiB"
