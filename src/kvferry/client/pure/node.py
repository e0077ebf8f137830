"""One server: the connection that is kept to it, and how a batch is asked of it.

A connection with an unfinished or surprising reply is reset and never used again; what it left
open is asked for on a new one, a few times. While the server is away, dialling waits.
"""

from __future__ import annotations

import logging
import time

from kvferry.client.pure.batch import Batch, exchange
from kvferry.client.pure.connection import Connection, Disconnected, ReplyTimedOut
from kvferry.client.pure.dial import Backoff, DialRefused, dial
from kvferry.client.pure.resp import ProtocolError
from kvferry.config import ClientConfig

__all__ = ["PureNode"]

_log = logging.getLogger("kvferry.client.pure.client")


class PureNode:
    """A server and the connection to it. One thread at a time; any may `abort`.

    Args:
        stats: Counters, of which connects, connect_failures and disconnects are kept here.

    Attributes:
        closed: Whether `abort` was called.
    """

    def __init__(self, config: ClientConfig, stats: dict[str, int]) -> None:
        self.config = config
        self.closed = False
        self._stats = stats
        self._connection: Connection | None = None
        self._refusal = ""  # what was said of it last, until it connects
        self._backoff = Backoff(config.tuning.reconnect_min_s, config.tuning.reconnect_max_s)

    def run(self, batch: Batch, deadline: float) -> None:
        """Ask for every key that has no outcome; afterwards all up to the batch's end have one.

        Raises:
            DialRefused: The server is away, or refuses us.
            ReplyTimedOut: The deadline passed, or the server stalled.
        """
        tries = 0
        while not self.closed and (todo := batch.pending()):
            if time.monotonic() >= deadline:
                raise ReplyTimedOut("the deadline passed")
            try:
                connection = self.connect(deadline)
                exchange(batch, connection, deadline)
            except DialRefused:
                raise
            except (Disconnected, ProtocolError) as error:
                self.disconnect(str(error))
                tries = tries + 1 if len(batch.pending()) == len(todo) else 1
                if tries >= self.config.tuning.attempts_max and not self.closed:
                    raise DialRefused(str(error), error.kind) from error
            except BaseException as error:  # e.g. KeyboardInterrupt in the middle of a reply
                self.disconnect(str(error) if isinstance(error, ReplyTimedOut) else "interrupted")
                raise
            else:
                if connection.worn_out:
                    self.disconnect("the server asked for a new connection")
                return

    def connect(self, deadline: float) -> Connection:
        """The connection, ready for a request.

        Raises:
            DialRefused, ReplyTimedOut: There is none to be had.
        """
        if self._connection is not None:
            if self._connection.is_clean():
                return self._connection
            self.disconnect("it ended while idle, or its time was over")
        self._backoff.check()
        try:
            self._connection = dial(self.config, deadline)
        except (DialRefused, ReplyTimedOut) as error:
            self._stats["connect_failures"] += 1
            self._backoff.failed(
                error if isinstance(error, DialRefused) else DialRefused(str(error))
            )
            if str(error) != self._refusal:  # once, however often it is tried
                text = str(error)
                here = self.config.address
                _log.warning("%s", text if here in text else f"{here}: {text}")
            self._refusal = str(error)
            raise
        self._refusal = ""
        self._stats["connects"] += 1
        self._backoff.reset()
        _log.info("connected to %s", self.config.address)
        return self._connection

    def disconnect(self, why: str | None = None) -> None:
        """End the connection, if there is one.

        `why`: it is of no use any more, and may owe answers: it is reset. ``None``: it is closed,
        by a client that is done, or by a forked child that has a copy.
        """
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if why is None:
            connection.close()
            return
        connection.reset()
        self._stats["disconnects"] += 1
        _log.info("closed the connection to %s: %s", self.config.address, why)

    def abort(self) -> None:
        """End it for good; a batch in another thread finds out soon."""
        self.closed = True
        if (connection := self._connection) is not None:
            connection.abort()
