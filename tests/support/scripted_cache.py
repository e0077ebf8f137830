"""A cache server that answers what the test says: what no real one can be made to say.

    with ScriptedServer(url, LAYOUT) as server:
        server.on(protocol.LookupRequest, lambda request: None)      # silence

Without a word of the test it behaves: it is a small server with a real socket, a real segment and
an index that is a dict. Nothing is ever evicted, and it has no stores.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import struct
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self, TypeAlias

import zmq

from kvferry.chunks.layout import KVLayout
from kvferry.server import protocol as p

HASH_BYTES = 16
SERVER_LOCK = 1 << 60
SESSION_LOCK = 1 << 61
_FLOCK = struct.Struct("hhqqi4x")

Answer: TypeAlias = p.Reply | bytes | None
# A function of a request; what it returns is sent, None is silence, and a list is several answers.
Script: TypeAlias = Callable[[Any], Answer | list[Answer]]


class ScriptedServer:
    """See above. `seen` has every request; what is read there is `kind` after `kind`."""

    def __init__(self, url: str, layout: KVLayout, pages: int = 64) -> None:
        self.incarnation = secrets.token_hex(4)
        self.seen: list[p.Request] = []
        self.scripts: dict[type, Script] = {}
        self.deaf = False
        self.registered: dict[str, Any] = {}  # fields of `Registered` that are to be others
        self._page_bytes = layout.chunk_bytes
        self._pages = pages
        self._stride = -(-layout.chunk_bytes // 4096) * 4096
        self.path = Path("/dev/shm") / f"kvferry-test-{secrets.token_hex(16)}"
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._file, pages * self._stride)
        lock = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, SERVER_LOCK, 1, 0)
        fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, lock)
        self._sessions = 0
        self._next = 1
        self._index: dict[bytes, int] = {}
        self._reserved: dict[int, dict[bytes, int]] = {}
        self.leases: set[int] = set()
        self._stop = False
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self._socket.bind(url)
        self.url = self._socket.get_string(zmq.LAST_ENDPOINT)
        self._thread = threading.Thread(target=self._run, name="scripted-cache-server")
        self._thread.start()

    def on(self, kind: type[p.Request], script: Script | None) -> None:
        """Answer requests of a kind like that; None: behave again."""
        if script is None:
            self.scripts.pop(kind, None)
        else:
            self.scripts[kind] = script

    def of(self, kind: type[p.Request]) -> list[Any]:
        """The requests of a kind that came."""
        return [request for request in list(self.seen) if type(request) is kind]

    def close(self) -> None:
        """Go, as a process that was killed goes: no word, and its sockets are closed."""
        self._stop = True
        self._thread.join(10)
        assert not self._thread.is_alive()
        self._context.term()
        if self._file >= 0:
            os.close(self._file)
            self.path.unlink(missing_ok=True)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --- The thread ---

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        while not self._stop:
            if not self.deaf and poller.poll(5):
                route, frame = self._socket.recv_multipart()
                request = p.decode_request(frame)
                self.seen.append(request)
                for answer in self._answers(request):
                    body = answer if isinstance(answer, bytes) else p.encode(answer)
                    self._socket.send_multipart((route, body))
            elif self.deaf:
                time.sleep(0.005)
        self._socket.close()

    def _answers(self, request: p.Request) -> Iterable[p.Reply | bytes]:
        script = self.scripts.get(type(request), self.behave)
        told = script(request)
        return [a for a in (told if isinstance(told, list) else [told]) if a is not None]

    def behave(self, request: Any) -> p.Reply:
        """What a server says that has no script."""
        kind = type(request)
        id = request.id
        if kind is p.Register:
            return self.welcome(request)
        if kind is p.Ping:
            return p.Pong(id, self.incarnation, 1.0)
        if kind is p.LookupRequest:
            return p.Found(id, {"l1": len(self._held(request.prompt.hashes))})
        if kind is p.Reserve:
            return self._reserve(request)
        if kind is p.Commit:
            chunks = self._reserved.pop(request.reservation, {})
            self._index |= chunks
            return p.Committed(id, len(chunks))
        if kind is p.Retrieve:
            pages = self._held(request.prompt.hashes)
            lease = self._new() if pages else 0
            self.leases |= {lease} - {0}
            whole = len(pages) == request.prompt.chunks
            return p.Leased(id, lease, pages, {"l1": len(pages)}, "" if whole else "never_stored")
        if kind is p.Release:
            known = self.leases & {*request.leases}
            self.leases -= known
            return p.Count(id, len(known))
        if kind in (p.Prefetch, p.Pin, p.Unpin):
            hashes = request.hashes if kind is p.Unpin else request.prompt.hashes
            return p.Count(id, len(self._held(hashes)))
        if kind is p.Clear:
            count = len(self._index)
            self._index.clear()
            return p.Count(id, count)
        if kind is p.Abort:
            self._reserved.pop(request.reservation, None)
        if kind in (p.Stats, p.Explain):
            return p.Report(id, {"asked": kind.__name__})
        return p.Done(id)

    def welcome(self, request: p.Register) -> p.Registered:
        """A new session."""
        self._sessions += 1
        fields = {
            "version": p.VERSION,
            "session": 1000 + self._sessions,
            "incarnation": self.incarnation,
            "path": str(self.path),
            "segment_bytes": self._pages * self._stride,
            "page_stride": self._stride,
            "page_bytes": self._page_bytes,
            "pages": self._pages,
            "lock": SESSION_LOCK + self._sessions,
            "heartbeat_s": 0.2,
            "lease_s": 60.0,
        }
        return p.Registered(request.id, **{**fields, **self.registered})

    def _reserve(self, request: p.Reserve) -> p.ReservedPages:
        hashes = _split(request.prompt.hashes)
        wanted = [i for i, h in enumerate(hashes) if i >= request.first and h not in self._index]
        taken = len(self._index) + sum(map(len, self._reserved.values()))
        chunks = wanted[: self._pages - taken]
        pages = list(range(taken, taken + len(chunks)))
        number = self._new() if chunks else 0
        if number:
            self._reserved[number] = {
                hashes[c]: page for c, page in zip(chunks, pages, strict=True)
            }
        return p.ReservedPages(request.id, number, chunks, pages, len(wanted) - len(chunks))

    def _held(self, packed: bytes) -> list[int]:
        pages = []
        for digest in _split(packed):
            if digest not in self._index:
                break
            pages.append(self._index[digest])
        return pages

    def _new(self) -> int:
        self._next += 1
        return self._next


def _split(packed: bytes) -> list[bytes]:
    return [packed[i : i + HASH_BYTES] for i in range(0, len(packed), HASH_BYTES)]
