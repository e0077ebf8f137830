"""Instances that hold real hashes and nothing else, and controllers for them."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from kvferry import _native
from kvferry.config.controller import ControllerConfig
from kvferry.sharing.controller.controller import Controller
from kvferry.sharing.membership import (
    Command,
    HeldIdentity,
    MemoryUsage,
    Quota,
    Renewed,
    Reporter,
    Result,
    WorkDone,
)
from support.tuned import tuned

CHUNK = 16
IDENTITY = HeldIdentity(hashlib.sha256(b"tiny").digest()[:16], "tiny", CHUNK)
OTHER = HeldIdentity(hashlib.sha256(b"other").digest()[:16], "other", CHUNK)
ANY_PORTS = {"pull": 0, "reply": 0, "heartbeat": 0}


def tokens(chunks: int, seed: int = 0) -> list[int]:
    """Tokens of a prompt of so many full chunks."""
    return [seed * 100_000 + n for n in range(chunks * CHUNK)]


def hashes(chunks: int, seed: int = 0) -> bytes:
    """The hashes of those tokens."""
    return _native.hash_chunks(tokens(chunks, seed), CHUNK)


class FakeCache:
    """`Holdings` that a test changes; each change is told to the reporter, if there is one."""

    actions: tuple[str, ...] = ("clear", "delete", "pin", "prefetch", "unpin")

    def __init__(self, *identities: HeldIdentity) -> None:
        self.lock = threading.Lock()
        self.chunks: dict[bytes, set[bytes]] = {
            one.digest: set() for one in identities or (IDENTITY,)
        }
        self.known = list(identities or (IDENTITY,))
        self.obeyed: list[Command] = []
        self.done = WorkDone()
        self.reporter: Reporter | None = None
        self.quotas: Sequence[Quota] = ()

    def heard(self, renewed: Sequence[Renewed], began: float) -> None:
        """See `Holdings`."""

    def limit(self, quotas: Sequence[Quota]) -> None:
        """See `Holdings`."""
        self.quotas = quotas

    def identities(self) -> Sequence[HeldIdentity]:
        """See `Holdings`."""
        return list(self.known)

    def usage(self) -> MemoryUsage:
        """See `Holdings`."""
        return MemoryUsage(1 << 30, 4096 * sum(map(len, self.chunks.values())))

    def work(self) -> WorkDone:
        """See `Holdings`."""
        return self.done

    def held(self, identity: bytes) -> Iterable[bytes]:
        """See `Holdings`."""
        with self.lock:
            every = sorted(self.chunks[identity])
        for at in range(0, len(every), 1000):
            yield b"".join(every[at : at + 1000])

    def obey(self, command: Command) -> Result:
        """See `Holdings`."""
        self.obeyed.append(command)
        identity = command.identity or IDENTITY.digest
        if command.action == "clear":
            with self.lock:
                gone = b"".join(self.chunks[identity])
            self.remove(gone, identity)
            return Result(command.job, True, len(gone) // 16)
        if command.action == "delete":
            self.remove(command.hashes, identity)
        if command.action == "prefetch":
            self.add(command.hashes, identity)
        return Result(command.job, True, len(command.hashes) // 16)

    def add(self, hashes: bytes, identity: bytes = IDENTITY.digest) -> None:
        """Chunks come."""
        with self.lock:
            self.chunks[identity] |= {hashes[i : i + 16] for i in range(0, len(hashes), 16)}
            if self.reporter is not None:
                self.reporter.added(identity, hashes)

    def remove(self, hashes: bytes, identity: bytes = IDENTITY.digest) -> None:
        """Chunks go."""
        with self.lock:
            self.chunks[identity] -= {hashes[i : i + 16] for i in range(0, len(hashes), 16)}
            if self.reporter is not None:
                self.reporter.removed(identity, hashes)


def config(**settings: Any) -> ControllerConfig:
    """Of a controller on free ports, with quick heartbeats."""
    given: dict[str, Any] = {"port": 0, "monitor_ports": ANY_PORTS, "heartbeat_s": 0.1}
    return ControllerConfig(**tuned(ControllerConfig, **{**given, **settings}))


@contextmanager
def controller(**settings: Any) -> Iterator[Controller]:
    """A controller without HTTP."""
    one = Controller(config(**settings))
    one.start()
    try:
        yield one
    finally:
        one.stop()


@contextmanager
def reporting(
    cache: FakeCache, to: Controller | Mapping[str, object], instance: str = "one", **settings: Any
) -> Iterator[Reporter]:
    """A reporter of a cache to a controller, or to its ports."""
    ports = to.ports if isinstance(to, Controller) else to
    given: dict[str, Any] = {"address": "127.0.0.1:7000"}
    cache.reporter = Reporter(
        cache,
        instance=instance,
        pull=f"127.0.0.1:{ports['pull']}",
        reply=f"127.0.0.1:{ports['reply']}",
        **{**given, **settings},
    )
    cache.reporter.start()
    try:
        yield cache.reporter
    finally:
        cache.reporter.close()
        cache.reporter = None
