"""The control connection of the redis driver: what a store holds, asked of its servers.

One command at a time, over the client in pure Python with the settings of the data connections:
TLS, users, clusters, Sentinels. A cluster is asked primary by primary.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from kvferry.base.errors import DeadlineExceeded, UnavailableError
from kvferry.client.batch import Status
from kvferry.client.pure.batch import Batch, Call
from kvferry.client.pure.client import PureRedisClient
from kvferry.client.pure.cluster import Cluster
from kvferry.client.pure.connection import Connection, ReplyTimedOut
from kvferry.client.pure.dial import DialRefused
from kvferry.client.pure.resp import Reply, encode
from kvferry.client.pure.slots import Address
from kvferry.config import ClientConfig

__all__ = ["Control", "ControlNode"]

T = TypeVar("T")


class _Calls(Batch):
    """Many commands whose replies are kept; None where the server answered with an error."""

    def __init__(self, commands: Sequence[tuple[bytes, ...]]) -> None:
        super().__init__([b""] * len(commands))
        self.replies: list[Reply] = [None] * len(commands)
        self._commands = commands

    def request(self, index: int) -> Sequence[bytes | memoryview]:
        return (encode(*self._commands[index]),)

    def on_reply(self, index: int, reply: Reply, connection: Connection, deadline: float) -> None:
        self.replies[index] = reply
        self.complete(index, Status.OK)


class ControlNode(PureRedisClient):
    """A server, or all of a cluster, that takes any command."""

    def ask(self, *args: bytes, key: bytes = b"", timeout_s: float) -> Reply:
        """The reply to one command; in a cluster, of the node that has `key`.

        Raises:
            UnavailableError, ServerError, DeadlineExceeded: There is none.
        """
        call = Call(*args, key=key)
        self._execute(call, 0, timeout_s).raise_for_errors()
        return call.reply

    def ask_each(
        self, commands: Sequence[tuple[bytes, ...]], *, timeout_s: float
    ) -> list[tuple[bool, Reply]]:
        """For each command whether it worked, and its reply. Of one server only.

        Raises:
            UnavailableError, DeadlineExceeded: It does not answer.
        """
        if not commands:
            return []
        calls = _Calls(commands)
        result = self._execute(calls, 0, timeout_s)
        if result.count(Status.TIMEOUT) or result.count(Status.UNAVAILABLE):
            result.raise_for_errors()
        return [(not status, reply) for status, reply in zip(result, calls.replies, strict=True)]

    def primaries(self, timeout_s: float) -> list[Address]:
        """Those of a cluster; of another topology none is named.

        Raises:
            UnavailableError, DeadlineExceeded: Nobody says.
        """
        servers = self._servers
        if not isinstance(servers, Cluster):
            return []
        if not self._lock.acquire(timeout=timeout_s):
            raise DeadlineExceeded(f"others asked {self.config.address} for {timeout_s:g} s")
        try:
            return servers.primaries(time.monotonic() + timeout_s)
        except DialRefused as error:
            raise UnavailableError(str(error)) from error
        except ReplyTimedOut as error:
            raise DeadlineExceeded(str(error)) from error
        finally:
            self._lock.release()


class Control:
    """Asks the servers behind a client. Threads may share it: they wait for each other.

    Args:
        config: Of the data connections.
    """

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self._whole = ControlNode.from_config(config)
        self._lock = threading.Lock()
        self._nodes: dict[Address, ControlNode] = {}

    def ask(self, *args: bytes, key: bytes, timeout_s: float) -> Reply:
        """See `ControlNode.ask`."""
        return self._whole.ask(*args, key=key, timeout_s=timeout_s)

    def each(self, timeout_s: float, ask: Callable[[ControlNode, float], T]) -> list[T]:
        """What each primary answers; `ask` gets the seconds that are left.

        Raises:
            UnavailableError, DeadlineExceeded, ServerError: One of them does not.
        """
        deadline = time.monotonic() + timeout_s
        answers = []
        for node in self.nodes(timeout_s):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise DeadlineExceeded(f"{self._config.address} did not answer in {timeout_s:g} s")
            answers.append(ask(node, left_s))
        return answers

    def nodes(self, timeout_s: float) -> list[ControlNode]:
        """The primaries, each with a connection of its own. Raises as `each`."""
        if self._config.topology != "cluster":
            return [self._whole]
        addresses = self._whole.primaries(timeout_s)
        if not addresses:
            raise UnavailableError(f"{self._config.address}: no primary is known")
        with self._lock:
            for address in addresses:
                if address not in self._nodes:
                    config = self._config.for_node(*address)
                    self._nodes[address] = ControlNode.from_config(config)
            for gone in self._nodes.keys() - set(addresses):
                self._nodes.pop(gone).close()
            return [self._nodes[address] for address in addresses]

    def close(self) -> None:
        """End the connections."""
        self._whole.close()
        with self._lock:
            nodes, self._nodes = self._nodes, {}
        for node in nodes.values():
            node.close()

    def after_fork(self) -> None:
        """In a child: a thread that is not here may have held the lock."""
        self._lock = threading.Lock()
