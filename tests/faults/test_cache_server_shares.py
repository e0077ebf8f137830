"""What memory knows is answered from memory, whatever stores do, and whatever other engines ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cache_server import CacheServerProcess
from support.scripted import Action, Command, MiniStore, Pieces, ScriptedServer, Silence, answer

# So many calls of the engine that waits for a store: more than it may have threads and sockets.
WAITING = 89
MOST = 48  # of one session, that may wait
LONG_MS = 60_000
PATIENT = {"KVFERRY_SERVER_TUNING": '{"dead_after_s": 60, "lease_s": 60}'}


def hung(command: Command) -> Action | None:
    """No chunk is ever given out."""
    chunk = command.name == b"GET" and not command[1].endswith(b":generation")
    return Silence() if chunk else None


def trickling(command: Command) -> Action | None:
    """Chunks come, and do not come to their end."""
    return Pieces((b"$1000000\r\n", *(b"x" for _ in range(600))), 0.1) if hung(command) else None


@pytest.fixture
def server(tmp_path: Path) -> Iterator[CacheServerProcess]:
    """With a store that has everything, and gives nothing out."""
    with ScriptedServer(answer(b":1\r\n", b"TOUCH", b"EXISTS"), hung, MiniStore()) as store:
        resp = {"type": "resp", "host": "127.0.0.1", "port": store.port, "num_workers": 2}
        # Else it is unavailable after some seconds.
        resp["tuning"] = {"stall_timeout_s": LONG_MS / 1e3}
