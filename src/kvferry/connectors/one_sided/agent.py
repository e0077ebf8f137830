"""Agents: they read the memory of another instance one-sided, and lend ours to other agents.

`Agent` is what a connector and a lender need of one. `ProcessAgent` is the agent of this host:

    agent = ProcessAgent()
    agent.lend(address, size_bytes, owner)     # others may read that
    peer = agent.meet(connection, metadata)    # of another process's agent
    sums = agent.read(peer, [(address, target)], until)

The kernel copies from one process to the other (process_vm_readv), and asks nobody but itself: no
descriptor and no mapping is shared, and the memory stays what it is. Where it forbids that, the
other side cannot be met: it is of another user, in another PID namespace, in a container that has
no such call, or Yama's ptrace_scope is 2 or 3. With a scope of 1 the owner's word is needed, which
this gives for all processes of its user. The peer is the process at the other end of a Unix socket,
as the kernel names it, and has a mark in its memory where its metadata say.

The other agent is NIXL's, in `nixl_agent`. Threads: any. Not for a forked child.
"""

from __future__ import annotations

import ctypes
import secrets
import struct
from collections.abc import Sequence
from typing import Any, Protocol

from kvferry import _native
from kvferry.base.errors import UnavailableError
from kvferry.client.pure.connection import Connection

__all__ = ["READ_BYTES_MAX", "Agent", "ProcessAgent"]

READ_BYTES_MAX = 16 << 20  # of one read

_MARK_BYTES = 16
_METADATA = struct.Struct(f"<6sQ{_MARK_BYTES}s")
_KIND = b"memory"


class Agent(Protocol):
    """An agent of this process. Threads: any; not for a forked child.

    Attributes:
        way: "is read ...", for people.
        near: It reads processes of this host, met over a Unix socket, and nobody else; its reads
            have ended when they return, so that they may go into pages of a cache.
        incarnation: Another number whenever `metadata` are others.
        metadata: What another agent needs to `meet` this one.
    """

    way: str
    near: bool
    incarnation: int
    metadata: bytes

    def lend(self, address: int, size_bytes: int, owner: object) -> None:
        """Let others read this memory, which `owner` keeps mapped.

        Raises:
            KVFerryError: It does not take it.
        """

    def withdraw(self, address: int) -> None:
        """Lend it no more."""

    def sweep(self) -> None:
        """Let go of what nobody can read any more; to be called now and then."""

    def meet(self, connection: Connection, metadata: bytes) -> Any:
        """Make another agent known, with a connection to its node; what to call it here.

        Raises:
            KVFerryError: It cannot be read from.
        """

    def forget(self, peer: Any) -> None:
        """Forget a peer that is not read from any more."""

    def read(self, peer: Any, pieces: Sequence[tuple[int, memoryview]], until: float) -> list[int]:
        """Read memory of a peer; the checksum of what each target has got.

        Args:
            pieces: Addresses there, and where it goes: at most READ_BYTES_MAX together.
            until: A moment of ``time.monotonic``.

        Raises:
            KVFerryError: It failed, or did not end by then; the targets may have been written to.
        """


class ProcessAgent:
    """Reads processes of this user on this host; see the module."""

    way = "from its process's memory"
    near = True

    def __init__(self) -> None:
        self._mark = ctypes.create_string_buffer(secrets.token_bytes(_MARK_BYTES), _MARK_BYTES)
        address = ctypes.addressof(self._mark)
        self.incarnation = secrets.randbits(62) | 1
        self.metadata = _METADATA.pack(_KIND, address, self._mark.raw)

    def lend(self, address: int, size_bytes: int, owner: object) -> None:
        """See `Agent`."""
        _native.admit_readers()

    def withdraw(self, address: int) -> None:
        """See `Agent`. A lease may be longer: who reads then finds no memory, or other bytes."""

    def sweep(self) -> None:
        """See `Agent`."""

    def meet(self, connection: Connection, metadata: bytes) -> int:
        """See `Agent`."""
        process = connection.process
        if process == 0 or len(metadata) != _METADATA.size or not metadata.startswith(_KIND):
            raise UnavailableError("it is no process of this user on this host that lends memory")
        _, address, mark = _METADATA.unpack(metadata)
        found = bytearray(_MARK_BYTES)
        _native.read_process(process, [address], [found])
        if found != mark:
            raise UnavailableError(f"process {process} does not have its mark")
        return process

    def forget(self, peer: int) -> None:
        """See `Agent`."""

    def read(self, peer: int, pieces: Sequence[tuple[int, memoryview]], until: float) -> list[int]:
        """See `Agent`."""
        addresses, targets = zip(*pieces, strict=True)
        return _native.read_process(peer, addresses, targets)
