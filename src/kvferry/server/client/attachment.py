"""A session with a server, and the segment that comes with it: how they begin and end.

What a server says about its segment is checked before any byte of it is touched: a server that is
wrong, or lies, costs the cache and nothing else. `SharedPages` opens nothing but a regular file of
our own user with mode 0600 and the stated length, and a server must hold its lock on it.

A segment stays mapped until nobody uses it: copies under way, and views that were handed out, keep
it. With it stays the lock that tells the server so, which gives the pages to nobody else meanwhile.
"""

from __future__ import annotations

import atexit
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass

from kvferry import __version__, _native
from kvferry.base.errors import ConfigError, KVFerryError, UsageError
from kvferry.base.threads import Guarded
from kvferry.chunks.identity import Identity
from kvferry.chunks.layout import KVLayout
from kvferry.rpc.channel import new_id
from kvferry.rpc.link import Away, ServerLink
from kvferry.server.client.session_connection import Gone, ServerControl, ServerRefused, Silent
from kvferry.server.memory.segments import has_server
from kvferry.server.protocol import VERSION, Attached, Done, Register, Registered, Reply, Unregister

__all__ = ["Attachment", "ClientSession", "begin", "unregister"]

# Making a segment may take the server seconds (`Registered`); the other exchanges are from memory.
_REGISTER_S = 10.0
_ATTACHED_S = 5.0
_UNREGISTER_S = 0.2
_PROCESS = secrets.token_hex(8)

# Limits of what a server may say: offsets that a file can have, and heartbeats that make sense.
_OFFSET_MAX = 1 << 62
_HEARTBEAT_S = (0.01, 60.0)
_LEASE_S_MAX = 1e9


class Attachment:
    """A mapped segment. Threads: any."""

    def __init__(self, pages: _native.SharedPages, count: int) -> None:
        self.count = count
        self._pages = pages
        self._lock = threading.Lock()
        self._uses = 0
        self._closed = False

    @contextmanager
    def used(self) -> Iterator[_native.SharedPages]:
        """The pages, for one call that touches them: they stay mapped until it is over.

        Raises:
            Away: The session has ended.
        """
        with self._lock:
            if self._closed:
                raise Away
            self._uses += 1
        try:
            yield self._pages
        finally:
            with self._lock:
                self._uses -= 1
                last = self._closed and not self._uses
            if last:
                self._pages.close()

    @property
    def busy(self) -> bool:
        """Whether somebody copies at this moment."""
        return self._uses > 0

    def names(self, pages: Sequence[int]) -> bool:
        """Whether these are indexes of pages, each named once."""
        return all(0 <= page < self.count for page in pages) and len({*pages}) == len(pages)

    def fill(self) -> None:
        """Fill the page tables, in a thread; the segment is in use meanwhile."""

        def run() -> None:
            with suppress(Away, KVFerryError), self.used() as pages:
                pages.populate()

        Guarded(run, "fill", errand=True).start()

    def close(self) -> None:
        """Unmap the segment, when its last use is over."""
        with self._lock:
            first, self._closed = not self._closed, True
            now = first and not self._uses
        if now:
            self._pages.close()


@dataclass(eq=False, slots=True)
class ClientSession:
    """A session that the server has confirmed.

    Attributes:
        number: Its secret number.
        incarnation: Of the server.
        attachment: Its segment.
        link: The way to the server.
        heartbeat_s: How often to say that we live.
        shared: The half of generations that all engines of the server's stores have in common.
        suspected: An answer was late, and a ping is under way that says whether the server lives.
        doubted: A call got no answer in time: nobody is asked until the server shows that it lives.
    """

    number: int
    incarnation: str
    attachment: Attachment
    link: ServerLink[Reply]
    heartbeat_s: float
    shared: bytes
    doubted: bool = False
    suspected: bool = False

    def __repr__(self) -> str:
        return f"<Session with {self.incarnation}>"


def begin(
    control: ServerControl, identity: Identity, token: Callable[[], str]
) -> tuple[Registered, Attachment]:
    """Register, map the segment, and have that confirmed.

    Raises:
        Gone, Stopped, Silent: As `ServerControl.ask`.
        ServerRefused: One of both does not accept the other, or the token cannot be read.
    """
    try:
        shown = token()
    except ConfigError as error:
        raise ServerRefused(str(error)) from None
    request = Register(
        new_id(),
        0,
        int(_REGISTER_S * 1000),
        VERSION,
        asdict(identity),
        identity.digest,
        f"kvferry {__version__}",
        os.getpid(),
        f"{_PROCESS}-{os.getpid()}",  # a forked child has the first half too
        shown,
    )
    told = control.ask(request, Registered, _REGISTER_S)
    attachment = _attach(told, identity.layout)
    try:
        done = Attached(new_id(), told.session, int(_ATTACHED_S * 1000))
        control.ask(done, Done, _ATTACHED_S)
    except BaseException:
        attachment.close()
        raise
    return told, attachment


def unregister(control: ServerControl, session: ClientSession) -> None:
    """End the session on the server; while a thread copies, the lock of the segment does that."""
    session.link.close(_UNREGISTER_S)
    if not session.attachment.busy:
        request = Unregister(new_id(), session.number, int(_UNREGISTER_S * 1000))
        with suppress(Gone, ServerRefused, Silent):
            control.ask(request, Done, _UNREGISTER_S, last=True)


def _attach(told: Registered, layout: KVLayout) -> Attachment:
    if told.version != VERSION:
        raise ServerRefused(
            f"the server speaks version {told.version} of the protocol, we {VERSION}"
        )
    if told.page_bytes != layout.chunk_bytes:
        raise ServerRefused(
            f"the server's pages have {told.page_bytes} bytes, our chunks {layout.chunk_bytes}"
        )
    low_s, high_s = _HEARTBEAT_S
    possible = (
        0 < told.session < 1 << 63
        and told.path.startswith("/")
        and "\0" not in told.path
        and told.page_bytes <= told.page_stride
        and told.pages > 0
        and told.pages * told.page_stride <= told.segment_bytes <= told.lock < _OFFSET_MAX
        and low_s <= told.heartbeat_s <= high_s  # no NaN passes
        and 0 < told.lease_s < _LEASE_S_MAX
    )
    if not possible:
        raise ServerRefused("what the server says about its segment cannot be; nothing was mapped")
    try:
        _need_owner(told.path)
        pages = _native.SharedPages(
            told.path, told.segment_bytes, told.page_stride, told.page_bytes, told.pages, told.lock
        )
    except (KVFerryError, OSError, MemoryError, ValueError, OverflowError) as error:
        raise ServerRefused(
            f"the server's segment cannot be used: {error}; server and engines must run as one "
            "user and see one /dev/shm"
        ) from error
    return Attachment(pages, told.pages)


def _need_owner(path: str) -> None:
    """Refuse a file that no cache server has: it would be written to.

    Whoever listens at the address may name any file, and somebody else may listen there while our
    server is away. A server locks a byte of its segments, which takes the right to open them.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        owned = has_server(descriptor)
    finally:
        os.close(descriptor)
    if not owned:
        raise UsageError("no cache server owns it")


def _announce_exit() -> None:
    """A daemon thread that comes back from native code to an interpreter that has ended would abort
    the process. So the exit is announced, and such threads park; see bindings/gil.hpp."""
    _native.begin_exit()
    _native.await_parked()


atexit.register(_announce_exit)
