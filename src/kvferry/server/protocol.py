"""What engines and the cache server say to each other; the format page is docs/formats/server.md.

A message is one ZeroMQ frame of msgpack: an array that begins with the number of the message's
kind. Fields are only ever added at the end; who does not know them skips them, and who does not get
them takes their defaults. Whatever changes the meaning of a field is another `VERSION`.

No payload is in any message: `pages` are indexes of pages in the shared segment that `Registered`
names. Page i begins at byte ``i * page_stride``.

Hashes are the 16-byte hashes of the chunks of a prompt (`kvferry.engine.Hashes`), root first, one
after the other. They are made by the client; tokens and salts are never sent.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

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
    "Done",
    "Explain",
    "Failure",
    "Found",
    "Leased",
    "Lookup",
    "Observe",
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
    "Reserved",
    "Retrieve",
    "Stats",
    "Unpin",
    "Unregister",
    "decode_reply",
    "decode_request",
    "encode",
]

VERSION = 1
# Of one request; a prompt of a million tokens in chunks of 16.
HASHES_MAX = 65_536
MESSAGE_BYTES_MAX = 4 << 20


class _Request(msgspec.Struct, array_like=True):
    """What every request begins with, behind its kind.

    Attributes:
        id: Of the sender's choice; the reply has it.
        session: What `Registered` gave; 0 before.
        timeout_ms: The sender waits no longer than this from now.
    """

    id: int
    session: int
    timeout_ms: int


class Register(_Request, tag=1):
    """Begin a session. Reply: `Registered`.

    Attributes:
        version: Of this protocol.
        identity: The fields of `kvferry.Identity` by name, `layout` those of `kvferry.KVLayout`.
        digest: The 16 bytes of the identity; who computes another one from the fields refuses.
        software: For people, e.g. "kvferry 0.1.0".
        pid: For people; 0: unknown.
    """

    version: int
    identity: dict[str, Any]
    digest: bytes
    software: str = ""
    pid: int = 0


class Attached(_Request, tag=2):
    """The sender has mapped the segment and holds the lock that was named. Reply: `Done`."""


class Lookup(_Request, tag=3):
    """How much of a prompt is there. Reply: `Found`.

    Attributes:
        hashes: Of the prompt.
        stores: Ask the stores for what memory does not have.
        touch: What is found counts as used.
    """

    hashes: bytes
    stores: bool = True
    touch: bool = True


class Reserve(_Request, tag=4):
    """Pages for the chunks from `first` on that are neither there nor coming. Reply: `Reserved`."""

    hashes: bytes
    first: int = 0


class Commit(_Request, tag=5):
    """The pages of a reservation are written. Reply: `Committed`.

    Attributes:
        reservation: Its id.
        ok: A byte for each page, 0 drops it; empty: all are written.
    """

    reservation: int
    ok: bytes = b""


class Abort(_Request, tag=6):
    """The pages of a reservation will not be written. Reply: `Done`."""

    reservation: int


class Retrieve(_Request, tag=7):
    """Bring the prefix of a prompt, as much of it as pays, and lease it. Reply: `Leased`.

    Attributes:
        hashes: Of the prompt, or of the part that is wanted.
        tokens: Of the whole prompt, for the decision between loading and computing.
    """

    hashes: bytes
    tokens: int


class Release(_Request, tag=8):
    """Leases that are no longer needed. Reply: `Count`, of those in force all the time."""

    leases: list[int]


class Prefetch(_Request, tag=9):
    """Bring the prefix of a prompt into memory. Reply: `Count`, of the leading chunks there.

    Attributes:
        wait: Reply when it is done; else at once, with what is there now.
    """

    hashes: bytes
    tokens: int
    wait: bool = False


class Pin(_Request, tag=10):
    """Load the prefix of a prompt and keep it until `Unpin` or the session's end.

    Reply: `Count`, of chunks.
    """

    hashes: bytes
    tokens: int


class Unpin(_Request, tag=11):
    """Undo a `Pin`. Reply: `Count`, of chunks that lost one."""

    hashes: bytes


class Stats(_Request, tag=12):
    """Everything countable of the session's identity. Reply: `Report`."""


