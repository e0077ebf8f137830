"""The side of an instance: it registers with a controller, reports what it holds, and obeys.

    reporter = Reporter(holdings, instance="decode-1", pull="ctl:8300", reply="ctl:8400")
    reporter.start()
    reporter.added(identity, hashes)    # from whichever thread changed the cache
    ...
    reporter.close()

Two threads of its own do all that waits: one registers and sends what the cache tells, one says
every second that the instance lives; a third does what the controller asks for, when it does. No
caller ever waits for the controller, and none learns whether there is one. A controller that is
away, slow, or restarted costs a snapshot when it is back.

What the reporter needs of a cache is `Holdings`.
"""

from __future__ import annotations

import logging
import math
import queue
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from msgspec.structs import replace

from kvferry import __version__
from kvferry.base.errors import UsageError
from kvferry.base.shown import in_line
from kvferry.base.threads import Guarded, noticed
from kvferry.chunks.keys import DIGEST_BYTES
from kvferry.sharing.membership.backlog import Backlog
from kvferry.sharing.membership.controller_link import (
    ControllerLink,
    InstanceProcess,
    RefusedError,
    host_and_port,
)
from kvferry.sharing.membership.messages import (
    HASHES_MAX,
    Beat,
    Begin,
    Command,
    CommandDone,
    End,
    HeldIdentity,
    InstanceRegistered,
    Leave,
    Malformed,
    MemoryUsage,
    Peer,
    Pulse,
    Quota,
    RegisterInstance,
    Renewed,
    Result,
    SnapshotPart,
    Synced,
    Update,
    WorkDone,
    is_name,
)

__all__ = ["Holdings", "Reporter"]

_log = logging.getLogger("kvferry.membership")

_TIMEOUT_S = 5.0
_BACKOFF_S, _BACKOFF_MAX_S = 0.1, 2.0  # between registrations that fail
# Updates that do not arrive for so long, or for so many beats, begin the session anew.
_STUCK_S, _STUCK_MAX_S, _BEATS_STUCK = 2.0, 60.0, 3
_LOOK_S = 0.5
_GATHER_S = 0.02  # so that many small changes become one message
_BACKLOG_BYTES = 16 << 20
_COMMANDS_MAX = 64
_PIECE = HASHES_MAX * DIGEST_BYTES


class Holdings(Protocol):
    """A cache as its reporter sees it. Any thread may call, and no call may take long but `obey`.

    Whoever changes what is held tells the reporter (`Reporter.added`, `Reporter.removed`) after the
    change, and for one chunk in the order of its changes. Then it is no matter what of them `held`
    has already seen.
    """

    @property
    def actions(self) -> Collection[str]:
        """Commands that `obey` knows: "clear", "delete", "pin", "prefetch", "unpin"."""

    @property
    def quotas(self) -> Sequence[Quota]:
        """Those that `limit` was told last."""

    def limit(self, quotas: Sequence[Quota]) -> None:
        """From now on memory is to hold no more; called with each heartbeat."""

    def heard(self, renewed: Sequence[Renewed], began: float) -> None:
        """Others have cleared for everybody, or nobody has; called with each heartbeat that was
        answered, which began at that moment of ``time.monotonic``."""

    def identities(self) -> Sequence[HeldIdentity]:
        """Of what chunks there may be some."""

    def usage(self) -> MemoryUsage:
        """Bytes that it may hold, and holds."""

    def work(self) -> WorkDone:
        """What was done since the process began."""

    def held(self, identity: bytes) -> Iterable[bytes]:
        """The hashes of all chunks of an identity, 16 bytes each, in pieces of any size."""

    def obey(self, command: Command) -> Result:
        """Do it, within limits of its own; called one by one, in a thread for this alone."""


