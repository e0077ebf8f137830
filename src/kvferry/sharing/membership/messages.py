"""What instances and controllers say to each other, as messages of `kvferry.rpc`.

Every connection begins alike, whichever port it goes to: the controller sends `Challenge`, the
instance `InstanceHello`, the controller `InstanceWelcome` or `InstanceRefused`. Then:

    reply       `RegisterInstance` or `Leave`; the answers are `InstanceRegistered`, `CommandDone`
                or `InstanceRefused`
    pull        `Update`; for a snapshot `Begin`, `SnapshotPart` ..., `End` for each identity, then
                `Synced`. Not answered. Each has the number behind that of the one before; a number
                that is left out is a gap, behind which nothing counts until a snapshot begins.
    heartbeat   `Beat`, answered with `Pulse`

An instance is known by its name and rank; a process of it by its incarnation, 128 random bits. A
new incarnation takes the place of the one before, and nothing of that one counts any more.
Everything that a controller knows comes from these messages, so it keeps nothing over a restart. It
hears marks of clears for everybody with each registration, and says the newest to whoever has an
older one.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from kvferry.base.field_types import (
    Address,
    Amount,
    Count,
    FreeText,
    Interval,
    Moment,
    Name,
    Rank,
    Short,
)
from kvferry.base.field_types import Line as Text
from kvferry.chunks.generation import Mark, shared_of
from kvferry.chunks.keys import DIGEST_BYTES

__all__ = [
    "HASHES_MAX",
    "HITS_MAX",
    "VERSION",
    "Beat",
    "Begin",
    "Challenge",
    "Command",
    "CommandDone",
    "Digest",
    "End",
    "HeldIdentity",
    "Hits",
    "InstanceHello",
    "InstanceRefused",
    "InstanceRegistered",
    "InstanceWelcome",
    "Leave",
    "Malformed",
    "MemoryUsage",
    "Message",
    "Peer",
    "Pulse",
    "Quota",
    "Quotas",
    "RegisterInstance",
    "Renewed",
    "Result",
    "SnapshotPart",
    "Synced",
    "Update",
    "WorkDone",
    "decoded",
    "is_name",
    "whole",
]

VERSION = 2  # 1 had a framing of its own
HASHES_MAX = 1 << 15  # in one field of a message
HITS_MAX = 256  # tiers in a beat

Digest = Annotated[bytes, msgspec.Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
Half = Annotated[bytes, msgspec.Meta(min_length=8, max_length=8)]
_Hashes = Annotated[bytes, msgspec.Meta(max_length=HASHES_MAX * DIGEST_BYTES)]
_Identities = Annotated[tuple[Digest, ...], msgspec.Meta(max_length=256)]


class HeldIdentity(msgspec.Struct, frozen=True):
    """An identity whose chunks an instance may hold.

    Attributes:
        digest: Of the `Identity`.
        model: Its name.
        chunk_size: Tokens of a chunk.
        generation: What prompts are hashed with now; see `kvferry.chunks.generation`.
        chunk_bytes: Of a chunk in memory; 0: not said.
        clears: The counter of the newest clear for everybody that the instance has heard of; its
            half is in `generation`; see `kvferry.chunks.generation.Mark`.
    """

    digest: Digest
    model: Text
    chunk_size: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
    generation: Short = b""
    chunk_bytes: Count = 0
    clears: Count = 0

    @property
    def mark(self) -> Mark:
        """The newest mark that the instance has heard of."""
        return Mark(self.clears, shared_of(self.generation))


class Renewed(msgspec.Struct, frozen=True):
    """A clear for everybody: the newest mark of an identity that a controller has heard of."""

    identity: Digest
    counter: Count
    half: Half

    @property
    def mark(self) -> Mark:
        """The same as a `Mark`, which can be compared."""
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


class Command(msgspec.Struct, frozen=True):
    """What an instance is asked to do.

    Attributes:
        job: For the result.
        action: One of those that it named when it registered.
        identity: Whose chunks; empty: of all identities.
        hashes: Of the chunks, root first; empty: all of them.
        source: For "prefetch": the address of the node that holds them.
    """

    job: Name
    action: Name
    identity: Short = b""
    hashes: _Hashes = b""
    source: Address = ""


class Result(msgspec.Struct, frozen=True):
    """What became of a command: how many chunks it was about, and why not, if it failed."""

    job: Name
    ok: bool
    chunks: Count = 0
    text: FreeText = ""


class Challenge(msgspec.Struct, frozen=True, tag="challenge"):
    """The first word of a controller."""

    version: Count
    nonce: Short


class InstanceHello(msgspec.Struct, frozen=True, tag="hello"):
    """Who speaks, and that it knows the secret."""

    version: Count
    port: Name
    instance: Name
    rank: Rank
    incarnation: Digest
    nonce: Short
    proof: Short


class InstanceWelcome(msgspec.Struct, frozen=True, tag="welcome"):
    """That the controller knows the secret too; of the pull port: the last number that counted."""

    proof: Short
    seq: Count = 0


class InstanceRefused(msgspec.Struct, frozen=True, tag="refused"):
    """What was said does not count: a word for programs, a sentence for people."""

    code: Name
    text: FreeText


class CommandDone(msgspec.Struct, frozen=True, tag="done"):
    """It is done, and there is nothing to say."""


class RegisterInstance(msgspec.Struct, frozen=True, tag="register"):
    """What an instance is; said again when something of it has changed.

    Attributes:
        started: When its process began, in seconds since 1970: of two processes with one name the
            younger one counts.
        address: HOST:PORT at which others read its chunks; empty: nobody can.
        lookup_address: A second one, for people; empty: there is none.
        identities: Of its chunks.
        actions: Commands that it takes.
        software: For people.
        quotas: That it was told before, for a controller that begins anew.
    """

    started: Moment
    address: Address
    identities: Annotated[tuple[HeldIdentity, ...], msgspec.Meta(max_length=256)]
    usage: MemoryUsage
    actions: Annotated[tuple[Name, ...], msgspec.Meta(max_length=32)] = ()
    software: Text = ""
    lookup_address: Address = ""
    quotas: Quotas = ()


class InstanceRegistered(msgspec.Struct, frozen=True, tag="registered"):
    """Where heartbeats go and how often; `heartbeat` without a host is the host of this port."""

    heartbeat: Address
    heartbeat_s: Interval


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """The instance ends, in order."""


class Update(msgspec.Struct, frozen=True, tag="update"):
    """Chunks that came, and then chunks that went."""

    seq: Count
    identity: Digest
    added: _Hashes = b""
    removed: _Hashes = b""


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """Of one identity all follows that is held; `first`: a snapshot begins with it."""

    seq: Count
    identity: Digest
    first: bool = False


class SnapshotPart(msgspec.Struct, frozen=True, tag="part"):
    """Some of it."""

    seq: Count
    identity: Digest
    hashes: _Hashes


class End(msgspec.Struct, frozen=True, tag="end"):
    """That was all of that identity; from now on this counts."""

    seq: Count
    identity: Digest


class Synced(msgspec.Struct, frozen=True, tag="synced"):
    """The snapshot is complete; of other identities nothing is held."""

    seq: Count
    identities: _Identities


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """That an instance lives.

    Attributes:
        usage: What it holds.
        results: Of commands.
        peers: The number of the last list of peers that it was sent; 0: of none.
        work: What it has done.
    """

    usage: MemoryUsage
    results: Annotated[tuple[Result, ...], msgspec.Meta(max_length=256)] = ()
    peers: Count = 0
    work: WorkDone = WorkDone()


class Peer(msgspec.Struct, frozen=True):
    """Somebody whose chunks can be read.

    Attributes:
        instance, rank: Who.
        address, lookup_address: As it said when it registered.
        identities: Of its chunks.
    """

    instance: Name
    rank: Rank
    address: Address
    identities: _Identities
    lookup_address: Address = ""


class Pulse(msgspec.Struct, frozen=True, tag="pulse"):
    """The answer to a beat.

    Attributes:
        seq: The number of the last change that arrived.
        resync: Send a snapshot.
        commands: Each is sent once.
        peers: Everybody who lives and can be read from; None: as the last time.
        peers_number: Of that list.
        quotas: All that are in force.
        renewed: Of the instance's identities, marks that it has not and should.
    """

    seq: Count
    resync: bool = False
    commands: tuple[Command, ...] = ()
    peers: tuple[Peer, ...] | None = None
    peers_number: Count = 0
    quotas: Quotas = ()
    renewed: Annotated[tuple[Renewed, ...], msgspec.Meta(max_length=256)] = ()


Message: TypeAlias = (
    Challenge
    | InstanceHello
    | InstanceWelcome
    | InstanceRefused
    | CommandDone
    | RegisterInstance
    | InstanceRegistered
    | Leave
    | Update
    | Begin
    | SnapshotPart
    | End
    | Synced
    | Beat
    | Pulse
)
_decode = msgspec.msgpack.Decoder(Message).decode


class Malformed(Exception):
    """Bytes that are no message, or a message that does not belong there."""


def decoded(raw: bytes | memoryview) -> Message:
    """The message that these bytes are.

    Raises:
        Malformed: They are none.
    """
    try:
        found: Message = _decode(raw)
        return found
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass  # raised outside: these errors may quote what came
    raise Malformed("no message of this version")


def is_name(text: str) -> bool:
    """Whether an instance may be called so."""
    try:
        msgspec.convert(text, Name)
    except msgspec.ValidationError:
        return False
    return True


def whole(hashes: bytes) -> bytes:
    """The hashes of a message.

    Raises:
        Malformed: They are cut.
    """
    if len(hashes) % DIGEST_BYTES:
        raise Malformed(f"hashes have {DIGEST_BYTES} bytes each")
    return hashes
