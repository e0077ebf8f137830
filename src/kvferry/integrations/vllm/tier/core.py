"""`TierCore`: a tier between vLLM's pinned memory and a store, without anything of vLLM.

It is what `KvferryTier` (`secondary_tier`) translates to and from
vLLM's words:

    core.lookup(request, key) -> bool | None      in a step, key by key
    core.load(job, keys, rows), core.store(...)   in a step
    core.end_step()                               at its end: questions go out, one batch a request
    core.finished()                               in the next one: what is over

All of it belongs to one thread, the scheduler's, and nothing here waits for a store but `drain` and
`close`, which have limits. No method raises because of a store.

Ownership: the rows of a job are the store's until `finished` has returned it. The view is released
by `close`, and only when no thread uses it any more; else `close` raises, and its owner must keep
the memory.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from kvferry._native import KnownChunks
from kvferry.base.errors import DeadlineExceeded
from kvferry.cache.store.coding import Coding
from kvferry.client.batch import BatchResult
from kvferry.config.tuning import TierLimits
from kvferry.connectors.base import Connector
from kvferry.integrations.vllm.tier.lookups import KNOWN_MAX, Lookups, chunk_names
from kvferry.integrations.vllm.tier.store_channel import StoreChannel
from kvferry.integrations.vllm.tier.tier_cost import Patience
from kvferry.integrations.vllm.tier.transfers import FinishedTransfer, Transfers

__all__ = ["TierCore"]


# What a store may take to let go of rows that were withdrawn.
_WITHDRAW_S = 5.0
# How often, and for how many chunks at a time, the store hears what is in use; what waits beyond
# the last number is left out.
_TOUCH_EVERY_S = 0.25
_TOUCH_KEYS = 256
_TOUCH_TIMEOUT_S = 1.0
_TOUCH_KEYS_MAX = 8192


class TierCore:
    """See the head of this module.

    Args:
        connector: The store, with values as long as a row; closed by `close`.
        view: Memory of rows, contiguous and writable.
        limits: See `TierLimits`.
        clock: Seconds that only grow.
        patience: How long waiting pays, where the limits do not say how long to wait.
        coding: Chooses how chunks are written; None: that does not change.

    Attributes:
        lookup: ``lookup(request, key)``: whether the store has a chunk; None: ask again in the next
            step.
        counts: Counters since the beginning, see `Lookups`, `Transfers` and `StoreChannel`.
    """

    def __init__(
        self,
        connector: Connector,
        view: memoryview,
        limits: TierLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        patience: Patience | None = None,
        coding: Coding | None = None,
    ) -> None:
        limits = limits or TierLimits()
        self.patience = patience = patience or Patience()
        patience.lookup_s, patience.stall_s = limits.lookup_timeout_s, limits.load_stall_s
        patience.chunk_bytes = connector.space.value_size_bytes
        self.limits = limits
        self.counts: Counter[str] = Counter()
        self._clock, self._coding = clock, coding
        self._known = KnownChunks(KNOWN_MAX)
        self._channel = StoreChannel(connector, self.counts, clock)
        self._lookups = Lookups(self._channel, self._known, self.counts, patience)
        self._transfers = Transfers(
            self._channel,
            view,
            connector.space.value_size_bytes,
            chunk_names,
            lambda keys: self._known.unknown(keys),
            limits,
            self.counts,
            patience,
        )
        # Called key by key, in every step: without a call in between.
        self.lookup: Callable[[str, bytes], bool | None] = self._lookups.ask
        self._job = self._cleared = -1  # the last one, and the last one before a clear
        self._used: dict[bytes, None] = {}
        self._touched_at = 0.0
        self._closed = False

    @property
    def available(self) -> bool:
        """Whether the store is asked."""
        return not self._closed and not self._channel.shut

    @property
    def busy(self) -> bool:
        """Whether something is on its way that the next step has to see."""
        return bool(self._transfers.running or self._transfers.untaken or self._lookups.pending)

    def load(self, job: int, keys: Sequence[bytes], rows: Sequence[int]) -> None:
        """Begin to read chunks into rows."""
        self._job = max(self._job, job)
        self._transfers.load(job, keys, rows)

    def store(self, job: int, keys: Sequence[bytes], rows: Sequence[int]) -> None:
        """Begin to store chunks from rows."""
        self._job = max(self._job, job)
        self._transfers.store(job, keys, rows)

    def finished(self) -> list[FinishedTransfer]:
        """What is over since the last call. Also looks after everything that runs: once a step."""
        if not self._closed:
            self._channel.poll()
            self._lookups.expire()
            self._transfers.watch()
        taken = self._transfers.take()
        for job in taken:
            if job.job > self._cleared:
                self._known.add(job.done)
            if job.is_load and not job.success:
                self._lookups.mark_missing(set(job.keys).difference(job.done))
        if taken and self._coding is not None:
            self._coding.choose(self.patience.seen_bytes_s)
        return taken

    def end_step(self) -> None:
        """Ask what lookups left open, and tell the store what is in use."""
        if self._closed:
            return
        self._lookups.flush()
        if self._used:
            self._touch()

    def touch(self, keys: Iterable[bytes]) -> None:
        """These are in use: the store should not evict them. Best effort, a few at a time."""
        if len(self._used) < _TOUCH_KEYS_MAX:
            self._used.update(dict.fromkeys(keys))

    def forget(self, request: str) -> None:
        """A request is over."""
        self._lookups.forget(request)

    def drain(self) -> None:
        """Wait until nothing runs: `drain_timeout_s`, and then it is withdrawn.

        Raises:
            DeadlineExceeded: The store still uses rows, `_WITHDRAW_S` after it was told to stop.
        """
        self._await(self._clock() + self.limits.drain_timeout_s)
        if self._transfers.running:
            self._transfers.withdraw(loads=True, stores=True)
            self._await(self._clock() + _WITHDRAW_S)
        if self._transfers.running:
            raise DeadlineExceeded(
                f"{self._transfers.running} transfers still use memory {_WITHDRAW_S:g} s after "
                "they were withdrawn"
            )

    def clear(self) -> None:
        """Find nothing of before any more; the store's own eviction deletes it."""
        self._known = KnownChunks(KNOWN_MAX)
        self._cleared = self._job
        self._lookups.renew(self._known)
        self._channel.renew()

    def close(self) -> None:
        """End loads, finish stores, close the store, release the view. May be called twice.

        Raises:
            DeadlineExceeded: As `drain`; the view is not released then.
        """
        if self._closed:
            return
        self._transfers.withdraw(loads=True, stores=False)
        try:
            self.drain()
        finally:
            self._closed = True
            self.lookup = _nothing
            self._channel.close()
        self._transfers.release()

    def _await(self, until: float) -> None:
        while self._transfers.running and (left_s := until - self._clock()) > 0:
            self._channel.wait(min(left_s, 0.1))

    def _touch(self) -> None:
        now = self._clock()
        if now - self._touched_at < _TOUCH_EVERY_S or self._channel.shut:
            return
        self._touched_at = now
        keys = list(self._used)[:_TOUCH_KEYS]
        for key in keys:
            del self._used[key]
        self._channel.touch(chunk_names(keys), _TOUCH_TIMEOUT_S, _ignored)


def _nothing(request: str, key: bytes) -> bool:
    """What a closed tier has."""
    return False


def _ignored(_: BatchResult) -> None:
    """Nobody waits for it."""
