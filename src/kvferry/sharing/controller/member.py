"""One process of an instance, as a controller knows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvferry.sharing.membership.messages import (
    HeldIdentity,
    MemoryUsage,
    RegisterInstance,
    WorkDone,
)

__all__ = ["FoundMember", "Key", "Member"]

Key = tuple[str, int]  # name of the instance, rank


@dataclass
class Member:
    """One process of an instance; read it under no lock, for people and look-ups."""

    instance: str
    rank: int
    incarnation: bytes
    host: str
    facts: RegisterInstance
    usage: MemoryUsage
    registered_at: float  # seconds since 1970
    beat_at: float  # seconds since 1970
    heard: float  # on the clock of `Members`
    state: str = "alive"
    seq: int = 0
    synced: bool = False
    gap: bool = True  # nothing counts until a snapshot begins
    resyncs: int = 0
    beats: int = 0
    work: WorkDone = field(default_factory=WorkDone)
    seats: dict[bytes, int] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """Name and rank."""
        return (self.instance, self.rank)

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.instance}/{self.rank}"

    @property
    def identities(self) -> dict[bytes, HeldIdentity]:
        """What it said of its chunks, by digest."""
        return {one.digest: one for one in self.facts.identities}


@dataclass(frozen=True)
class FoundMember:
    """A member that holds leading chunks of one identity."""

    member: Member
    identity: bytes
    chunks: int
