"""What engines and the cache server say to each other; the format page is docs/formats/server.md.

A message is one ZeroMQ frame of msgpack: an array that begins with the number of the message's
kind. Fields are only ever added at the end; who does not know them skips them, and who does not get
them takes their defaults. Whatever changes the meaning of a field is another `VERSION`.

No payload is in any message: `pages` are indexes of pages in the shared segment that `Registered`
names. Page i begins at byte ``i * page_stride``.

A prompt is a `kvferry.chunks.prompt.Prompt`, which has the hashes of its chunks. They are made by
the client; tokens and salts are never sent.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from kvferry.base.field_types import Count as Natural
from kvferry.base.field_types import FreeText, Line, Number, Seconds, Short
from kvferry.chunks.prompt import Prompt
from kvferry.rpc.link import encode
from kvferry.rpc.zmtp import MESSAGE_BYTES_MAX

__all__ = [
    "HASHES_MAX",
    "MESSAGE_BYTES_MAX",
    "VERSION",
    "Abort",
    "Attached",
    "Clear",
    "Commit",
    "Committed",
    "Count",
    "Counted",
    "Done",
    "Explain",
    "Failure",
    "Found",
    "Hello",
    "Leased",
    "LookupRequest",
    "Pin",
    "Ping",
    "Pong",
    "Prefetch",
    "Register",
    "Registered",
    "Release",
    "Reply",
    "Report",
    "Request",
    "Reserve",
    "ReservedPages",
    "Retrieve",
    "Speed",
    "Stats",
    "Unpin",
    "Unregister",
    "Welcome",
    "decode_reply",
    "decode_request",
    "encode",
]

VERSION = 2
# Hashes of one request: those of a prompt of a million tokens in chunks of 16. They take 1 MiB.
HASHES_MAX = 65_536

# --- Requests ---


class _Request(msgspec.Struct, array_like=True):
    """What every request begins with, behind its kind.

    Attributes:
        id: Of the sender's choice; the reply has it.
        session: What `Registered` gave; 0 before.
        timeout_ms: The sender waits no longer than this from now.
    """

    id: int
    session: int
    timeout_ms: Natural


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

    version: Natural
    identity: dict[str, Any]
    digest: Short
    software: FreeText = ""
    pid: Natural = 0
    process: Line = ""
    token: str = ""

    def __repr__(self) -> str:
        return f"<Register of {self.software!r} (pid {self.pid})>"  # no secret


class Attached(_Request, tag=2):
    """The sender has mapped the segment and holds the lock that was named. Reply: `Done`."""


class LookupRequest(_Request, tag=3):
    """How much of a prompt is there. Reply: `Found`.

    Attributes:
        prompt: Which; a node that it names is asked where the server's settings allow it.
        touch: What is found counts as used.
        lease: A `Retrieve` of what is found follows: what pays is brought into memory first, and
            leased until then, for some seconds.
    """

    prompt: Prompt
    touch: bool = True
    lease: bool = False


class Reserve(_Request, tag=4):
    """Pages for the chunks from `first` on that are neither there nor coming. Reply: `Reserved`."""

    prompt: Prompt
    first: Natural = 0


class Commit(_Request, tag=5):
    """The pages of a reservation are written. Reply: `Committed`.

    Attributes:
        ok: A byte for each page, 0 drops it; empty: all are written.
    """

    reservation: Natural
    ok: bytes = b""


class Abort(_Request, tag=6):
    """The pages of a reservation will not be written. Reply: `Done`."""

    reservation: Natural


class Retrieve(_Request, tag=7):
    """Bring the prefix of a prompt, as much of it as pays, and lease it. Reply: `Leased`.

    Attributes:
        prompt: With the hashes of the part that is wanted.
    """

    prompt: Prompt


class Release(_Request, tag=8):
    """Leases that are no longer needed. Reply: `Count`, of those in force all the time."""

    leases: list[int]


class Prefetch(_Request, tag=9):
    """Bring the prefix of a prompt into memory. Reply: `Count`, of the leading chunks there."""

    prompt: Prompt


class Pin(_Request, tag=10):
    """Load the prefix of a prompt and keep it until `Unpin` or the session's end.

    Reply: `Count`, of chunks.
    """

    prompt: Prompt


class Unpin(_Request, tag=11):
    """Undo a `Pin`. Reply: `Count`, of chunks that lost one."""

    hashes: bytes


class Stats(_Request, tag=12):
    """Everything countable of the session's identity. Reply: `Report`."""


class Ping(_Request, tag=13):
    """The sender lives. Reply: `Pong`."""


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

    prompt: Prompt


