"""Readers and writers of stamped values in the background, while a test does things to the servers.

    with Load(client, keys, size_bytes=64 * KIB) as load:
        cluster.migrate_slots(...)
        load.wait_for_rounds(3)
    assert load.failures() == set()     # every status was OK, every read the version written last

Each thread has keys of its own; a round writes them all, reads them all and checks every byte.
With ``lossy`` a server may forget what it confirmed (a failover does): misses and older versions
are then as good, wrong bytes never are.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any, Self

from kvferry.client.batch import Status
from support.stamps import KIB, fetch, store, until

END_LIMIT_S = 30.0  # for the calls that are in flight when a test has seen enough


class Load:
    """See the module. A wrong byte, or any exception, is raised at the end of the block."""

    def __init__(
        self,
        client: Any,
        keys: Sequence[str],
        size_bytes: int = 64 * KIB,
        threads: int = 2,
        lossy: bool = False,
    ) -> None:
        self.rounds = 0
        self.written: Counter[Status] = Counter()
        self.read: Counter[Status] = Counter()
        self.reasons: Counter[str] = Counter()
        self._client, self._size_bytes, self._lossy = client, size_bytes, lossy
        self._lock = threading.Lock()
        self._enough = threading.Event()
        self._problems: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._work, args=(keys[index::threads],))
            for index in range(threads)
        ]

    def failures(self) -> set[Status]:
        """Every status but OK that was met."""
        return set(self.written + self.read) - {Status.OK}

    def wait_for_rounds(self, count: int, limit_s: float = 30.0) -> None:
        """Until so many more rounds, of whichever thread, have begun and ended."""
        goal = self.rounds + count + len(self._threads)
        until(lambda: self.rounds >= goal or self._problems, limit_s)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        for thread in self._threads:
            thread.join(END_LIMIT_S)
            assert not thread.is_alive(), "a call does not return"
        if self._problems:
            raise self._problems[0]

    def _work(self, keys: Sequence[str]) -> None:
        sizes = dict.fromkeys(keys, self._size_bytes)
        version = 0
        try:
            while not self._enough.is_set():
                version += 1
                written = store(self._client, sizes, version)
                known = range(1, version + 1) if self._lossy else (version,)
                read = fetch(self._client, sizes, known)
                self._note(written, read.result)
        except BaseException as problem:
            self._problems.append(problem)

    def _note(self, written: Any, read: Any) -> None:
        with self._lock:
            self.rounds += 1
            self.written.update(written)
            self.read.update(read)
            self.reasons.update(result.error for result in (written, read) if result.error)
