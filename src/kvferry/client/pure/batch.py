"""Batches: what is asked for each key, and what each reply means.

A Batch decides; `exchange` drives one over a connection. Requests go out ahead of their replies, up
to a window of bytes that were asked for and have not begun to arrive: while a value comes in, the
request for the next is under way. Whatever a failed connection leaves without an outcome can be
asked again on another. What a node of a cluster says is elsewhere is an error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from kvferry.client.batch import Status
from kvferry.client.pure.connection import Connection, printable
from kvferry.client.pure.resp import (
    BulkHead,
    ErrorReply,
    ProtocolError,
    Reply,
    encode,
    encode_set,
)

__all__ = ["Batch", "Call", "CountBatch", "GetBatch", "SetBatch", "exchange"]

GET_WINDOW_BYTES = 8 << 20
# Larger SETs go one at a time: pipelined ones are copied by the server (research: framing of SET).
SET_WINDOW_BYTES = 1 << 20
DEPTH_MAX = 512
# Requests without replies always fit into the sockets' buffers, so a send never waits for a
# server that waits for us to receive.
REQUESTS_BYTES_MAX = 64 << 10

_PENDING = 255
_RECONNECT = ("READONLY", "NOAUTH", "REDIRECT")
_UNAVAILABLE = (
    *_RECONNECT,
    *("LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN"),
    "WRONGPASS",
)
_ELSEWHERE = ("MOVED", "ASK")
_IN_A_CLUSTER = (
    "the server belongs to a cluster, and this client speaks to one server; "
    "use kvferry.RedisClient with a redis+cluster:// address"
)
_SURPRISE = "the server sent a reply of an unexpected type"


class Batch:
    """Keys, and an outcome for each.

    Args:
        keys: Encoded.
        prefix: Ask for nothing after the first key that is not OK; those become CANCELLED.

    Attributes:
        direct: Whether values are received into the caller's memory.
        window_bytes: How much may be asked for ahead, in units of `cost`.
        end: Keys from this index on are not asked for any more.
    """

    direct = False
    window_bytes = REQUESTS_BYTES_MAX

    def __init__(self, keys: list[bytes], *, prefix: bool = False) -> None:
        self.keys = keys
        self.statuses = bytearray([_PENDING]) * len(keys)
        self.sizes = [0] * len(keys)
        self.error: str | None = None
        self.kind: type[Exception] | None = None
        self.depth_max = min(DEPTH_MAX, REQUESTS_BYTES_MAX // (64 + max(map(len, keys))))
        self._prefix = prefix
        self.end = len(keys)

    def request(self, index: int) -> Sequence[bytes | memoryview]:
        """What to send for a key."""
        raise NotImplementedError

    def cost(self, index: int) -> int:
        """What the request for a key takes from the window, in bytes."""
        return 1

    def on_reply(self, index: int, reply: Reply, connection: Connection, deadline: float) -> None:
        """Settle a key by its reply, if that is no error; receive the value if it is direct."""
        raise NotImplementedError

    def pending(self) -> list[int]:
        """The keys that are still to be asked for; ascending."""
        return [index for index in range(self.end) if self.statuses[index] == _PENDING]

    def complete(
        self,
        index: int,
        status: Status,
        size: int = 0,
        error: str | None = None,
        kind: type[Exception] | None = None,
    ) -> None:
        """The outcome of one key."""
        self.statuses[index] = status
        self.sizes[index] = size
        self._note(error, kind)
        if self._prefix and status is not Status.OK:
            self.end = min(self.end, index)

    def finish(
        self, status: Status, error: str | None = None, kind: type[Exception] | None = None
    ) -> None:
        """One outcome for all keys that have none."""
        if _PENDING in self.statuses:
            self.statuses = self.statuses.replace(bytes([_PENDING]), bytes([status]))
            self._note(error, kind)
        self.end = 0

    def _note(self, error: str | None, kind: type[Exception] | None) -> None:
        if self.error is None:
            self.error, self.kind = error, kind

    def receive(self, index: int, connection: Connection, reply: Reply, deadline: float) -> None:
        """Settle a key by its reply."""
        if not isinstance(reply, ErrorReply):
            self.on_reply(index, reply, connection, deadline)
            return
        connection.worn_out |= reply.code in _RECONNECT
        away = reply.code in _UNAVAILABLE
        status = Status.UNAVAILABLE if away else Status.SERVER_ERROR
        text = _IN_A_CLUSTER if reply.code in _ELSEWHERE else printable(reply.text)
        self.complete(index, status, error=text, kind=reply.kind)

    def surprise(self, index: int) -> ProtocolError:
        """The error to raise for a reply that this command cannot have."""
        self.complete(index, Status.SERVER_ERROR, error=_SURPRISE)
        return ProtocolError(_SURPRISE)


class GetBatch(Batch):
    """GET into the caller's buffers, which must have the sizes of the values."""

    direct = True

    def __init__(
        self,
        keys: list[bytes],
        targets: list[memoryview],
        *,
        window_bytes: int,
        drain_bytes_max: int,
        prefix: bool,
    ) -> None:
        super().__init__(keys, prefix=prefix)
        self.window_bytes = window_bytes
        self._targets = targets
        self._drain_bytes_max = drain_bytes_max

    def request(self, index: int) -> Sequence[bytes | memoryview]:
        return (encode(b"GET", self.keys[index]),)

    def cost(self, index: int) -> int:
        return len(self._targets[index])

    def on_reply(self, index: int, reply: Reply, connection: Connection, deadline: float) -> None:
        if reply is None:
            self.complete(index, Status.MISS)
            return
        if not isinstance(reply, BulkHead):
            raise self.surprise(index)
        target, size = self._targets[index], reply.size
        if size == len(target):
            connection.payload_into(target, deadline)
            self.complete(index, Status.OK, size)
            return
        self.complete(index, Status.SIZE_MISMATCH, size)
        if size > self._drain_bytes_max:
            raise ProtocolError("an unwanted value is larger than drain_bytes_max")
        connection.drain(size, deadline)


