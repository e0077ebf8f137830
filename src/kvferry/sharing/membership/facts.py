"""What messages between instances and controllers have in them: identities, usage, work, quotas."""

from __future__ import annotations

from typing import Annotated

import msgspec

from kvferry.base.received import Amount, Count, Name, Short
from kvferry.base.received import Line as Text
from kvferry.chunks.generation import Mark, shared_of
from kvferry.chunks.keys import DIGEST_BYTES

__all__ = [
    "HITS_MAX",
    "Count",
    "Digest",
    "HeldIdentity",
    "Hits",
    "MemoryUsage",
    "Name",
    "Quota",
    "Quotas",
    "Renewed",
    "Short",
    "Text",
    "WorkDone",
]

HITS_MAX = 256  # tiers in a beat

Digest = Annotated[bytes, msgspec.Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
Half = Annotated[bytes, msgspec.Meta(min_length=8, max_length=8)]


class HeldIdentity(msgspec.Struct, frozen=True):
    """Of what chunks an instance has some.

    Attributes:
        digest: Of the `Identity`.
        model: Its name.
        chunk_size: Tokens of a chunk.
        generation: What prompts are hashed with now; see `kvferry.chunks.generation`.
        chunk_bytes: Of one in memory; 0: not said.
        clears: The counter of the newest clear for everybody that it has heard of, whose half is in
            `generation`; see `kvferry.chunks.generation.Mark`.
    """

    digest: Digest
    model: Text
    chunk_size: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
    generation: Short = b""
    chunk_bytes: Count = 0
    clears: Count = 0

    @property
    def mark(self) -> Mark:
        """Of clears for everybody."""
        return Mark(self.clears, shared_of(self.generation))


class Renewed(msgspec.Struct, frozen=True):
    """A clear for everybody: the newest mark of an identity that a controller has heard of."""

    identity: Digest
    counter: Count
    half: Half

    @property
    def mark(self) -> Mark:
        """As marks are compared."""
        return Mark(self.counter, self.half)


class MemoryUsage(msgspec.Struct, frozen=True):
    """What an instance may hold, and holds, in memory."""

    capacity_bytes: Count = 0
    used_bytes: Count = 0


class Hits(msgspec.Struct, frozen=True):
    """What one tier gave: "l1" is the instance's memory, "peer NAME" another instance's."""

    tier: Text
    tokens: Count
    bytes: Count


class WorkDone(msgspec.Struct, frozen=True):
    """What a process has done since it began: numbers that only grow.

    Attributes:
        requested_tokens: That a prefix was wanted for.
        saved_s: What prefill of the tokens that tiers gave would have taken, as predicted.
        hits: By tier; of more than fit, always the same ones.
    """

    requested_tokens: Count = 0
    saved_s: Amount = 0.0
    hits: Annotated[tuple[Hits, ...], msgspec.Meta(max_length=HITS_MAX)] = ()


class Quota(msgspec.Struct, frozen=True):
    """What each process of an instance may hold in memory.

    Attributes:
        bytes: So much.
        model: Of its chunks; empty: of all models together.
    """

    bytes: Count
    model: Text = ""


Quotas = Annotated[tuple[Quota, ...], msgspec.Meta(max_length=64)]
