"""The connections of instances: three ports, one loop, limits on everything.

Whoever connects is sent a challenge and has a few seconds to answer it. A message that is too long,
malformed, or of another port ends its connection, with one word about why. Messages that change
much of the index are taken in a thread, so that heartbeats are heard meanwhile.

Threads: the loop that called `open`.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress

from kvferry.base.errors import KVFerryError, UnavailableError
from kvferry.base.shown import reason_of
from kvferry.base.threads import noticed
from kvferry.config.controller import ControllerConfig
from kvferry.sharing.controller.jobs import Jobs
from kvferry.sharing.controller.members import Key, Members, greediest, origin_of
from kvferry.sharing.controller.quotas import Quotas
from kvferry.sharing.controller.shared_directory import SharedDirectory
from kvferry.sharing.membership.framing import HEAD, NONCE_BYTES, OTHER_SECRET, frame, proof
from kvferry.sharing.membership.messages import (
    MESSAGE_BYTES_MAX,
    VERSION,
    Beat,
    Begin,
    Challenge,
    CommandDone,
    End,
    Holder,
    InstanceHello,
    InstanceRefused,
    InstanceRegistered,
    InstanceWelcome,
    Leave,
    Locate,
    Located,
    Malformed,
    Message,
    Pulse,
    RegisterInstance,
    SnapshotPart,
    Synced,
    Update,
    decoded,
    whole,
)

__all__ = ["Ports"]

_log = logging.getLogger("kvferry.controller")

_HELLO_TIMEOUT_S = 5.0
_UNMET_MAX = 256  # connections that have not said who they are; the oldest makes room for a new one
_IDLE_TIMEOUT_S = 15.0  # of the ports that answer
_WRITE_TIMEOUT_S = 5.0
_TICK_S = 0.25
_HELLO_BYTES_MAX = 4096
_SMALL_HASHES_BYTES_MAX = 16 << 10  # of a change that is taken in the loop; more: in a thread
_BUFFER_BYTES = 1 << 18
_UNKNOWN = InstanceRefused("unknown", "this incarnation is not registered")

Answer = Callable[["_Peer", Message], Awaitable["Message | None"]]


class _Peer:
    """Who is at the other end of a connection."""

    def __init__(self, hello: InstanceHello, host: str) -> None:
        self.key: Key = (hello.instance, hello.rank)
        self.incarnation = hello.incarnation
        self.host = host


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
        counts: Connections now, refusals and messages so far.
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
        self._servers: list[asyncio.Server] = []
        self._tasks: dict[asyncio.Task[None], str] = {}  # with their origins, the oldest first
        self._unmet: dict[
            asyncio.Task[None] | None, None
        ] = {}  # those of strangers, the oldest first
        self._ticking: asyncio.Task[None] | None = None
        self.ports: dict[str, int] = {}
        self.counts = {"connections": 0, "refused": 0, "messages": 0}

    async def open(self) -> None:
        """Listen.

        Raises:
            UnavailableError: A port is taken; the text says which.
        """
        answers: dict[str, Answer] = {
            "pull": self._pull,
            "reply": self._reply,
            "heartbeat": self._heartbeat,
        }
        for name, answer in answers.items():
            port = self._config.monitor_ports[name]
            try:
                server = await asyncio.start_server(
                    self._serving(name, answer),
                    self._config.host,
                    port,
                    backlog=512,
                    limit=_BUFFER_BYTES,
                )
            except OSError as error:
                await self.close()
                reason = reason_of(error)
            else:
                self._servers.append(server)
                self.ports[name] = server.sockets[0].getsockname()[1]
                continue
            raise UnavailableError(
                f"cannot listen at {self._config.host} port {port} ({name}): {reason}; choose "
                "others with --monitor-ports"
            )
        self._ticking = asyncio.create_task(self._tick())

    async def close(self) -> None:
        """End all connections."""
        if self._ticking is not None:
            self._ticking.cancel()
        for server in self._servers:
            for listener in server.sockets:
                asyncio.get_running_loop().remove_reader(listener.fileno())
        await _turns()  # what was accepted begins to be served: a closed server would lose it
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await _turns()  # connections that were aborted end in the next rounds of the loop

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            try:
                self._jobs.tick()
                if self._shared is not None:
                    self._shared.tick()
                for key, seats in self._members.tick():
                    self._gone(key)
                    await asyncio.to_thread(self._members.drop, seats)
            except Exception as error:
                noticed("controller", error)

    def _gone(self, key: Key) -> None:
        self._jobs.gone(key)
        if self._shared is not None:
            self._shared.gone(key)

    # --- Connections ---

    def _serving(
        self, name: str, answer: Answer
    ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            origin = origin_of(str((writer.get_extra_info("peername") or [""])[0]))
            if len(self._tasks) >= self._config.tuning.connections_max:
                self.counts["refused"] += 1
                if not self._make_room(origin):
                    writer.transport.abort()
                    return
            if len(self._unmet) >= _UNMET_MAX:
                self.counts["refused"] += 1
                oldest = next(iter(self._unmet))
                del self._unmet[oldest]
                if oldest is not None:
                    oldest.cancel()
            self._tasks[task] = origin
            self._unmet[task] = None
            self.counts["connections"] = len(self._tasks)
            try:
                await self._talk(name, answer, reader, writer)
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                pass  # it is gone
            except asyncio.CancelledError:
                pass  # the controller ends, or there are too many strangers
            except Exception as error:
                noticed("controller", error)
            finally:
                self._tasks.pop(task, None)
                self._unmet.pop(task, None)
                self.counts["connections"] = len(self._tasks)
                writer.transport.abort()

        return serve

    def _make_room(self, newcomer: str) -> bool:
        """End a connection of the origin that has most; False: no other origin has more."""
        origin = greediest(self._tasks.values(), newcomer)
        if origin is None:
            return False
        last = next(one for one in reversed(self._tasks) if self._tasks[one] == origin)
        del self._tasks[last]
        last.cancel()
        return True

    async def _talk(
        self,
        name: str,
        answer: Answer,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        try:
            peer = await self._met(name, reader, writer)
            self._unmet.pop(asyncio.current_task(), None)
            # A silent pull port is a cache in which nothing changes.
            idle_s = (
                None
                if name == "pull"
                else max(_IDLE_TIMEOUT_S, 3 * self._config.tuning.heartbeat_s)
            )
            while peer is not None:
                message = await _received(reader, idle_s, MESSAGE_BYTES_MAX)
                self.counts["messages"] += 1
                said = await answer(peer, message)
                if said is not None:
                    await _sent(writer, said)
                    if isinstance(said, InstanceRefused):
                        break
        except (Malformed, KVFerryError) as error:
            self.counts["refused"] += 1
            await _sent(writer, InstanceRefused("malformed", str(error)))

    async def _met(
        self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> _Peer | None:
        nonce = secrets.token_bytes(NONCE_BYTES)
        await _sent(writer, Challenge(VERSION, nonce))
        hello = await _received(reader, _HELLO_TIMEOUT_S, _HELLO_BYTES_MAX)
        if not isinstance(hello, InstanceHello) or hello.port != name:
            raise Malformed(f"a connection to {name} begins with hello")
        if hello.version != VERSION:
            raise Malformed(f"this controller speaks version {VERSION}")
        secret, nonces = self._config.secret or "", nonce + hello.nonce
        at = writer.get_extra_info("sockname")
        if not hmac.compare_digest(hello.proof, proof(secret, "instance", nonces, hello, at)):
            self.counts["refused"] += 1
            await _sent(writer, InstanceRefused("secret", OTHER_SECRET))
            return None
        peer = _Peer(hello, str(writer.get_extra_info("peername")[0]))
        seq: int | None = 0
        if name != "reply":
            seq = self._members.counted(peer.key, peer.incarnation)
        if seq is None:
            await _sent(writer, _UNKNOWN)
            return None
        await _sent(writer, InstanceWelcome(proof(secret, "controller", nonces, hello, at), seq))
        return peer

    # --- What instances say ---

    async def _pull(self, peer: _Peer, message: Message) -> Message | None:
        if not isinstance(message, Update | Begin | SnapshotPart | End | Synced):
            raise Malformed(f"{type(message).__name__} does not belong to pull")
        large = isinstance(message, Begin | End | Synced) or (
            isinstance(message, Update)
            and len(message.added) + len(message.removed) > _SMALL_HASHES_BYTES_MAX
        )
        large = large or (
            isinstance(message, SnapshotPart) and len(message.hashes) > _SMALL_HASHES_BYTES_MAX
        )
        change = self._members.change
        if large:
            known = await asyncio.to_thread(change, peer.key, peer.incarnation, message)
        else:
            known = change(peer.key, peer.incarnation, message)
        member = self._members.find(peer.key, peer.incarnation)
        if self._shared is not None and member is not None:
            self._shared.changed(member, message)
        return None if known else _UNKNOWN

    async def _reply(self, peer: _Peer, message: Message) -> Message | None:
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
                await asyncio.to_thread(self._members.drop, gone)
            beat_s = self._config.tuning.heartbeat_s
            return InstanceRegistered(f":{self.ports['heartbeat']}", beat_s)
        if isinstance(message, Leave):
            known = self._members.find(peer.key, peer.incarnation)
            gone = self._members.leave(peer.key, peer.incarnation)
            if known is not None:
                self._gone(peer.key)
            await asyncio.to_thread(self._members.drop, gone)
            return CommandDone()
        if isinstance(message, Locate):
            return self._located(peer, message)
        raise Malformed(f"{type(message).__name__} does not belong to reply")

    def _located(self, peer: _Peer, message: Locate) -> Located:
        holders = []
        for found in self._members.lookup(whole(message.hashes)):
            member = found.member
            if found.identity != message.identity or member.key == peer.key:
                continue
            if not member.facts.address:
                continue
            holders.append(
                Holder(
                    member.instance,
                    member.rank,
                    member.facts.address,
                    member.incarnation,
                    found.chunks,
                )
            )
            if len(holders) == message.limit:
                break
        return Located(tuple(holders))

    async def _heartbeat(self, peer: _Peer, message: Message) -> Message | None:
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


async def _received(reader: asyncio.StreamReader, idle_s: float | None, size_max: int) -> Message:
    async with asyncio.timeout(idle_s):
        head = await reader.readexactly(HEAD.size)
    (size,) = HEAD.unpack(head)
    if size > size_max:
        raise Malformed(f"a message of {size} bytes")
    async with asyncio.timeout(_HELLO_TIMEOUT_S):
        return decoded(await reader.readexactly(size))


async def _turns() -> None:
    """Let tasks begin, and what was aborted end."""
    for _ in range(4):
        await asyncio.sleep(0)


async def _sent(writer: asyncio.StreamWriter, message: object) -> None:
    writer.write(frame(message))
    with suppress(ConnectionError):
        async with asyncio.timeout(_WRITE_TIMEOUT_S):
            await writer.drain()
