"""The pages of one pool on the server: each part of a page one framed value, all in native batches.

    store = PageStore(client, fields, host_pages.parts, settings)
    store.set(hashes, memory)        # which pages are stored now
    store.get(hashes, memory)        # which pages are what was stored

`hashes` are SGLang's, one for each page; `memory` has the parts of the first page, then those of
the second, and so on. A value has the key ``kvf:<identity>:<hash><suffix of the part>``, so parts
of one length share an identity and travel in one batch; the batches of a call run at the same time.
Behind a clear ``<8 random bytes in hex>.`` goes before the hash.

No call raises because of the server, and each has a limit: what is not known to be there by then
counts as not there. A page counts if all of its parts are good; what is damaged, cut off, or of
another identity is a miss. The memory is the caller's again when the call returns. Any thread may
call.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kvferry.base.errors import KVFerryError
from kvferry.cache.cost.load_or_compute import LoadModel
from kvferry.cache.store.coding import Coding
from kvferry.chunks.generation import drawn
from kvferry.chunks.keys import describe_identity, identity_digest
from kvferry.client.batch import BatchResult, Status
from kvferry.client.buffers import BufferLike
from kvferry.client.sync import RedisClient
from kvferry.config.integrations import SglangSettings
from kvferry.connectors.base import Key, Space, Ticket
from kvferry.connectors.redis import RedisConnector

__all__ = ["PagePart", "PageStore"]

_log = logging.getLogger("kvferry.integrations.sglang")
# A job ends at its deadline; one that lasts so much longer is a bug of ours, and no caller hangs.
_GRACE_S = 2.0
_CLEAR_S = 30.0  # of a clear that deletes; what it leaves is not found any more
_RATES_MAX = 4096  # batches that `get_stats` has not taken out


@dataclass(frozen=True)
class PagePart:
    """One value of a stored page: what its key ends in, and its length."""

    suffix: str
    size_bytes: int


@dataclass(frozen=True)
class _Group:
    """The parts of one length: which ones of a page they are, and where they are kept."""

    parts: tuple[int, ...]
    suffixes: tuple[str, ...]
    size_bytes: int
    connector: RedisConnector


class PageStore:
    """See the head of this module.

    Args:
        client: Moves the bytes; shared with others, and left open.
        fields: What the bytes are: names and values of the identity's description.
        parts: Of every page.
        settings: Limits of time.

    Attributes:
        loaded, stored: Pages of a batch, and gigabytes (10**9) for each second of it; taken out by
            whoever reports them.
    """

    def __init__(
        self,
        client: RedisClient,
        fields: Mapping[str, str | int],
        parts: Sequence[PagePart],
        settings: SglangSettings,
    ) -> None:
        self.parts = tuple(parts)
        self.page_bytes = sum(part.size_bytes for part in self.parts)
        self._settings = settings
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._generation = ""  # goes before the hash of a page; every clear draws another
        self.loaded: deque[tuple[int, float]] = deque(maxlen=_RATES_MAX)
        self.stored: deque[tuple[int, float]] = deque(maxlen=_RATES_MAX)
        sizes = sorted({part.size_bytes for part in self.parts})
        self._groups = [self._group(client, fields, size) for size in sizes]
        self._load = LoadModel()
        self._coding: Coding | None = None
        if settings.remote_serde == "auto":
            self._coding = Coding(client.config.address, self._write_as)

    def _group(
        self, client: RedisClient, fields: Mapping[str, str | int], size_bytes: int
    ) -> _Group:
        chosen = [i for i, part in enumerate(self.parts) if part.size_bytes == size_bytes]
        # Groups of heads are numbered before the last dot: all of them have the same parts.
        kinds = {part.suffix.rpartition(".")[2]: part.size_bytes for part in self.parts}
        shape = " ".join(str(size) for _, size in sorted(kinds.items()))
        described = describe_identity(**fields, parts=shape, part_bytes=size_bytes)
        identity = identity_digest(described)
        space = Space(f"kvf:{identity.hex()}:", identity, size_bytes, described)
        serde = self._settings.remote_serde
        serde = "naive" if serde == "auto" else serde
        return _Group(
            tuple(chosen),
            tuple(self.parts[i].suffix for i in chosen),
            size_bytes,
            RedisConnector(space, client.config, client=client, serde=serde),
        )

    @property
    def identities(self) -> list[str]:
        """The digests under which the parts are kept, in hex."""
        return [group.connector.space.identity.hex() for group in self._groups]

    # --- Pages ---

    def exists(self, hashes: Sequence[str]) -> list[bool]:
        """Which pages the server has; those count as used."""
        _, known = self._look(self._named(hashes), prefix=False)
        return known

    def leading(self, hashes: Sequence[str]) -> int:
        """How many leading pages the server has; those count as used."""
        _, known = self._look(self._named(hashes), prefix=True)
        count = known.index(False) if False in known else len(known)
        self._count(lookups=1, looked_up_pages=len(hashes), found_pages=count)
        return count

    def get(self, hashes: Sequence[str], memory: Sequence[BufferLike]) -> list[bool]:
        """Read pages; of one that is not good, the memory has undefined content."""
        began = time.perf_counter()
        limit_s = self._limit(self._settings.tuning.load_timeout_s, len(hashes))
        results = self._all(
            self._named(hashes),
            limit_s,
            lambda group, keys: group.connector.submit_get(
                keys, self._memory_of(group, memory), timeout_s=limit_s
            ),
        )
        good = self._good(results, len(hashes))
        count = good.count(True)
        self._note(self.loaded, count, began)
        self._choose(count, time.perf_counter() - began)
        self._count(loads=1, loaded_pages=count, missed_pages=len(good) - count)
        return good

    def set(self, hashes: Sequence[str], memory: Sequence[BufferLike]) -> list[bool]:
        """Store the pages that the server lacks; what it has already is not sent again."""
        names = self._named(hashes)  # a clear in between must not give them others
        statuses, known = self._look(names, prefix=False)
        wanted = [
            index
            for index, page in enumerate(statuses)
            if not known[index] and all(status in (Status.OK, Status.MISS) for status in page)
        ]
        self._count(stores=1, known_pages=known.count(True))
        if not wanted:
            self._count(failed_pages=known.count(False))
            return known
        each, began = len(self.parts), time.perf_counter()
        parts = [part for i in wanted for part in memory[i * each : (i + 1) * each]]
        limit_s = self._limit(self._settings.tuning.store_timeout_s, len(wanted))
        results = self._all(
            [names[i] for i in wanted],
            limit_s,
            lambda group, keys: group.connector.submit_set(
                keys, self._memory_of(group, parts), timeout_s=limit_s
            ),
        )
        stored = self._good(results, len(wanted))
        for index, done in zip(wanted, stored, strict=True):
            known[index] = done
        self._note(self.stored, stored.count(True), began)
        self._count(stored_pages=stored.count(True), failed_pages=known.count(False))
        return known

    # --- All of them ---

    def clear(self) -> int:
        """Find nothing of before any more; how many parts went from the server.

        Those go that only this store could find: what it has written since a clear before. Other
        stores go on with the pages that they share with this one. Deleting takes 30 s at most.

        Raises:
            UnavailableError, DeadlineExceeded: The server does not say what it has. It is cleared
                all the same.
        """
        ended, self._generation = self._generation, f"{drawn().hex()}."
        if not ended:
            return 0
        count, until = 0, time.monotonic() + _CLEAR_S
        for group in self._groups:
            for batch in group.connector.scan():
                keys = [key for key, _ in batch if _text(key).startswith(ended)]
                count += group.connector.batch_delete(keys).count(Status.OK)
                if time.monotonic() > until:
                    return count
        return count

    def stats(self) -> dict[str, int]:
        """Counters since this was made: calls, pages by what became of them, jobs by status."""
        with self._lock:
            return dict(self._counts)

    def close(self) -> None:
        """Withdraw what is in flight; the client stays open."""
        for group in self._groups:
            group.connector.close()

    # --- Inside ---

    def _named(self, hashes: Sequence[str]) -> list[str]:
        """What pages with these hashes are called since the last clear."""
        generation = self._generation
        return [generation + page for page in hashes]

    def _look(self, names: Sequence[str], *, prefix: bool) -> tuple[list[list[int]], list[bool]]:
        """The statuses of all parts of each page, and whether all of them are there."""
        limit_s = self._settings.tuning.lookup_timeout_s
        results = self._all(
            names,
            limit_s,
            lambda group, keys: group.connector.submit_exists(
                keys, prefix=prefix, touch=True, timeout_s=limit_s
            ),
        )
        pages: list[list[int]] = [[] for _ in names]
        for group, result in results:
            each = len(group.parts)
            for index, page in enumerate(pages):
                if result is None:
                    page.append(Status.UNAVAILABLE)
                else:
                    page += result.statuses[index * each : (index + 1) * each]
        return pages, [not any(page) for page in pages]

    def _all(
        self,
        names: Sequence[str],
        limit_s: float,
        submit: Callable[[_Group, list[str]], Ticket],
    ) -> list[tuple[_Group, BatchResult | None]]:
        """One batch for each group, all at the same time; None: it could not be asked."""
        if not names:
            return []
        tickets: list[tuple[_Group, Ticket | None]] = []
        for group in self._groups:
            keys = [page + suffix for page in names for suffix in group.suffixes]
            try:
                tickets.append((group, submit(group, keys)))
            except KVFerryError as error:  # closed, or too much waits already
                _log.debug("%s: %s", group.connector.config.address, error)
                self._count(**{error.code: 1})
                tickets.append((group, None))
        return [
            (group, None if ticket is None else self._end(ticket, limit_s))
            for group, ticket in tickets
        ]

    def _end(self, ticket: Ticket, limit_s: float) -> BatchResult | None:
        try:
            result = ticket.wait(limit_s + _GRACE_S)
        except BaseException:
            ticket.cancel()  # the memory is the caller's again when the job has ended
            ticket.wait(limit_s + _GRACE_S)
            raise
        if result is None:
            _log.error("a job has not ended %g s after its deadline", _GRACE_S)
        elif not result.ok:
            counts = {status.name.lower(): result.count(status) for status in Status if status}
            self._count(**{f"parts_{name}": n for name, n in counts.items() if n})
        return result

    def _memory_of(self, group: _Group, memory: Sequence[BufferLike]) -> Sequence[BufferLike]:
        if len(self._groups) == 1:
            return memory
        each = len(self.parts)
        return [memory[s + i] for s in range(0, len(memory), each) for i in group.parts]

    @staticmethod
    def _good(results: Sequence[tuple[_Group, BatchResult | None]], pages: int) -> list[bool]:
        good = [True] * pages
        for group, result in results:
            each = len(group.parts)
            for index in range(pages):
                good[index] &= result is not None and not any(
                    result.statuses[index * each : (index + 1) * each]
                )
        return good

    def _limit(self, base_s: float, pages: int) -> float:
        return base_s + pages * self.page_bytes / self._settings.client.tuning.floor_rate_bytes_s

    def _note(self, rates: deque[tuple[int, float]], pages: int, began: float) -> None:
        took_s = time.perf_counter() - began
        if pages and took_s > 0:
            rates.append((pages, pages * self.page_bytes / took_s / 1e9))

    def _choose(self, pages: int, took_s: float) -> None:
        """How pages are written from now on, by what loads have brought."""
        if self._coding is None or not pages:
            return
        with self._lock:
            self._load.observe(pages * self.page_bytes, took_s, time.monotonic())
            self._coding.choose(self._load.seen_bytes_s)

    def _write_as(self, serde: str) -> None:
        for group in self._groups:
            group.connector.write_as(serde)

    def _count(self, **more: int) -> None:
        with self._lock:
            for name, count in more.items():
                self._counts[name] = self._counts.get(name, 0) + count


def _text(key: Key) -> str:
    return key if isinstance(key, str) else key.decode("ascii", "replace")
