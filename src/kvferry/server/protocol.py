"""What engines and the cache server say to each other; the format page is docs/formats/server.md.

A message is one ZeroMQ frame of msgpack: an array that begins with the number of the message's
kind. Fields are only ever added at the end; who does not know them skips them, and who does not get
them takes their defaults. Whatever changes the meaning of a field is another `VERSION`.

No payload is in any message: `pages` are indexes of pages in the shared segment that `Registered`
names. Page i begins at byte ``i * page_stride``.

Hashes are the 16-byte hashes of the chunks of a prompt (`kvferry.cache.Hashes`), root first, one
after the other. They are made by the client; tokens and salts are never sent.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from kvferry.base.received import Count as Index
from kvferry.base.received import Line, Seconds, Short
from kvferry.server.requests import (
    Abort,
    Attached,
    Clear,
    Commit,
    Counted,
    Explain,
    Hello,
    LookupRequest,
    Observe,
    Pin,
    Ping,
    Prefetch,
    Register,
    Release,
    Request,
    Reserve,
    Retrieve,
    Speed,
    Stats,
    Unpin,
    Unregister,
)

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

VERSION = 1
# Of one request; a prompt of a million tokens in chunks of 16.
HASHES_MAX = 65_536
MESSAGE_BYTES_MAX = 4 << 20


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

    version: Index
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

    tiers: dict[Line, Index]
    coming: Index = 0
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

    reservation: Index
    chunks: list[int]
    pages: list[int]
    shed: Index = 0


class Committed(_Reply, tag=105):
    """What became of written pages.

    Attributes:
        chunks: How many are chunks of the cache now; 0: the reservation had ended.
        queued: For each store, how many wait to be written to it.
        dropped: For each store, how many will not be, because its queue is full.
    """

    chunks: Index
    queued: dict[Line, Index] = {}
    dropped: dict[Line, Index] = {}


class Leased(_Reply, tag=106):
    """A prefix to read, until `Release`.

    Attributes:
        lease: Its id; 0: there is none.
        pages: One for each leading chunk.
        tiers: How many chunks each tier gave.
        reason: Why it is not more; see `kvferry.cache.Retrieved`.
        lookup_s, load_s: Time for asking the stores, and for loading.
    """

    lease: Index
    pages: list[int]
    tiers: dict[Line, Index]
    reason: Line = ""
    lookup_s: Seconds = 0.0
    load_s: Seconds = 0.0
    shared: Short = b""


class Count(_Reply, tag=107):
    count: Index


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

    version: Index
    chunk_size: Index = 0


_ToSessions: TypeAlias = Welcome | Registered | Done | Pong | Failure
Reply: TypeAlias = _ToSessions | Found | ReservedPages | Committed | Leased | Count | Report

_encoder = msgspec.msgpack.Encoder()
# Raises msgspec.MsgspecError (DecodeError, ValidationError) for what is no such message.
decode_request = msgspec.msgpack.Decoder(Request).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode
encode = _encoder.encode
