"""Where the Sentinels say that our server is, asked before every dial.

The first Sentinel that answers is asked first the next time. Whoever it names is asked for its role
before it gets a request: a Sentinel that was cut off may name yesterday's master. A connection is
given up after `topology_refresh_s`, so that a change that nobody told us of is noticed.

Source: https://redis.io/docs/latest/develop/reference/sentinel-clients/
"""

from __future__ import annotations

import time

from kvferry.base.errors import ConfigError, UnavailableError
from kvferry.client.pure.connection import Connection, Disconnected, ReplyTimedOut, printable
from kvferry.client.pure.dial import DialRefused, dial
from kvferry.client.pure.resp import ErrorReply, ProtocolError
from kvferry.config import ClientConfig

__all__ = ["Sentinels"]


class Sentinels:
    """The Sentinels that watch one master.

    Args:
        config: With the topology "sentinel".
    """

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self._seeds = list(config.seeds)

    def dial(self, deadline: float) -> Connection:
        """A connection to the master.

        Raises:
            DialRefused: No Sentinel answers, or none names a server that takes us and is the
            master. ReplyTimedOut: The deadline passed first.
        """
        why, kind = "", UnavailableError
        tried: set[tuple[str, int]] = set()
        for seed in tuple(self._seeds):
            try:
                address = self._master(seed, deadline)
                if address not in tried:
                    tried.add(address)
                    connection = self._dial_master(*address, deadline)
                    self._seeds.remove(seed)
                    self._seeds.insert(0, seed)
                    return connection
            except DialRefused as error:
                why, kind = str(error), error.kind
                if error.final:
                    raise
            except (Disconnected, ProtocolError, ReplyTimedOut) as error:
                why, kind = f"{seed[0]}:{seed[1]}: {error}", error.kind
            if time.monotonic() >= deadline:
                raise ReplyTimedOut("the deadline passed while connecting")
        raise DialRefused(f"cannot connect to {self._config.address}: {why}", kind)

    def _master(self, seed: tuple[str, int], deadline: float) -> tuple[str, int]:
        until = min(deadline, time.monotonic() + self._config.connect_timeout_s)
        name = (self._config.sentinel_master or "").encode()
        connection = dial(self._config.for_sentinel(*seed), until)
        try:
            reply = connection.call(b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", name, deadline=until)
        finally:
            connection.close()
        match reply:
            case None:
                raise DialRefused(
                    f"the Sentinel {seed[0]}:{seed[1]} watches no master of that name"
                )
            case ErrorReply():
                text = f"the Sentinel {seed[0]}:{seed[1]}: {printable(reply.text)}"
                raise DialRefused(text, reply.kind)
            case [bytes() as host, bytes() as port] if _is_port(port):
                return host.decode(errors="replace"), int(port)
        raise ProtocolError("a Sentinel's reply is no address")

    def _dial_master(self, host: str, port: int, deadline: float) -> Connection:
        until = min(deadline, time.monotonic() + self._config.connect_timeout_s)
        try:
            config = self._config.for_node(host, port)
        except ConfigError:
            raise ProtocolError("a Sentinel names no host") from None
        connection = dial(config, until)
        try:
            reply = connection.call(b"ROLE", deadline=until)
            if isinstance(reply, ErrorReply):
                if reply.code != "NOPERM":  # who may not ask has to believe the Sentinel
                    raise DialRefused(f"{config.address}: {printable(reply.text)}", reply.kind)
            elif not isinstance(reply, list) or reply[:1] != [b"master"]:
                raise DialRefused(f"{config.address} is not the master that a Sentinel says it is")
            refresh = time.monotonic() + self._config.tuning.topology_refresh_s
            connection.good_until = min(connection.good_until, refresh)
        except BaseException:
            connection.close()
            raise
        return connection


def _is_port(text: bytes) -> bool:
    return len(text) <= 5 and text.isdigit() and 0 < int(text) < 1 << 16
