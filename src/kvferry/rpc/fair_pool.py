"""A pool of threads that engine processes share fairly: none keeps the others from theirs.

A process may use no more threads than are idle: one that is alone gets half of them, a second one
half of the rest, and there is always a thread for a process that comes. A job that has to wait is
in the queue of its process; the queues are served round robin. An abandoned job that has not begun
is dropped.

Threads: one, that of the loop; `work` is called in the threads of the pool.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable

from kvferry.base.threads import Guarded

__all__ = ["FairJob", "FairPool"]


class FairJob:
    """A job, and the process that it is for."""

    __slots__ = ("began", "who", "work")

    def __init__(self, who: Hashable, work: Callable[[], None]) -> None:
        self.who = who
        self.work = work
        self.began = False


class FairPool:
    """See the module.

    Args:
        threads: How many there are at most.
        name: Of the threads.
        jobs_max: How many jobs may wait, of all processes.
    """

    def __init__(self, threads: int, name: str, jobs_max: int = 4096) -> None:
        self._name = name
        self._threads: list[threading.Thread] = []
        # Far cheaper than an executor, which makes a lock and a condition for each call.
        self._begun: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads_max = self._idle = threads
        self._jobs_max = jobs_max
        self._running: Counter[Hashable] = Counter()
        self._queues: dict[Hashable, deque[FairJob]] = {}  # the first one is served next
        self.waiting = 0

    def put(self, job: FairJob, *, goes_on: bool = False) -> bool:
        """Queue a job; False: too many wait, and it is not the next step of work that has begun."""
        if self.waiting >= self._jobs_max and not goes_on:
            return False
        self._queues.setdefault(job.who, deque()).append(job)
        self.waiting += 1
        self._start()
        return True

    def over(self, job: FairJob) -> None:
        """The thread of a job is idle again."""
        self._idle += 1
        self._running[job.who] -= 1
        if not self._running[job.who]:
            del self._running[job.who]
        self._start()

    def abandon(self, job: FairJob) -> bool:
        """Drop a job that nobody waits for; False: it has begun, and `over` will follow."""
        if job.began:
            return False
        self.waiting -= 1
        jobs = self._queues[job.who]
        jobs.remove(job)
        if not jobs:
            del self._queues[job.who]
        return True

    def close(self) -> None:
        """Begin no more jobs; those that run are not waited for."""
        self._queues.clear()
        for _ in self._threads:
            self._begun.put(None)

    def _start(self) -> None:
        """Begin the jobs that may begin, one of each process in turn."""
        while self._idle:
            who = next((w for w in self._queues if self._running[w] < self._idle), None)
            if who is None:
                return
            jobs = self._queues.pop(who)
            job = jobs.popleft()
            if jobs:
                self._queues[who] = jobs  # behind all others
            self.waiting -= 1
            self._idle -= 1
            self._running[who] += 1
            job.began = True
            if len(self._threads) < self._threads_max:
                self._start_thread()
            self._begun.put(job.work)
            del job.work  # it may hold the job: a circle would keep both until the collector comes

    def _start_thread(self) -> None:
        thread = Guarded(self._run, "work")
        thread.name = f"{self._name}_{len(self._threads)}"
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        while (work := self._begun.get()) is not None:
            work()
            del work  # what it holds is not ours while we wait
