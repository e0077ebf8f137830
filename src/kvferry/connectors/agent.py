"""What reads of another instance's memory, and lending ours, need of whoever carries them out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from kvferry.client.pure.connection import Connection

__all__ = ["READ_BYTES_MAX", "Agent"]

READ_BYTES_MAX = 16 << 20  # of one read


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
        """Nobody reads from it any more."""

    def read(self, peer: Any, pieces: Sequence[tuple[int, memoryview]], until: float) -> list[int]:
        """Read memory of a peer; the checksum of what each target has got.

        Args:
            pieces: Addresses there, and where it goes: at most READ_BYTES_MAX together.
            until: A moment of ``time.monotonic``.

        Raises:
            KVFerryError: It failed, or did not end by then; the targets may have been written to.
        """
