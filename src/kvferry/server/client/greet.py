"""What a server was started with, asked before there is an identity to register with."""

from __future__ import annotations

import os
import time

from kvferry.server.client.address import read_url, token_reader
from kvferry.server.client.counters import Counters
from kvferry.server.client.replies import new_id
from kvferry.server.client.session_connection import (
    Gone,
    ServerControl,
    ServerRefused,
    Silent,
    Wake,
)
from kvferry.server.protocol import Hello, Welcome

__all__ = ["greet"]


def greet(
    url: str | None = None,
    *,
    token_file: str | os.PathLike[str] | None = None,
    timeout_s: float,
) -> Welcome | None:
    """Ask a server; None: it is away, or does not say.

    Args:
        url, token_file: As for `Client`.
        timeout_s: What connecting and asking may take together.

    Raises:
        ConfigError: `url` or the file of the token cannot be.
    """
    token = token_reader(token_file)()
    until = time.monotonic() + timeout_s
    control = ServerControl(read_url(url), Counters(), Wake())
    try:
        while not control.connected and time.monotonic() < until:
            control.poll(until)
        left_s = until - time.monotonic()
        if not control.connected or left_s <= 0:
            return None
        return control.ask(Hello(new_id(), 0, int(left_s * 1000), token), Welcome, left_s)
    except (Gone, ServerRefused, Silent):
        return None
    finally:
        control.close()