class Reporter:
    """See the module.

    Args:
        holdings: What the instance holds.
        instance: Its name, the same over restarts.
        pull, reply: HOST:PORT of the controller's ports for updates and for questions; of several
            controllers with commas between, which are tried in turn.
        rank: Of this process in the instance.
        address, lookup_address: HOST:PORT where others read its chunks; empty: nobody can.
        secret: What both sides know; empty: none.
        peers: Is told everybody whose chunks can be read, this instance too, whenever that changes.
        backlog_bytes: Of hashes that wait for the controller; above it a snapshot replaces them.

    Raises:
        UsageError: `instance` is no name.

    Threads: any.
    """

    def __init__(
        self,
        holdings: Holdings,
        *,
        instance: str,
        pull: str,
        reply: str,
        rank: int = 0,
        address: str = "",
        lookup_address: str = "",
        secret: str = "",
        peers: Callable[[Sequence[Peer]], object] | None = None,
        backlog_bytes: int = _BACKLOG_BYTES,
    ) -> None:
        if not is_name(instance):
            raise UsageError("instance is a text of 1 to 128 characters in one line")
        self._holdings = holdings
        self._me = InstanceProcess(instance, rank)
        self._controllers = list(zip(pull.split(","), reply.split(","), strict=True))
        self._pull, self._reply = self._controllers[0]
        self._address, self._lookup_address = address, lookup_address
        self._secret = secret
        self._peers = peers
        self._peers_number = 0  # of the thread that says that we live
        self._started = time.time()
        self._backlog = Backlog(backlog_bytes)
        self.tell_soon = self._backlog.wake  # that identities are others now, too
        self._closing = threading.Event()
        self._met = threading.Event()  # a controller is there that does not know us
        self._threads: list[threading.Thread] = []
        # What the threads tell each other.
        self._lock = threading.Lock()
        self._heartbeat: tuple[str, float] | None = None  # where, and how often
        self.told: Sequence[HeldIdentity] = ()  # as a controller has taken them
        self._unknown = False  # the controller does not know us any more
        self._stuck = False  # what was sent does not arrive
        self._sending_since = math.inf  # what is held
        self._resync = True
        self._results: list[Result] = []
        self._commands: queue.Queue[Command | None] = queue.Queue(_COMMANDS_MAX)
        self._obeying: threading.Thread | None = None
        # Of the thread that reports.
        self._seq = 0
        self._counts = {"snapshots": 0, "updates": 0, "hashes": 0, "failures": 0}
        self._problem = ""

    @property
    def incarnation(self) -> bytes:
        """128 random bits of this process."""
        return self._me.incarnation

    def start(self) -> None:
        """Begin; returns at once, whether there is a controller or not."""
        for thread in (Guarded(self._report, "reporter"), Guarded(self._beat, "heartbeat")):
            self._threads.append(thread)
            thread.start()

    def added(self, identity: bytes, hashes: bytes) -> None:
        """Chunks came: 16 bytes each, in one piece."""
        self._backlog.put(identity, True, hashes)

    def removed(self, identity: bytes, hashes: bytes) -> None:
        """Chunks went."""
        self._backlog.put(identity, False, hashes)

    def lost(self) -> None:
        """Something came or went that cannot be named: all that is held is sent again."""
        self._backlog.lose()

    def status(self) -> dict[str, Any]:
        """What it did, and what is wrong, for people."""
        with self._lock:
            told = {"seq": self._seq, "resync": self._resync, "problem": self._problem}
            return told | self._counts

    def close(self, timeout_s: float = 5.0) -> None:
        """Say goodbye, for `timeout_s` at most, and end."""
        self._closing.set()
        self._met.set()
        self._backlog.wake()
        until = time.monotonic() + timeout_s
        with suppress(queue.Full):  # else there is something to wake up for
            self._commands.put_nowait(None)
        for thread in (*self._threads, *([self._obeying] if self._obeying else [])):
            thread.join(max(0.0, until - time.monotonic()))

    # --- What is held ---

    def _report(self) -> None:
        wait_s = _BACKOFF_S
        while not self._closing.is_set():
            began = time.monotonic()
            try:
                self._session()
            except (OSError, Malformed) as error:
                self._failed(error)
            except Exception as error:
                noticed("reporter", error)
                self._failed(error)
            self._controllers.append(self._controllers.pop(0))
            self._pull, self._reply = self._controllers[0]
            if time.monotonic() - began > _BACKOFF_MAX_S:
                wait_s = _BACKOFF_S
            # A random part, so that not all instances come back to a controller at one moment.
            self._met.clear()
            if not self._closing.is_set():
                self._met.wait(wait_s * random.uniform(0.5, 1.5))
            wait_s = min(2 * wait_s, _BACKOFF_MAX_S)
        self._leave()

    def _failed(self, error: Exception) -> None:
        with self._lock:
            self._counts["failures"] += 1
            text = str(error) or type(error).__name__
            new = text != self._problem
            self._problem = text
        if new:
            _log.warning("the controller at %s: %s", self._reply, error)

    def _session(self) -> None:
        """From a registration on, until the controller is gone or does not know us."""
        self._register()
        link, welcome = ControllerLink.open(self._pull, "pull", self._me, self._secret, _TIMEOUT_S)
        with self._lock:
            self._stuck, self._sending_since = False, time.monotonic()
        try:
            if welcome.seq != self._seq:  # it missed something, or has begun anew
                self._ask_for_snapshot()
            with self._lock:
                if self._problem:
                    _log.info("the controller at %s is there again", self._reply)
                self._problem = ""
            while not self._closing.is_set() and not self._is_over():
                link.check()
                if tuple(self._holdings.identities()) != self.told:
                    self._register()
                if self._backlog.lost or self._resync:
                    self._send_snapshot(link)
                self._send_changes(link)
                self._backlog.wait(_LOOK_S)
                self._closing.wait(_GATHER_S)
            self._send_changes(link)
        finally:
            with self._lock:
                self._sending_since = math.inf
            link.close()

    def _register(self) -> None:
        identities = tuple(self._holdings.identities())
        message = RegisterInstance(
            self._started,
            self._address,
            identities,
            self._holdings.usage(),
            tuple(self._holdings.actions),
            f"kvferry {__version__}",
            self._lookup_address,
            tuple(self._holdings.quotas),
        )
        who = (self._reply, self._me, self._secret, _TIMEOUT_S)
        found = ControllerLink.ask_reply(*who, message, InstanceRegistered)
        host, port = found.heartbeat.rpartition(":")[::2]
        where = host or host_and_port(self._reply)[0]
        with self._lock:
            self.told, self._unknown = identities, False
            self._heartbeat = (f"{where}:{port}", found.heartbeat_s)

    def _is_over(self) -> bool:
        with self._lock:
            if self._stuck:
                raise TimeoutError("updates do not arrive")
            return self._unknown

    def _ask_for_snapshot(self) -> None:
        with self._lock:
            self._resync = True

    def _send_snapshot(self, link: ControllerLink) -> None:
        with self._lock:
            self._resync = False
            self._counts["snapshots"] += 1
        self._backlog.restart()  # what changes from now on is said behind it
        try:
            identities = tuple(one.digest for one in self._holdings.identities())
            for identity in identities:
                link.send(Begin(self._next(), identity, identity == identities[0]))
                for held in self._holdings.held(identity):
                    for at in range(0, len(held), _PIECE):
                        piece = bytes(held[at : at + _PIECE])
                        link.send(SnapshotPart(self._next(), identity, piece))
                link.send(End(self._next(), identity))
            link.send(Synced(self._next(), identities))
        except BaseException:
            self._ask_for_snapshot()
            raise

    def _send_changes(self, link: ControllerLink) -> None:
        changes = self._backlog.take()
        for identity, added, removed in changes:
            link.send(Update(self._next(), identity, added, removed))
        with self._lock:
            self._counts["updates"] += len(changes)
            self._counts["hashes"] += sum(len(a) + len(r) for _, a, r in changes) // DIGEST_BYTES

    def _next(self) -> int:
        self._seq += 1
        return self._seq

    def _leave(self) -> None:
        with self._lock:
            known = self._heartbeat is not None and not self._problem
        if not known:
            return
        with suppress(OSError, Malformed):  # it will find out
            ControllerLink.ask_reply(self._reply, self._me, self._secret, 1.0, Leave(), CommandDone)

    # --- That it lives, and what it is asked to do ---

    def _beat(self) -> None:
        while not self._closing.is_set():
            with self._lock:
                where = self._heartbeat
            if where is None:
                self._closing.wait(_GATHER_S)
                continue
            try:
                self._beats(*where)
            except RefusedError:
                with self._lock:  # it does not know us: register again, if that was not done since
                    if self._heartbeat is where:
                        self._unknown, self._heartbeat = True, None
                        self._met.set()
                self._backlog.wake()
            except (OSError, Malformed):
                if len(self._controllers) > 1:  # the next one may live
                    with self._lock:
                        self._stuck, self._heartbeat = True, None
                    self._backlog.wake()
                self._closing.wait(min(where[1], _LOOK_S) * random.uniform(0.5, 1.0))
            except Exception as error:
                noticed("heartbeat", error)
                self._closing.wait(where[1])

    def _beats(self, address: str, every_s: float) -> None:
        link, _ = ControllerLink.open(address, "heartbeat", self._me, self._secret, _TIMEOUT_S)
        sent, arrived, moved = 0, 0, time.monotonic()
        patience_s = shortest_s = max(_BEATS_STUCK * every_s, _STUCK_S)
        try:
            while not self._closing.is_set():
                with self._lock:
                    results = self._results[:_COMMANDS_MAX]
                    if self._heartbeat is not None and self._heartbeat != (address, every_s):
                        return
                beat = Beat(
                    self._holdings.usage(),
                    tuple(results),
                    self._peers_number,
                    self._holdings.work(),
                )
                began = time.monotonic()
                pulse = link.ask(beat, Pulse)
                with self._lock:
                    del self._results[: len(results)]
                    self._resync |= pulse.resync
                    # A way may swallow what is sent: then nothing arrives, and nobody says so. Or
                    # the controller has much to do, and then whoever begins anew makes it more.
                    now = time.monotonic()
                    if pulse.seq >= sent:
                        moved, patience_s = now, shortest_s
                    elif pulse.seq != arrived:
                        moved = now
                    elif now - max(moved, self._sending_since) > patience_s:
                        self._stuck = True
                        moved, patience_s = now, min(2 * patience_s, _STUCK_MAX_S)
                    sent, arrived = self._seq, pulse.seq
                    wake = pulse.resync or self._stuck
                if wake:
                    self._backlog.wake()
                self._holdings.heard(pulse.renewed, began)
                self._holdings.limit(pulse.quotas)
                for command in pulse.commands:
                    self._take(command)
                if pulse.peers is not None:
                    self._peers_number = pulse.peers_number
                    if self._peers is not None:
                        self._peers(pulse.peers)
                self._closing.wait(every_s * random.uniform(0.9, 1.0))
        finally:
            link.close()

    def _take(self, command: Command) -> None:
        if self._obeying is None:
            self._obeying = Guarded(self._obey, "commands")
            self._obeying.start()
        try:
            self._commands.put_nowait(command)
        except queue.Full:
            self._done(Result(command.job, False, 0, "too many commands wait"))

    def _obey(self) -> None:
        while (command := self._commands.get()) is not None and not self._closing.is_set():
            if command.action not in self._holdings.actions:
                self._done(Result(command.job, False, 0, f"{command.action} is not for me"))
                continue
            try:
                self._done(self._holdings.obey(command))
            except Exception as error:
                noticed("commands", error)
                self._done(Result(command.job, False, 0, f"{type(error).__name__}"))

    def _done(self, result: Result) -> None:
        with self._lock:
            self._results.append(replace(result, text=in_line(result.text, 1024)))
