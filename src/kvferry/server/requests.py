"""The requests of engines to the cache server; see `kvferry.server.protocol`."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from kvferry.base.received import Address, Count, FreeText, Line, Number, Seconds, Short

__all__ = [
    "Abort",
    "Attached",
    "Clear",
    "Commit",
    "Counted",
    "Explain",
    "Hello",
    "LookupRequest",
    "Observe",
    "Pin",
    "Ping",
    "Prefetch",
    "Register",
    "Release",
    "Request",
    "Reserve",
    "Retrieve",
    "Speed",
    "Stats",
    "Unpin",
    "Unregister",
]


class _Request(msgspec.Struct, array_like=True):
    """What every request begins with, behind its kind.

    Attributes:
        id: Of the sender's choice; the reply has it.
        session: What `Registered` gave; 0 before.
        timeout_ms: The sender waits no longer than this from now.
    """

    id: int
    session: int
    timeout_ms: Count


class Register(_Request, tag=1):
    """Begin a session. Reply: `Registered`.

    Attributes:
        version: Of this protocol.
        identity: The fields of `kvferry.Identity` by name, `layout` those of `kvferry.KVLayout`.
        digest: The 16 bytes of the identity; who computes another one from the fields refuses.
        software: For people, e.g. "kvferry 0.1.0".
        pid: For people; 0: unknown.
        process: The same for all sessions of an engine process, which share what one may have, and
            for no other one; "": the session is alone.
        token: What the server asks for, if it does.
    """

    version: Count
    identity: dict[str, Any]
    digest: Short
    software: FreeText = ""
    pid: Count = 0
    process: Line = ""
    token: str = ""

    def __repr__(self) -> str:
        return f"<Register of {self.software!r} (pid {self.pid})>"  # no secret


class Attached(_Request, tag=2):
    """The sender has mapped the segment and holds the lock that was named. Reply: `Done`."""


class LookupRequest(_Request, tag=3):
    """How much of a prompt is there. Reply: `Found`.

    Attributes:
        hashes: Of the prompt.
        stores: Ask the stores for what memory does not have.
        touch: What is found counts as used.
        generation: Of the hashes; see `kvferry.chunks.generation`.
        about: What is to know of the prompt, see the format page. With it the stores are asked as
            long as that pays, and only what pays to load is counted.
        source: HOST:PORT of a node that is asked too, where the server's settings allow it.
    """

    hashes: bytes
    stores: bool = True
    touch: bool = True
    generation: Short = b""
    about: list[int] = []
    source: Address = ""


class Reserve(_Request, tag=4):
    """Pages for the chunks from `first` on that are neither there nor coming. Reply: `Reserved`."""

    hashes: bytes
    first: Count = 0
    generation: Short = b""


class Commit(_Request, tag=5):
    """The pages of a reservation are written. Reply: `Committed`.

    Attributes:
        ok: A byte for each page, 0 drops it; empty: all are written.
    """

    reservation: Count
    ok: bytes = b""


class Abort(_Request, tag=6):
    """The pages of a reservation will not be written. Reply: `Done`."""

    reservation: Count


class Retrieve(_Request, tag=7):
    """Bring the prefix of a prompt, as much of it as pays, and lease it. Reply: `Leased`.

    Attributes:
        hashes: Of the part of a prompt that is wanted.
        tokens: Of all of it, for the decision between loading and computing.
        about, source: See `LookupRequest`; may be empty.
    """

    hashes: bytes
    tokens: Count
    generation: Short = b""
    about: list[int] = []
    source: Address = ""


class Release(_Request, tag=8):
    """Leases that are no longer needed. Reply: `Count`, of those in force all the time."""

    leases: list[int]


class Prefetch(_Request, tag=9):
    """Bring the prefix of a prompt into memory. Reply: `Count`, of the leading chunks there.

    Attributes:
        wait: Reply when it is done; else at once, with what is there now.
    """

    hashes: bytes
    tokens: Count
    wait: bool = False
    generation: Short = b""


class Pin(_Request, tag=10):
    """Load the prefix of a prompt and keep it until `Unpin` or the session's end.

    Reply: `Count`, of chunks.
    """

    hashes: bytes
    tokens: Count
    generation: Short = b""


class Unpin(_Request, tag=11):
    """Undo a `Pin`. Reply: `Count`, of chunks that lost one."""

    hashes: bytes


class Stats(_Request, tag=12):
    """Everything countable of the session's identity. Reply: `Report`."""


class Ping(_Request, tag=13):
    """The sender lives. Reply: `Pong`."""


class Observe(_Request, tag=14):
    """Computing `tokens` of a prompt behind `cached_tokens` took `took_s`. Reply: `Done`."""

    tokens: Count
    cached_tokens: Count
    took_s: Seconds


class Clear(_Request, tag=15):
    """Forget chunks of the session's identity. Reply: `Count`, of those in memory.

    Attributes:
        stores: Else empty the memory alone.
        everybody: Renew the generation of all engines on the server's stores.
        ended: Else: the own half of the sender's former generation, if the sender had drawn it: it
            is deleted some time. Empty: others may go on with it.
    """

    stores: bool = True
    everybody: bool = False
    ended: Short = b""


class Unregister(_Request, tag=16):
    """End the session: its leases and reservations end with it. Reply: `Done`."""


class Explain(_Request, tag=17):
    """Where each chunk of a prompt is, or why it is not. Reply: `Report`."""

    hashes: bytes
    tokens: Count
    generation: Short = b""


class Hello(_Request, tag=18):
    """What engines that come have to know. It needs no session. Reply: `Welcome`.

    Attributes:
        token: As in `Register`.
    """

    token: str = ""

    def __repr__(self) -> str:
        return f"<Hello {self.id}>"  # no secret


class Speed(_Request, tag=19):
    """How long the sender's engine computes, in steps of so many tokens of prompts (0: of all);
    a, c, d and e of `kvferry.cache.cost.prefill`. Reply: `Done`."""

    coefficients: tuple[Number, Number, Number, Number]
    step_tokens: Count = 0


class Counted(_Request, tag=20):
    """What the sender's engine has counted since it said so last. Reply: `Done`.

    Attributes:
        sums: By the names of series and their labels.
        histograms: Likewise: the sum of what was observed, and how often below each bound.
    """

    sums: dict[Line, dict[Line, Number]] = msgspec.field(default_factory=dict)
    histograms: dict[Line, dict[Line, tuple[Number, list[Count]]]] = msgspec.field(
        default_factory=dict
    )


_OfSessions: TypeAlias = Hello | Register | Attached | Ping | Unregister
_OfChunks: TypeAlias = LookupRequest | Reserve | Commit | Abort | Retrieve | Release | Prefetch
_OfPrompts: TypeAlias = Pin | Unpin | Stats | Observe | Speed | Counted | Clear | Explain
Request: TypeAlias = _OfSessions | _OfChunks | _OfPrompts