class Hello(_Request, tag=18):
    """Ask what an engine has to know before it registers. It needs no session. Reply: `Welcome`.

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
    step_tokens: Natural = 0


class Counted(_Request, tag=20):
    """Counts of the sender's engine since its last `Counted`. Reply: `Done`.

    Attributes:
        sums: By the names of series and their labels.
        histograms: Likewise: the sum of what was observed, and how often below each bound.
    """

    sums: dict[Line, dict[Line, Number]] = msgspec.field(default_factory=dict)
    histograms: dict[Line, dict[Line, tuple[Number, list[Natural]]]] = msgspec.field(
        default_factory=dict
    )


_OfSessions: TypeAlias = Hello | Register | Attached | Ping | Unregister
_OfChunks: TypeAlias = LookupRequest | Reserve | Commit | Abort | Retrieve | Release | Prefetch
_OfPrompts: TypeAlias = Pin | Unpin | Stats | Speed | Counted | Clear | Explain
Request: TypeAlias = _OfSessions | _OfChunks | _OfPrompts


# --- Replies ---


class _Reply(msgspec.Struct, array_like=True):
    """What every reply begins with: the id of the request."""

    id: int


class Failure(_Reply, tag=0):
    """The request was refused; nothing of it was done.

    Attributes:
        code: "message" (cannot be read), "version", "token" (none, or another one, was shown),
            "identity" (not served here), "session" (unknown or ended: register anew), "attach" (the
            lock is not held), "usage", "draining" (the server ends), "busy" (too much is under
            way), "internal".
        text: For people: what is wrong and what to do.
    """

    code: str
    text: str


class Registered(_Reply, tag=101):
    """A session. Its numbers are checked by who maps the segment, and says what cannot be.

    Attributes:
        version: Of the protocol.
        session: For every further message; a secret of 63 bits.
        incarnation: Of the server; another one has forgotten leases and sessions.
        path: Of the shared segment.
        segment_bytes: Its length.
        page_stride: From the beginning of one page to that of the next.
        page_bytes: Length of a chunk.
        pages: How many pages there are.
        lock: The byte of the segment that the client locks (an open file description lock) for as
            long as it has it mapped.
        heartbeat_s: How often to `Ping`.
        lease_s: How long leases and reservations last.
        prefault: All of the segment is backed by memory: mapping it eagerly costs none.
        shared: Half of the generations of all engines of its stores; here and in other replies.
    """

    version: Natural
    session: int
    incarnation: Line
    path: str
    segment_bytes: int
    page_stride: int
    page_bytes: int
    pages: int
    lock: int
    heartbeat_s: float
    lease_s: float
    prefault: bool = False
    shared: Short = b""


class Done(_Reply, tag=102):
    """It was done."""


class Found(_Reply, tag=103):
    """How much of a prompt is there, in chunks.

    Attributes:
        tiers: How many each tier gives, in the order in which they follow; "l1" is first.
        coming: Right behind those in memory, being stored or loaded there.
        reason: Why it is not more; see `kvferry.cache.Lookup`.
    """

    tiers: dict[Line, Natural]
    coming: Natural = 0
    shared: Short = b""
    reason: Line = ""


class ReservedPages(_Reply, tag=104):
    """Pages to write.

    Attributes:
        reservation: Its id; 0: there is nothing to write.
        chunks: Indexes of the chunks in the prompt, ascending.
        pages: One for each chunk.
        shed: How many further chunks got no page.
    """

    reservation: Natural
    chunks: list[int]
    pages: list[int]
    shed: Natural = 0


class Committed(_Reply, tag=105):
    """What became of written pages.

    Attributes:
        chunks: How many are chunks of the cache now; 0: the reservation had ended.
        queued: For each store, how many wait to be written to it.
        dropped: For each store, how many will not be, because its queue is full.
    """

    chunks: Natural
    queued: dict[Line, Natural] = {}
    dropped: dict[Line, Natural] = {}


class Leased(_Reply, tag=106):
    """A prefix to read, until `Release`.

    Attributes:
        lease: Its id; 0: there is none.
        pages: One for each leading chunk.
        tiers: How many chunks each tier gave.
        reason: Why it is not more; see `kvferry.cache.Retrieved`.
        lookup_s, load_s: Time for asking the stores, and for loading.
    """

    lease: Natural
    pages: list[int]
    tiers: dict[Line, Natural]
    reason: Line = ""
    lookup_s: Seconds = 0.0
    load_s: Seconds = 0.0
    shared: Short = b""


class Count(_Reply, tag=107):
    count: Natural


class Report(_Reply, tag=108):
    report: dict[str, Any]


class Pong(_Reply, tag=109):
    """The server lives, and knows the session (else it is a `Failure`)."""

    incarnation: Line
    uptime_s: Seconds
    shared: Short = b""


class Welcome(_Reply, tag=110):
    """What the server was started with.

    Attributes:
        version: Of the protocol.
        chunk_size: Tokens of a chunk, for engines that were told none; 0: the server neither.
    """

    version: Natural
    chunk_size: Natural = 0


_ToSessions: TypeAlias = Welcome | Registered | Done | Pong | Failure
Reply: TypeAlias = _ToSessions | Found | ReservedPages | Committed | Leased | Count | Report

# Raises msgspec.MsgspecError (DecodeError, ValidationError) for what is no such message.
decode_request = msgspec.msgpack.Decoder(Request).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode
