"""Processes of one user on one host ask each other, by sockets in the folder that they share.

`LocalService` answers under a name, `ask_local` asks, and `local_names` says who is there.

Whoever may enter the folder could read its secret as well (`kvferry.base.local_secret`), so nobody
has to prove that he knows it; both ends of a connection look that the other is of this user. What
a killed process has left is removed by `local_names`, and by the next one of that name.

Threads: any.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import msgspec

from kvferry.base.field_types import Count, Name
from kvferry.base.local_secret import folder
from kvferry.base.socket_folder import address_of_socket, remove_if_left
from kvferry.rpc.channel import Broken, Channel, new_id
from kvferry.rpc.link import encode
from kvferry.rpc.listener import Listener, ServedConnection
from kvferry.rpc.service import Handled, HungUp, Service

__all__ = [
    "LocalCall",
    "LocalReply",
    "LocalService",
    "ask_local",
    "local_names",
    "local_url",
    "read_local_reply",
]

_SUFFIX = ".sock"
_CONNECTIONS_MAX = 64
_BORN_S = 1.0  # between the moments at which a socket has its name, and at which it listens


class LocalCall(msgspec.Struct, array_like=True, frozen=True):
    """What somebody wants.

    Attributes:
        id: Of the caller's choice; the reply has it.
        what: The name of the call.
        body: Its arguments.
    """

    id: Count
    what: Name
    body: bytes = b""


class LocalReply(msgspec.Struct, array_like=True, frozen=True):
    """What came of the call with this id."""

    id: Count
    body: bytes


_read_call = msgspec.msgpack.Decoder(LocalCall).decode
_read_reply = msgspec.msgpack.Decoder(LocalReply).decode

# From the name of a call and its arguments to its result, or to work that comes to it; raises
# `HungUp` for a call that there is not.
Answers = Callable[[str, bytes], bytes | Callable[[], bytes]]


class LocalService:
    """Answers the processes of this user under a name.

    Args:
        name: Of the file of its socket, and of its threads.
        answers: See `Answers`.
        threads: For work.

    Raises:
        OSError: There is no folder, or somebody has the name.
    """

    def __init__(self, name: str, answers: Answers, threads: int) -> None:
        self._answers = answers
        self._pid = os.getpid()
        listener = Listener(connections_max=_CONNECTIONS_MAX)
        self._service = Service(listener, self._handle, name, threads)
        try:
            listener.listen(local_url(name))
        except OSError:
            self._service.close()
            raise
        self._service.start()

    def close(self) -> None:
        """Answer nobody any more; the name is free."""
        if os.getpid() == self._pid:  # a child's parent still listens
            self._service.close()

    def _handle(self, connection: ServedConnection, body: bytes | memoryview) -> Handled:
        try:
            call = _read_call(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise HungUp(f"no call: {error}") from None
        found = self._answers(call.what, call.body)
        if callable(found):
            return lambda: encode(LocalReply(call.id, found()))
        return encode(LocalReply(call.id, found))


def local_url(name: str) -> str:
    """Where a service of that name listens.

    Raises:
        OSError: There is no folder.
    """
    return f"ipc://{address_of_socket(folder() / f'{name}{_SUFFIX}')}"


def local_names() -> list[str]:
    """Who of this user listens on this host.

    Raises:
        OSError: There is no folder.
    """
    paths = sorted(folder().glob(f"*{_SUFFIX}"))
    return [path.name.removesuffix(_SUFFIX) for path in paths if not remove_if_left(path, _BORN_S)]


def ask_local(name: str, what: str, body: bytes, limit_s: float) -> bytes:
    """Ask one thing.

    Raises:
        OSError: Nobody of that name answers in time.
    """
    until = time.monotonic() + limit_s
    call = LocalCall(new_id(), what, body)
    channel = Channel(local_url(name), None, until)
    try:
        channel.send(encode(call), until)
        frame = channel.receive(until)
    finally:
        channel.close()
    reply = None if frame is None else read_local_reply(frame)
    if reply is None:
        raise Broken("no answer")
    return reply.body


def read_local_reply(frame: bytes) -> LocalReply | None:
    """A reply as it came; None: it is none."""
    try:
        return _read_reply(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
