"""A client that says exactly what a test wants it to: one socket, one message at a time."""

from __future__ import annotations

import itertools
from dataclasses import asdict
from typing import Any, Self, TypeVar

import zmq

from kvferry import _native
from kvferry.chunks.identity import Identity
from kvferry.chunks.keys import chunk_hashes
from kvferry.chunks.prompt import Prompt, read_prompt
from kvferry.server import protocol as p
from support.engines import CHUNK, IDENTITY, expected

T = TypeVar("T")


def hashes_of(tokens: list[int], salt: bytes = b"") -> bytes:
    """As messages have them."""
    return b"".join(chunk_hashes(tokens, CHUNK, salt))


def prompt_of(tokens: list[int], salt: bytes = b"") -> Prompt:
    """As messages have it."""
    return read_prompt(tokens, CHUNK, salt)


class Peer:
    """A session by hand; see `register` and `attach`."""

    def __init__(self, endpoint: str, identity: Identity = IDENTITY) -> None:
        self.identity = identity
        self.session = 0
        self.registered: p.Registered | None = None
        self.pages: _native.SharedPages | None = None
        self._ids = itertools.count(1)
        self._context = zmq.Context[zmq.Socket[bytes]]()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.IPV6, "[" in endpoint)
        self.socket.connect(endpoint)

    def raw(self, *frames: bytes, timeout_s: float = 10.0) -> Any:
        """Send frames as they are; the reply, or None."""
        self.socket.send_multipart(frames)
        return self.answer(timeout_s)

    def answer(self, timeout_s: float = 10.0) -> Any:
        """The next reply, or None."""
        if not self.socket.poll(int(timeout_s * 1000)):
            return None
        return p.decode_reply(self.socket.recv())

    def say(self, kind: type, *fields: Any, timeout_s: float = 10.0, **named: Any) -> Any:
        """Send a message of a kind with its fields; the reply."""
        message = kind(next(self._ids), self.session, int(timeout_s * 1000), *fields, **named)
        reply = self.raw(p.encode(message), timeout_s=timeout_s + 1)
        assert reply is not None, f"no answer to {kind.__name__}"
        assert reply.id == message.id
        return reply

    def want(self, reply: type[T], kind: type, *fields: Any, **named: Any) -> T:
        """Like `say`; it has to be a reply of this kind."""
        found = self.say(kind, *fields, **named)
        assert type(found) is reply, found
        return found

    # --- A session ---

    def register(self, **changes: Any) -> Any:
        """Register; the reply."""
        fields = {
            "version": p.VERSION,
            "identity": asdict(self.identity),
            "digest": self.identity.digest,
            "software": "test",
            "pid": 0,
            **changes,
        }
        reply = self.say(p.Register, *fields.values())
        if isinstance(reply, p.Registered):
            self.registered, self.session = reply, reply.session
        return reply

    def map(self) -> None:
        """Map the segment, and lock."""
        r = self.registered
        assert r is not None
        self.pages = _native.SharedPages(
            r.path, r.segment_bytes, r.page_stride, r.page_bytes, r.pages, r.lock
        )

    def attach(self) -> Self:
        """All that it takes to have pages."""
        assert isinstance(self.register(), p.Registered)
        self.map()
        self.want(p.Done, p.Attached)
        return self

    # --- Chunks ---

    def write(self, reserved: p.ReservedPages, tokens: list[int], salt: bytes = b"") -> None:
        """Write what belongs there into reserved pages."""
        assert self.pages is not None
        chunks = expected(tokens, self.identity, salt)
        self.pages.copy(reserved.pages, [chunks[i] for i in reserved.chunks], True, 1)

    def store(self, tokens: list[int], salt: bytes = b"") -> int:
        """Store a prompt; how many chunks were new."""
        reserved = self.want(p.ReservedPages, p.Reserve, prompt_of(tokens, salt))
        if not reserved.reservation:
            return 0
        self.write(reserved, tokens, salt)
        return self.want(p.Committed, p.Commit, reserved.reservation).chunks

    def read(self, tokens: list[int], salt: bytes = b"") -> tuple[int, p.Leased]:
        """Retrieve a prompt, check every byte, release; how many chunks were right."""
        assert self.pages is not None
        leased = self.want(p.Leased, p.Retrieve, prompt_of(tokens, salt))
        size = self.identity.layout.chunk_bytes
        buffers = [bytearray(size) for _ in leased.pages]
        self.pages.copy(leased.pages, buffers, False, 1)
        right = expected(tokens, self.identity, salt)
        if leased.lease:
            held = self.want(p.Count, p.Release, [leased.lease]).count
            assert held == 1
        for buffer, chunk in zip(buffers, right, strict=False):
            assert bytes(buffer) == chunk.tobytes()
        return len(leased.pages), leased

    def close(self) -> None:
        """Drop the connection without a word."""
        self.socket.close()
        self._context.term()
        if self.pages is not None:
            self.pages.close()
            self.pages = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
