"""How often a request waited for its store, one time after the other, counted on the wire.

The link writes down when each command leaves the client. The first command that reads or asks,
after a request was sent and before its first token, begins a wait. Its answer cannot be there
before a round trip has passed; the next such command after that may depend on it, and begins
another wait. What is sent meanwhile waits for nothing, and what the first token did not wait for
is no wait.

Left out are: writes; the connection of a presence view and what looks for clears, which nobody
waits for; and a key that the request has asked for by the same command before, because a cache
looks again what is there before it writes. Requests that overlap cannot be told apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["SentCommand", "read_commands", "sequential_waits"]

_READS = frozenset(("EXISTS", "TOUCH", "GET", "MGET", "GETRANGE", "STRLEN", "HGET", "HMGET"))


class SentCommand(NamedTuple):
    """A command that left the client; the moment is of `time.monotonic`."""

    at_s: float
    name: str
    key: str


def read_commands(log: Path) -> list[SentCommand]:
    """Those of a link's log that a request may wait for, in the order of time."""
    text = log.read_text(errors="replace")  # the last line may be on its way
    lines = [line.split(" ") for line in text.split("\n")[:-1]]
    views = {words[1] for words in lines if words[2:4] == ["CLIENT", "TRACKING"]}
    return sorted(_read(lines, views))


def _read(lines: Iterable[Sequence[str]], views: set[str]) -> Iterator[SentCommand]:
    for at_ns, connection, name, key in lines:
        if name.upper() in _READS and connection not in views and not key.endswith(":generation"):
            yield SentCommand(int(at_ns) / 1e9, name.upper(), key)


def sequential_waits(
    commands: Iterable[SentCommand], sent_s: float, first_token_s: float, rtt_s: float
) -> int | None:
    """Of one request, among commands in the order of time; None without a distance."""
    if rtt_s <= 0:
        return None
    seen: set[tuple[str, str]] = set()
    waits, answered_s = 0, sent_s
    for command in commands:
        if not sent_s <= command.at_s <= first_token_s or command[1:] in seen:
            continue
        seen.add((command.name, command.key))
        if command.at_s >= answered_s and command.at_s + rtt_s <= first_token_s:
            waits, answered_s = waits + 1, command.at_s + rtt_s
    return waits
