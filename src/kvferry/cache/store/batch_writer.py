"""Writes a batch of chunks to a store: what is absent, as far as there is room; and says why not.

What a store refuses for want of room is tried once more when room was made. Why the store did not
take its last batch stays known (`problem`), and is a line in the log once for each kind of trouble,
not once for each batch.

Threads: the writer's own; `problem` any.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from kvferry.base.errors import KVFerryError
from kvferry.cache.store.capacity import Capacity
from kvferry.cache.store.store_answers import REASONS
from kvferry.cache.store.tier import Tier
from kvferry.client.batch import BatchResult, Status
from kvferry.connectors.calls import lacks_room

__all__ = ["BatchWriter"]

_log = logging.getLogger("kvferry.cache")

_TELL_EVERY_S = 600.0  # the same problem is logged again
_TOLD_MAX = 100  # problems that are remembered
_STRIPE_BYTES = 4 << 20  # as in native/codec/stripe.hpp


class BatchWriter:
    """See the module.

    Args:
        tier: The store.
        capacity: Keeps it below its limit, and makes room.
        ttl_s: Time to live of what is written; None: the store's default.
        report: Called with the number of chunks that were written, and seconds.

    Attributes:
        described: Whether the store has the description of the identity.
        written: Chunks that were written.
    """

    def __init__(
        self,
        tier: Tier,
        capacity: Capacity,
        ttl_s: float | None,
        report: Callable[[int, float], None],
    ) -> None:
        self._tier = tier
        self._capacity = capacity
        self._ttl_s = ttl_s
        self._report = report
        self._told: dict[str, float] = {}
        self._problem = ""
        self._was_away = False
        self.described = True
        self.written = 0

    @property
    def problem(self) -> str:
        """Why the store did not take its last batch; "": it did, or is reachable again since."""
        over = self._was_away and self._tier.connector.available
        return "" if over else self._problem

    def write(
        self, keys: Sequence[str], pages: Sequence[memoryview], digests: Sequence[bytes]
    ) -> tuple[list[bool], str]:
        """Write the chunks that are absent; which are there now, and why others are not.

        Raises:
            KVFerryError: The store cannot be asked.
        """
        try:
            there, reason = self._write(keys, pages, digests)
        except Exception as error:
            self._fail(str(error) or type(error).__name__)
            if isinstance(error, KVFerryError):
                return [False] * len(keys), "error"
            raise
        if not reason:
            self._problem = ""
        return there, reason

    def _write(
        self, keys: Sequence[str], pages: Sequence[memoryview], digests: Sequence[bytes]
    ) -> tuple[list[bool], str]:
        connector = self._tier.connector
        if not connector.available:  # it answers at once, and says why
            self._fail(connector.batch_exists(keys[:1]).error or "it cannot be reached", quiet=True)
            return [False] * len(keys), "unavailable"
        found = connector.batch_exists(keys, touch=True)
        there = [status is Status.OK for status in found]
        absent = [i for i, status in enumerate(found) if status is Status.MISS]
        if there.count(True) + len(absent) < len(keys):
            failed = next(s for s in found if s not in (Status.OK, Status.MISS))
            self._fail(found.error or failed.name, quiet=failed is Status.UNAVAILABLE)
            return there, REASONS.get(failed, "error")
        if not absent:
            return there, ""
        if not self._capacity.make_room(len(absent) * self._tier.chunk_bytes):
            if self._capacity.silent:
                self._fail("it does not say what it holds", quiet=True)
                return there, "error"
            self._fail(self.problem if lacks_room(self.problem) else "it is full", quiet=True)
            return there, "store_full"
        reason = self._set(keys, pages, absent, there)
        self._tier.refusals.stored([digests[i] for i in absent])
        if not self.described and any(there):
            connector.describe()
            self.described = True
        return there, reason

    def _set(
        self,
        keys: Sequence[str],
        pages: Sequence[memoryview],
        absent: list[int],
        there: list[bool],
    ) -> str:
        """Write the absent chunks; why not all of them were written, or ""."""
        result, refused = self._set_once(keys, pages, absent, there)
        if refused and lacks_room(result.error):
            self._delete_stripes(keys, refused)
            # Room may have been short for a moment only: one chunk finds out at the least cost.
            result, again = self._set_once(keys, pages, refused[:1], there)
            refused = again + refused[1:]
            if refused and not again:
                result, refused = self._set_once(keys, pages, refused, there)
            size_bytes = len(refused) * self._tier.chunk_bytes
            if refused and lacks_room(result.error) and self._capacity.refused(size_bytes):
                result, refused = self._set_once(keys, pages, refused, there)
                if refused and lacks_room(result.error):
                    self._delete_stripes(keys, refused)
        if not refused:
            return ""
        if lacks_room(result.error):
            self._fail(result.error or "", quiet=True)  # `Capacity` has logged it
            return "store_full"
        status = next(s for s in result if s is not Status.OK)
        text = result.error or status.name
        if len(refused) < len(absent):  # a problem of these chunks, not of the store
            self._tell(text)
        else:
            self._fail(text, quiet=status is Status.UNAVAILABLE)
        return REASONS.get(status, "error")

    def _delete_stripes(self, keys: Sequence[str], refused: list[int]) -> None:
        """Delete the stripes of refused values that were taken: nobody would find them."""
        if self._tier.chunk_bytes > _STRIPE_BYTES:
            self._tier.connector.batch_delete([keys[i] for i in refused])

    def _set_once(
        self,
        keys: Sequence[str],
        pages: Sequence[memoryview],
        which: list[int],
        there: list[bool],
    ) -> tuple[BatchResult, list[int]]:
        """Write these chunks; what the store said, and which of them it did not take."""
        began = time.monotonic()
        result = self._tier.connector.batch_set(
            [keys[i] for i in which], [pages[i] for i in which], ttl_s=self._ttl_s
        )
        took_s = time.monotonic() - began
        for i, status in zip(which, result, strict=True):
            there[i] = status is Status.OK
        count = result.count(Status.OK)
        self.written += count
        self._capacity.wrote(count * self._tier.chunk_bytes)
        self._report(count, took_s)
        return result, [i for i in which if not there[i]]

    def _fail(self, problem: str, *, quiet: bool = False) -> None:
        """The store did not take a batch; `quiet`: the reason is logged elsewhere."""
        self._problem, self._was_away = problem, not self._tier.connector.available
        if not quiet:
            self._tell(problem)

    def _tell(self, problem: str) -> None:
        now = time.monotonic()
        if now < self._told.get(problem, 0.0):
            return
        while len(self._told) >= _TOLD_MAX:
            del self._told[next(iter(self._told))]
        self._told[problem] = now + _TELL_EVERY_S
        _log.warning("%s did not take a chunk: %s", self._tier.name, problem)
