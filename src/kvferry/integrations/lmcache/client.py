"""The client that LMCache's native connectors and its ``native_plugin`` adapter are written for.

    client = LMCacheRedisClient("127.0.0.1", 6379, 8)              # as LMCache's extension has it
    client = KvferryClient(url="rediss+cluster://seed-1,seed-2")   # or what we add to that

    future_id = client.submit_batch_get(keys, memoryviews)
    # until event_fd() is readable
    client.drain_completions()          # [(future_id, ok, error, [True, False, ...])]

Ids begin with 1. A completion has one flag for each key of a GET, an EXISTS or a DELETE, and None
for a SET, whose `ok` says that every value is stored. A flag of a GET is True if and only if its
buffer has the whole value, as it was stored. `ok` of a GET says that all of them are, because there
is code that looks at `ok` alone. `ok` of an EXISTS or DELETE says that a server answered; keys that
it did not answer for count as absent.

Every batch completes, in the time of its deadline at the latest, also when the server is away,
silent, restarted or replaced, and also by `close`. Buffers may have any length, any element type
and any contiguous shape; what is read-only or not contiguous is refused. They belong to the batch
until its completion was drained, and are kept alive so long.

Threads: any, for every call. `drain_completions` returns what there is, maybe nothing.
After ``fork()`` the child has connections of its own; the batches in flight are the parent's.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from kvferry.client.batch import Status, Verb
from kvferry.client.buffers import BufferLike, Key
from kvferry.config.integrations import LmcacheSettings
from kvferry.integrations.lmcache.batches import Batches, LmcacheBatch

__all__ = ["Completion", "KvferryClient", "LMCacheRedisClient"]

Completion = tuple[int, bool, str, list[bool] | None]

_log = logging.getLogger("kvferry.integrations.lmcache")
_ANSWERS = bytes((Status.OK, Status.MISS))


class KvferryClient:
    """See the head of this module.

    Args:
        host: Name or address of the server. Default: the environment's, see `ClientConfig`.
        port: Its port.
        num_workers: Sockets to each server; LMCache's own client has a thread for each.
        username: Empty: the server's default user.
        password: Empty: that of the environment, or none.
        **settings: Any key of `kvferry.config.integrations.LmcacheSettings`.

    Raises:
        ConfigError: A setting is unknown or cannot be right; the text names it. A server that is
            away is no error here.
    """

    def __init__(
        self,
        host: str | None = None,
        port: int | None = None,
        num_workers: int | None = None,
        username: str = "",
        password: str = "",
        **settings: Any,
    ) -> None:
        given = {"host": host, "port": port, "num_workers": num_workers}
        given.update(username=username, password=password)
        self._batches = Batches(LmcacheSettings.read({**settings, **given}))
        _log.info("LMCache's values go to %s", self)

    def __repr__(self) -> str:
        settings = self._batches.settings
        how = "verified" if settings.verify else "plain"
        space = f" namespace {settings.namespace!r}" if settings.namespace else ""
        return f"<{type(self).__name__} {settings.client.address} {how}{space}>"

    # --- As LMCache's own client ---

    def event_fd(self) -> int:
        """A descriptor that is readable while completions wait. It belongs to the client."""
        return self._batches.event_fd()

    def submit_batch_get(self, keys: Sequence[Key], memoryviews: Sequence[BufferLike]) -> int:
        """Start to read values into the buffers; the id of the batch.

        Raises:
            BatchUsageError: No keys, or not one buffer for each (also a RuntimeError).
            BadBufferError: A buffer is read-only, not contiguous, or overlaps another one.
            BatchClosedError: The client is closed (also a RuntimeError).
        """
        return self._batches.submit(Verb.GET, keys, _list(memoryviews))

    def submit_batch_set(self, keys: Sequence[Key], memoryviews: Sequence[BufferLike]) -> int:
        """Start to store the buffers; otherwise as `submit_batch_get`."""
        return self._batches.submit(Verb.SET, keys, _list(memoryviews))

    def submit_batch_exists(self, keys: Sequence[Key]) -> int:
        """Start to ask which keys exist; does not wait behind values that are on their way."""
        return self._batches.submit(Verb.EXISTS, keys)

    def submit_batch_delete(self, keys: Sequence[Key]) -> int:
        """Start to delete keys: True = was there."""
        return self._batches.submit(Verb.DELETE, keys)

    def drain_completions(self) -> list[Completion]:
        """Every batch that is done, oldest first. Never blocks."""
        return [_completion(finished) for finished in self._batches.drain()]

    def close(self) -> None:
        """Withdraw what is in flight and end all threads; may be called twice.

        What was withdrawn completes, as failed, and can still be drained.
        """
        self._batches.close()

    # --- Beside that ---

    @property
    def available(self) -> bool:
        """False while no server can be reached: then every batch fails at once."""
        return self._batches.client.available

    def stats(self) -> dict[str, int | str]:
        """Counters since the client was opened; see `kvferry.RedisClient.stats`."""
        return self._batches.client.stats()


LMCacheRedisClient = KvferryClient


def _list(buffers: Sequence[BufferLike]) -> Sequence[BufferLike]:
    if buffers is None:
        raise TypeError("memoryviews is not a list")
    return buffers


def _completion(finished: LmcacheBatch) -> Completion:
    mask = finished.mask
    if finished.verb in (Verb.GET, Verb.SET):
        ok = all(mask)
    else:
        ok = bool(finished.statuses.translate(None, _ANSWERS) != finished.statuses)
    error = "" if ok else finished.reason
    return finished.batch_id, ok, error, None if finished.verb is Verb.SET else mask
