"""The troubles themselves: what they break is whole again when they end."""

from __future__ import annotations

import random
import time

from chaos.troubles import PAUSE_MS, server_troubles
from support.servers import TestServer


class Everything(random.Random):
    """Chooses what comes first, so a pause of ALL."""

    def choice(self, seq):  # type: ignore[no-untyped-def]
        return seq[0]


def test_a_pause_of_everything_ends_by_itself(server: TestServer) -> None:
    """It holds up UNPAUSE as well, which must not wait as long as the tests' own patience."""
    begun = time.monotonic()
    with server_troubles(lambda rng: server, ())["client_pause"](Everything()):
        pass
    assert server.cli("PING") == b"PONG"
    assert time.monotonic() - begun < PAUSE_MS / 1e3 + 1.5