class Ping(_Request, tag=13):
    """The sender lives. Reply: `Pong`."""


class Observe(_Request, tag=14):
    """Computing `tokens` of a prompt behind `cached_tokens` took `took_s`. Reply: `Done`."""

    tokens: int
    cached_tokens: int
    took_s: float


class Clear(_Request, tag=15):
    """Forget everything of the session's identity. Reply: `Count`, of chunks."""

    stores: bool = True


class Unregister(_Request, tag=16):
    """End the session: its leases and reservations end with it. Reply: `Done`."""


class Explain(_Request, tag=17):
    """Where each chunk of a prompt is, or why it is not. Reply: `Report`."""

    hashes: bytes
    tokens: int


Request: TypeAlias = (
    Register
    | Attached
    | Lookup
    | Reserve
    | Commit
    | Abort
    | Retrieve
    | Release
    | Prefetch
    | Pin
    | Unpin
    | Stats
    | Ping
    | Observe
    | Clear
    | Unregister
    | Explain
)


class _Reply(msgspec.Struct, array_like=True):
    """What every reply begins with: the id of the request."""

    id: int


class Failure(_Reply, tag=0):
    """The request was refused; nothing of it was done.

    Attributes:
        code: For programs: "message" (cannot be read), "version", "identity" (not served here),
            "session" (unknown or ended: register anew), "attach" (the lock is not held), "usage",
            "draining" (the server ends), "busy" (too much is under way), "internal".
        text: For people: what is wrong and what to do.
    """

    code: str
    text: str


class Registered(_Reply, tag=101):
    """A session.

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
    """

    version: int
    session: int
    incarnation: str
    path: str
    segment_bytes: int
    page_stride: int
    page_bytes: int
    pages: int
    lock: int
    heartbeat_s: float
    lease_s: float
    prefault: bool = False


class Done(_Reply, tag=102):
    """It was done."""


class Found(_Reply, tag=103):
    """How much of a prompt is there, in chunks.

    Attributes:
        tiers: How many each tier gives, in the order in which they follow; "l1" is first.
        coming: Right behind those in memory, being stored or loaded there.
    """

    tiers: dict[str, int]
    coming: int = 0


class Reserved(_Reply, tag=104):
    """Pages to write.

    Attributes:
        reservation: Its id; 0: there is nothing to write.
        chunks: Indexes of the chunks in the prompt, ascending.
        pages: One for each chunk.
        shed: How many further chunks got no page.
    """

    reservation: int
    chunks: list[int]
    pages: list[int]
    shed: int = 0


class Committed(_Reply, tag=105):
    """What became of written pages.

    Attributes:
        chunks: How many are chunks of the cache now; 0: the reservation had ended.
        queued: For each store, how many wait to be written to it.
        dropped: For each store, how many will not be, because its queue is full.
    """

    chunks: int
    queued: dict[str, int] = {}
    dropped: dict[str, int] = {}


class Leased(_Reply, tag=106):
    """A prefix to read, until `Release`.

    Attributes:
        lease: Its id; 0: there is none.
        pages: One for each leading chunk.
        tiers: How many chunks each tier gave.
        reason: Why it is not more; see `kvferry.engine.Retrieved`.
        lookup_s, load_s: Time for asking the stores, and for loading.
    """

    lease: int
    pages: list[int]
    tiers: dict[str, int]
    reason: str = ""
    lookup_s: float = 0.0
    load_s: float = 0.0


class Count(_Reply, tag=107):
    """A number."""

    count: int


class Report(_Reply, tag=108):
    """Something to read."""

    report: dict[str, Any]


class Pong(_Reply, tag=109):
    """The server lives, and knows the session (else it is a `Failure`)."""

    incarnation: str
    uptime_s: float


Reply: TypeAlias = (
    Failure | Registered | Done | Found | Reserved | Committed | Leased | Count | Report | Pong
)

_encoder = msgspec.msgpack.Encoder()
# Raises msgspec.MsgspecError (DecodeError, ValidationError) for what is no such message.
decode_request = msgspec.msgpack.Decoder(Request).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode
encode = _encoder.encode
