"""Threads for work that waits, in turns: no engine process keeps the others from theirs.

A process may have no more threads than are idle: one that is alone gets half of them, a second one
half of the rest, and there is always a thread for somebody who comes. What has to wait does so in a
queue of its process, without a thread; the queues take turns. Work that nobody waits for any more
is left out when it has not begun.

Threads: one, that of the loop; `work` is called in those of the pool.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor

__all__ = ["Job", "Turns"]


class Job:
    """Work, and whose it is."""

    __slots__ = ("began", "who", "work")

    def __init__(self, who: Hashable, work: Callable[[], None]) -> None:
        self.who = who
        self.work = work
        self.began = False


class Turns:
    """See the module.

    Args:
        threads: How many there are at most.
        name: Of the threads.
        jobs_max: How many may wait, of all processes.
    """

    def __init__(self, threads: int, name: str, jobs_max: int = 4096) -> None:
        self._threads = ThreadPoolExecutor(threads, name)
        self._idle = threads
        self._jobs_max = jobs_max
        self._running: Counter[Hashable] = Counter()
        self._queues: dict[Hashable, deque[Job]] = {}  # who is first has the next turn
        self.waiting = 0

    def put(self, job: Job) -> bool:
        """Have it run when it is its turn; False: too many wait."""
        if self.waiting >= self._jobs_max:
            return False
        self._queues.setdefault(job.who, deque()).append(job)
        self.waiting += 1
        self._start()
        return True

    def over(self, job: Job) -> None:
        """Its thread is free again."""
        self._idle += 1
        self._running[job.who] -= 1
        if not self._running[job.who]:
            del self._running[job.who]
        self._start()

    def abandon(self, job: Job) -> bool:
        """Nobody waits for it any more; False: it has begun, and `over` will follow."""
        if job.began:
            return False
        self.waiting -= 1
        queue = self._queues[job.who]
        queue.remove(job)
        if not queue:
            del self._queues[job.who]
        return True

    def close(self) -> None:
        """Begin nothing any more; nobody is waited for."""
        self._queues.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> None:
        """Begin what may begin, a job of each process in turns."""
        while self._idle:
            who = next((w for w in self._queues if self._running[w] < self._idle), None)
            if who is None:
                return
            queue = self._queues.pop(who)
            job = queue.popleft()
            if queue:
                self._queues[who] = queue  # behind all others
            self.waiting -= 1
            self._idle -= 1
            self._running[who] += 1
            job.began = True
            self._threads.submit(job.work)
