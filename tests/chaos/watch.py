"""The watchman of a run: calls that do not come back, and a process that grows.

`Watch` knows what every thread is at, and until when. It looks every TICK_S; by how much it wakes
up late is time in which the machine, or the GIL, gave us nothing, and every call gets it back. So
it does what servers and our other threads waited for a processor (clock.py), up to KEPT_S_MAX.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import statistics
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from chaos.journal import Journal
from support import clock
from support.proxy import FaultProxy

__all__ = ["Usage", "Watch", "growth_bytes", "return_large_blocks"]

TICK_S = 0.05
LATE_S = 1.0  # past its deadline, on a machine that has other things to do
HUNG_S = 15.0
KEPT_S_MAX = 3.0  # or nothing would be late on a machine that is full all the time
STANDS_KEPT_S = 120.0
FD_COUNTS = 9


class Watch:
    """See the module. Close it, or leave the ``with``."""

    def __init__(self, journal: Journal, late_s: float = LATE_S, hung_s: float = HUNG_S) -> None:
        self.overdue_s_max = 0.0  # of all calls that came back, the machine's share taken off
        self._journal = journal
        self._late_s, self._hung_s = late_s, hung_s
        self._busy: dict[int, tuple[str, float, float]] = {}  # thread: what, start, allowed
        # When, how long, and how long somebody was kept waiting for a processor meanwhile.
        self._stands: deque[tuple[float, float, float]] = deque()
        self._looked = time.monotonic(), clock.now_s()
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos-watch", daemon=True)
        self._thread.start()

    def begins(self, what: str, allowed_s: float) -> None:
        """The calling thread begins something that may take so long."""
        with self._lock:
            self._busy[threading.get_ident()] = what, time.monotonic(), allowed_s

    def ends(self) -> None:
        """It is back."""
        now = time.monotonic()
        with self._lock:
            what, start, allowed_s = self._busy.pop(threading.get_ident())
            overdue_s = now - start - allowed_s - self.stood_s(start)
            self.overdue_s_max = max(self.overdue_s_max, overdue_s)
        if overdue_s > self._late_s:
            self._journal.fault("late", f"{what} came back {overdue_s:.2f} s past {allowed_s} s")

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        while not self._closing.wait(TICK_S):
            with self._lock:
                self._stands.append(self._stand())
                now = self._stands[-1][0]
                self._looked = now, clock.now_s()
                while self._stands and self._stands[0][0] < now - STANDS_KEPT_S:
                    self._stands.popleft()
                hung = [
                    what
                    for what, start, allowed_s in self._busy.values()
                    if now - start > allowed_s + self._hung_s + self.stood_s(start)
                ]
            if hung and "hang" not in self._journal.kinds():
                self._journal.fault("hang", f"does not come back: {'; '.join(hung)}\n{stacks()}")

    def stood_s(self, since: float) -> float:
        """How long the machine stood still since then."""
        with self._lock:  # with the look that has yet to come, which may be what stands still
            stands = [stand for stand in (*self._stands, self._stand()) if stand[0] >= since]
        kept_s = sum(kept_s for _, _, kept_s in stands)
        return max(sum(length for _, length, _ in stands), min(kept_s, KEPT_S_MAX))

    def _stand(self) -> tuple[float, float, float]:
        before, before_s = self._looked
        now, now_s = time.monotonic(), clock.now_s()
        kept_s = max(0.0, (now - before) - (now_s - before_s))
        return now, max(0.0, now - before - TICK_S), kept_s


def stacks() -> str:
    """Every thread: the Python ones by their frames, the rest by name and state."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        lines = [file.read()]
    for task in sorted(Path("/proc/self/task").iterdir()):
        try:
            words = (task / "stat").read_text().rpartition(")")
            lines.append(f"{words[0].partition('(')[2]}: {words[2].split()[0]}")
        except OSError:  # it has just ended
            continue
    return "\n".join(lines)


class _Mallinfo2(ctypes.Structure):
    """Source: mallinfo2(3)."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


def return_large_blocks() -> None:
    """From now on they go back to the system when they are freed, and leave no holes in RSS."""
    ctypes.CDLL(None).mallopt(-3, 128 << 10)  # M_MMAP_THRESHOLD, which otherwise rises by itself


class Usage:
    """Descriptors, threads and memory of this process, now.

    `heap_bytes` is what malloc() has given out, to C++ and, in large blocks, to Python: without the
    holes that RSS has. Connections through the proxies of `ways` are not ours alone: servers use
    them, too. They are not counted.
    """

    def __init__(self, ways: Sequence[FaultProxy] = ()) -> None:
        libc = ctypes.CDLL(None)
        libc.malloc_trim(0)  # what is only kept for later is no leak
        self.fds = statistics.median_low(_fds(ways) for _ in range(FD_COUNTS))  # they come and go
        self.threads = len(os.listdir("/proc/self/task"))
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.rss_bytes = pages * os.sysconf("SC_PAGE_SIZE")
        libc.mallinfo2.restype = _Mallinfo2
        heap = libc.mallinfo2()
        self.heap_bytes = int(heap.uordblks + heap.hblkhd)

    def __repr__(self) -> str:
        megabytes = f"{self.rss_bytes / 1e6:.0f} MB, heap {self.heap_bytes / 1e6:.1f} MB"
        return f"{self.fds} fds, {self.threads} threads, {megabytes}"


def _fds(ways: Sequence[FaultProxy]) -> int:
    time.sleep(0.01)
    through = sum(2 * len(way._links) for way in ways)  # also those that it spares
    return len(os.listdir("/proc/self/fd")) - through


def growth_bytes(samples: Sequence[int]) -> float:
    """From the second third of the run to the last one, by their medians; the first warms up."""
    third = len(samples) // 3
    if not third:
        return 0.0
    return statistics.median(samples[-third:]) - statistics.median(samples[third : 2 * third])
