"""The connections of instances: three ports, one thread, limits on everything.

Whoever connects is sent a challenge and has a few seconds to answer it. A message that is
malformed, or of another port, ends its connection, with one word about why. Messages that change
much of the index are taken in other threads, so that heartbeats are heard meanwhile.

Threads: any for `open` and `close`; one of its own for all else.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from kvferry.base.errors import KVFerryError, UnavailableError
from kvferry.base.shown import reason_of
from kvferry.config.controller import ControllerConfig
from kvferry.config.url import show_endpoint
from kvferry.rpc.link import encode
from kvferry.rpc.listener import Listener, ServedConnection
from kvferry.rpc.service import Handled, HungUp, Service
from kvferry.rpc.zmtp import MESSAGE_BYTES_MAX
from kvferry.sharing.controller.jobs import Jobs
from kvferry.sharing.controller.members import Change, Key, Members
from kvferry.sharing.controller.quotas import Quotas
from kvferry.sharing.controller.shared_directory import SharedDirectory
from kvferry.sharing.membership.controller_link import NONCE_BYTES, OTHER_SECRET, proof
from kvferry.sharing.membership.messages import (
    VERSION,
    Beat,
    Begin,
    Challenge,
    CommandDone,
    End,
    InstanceHello,
    InstanceRefused,
    InstanceRegistered,
    InstanceWelcome,
    Leave,
    Malformed,
    Message,
    Pulse,
    RegisterInstance,
    SnapshotPart,
    Synced,
    Update,
    decoded,
)

__all__ = ["Ports"]

_HELLO_TIMEOUT_S = 5.0
_UNMET_MAX = 256  # connections that have not said who they are
_IDLE_TIMEOUT_S = 15.0  # of the ports that answer
_HELLO_BYTES_MAX = 4096
_SMALL_HASHES_BYTES_MAX = 16 << 10  # of a change that is taken in the loop; more: in a thread
_THREADS = 8  # for changes that take longer
_UNKNOWN = InstanceRefused("unknown", "this incarnation is not registered")

# What is answered, None: nothing; or work that comes to it.
_Work: TypeAlias = Callable[[], Message | None]


class _Peer:
    """Who is at the other end of a connection, of which port, and when it was heard last."""

    def __init__(self, hello: InstanceHello, host: str) -> None:
        self.key: Key = (hello.instance, hello.rank)
        self.incarnation = hello.incarnation
        self.port = hello.port
        self.host = host
        self.heard = time.monotonic()


class Ports:
    """The three ports of one controller.

    Args:
        config: Of the controller.
        members: Is told what instances say.
        jobs: Is asked what instances are to do.
        quotas: Is asked what instances may hold.
        shared: Is told what other controllers are to know; None: there are no others.

    Attributes:
        ports: Where it listens, by name, after `open`.
    """

    def __init__(
        self,
        config: ControllerConfig,
        members: Members,
        jobs: Jobs,
        quotas: Quotas,
        shared: SharedDirectory | None = None,
    ) -> None:
        self._config = config
        self._members = members
        self._jobs = jobs
        self._quotas = quotas
        self._shared = shared
        self._answers: dict[str, Callable[[_Peer, Message], Message | _Work | None]] = {
            "pull": self._pull,
            "reply": self._reply,
            "heartbeat": self._heartbeat,
        }
        limits = (_HELLO_TIMEOUT_S, _HELLO_TIMEOUT_S, config.tuning.connections_max, _UNMET_MAX)
        self._listener = Listener(*limits, self._challenge)
        self._service = Service(self._listener, self._handle, "controller", _THREADS, self._tick)
        self.ports: dict[str, int] = {}
        self._peers: set[ServedConnection] = set()
        self._refused = self._messages = 0

    def open(self) -> None:
        """Listen.

        Raises:
            UnavailableError: A port is taken; the text says which.
        """
        for name in self._answers:
            port = self._config.monitor_ports[name]
            try:
                endpoint = self._listener.listen(f"tcp://{show_endpoint(self._config.host, port)}")
            except OSError as error:
                self.close()
                raise UnavailableError(
                    f"cannot listen at {self._config.host} port {port} ({name}): "
                    f"{reason_of(error)}; choose others with --monitor-ports"
                ) from None
            self.ports[name] = int(endpoint.rpartition(":")[2])
        self._service.start()

    def close(self) -> None:
        """End all connections."""
        self._service.close()

    @property
    def counts(self) -> dict[str, int]:
        """Connections now, refusals and messages so far."""
        return {
            "connections": self._listener.connections,
            "refused": self._listener.refused + self._refused,
            "messages": self._messages,
        }

    def _tick(self) -> None:
        self._jobs.tick()
        if self._shared is not None:
            self._shared.tick()
        for key, seats in self._members.tick():
            self._gone(key)
            self._service.background(partial(self._members.drop, seats))
        # A silent pull port is a cache in which nothing changes.
        idle_s = max(_IDLE_TIMEOUT_S, 3 * self._config.tuning.heartbeat_s)
        silent_since = time.monotonic() - idle_s
        for connection in list(self._peers):
            if connection.socket.fileno() < 0:
                self._peers.discard(connection)
            elif connection.about.port != "pull" and connection.about.heard < silent_since:
                self._listener.drop(connection, "it is silent")

    def _gone(self, key: Key) -> None:
        self._jobs.gone(key)
        if self._shared is not None:
            self._shared.gone(key)

    # --- Connections ---

    def _challenge(self, connection: ServedConnection) -> bytes:
        connection.about = secrets.token_bytes(NONCE_BYTES)
        connection.wire.size_bytes_max = _HELLO_BYTES_MAX
        return encode(Challenge(VERSION, connection.about))

    def _handle(self, connection: ServedConnection, body: bytes | memoryview) -> Handled:
        def answer() -> Message | _Work | None:
            message, peer = decoded(body), connection.about
            if not isinstance(peer, _Peer):
                return self._meet(connection, peer, message)
            self._messages += 1
            peer.heard = time.monotonic()
            return self._answers[peer.port](peer, message)

        return self._said(answer)

    def _said(self, answer: Callable[[], Message | _Work | None]) -> Handled:
        """What goes to the instance."""
        try:
            said = answer()
        except (Malformed, KVFerryError) as error:
            self._refused += 1
            said = InstanceRefused("malformed", str(error))
        if isinstance(said, InstanceRefused):
            raise HungUp(said.text, encode(said))
        if callable(said):
            return partial(self._said, said)  # type: ignore[return-value]
        return None if said is None else encode(said)

    def _meet(self, connection: ServedConnection, nonce: bytes, hello: Message) -> Message:
        port = connection.socket.getsockname()[1]
        if not isinstance(hello, InstanceHello) or self.ports.get(hello.port) != port:
            raise Malformed("a connection begins with hello, to the port where it is")
        if hello.version != VERSION:
            raise Malformed(f"this controller speaks version {VERSION}")
        secret, nonces = self._config.secret or "", nonce + hello.nonce
        at = connection.socket.getsockname()
        if not hmac.compare_digest(hello.proof, proof(secret, "instance", nonces, hello, at)):
            self._refused += 1
            return InstanceRefused("secret", OTHER_SECRET)
        peer = _Peer(hello, connection.host)
        seq: int | None = 0
        if hello.port != "reply":
            seq = self._members.counted(peer.key, peer.incarnation)
        if seq is None:
            return _UNKNOWN
        connection.about, connection.wire.size_bytes_max = peer, MESSAGE_BYTES_MAX
        self._peers.add(connection)
        self._listener.met(connection)
        return InstanceWelcome(proof(secret, "controller", nonces, hello, at), seq)

    # --- What instances say ---

    def _pull(self, peer: _Peer, message: Message) -> Message | _Work | None:
        size = 0
        match message:
            case Update():
                size = len(message.added) + len(message.removed)
            case SnapshotPart():
                size = len(message.hashes)
            case Begin() | End() | Synced():
                size = _SMALL_HASHES_BYTES_MAX + 1
            case _:
                raise Malformed(f"{type(message).__name__} does not belong to pull")
        if size > _SMALL_HASHES_BYTES_MAX:
            return partial(self._changed, peer, message)
        return self._changed(peer, message)

    def _changed(self, peer: _Peer, message: Change) -> Message | None:
        known = self._members.change(peer.key, peer.incarnation, message)
        member = self._members.find(peer.key, peer.incarnation)
        if self._shared is not None and member is not None:
            self._shared.changed(member, message)
        return None if known else _UNKNOWN

    def _reply(self, peer: _Peer, message: Message) -> Message | _Work:
        if isinstance(message, RegisterInstance):
            gone = self._members.register(peer.key, peer.incarnation, peer.host, message)
            if isinstance(gone, InstanceRefused):
                return gone
            self._quotas.heard(peer.key[0], message.quotas)
            member = self._members.find(peer.key, peer.incarnation)
            if self._shared is not None and member is not None:
                self._shared.registered(member)
            if gone:
                self._jobs.gone(peer.key)
            heartbeat = f":{self.ports['heartbeat']}"
            registered = InstanceRegistered(heartbeat, self._config.tuning.heartbeat_s)
            return partial(self._dropped, gone, registered) if gone else registered
        if isinstance(message, Leave):
            known = self._members.find(peer.key, peer.incarnation)
            gone = self._members.leave(peer.key, peer.incarnation)
            if known is not None:
                self._gone(peer.key)
            return partial(self._dropped, gone, CommandDone())
        raise Malformed(f"{type(message).__name__} does not belong to reply")

    def _dropped(self, seats: list[int], answer: Message) -> Message:
        self._members.drop(seats)
        return answer

    def _heartbeat(self, peer: _Peer, message: Message) -> Message | None:
        if not isinstance(message, Beat):
            raise Malformed(f"{type(message).__name__} does not belong to heartbeat")
        resync = self._members.beat(peer.key, peer.incarnation, message.usage, message.work)
        seq = self._members.counted(peer.key, peer.incarnation)
        if resync is None or seq is None:
            return _UNKNOWN
        others = self._jobs.results(peer.key, message.results)
        member = self._members.find(peer.key, peer.incarnation)
        if self._shared is not None and member is not None:
            resync |= self._shared.beaten(member)
            self._shared.results(peer.key, others)
        number, peers = self._members.peers(message.peers)
        commands, quotas = self._jobs.commands(peer.key), self._quotas.of(peer.key[0])
        renewed = self._members.renewed(peer.key)
        return Pulse(seq, resync, commands, peers, number, quotas, renewed)
