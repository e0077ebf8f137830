"""What a reporter needs of a cache: what it holds, and what it can be asked to do."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from kvferry.sharing.membership.messages import (
    Command,
    HeldIdentity,
    MemoryUsage,
    Quota,
    Renewed,
    Result,
    WorkDone,
)

__all__ = ["HeldIdentity", "Holdings", "MemoryUsage", "WorkDone"]


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
