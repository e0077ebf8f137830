"""One instance of a chaos run of peers, a process: an engine that shares, threads that use it.

It is told what to do by lines on stdin, and answers each with a line of JSON:

    run     the threads make calls from now on; every byte that they are handed is compared
    rest    they make none, and nobody holds a page any more
    store   it holds a prompt of its own
    read    it has the prompt of another one from there
    end     the engine is closed, and nothing of it is left

The answer names the faults found so far, of the kinds

    wrong           bytes of another chunk, or damaged ones
    late, hang      see watch.py: a call that took longer than it may
    away            another instance was not read again in time
    crash           a call raised an exception
    pages           somebody holds pages, although nobody reads
    left            more descriptors, threads or shared segments than before the engine
"""

from __future__ import annotations

import gc
import json
import logging
import random
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from chaos.journal import Journal
from chaos.watch import Usage, Watch, return_large_blocks
from kvferry import Identity, KVLayout, TieredCache
from kvferry.cache.store.process_breaks import watch_breaks
from support.engines import CHUNK, check, expected, open_engine, pages_gb, prompt

__all__ = ["IDENTITY", "LENGTH", "PROMPTS", "SHARED", "main"]

LAYOUT = KVLayout(layers=16, kv_heads=2, head_dim=8, dtype="float32", chunk_size=CHUNK)  # 32 KiB
IDENTITY = Identity(model="chaos", layout=LAYOUT)
PROMPTS, LENGTH, SHARED = 16, 24 * CHUNK, 8 * CHUNK
PAGES = 200  # less than all prompts need, so that there is eviction
THREADS = 3
RETRIEVE_S = 1.0
LATE_S = 1.5  # past the deadline; what the machine kept us waiting is taken off
HUNG_S = 15.0
REST_S = 10.0  # until what was being read is let go
READ_S = 60.0  # until a peer is found again, after all that has happened
LEAVE_S = 10.0
SETTINGS: dict[str, Any] = {
    "max_local_cpu_size": pages_gb(PAGES, LAYOUT),
    "retrieve_timeout_s": RETRIEVE_S,
    "lookup_backoff_time": 0.01,
}


def _segments() -> int:
    """Files of shared memory that this process has mapped."""
    return Path("/proc/self/maps").read_text().count("/dev/shm/")


class _Instance:
    def __init__(self, number: int, seed: int, sharing: dict[str, Any]) -> None:
        self.number, self.seed = number, seed
        self.journal = Journal()
        self.watch = Watch(self.journal, LATE_S, HUNG_S)
        watch_breaks()  # the thread that a process has for good
        self.before = Usage(), _segments()
        self.engine: TieredCache = open_engine(identity=IDENTITY, **SETTINGS, **sharing)
        self.done: Counter[str] = Counter()
        self.running = threading.Event()
        self.ended = threading.Event()
        self.busy = THREADS
        self.turns = threading.Condition()
        self.threads = [
            threading.Thread(target=self._work, args=(n,), daemon=True) for n in range(THREADS)
        ]
        for thread in self.threads:
            thread.start()

    # The threads.

    def _work(self, number: int) -> None:
        rng = random.Random(f"{self.seed} {self.number} {number}")
        while not self.ended.is_set():
            if not self.running.is_set():
                self._busy(-1)
                while not self.running.wait(0.1) and not self.ended.is_set():
                    pass
                self._busy(1)
                continue
            self._call(rng)
        self._busy(-1)

    def _busy(self, change: int) -> None:
        with self.turns:
            self.busy += change
            self.turns.notify_all()

    def _call(self, rng: random.Random) -> None:
        tokens = prompt(LENGTH, rng.randrange(PROMPTS), SHARED)[: rng.randint(1, 24) * CHUNK]
        what = rng.choices(("read", "store", "look", "forget"), (60, 20, 12, 8))[0]
        self.watch.begins(what, 2 * RETRIEVE_S)  # check() retrieves twice
        try:
            if what == "read":
                self.done["chunks"] += check(self.engine, tokens) // CHUNK
            elif what == "store":
                self.engine.store(tokens, expected(tokens, IDENTITY))
            elif what == "look":
                self.engine.contains(tokens)
            else:
                self.engine.clear(stores=False)
            self.done[what] += 1
        except AssertionError as error:
            self.journal.fault("wrong", f"{what}: {error}")
        except Exception:
            self.journal.fault("crash", f"{what}: {traceback.format_exc()}")
        finally:
            self.watch.ends()

    # What the run asks for.

    def run(self) -> None:
        self.running.set()

    def rest(self) -> None:
        self.running.clear()
        with self.turns:
            if not self.turns.wait_for(lambda: self.busy == 0, HUNG_S + REST_S):
                self.journal.fault("hang", f"{self.busy} calls do not end")
        if not _comes(lambda: self.engine.memory.cache.stats()["leases"] == 0, REST_S):
            self.journal.fault("pages", f"{self.engine.memory.cache.stats()}")

    def store(self) -> None:
        tokens = _own(self.number)
        self.engine.store(tokens, expected(tokens, IDENTITY))

    def read(self, whose: int) -> None:
        tokens = _own(whose)

        def all_of_it() -> bool:
            return check(self.engine, tokens) == LENGTH

        if not _comes(all_of_it, READ_S):
            self.journal.fault("away", f"the prompt of {whose} is not read again")

    def end(self) -> None:
        self.ended.set()
        for thread in self.threads:
            thread.join(HUNG_S)
        peers = self.engine.stats()["metrics"]["kvferry_tokens_hit_total"]
        for tier, tokens in peers.items():
            if tier.startswith("peer "):
                self.done["from peers"] += int(tokens) // CHUNK
        self.watch.begins("close", 2 * RETRIEVE_S)
        self.engine.close()
        self.watch.ends()
        usage, segments = self.before

        def gone() -> bool:
            now = Usage()
            return now.fds <= usage.fds and now.threads <= usage.threads and _segments() <= segments

        self.threads.clear()
        del self.engine  # with what closed clients keep until they are collected
        gc.collect()
        if not _comes(gone, LEAVE_S):
            names = sorted(thread.name for thread in threading.enumerate())
            self.journal.fault(
                "left", f"before {usage!r}, {segments}; after {Usage()!r}, {_segments()}; {names}"
            )

    def obey(self, words: list[str]) -> str:
        if words:
            getattr(self, words[0])(*map(int, words[1:]))
        return json.dumps(
            {
                "faults": self.journal.faults,
                "done": self.done,
                "overdue_s": self.watch.overdue_s_max,
            }
        )


def _own(number: int) -> list[int]:
    return prompt(LENGTH, 1000 + number)


def _comes(so: Callable[[], bool], within_s: float) -> bool:
    end = time.monotonic() + within_s
    while not so():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def main() -> None:
    """Obey until stdin ends."""
    return_large_blocks()
    logging.getLogger("kvferry").addHandler(logging.NullHandler())  # there is much to be told
    number, seed, sharing = json.loads(sys.argv[1])
    instance = _Instance(number, seed, sharing)
    with suppress(BrokenPipeError):  # the run has ended
        print(instance.obey([]), flush=True)
        for line in sys.stdin:
            print(instance.obey(line.split()), flush=True)


if __name__ == "__main__":
    main()
