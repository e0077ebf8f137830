"""One identity on the server: a cache whose memory others can map.

The tickets of its stores tell when they are done (`NotifyingConnector`), so that no thread has to
wait for one. Questions and loads are raw jobs there: the loop watches the connector's event
descriptor, and calls `drain` when it is readable.

Threads: any.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from msgspec.structs import replace

from kvferry.base.errors import KVFerryError, UnavailableError, UsageError
from kvferry.base.threads import Guarded, noticed
from kvferry.cache.steps import Steps
from kvferry.chunks.generation import shared_of
from kvferry.chunks.identity import Identity
from kvferry.chunks.layout import KVLayout
from kvferry.chunks.prompt import Prompt
from kvferry.client.batch import BatchResult
from kvferry.config import CacheConfig
from kvferry.config.server import ServerConfig
from kvferry.connectors.base import BufferLike, Connector, Key
from kvferry.server.memory.pools import Pools, SharedMemory
from kvferry.server.protocol import HASHES_MAX
from kvferry.sharing import TieredCache

__all__ = ["IdentityShard", "Loop", "NotifyingConnector", "identity_of"]

# After the loop has ended nobody drains for a waiting thread, which then drains this often itself.
_LOOK_S = 0.05


class _Ticket:
    """A raw job, as a ticket. Dropping it cancels the job."""

    def __init__(self, notifying: NotifyingConnector, job_id: int) -> None:
        self._telling = notifying
        self._id = job_id
        self._tell: Callable[[], object] | None = None
        self.result: BatchResult | None = None

    def wait(self, timeout_s: float) -> BatchResult | None:
        if self.result is None:
            self._telling.wait(self, timeout_s)
        return self.result

    def cancel(self) -> None:
        self._telling.connector.cancel(self._id)

    @property
    def done(self) -> bool:
        return self.result is not None

    @property
    def prefix_len(self) -> int:
        result = self.result
        if result is None:  # a job that is drained meanwhile says 0
            count = self._telling.connector.progress(self._id)
            result = self.result
            if result is None:
                return count
        return result.prefix_len

    def tell(self, call: Callable[[], object]) -> None:
        """Call a function when the job is done; see `kvferry.cache.steps.Awaited`."""
        self._tell = call
        if self.result is not None:
            call()

    def ended(self, result: BatchResult) -> None:
        self.result = result
        if self._tell is not None:
            self._tell()

    def __del__(self) -> None:
        if self.result is None:
            self.cancel()


class NotifyingConnector:
    """See the module."""

    def __init__(self, connector: Connector) -> None:
        self.connector = connector
        self._changed = threading.Condition()
        self._draining = threading.Lock()
        self._tickets: weakref.WeakValueDictionary[int, _Ticket] = weakref.WeakValueDictionary()

    def submit_get(
        self, keys: Sequence[Key], buffers: Sequence[BufferLike], **options: Any
    ) -> _Ticket:
        """See `Connector`."""
        with self._changed:  # before it can be drained
            return self._ticket(self.connector.submit_batch_get(keys, buffers, **options))

    def submit_exists(self, keys: Sequence[Key], **options: Any) -> _Ticket:
        """See `Connector`."""
        with self._changed:
            return self._ticket(self.connector.submit_batch_exists(keys, **options))

    def drain(self) -> None:
        """Take jobs that have ended, and announce each."""
        if not self._draining.acquire(blocking=False):
            return  # another thread drains, and takes all
        try:
            found = self.connector.drain_completions()
        finally:
            self._draining.release()
        if not found:
            return
        ended = []
        with self._changed:
            for job_id, result in found:
                ticket = self._tickets.pop(job_id, None)
                if ticket is not None:
                    ended.append((ticket, result))
        for ticket, result in ended:
            ticket.ended(result)
        with self._changed:
            self._changed.notify_all()

    def wait(self, ticket: _Ticket, timeout_s: float) -> None:
        """Wait until a job is done, or for so long."""
        until = time.monotonic() + timeout_s
        while True:
            self.drain()
            with self._changed:
                left_s = until - time.monotonic()
                if ticket.done or left_s <= 0:
                    return
                self._changed.wait(min(left_s, _LOOK_S))

    def _ticket(self, job_id: int) -> _Ticket:
        ticket = self._tickets[job_id] = _Ticket(self, job_id)
        return ticket

    if not TYPE_CHECKING:  # for the checker it is a `Connector` where it is used as one

        def __getattr__(self, name: str) -> Any:
            return getattr(self.connector, name)


_log = logging.getLogger("kvferry.server")
_OPEN_S = 10.0


class Loop(NamedTuple):
    """What the loop of the server does for stores. Threads: any.

    Attributes:
        watch: Calls a function when a descriptor is readable.
        in_background: Does steps that nobody waits for.
    """

    watch: Callable[[int, Callable[[], object]], None]
    in_background: Callable[[Steps[object]], object]


def identity_of(fields: Mapping[str, Any], digest: bytes) -> Identity:
    """The identity that a client described.

    Raises:
        UsageError: It cannot be, or its digest is another one.
    """
    values = dict(fields)
    layout = values.pop("layout", None)
    if not isinstance(layout, dict):
        raise UsageError("an identity needs a layout: a mapping of the fields of KVLayout")
    try:
        identity = Identity(**values, layout=KVLayout(**layout))
    except (TypeError, AttributeError) as error:
        raise UsageError(
            f"the identity has a field that this version does not know: {error}"
        ) from None
    if identity.digest != digest:
        raise UsageError(
            f"the digest is {digest.hex()}, that of the fields is {identity.digest.hex()}; client "
            "and server do not agree on how identities are written: use the same version"
        )
    return identity


class IdentityShard:
    """The chunks of one identity.

    Args:
        identity: Whose.
        config, pools: Of the server.
        loop: Of the server.

    Attributes:
        identity: Whose.
        memory: Where they lie.
        cache: Moves them between memory and stores, which are opened in the background.
        began: When that began, by ``time.monotonic``.
        opened: That is over.
        problems: Why a store could not be opened, by its name.
    """

    def __init__(self, identity: Identity, config: ServerConfig, pools: Pools, loop: Loop) -> None:
        self.identity = identity
        self._loop = loop
        self.memory: SharedMemory = pools.memory(identity.layout.chunk_bytes)
        try:
            # The server's own is for engines that name none; this one has chosen.
            settings = config.cache.replace(chunk_size=identity.layout.chunk_size)
            self.cache = TieredCache(
                identity,
                settings,
                memory=self.memory,
                open_stores=False,
                background=loop.in_background,
                wraps=self._watched,
                labels={"model": identity.model, "identity": identity.digest.hex()[:12]},
            )
        except BaseException:
            self.memory.pool.members.remove(self.memory)
            raise
        self.began = time.monotonic()
        self.opened = threading.Event()
        self.problems: dict[str, str] = {}
        Guarded(self._open, "open", config.cache, errand=True).start()

    def _open(self, config: CacheConfig) -> None:
        """One store after the other; those that cannot be opened are left out."""
        try:
            for store in config.stores:
                try:
                    self.cache.open_store(store)
                except Exception as error:  # code of others: a plug-in is imported
                    if not isinstance(error, KVFerryError):
                        noticed("open", error)
                    self.problems[store.name] = str(error) or type(error).__name__
                    _log.warning(
                        "%s goes on without store %s, which cannot be opened: %s",
                        self.identity.model,
                        store.name,
                        error,
                    )
            try:
                self.cache.share(rank=0)  # one process has the chunks of all ranks
            except (KVFerryError, OSError) as error:
                self.problems["peers"] = self.cache.clearing.unopened["peers"] = str(error)
                _log.warning("%s shares nothing: %s", self.identity.model, error)
        finally:
            self.opened.set()

    def _watched(self, connector: Connector) -> Connector:
        """The connector of a store that wakes the loop when it is done: no thread waits for it."""
        notifying = NotifyingConnector(connector)
        self._loop.watch(connector.event_fd(), notifying.drain)
        return cast(Connector, notifying)

    @property
    def shared(self) -> bytes:
        """The half of generations that all engines here have in common."""
        return self.cache.clearing.shared

    def clear_everybody(self) -> int:
        """See `TieredCache.clear`; waits until all stores are open, for a few seconds at most.

        Raises:
            KVFerryError: As there.
        """
        if not self.opened.wait(_OPEN_S):
            raise UnavailableError("the stores of the server are still being opened; do it again")
        return self.cache.clear(everybody=True)

    def is_current(self, generation: bytes) -> bool:
        """Whether hashes of this generation may find something, and be stored."""
        fresh = self.cache.clearing.newest.is_fresh
        return fresh and shared_of(generation) == self.shared

    def prompt(self, prompt: Prompt) -> Prompt:
        """A prompt as it came in a message, as the cache here takes it.

        Raises:
            UsageError: It has chunks of another length, or too many, or fewer tokens than those.
        """
        size, chunks = self.identity.layout.chunk_size, prompt.chunks
        if prompt.chunk_size != size:
            raise UsageError(f"chunks of {prompt.chunk_size} tokens, and not of {size}")
        if chunks > HASHES_MAX:
            raise UsageError(f"hashes of {chunks} chunks; the most are {HASHES_MAX}")
        if prompt.tokens < prompt.start_tokens + chunks * size:
            raise UsageError(f"{prompt.tokens} tokens are fewer than those of {chunks} chunks")
        return replace(prompt, queued_at=0.0) if prompt.queued_at else prompt

    def status(self) -> dict[str, Any]:
        """For people and programs."""
        stats = self.cache.stats()
        return {
            "identity": self.identity.digest.hex(),
            "model": self.identity.model,
            "description": self.identity.description,
            "chunk_bytes": self.identity.layout.chunk_bytes,
            "chunk_size": self.identity.layout.chunk_size,
            "used_bytes": self.memory.used_bytes,
            "engines": self.memory.engines,
            "memory": stats["memory"],
            "stores": stats["stores"],
            "metrics": stats["metrics"],
            "prefill": stats["prefill"],
        }
