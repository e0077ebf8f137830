"""What a server was started with, asked before there is an identity to register with."""

from __future__ import annotations

import time
from pathlib import Path

import zmq

from kvferry.server.client.address import curve_keys, read_url
from kvferry.server.client.control import Control, Gone, Refused, Silent, Wake
from kvferry.server.client.counters import Counters
from kvferry.server.client.sockets import new_id
from kvferry.server.protocol import Hello, Welcome

__all__ = ["greet"]


def greet(
    url: str | None = None, *, curve_key_file: Path | None = None, timeout_s: float
) -> Welcome | None:
    """Ask a server; None: it is away, or does not say.

    Args:
        url, curve_key_file: As for `Client`.
        timeout_s: What connecting and asking may take together.

    Raises:
        ConfigError: `url` or the key file cannot be.
    """
    keys = None if curve_key_file is None else curve_keys(curve_key_file)
    until = time.monotonic() + timeout_s
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
    try:
        control = Control(context, read_url(url), keys, Counters(), Wake())
        try:
            while not control.connected and time.monotonic() < until:
                control.poll(until)
            left_s = until - time.monotonic()
            if not control.connected or left_s <= 0:
                return None
            return control.ask(Hello(new_id(), 0, int(left_s * 1000)), Welcome, left_s)
        finally:
            control.close()
    except (Gone, Refused, Silent, zmq.ZMQError):
        return None
    finally:
        context.term()