class SetBatch(Batch):
    """SET from the caller's buffers."""

    window_bytes = SET_WINDOW_BYTES

    def __init__(self, keys: list[bytes], values: list[memoryview], ttl_ms: int | None) -> None:
        super().__init__(keys)
        self._values = values
        self._ttl_ms = ttl_ms

    def request(self, index: int) -> Sequence[bytes | memoryview]:
        value = self._values[index]
        before, after = encode_set(self.keys[index], len(value), self._ttl_ms)
        return (before, value, after)

    def cost(self, index: int) -> int:
        return len(self._values[index])

    def on_reply(self, index: int, reply: Reply, connection: Connection, deadline: float) -> None:
        if reply != "OK":
            raise self.surprise(index)
        self.complete(index, Status.OK, len(self._values[index]))


class CountBatch(Batch):
    """EXISTS, TOUCH or DEL: commands that answer with how many keys there were."""

    def __init__(self, verb: bytes, keys: list[bytes], *, prefix: bool = False) -> None:
        super().__init__(keys, prefix=prefix)
        self._verb = verb

    def request(self, index: int) -> Sequence[bytes | memoryview]:
        return (encode(self._verb, self.keys[index]),)

    def on_reply(self, index: int, reply: Reply, connection: Connection, deadline: float) -> None:
        if not isinstance(reply, int) or isinstance(reply, bool):
            raise self.surprise(index)
        self.complete(index, Status.OK if reply > 0 else Status.MISS)


class Call(Batch):
    """One command whose reply is kept."""

    def __init__(self, *args: bytes) -> None:
        super().__init__([b""])
        self.reply: Reply = None
        self._args = args

    def request(self, index: int) -> Sequence[bytes | memoryview]:
        return (encode(*self._args),)

    def on_reply(self, index: int, reply: Reply, connection: Connection, deadline: float) -> None:
        self.reply = reply
        self.complete(index, Status.OK)


def exchange(batch: Batch, connection: Connection, deadline: float) -> None:
    """Ask for every key that has no outcome; complete it by its reply.

    Raises:
        Disconnected, ReplyTimedOut, ProtocolError: The connection must be closed; keys without an
            outcome stay pending.
    """
    todo = deque(batch.pending())
    asked: deque[int] = deque()
    ahead = 0

    def ask() -> None:
        nonlocal ahead
        # Refilled by halves: one send for many small requests.
        if 2 * ahead > batch.window_bytes or 2 * len(asked) > batch.depth_max:
            return
        parts: list[bytes | memoryview] = []
        while todo and len(asked) < batch.depth_max:
            cost = batch.cost(todo[0])
            if asked and ahead + cost > batch.window_bytes:
                break
            ahead += cost
            asked.append(todo.popleft())
            parts += batch.request(asked[-1])
        if parts:
            connection.send(parts, deadline)

    ask()
    while asked:
        reply = connection.reply(deadline, direct=batch.direct)
        index = asked.popleft()
        ahead -= batch.cost(index)
        if isinstance(reply, BulkHead):
            ask()  # the next request travels while this value arrives
        batch.receive(index, connection, reply, deadline)
        while todo and todo[-1] >= batch.end:
            todo.pop()
        ask()
