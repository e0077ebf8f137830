"""Thousands of mixed requests from clients that come and go: the server is as before after them.

What is held against its state after a warm-up, each time without a client:

- descriptors and segments: no more than before, they are counted one by one;
- threads: no more than before and the four that as many clients can have at work at once, for the
  pool of threads grows when requests happen to come together;
- resident memory: 2 MiB, which is what 10,000 requests leak at 200 bytes each; a healthy server was
  seen to grow by 0.3 MiB, for heaps are cut up differently every time;
- pages: each is free or holds a chunk.
"""

from __future__ import annotations

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kvferry.server import Client
from kvferry.server import protocol as p
from support.cache_server import CacheServerProcess
from support.engines import CHUNK, IDENTITY, blanks, expected, prompt
from support.raw_peer import Peer, hashes_of, prompt_of
from support.stamps import until

THREADS = 4
RSS_KIB = 2048
PROMPTS = 60


class State(NamedTuple):
    """What a server has when nobody is there."""

    rss_kib: int
    descriptors: int
    threads: int
    segments: int


class Soak:
    """One thread's client: a session that is replaced now and then.

    Attributes:
        requests: How many it has sent.
        done: How often it did each thing.
    """

    def __init__(self, endpoint: str, seed: int) -> None:
        self.endpoint = endpoint
        self.rng = random.Random(seed)
        self.requests = 0
        self.done: dict[str, int] = {}
        self.peer: Peer

    def run(self, count: int) -> None:
        """At least so many requests."""
        steps = (
            *[self.look] * 6,
            *[self.store] * 6,
            *[self.read] * 6,
            *[self.pin] * 2,
            *[self.wrong] * 4,
            *[self.leave, self.engine],
        )
        enough = self.requests + count
        self.peer = Peer(self.endpoint).attach()
        while self.requests < enough:
            step = self.rng.choice(steps)
            self.done[step.__name__] = self.done.get(step.__name__, 0) + 1
            step(prompt(self.rng.randint(1, 8) * CHUNK, self.rng.randrange(PROMPTS)))
        self.peer.close()

    def say(self, kind: type, *fields: Any, **named: Any) -> Any:
        self.requests += 1
        return self.peer.say(kind, *fields, **named)

    def look(self, tokens: list[int]) -> None:
        found = self.say(p.LookupRequest, prompt_of(tokens), touch=self.rng.random() < 0.5)
        assert 0 <= found.tiers["l1"] <= len(tokens) // CHUNK
        self.say(self.rng.choice((p.Ping, p.Stats)))
        self.say(p.Explain, prompt_of(tokens))

    def store(self, tokens: list[int]) -> None:
        reserved = self.say(p.Reserve, prompt_of(tokens))
        assert isinstance(reserved, p.ReservedPages), reserved
        if not reserved.reservation:
            return
        how = self.rng.random()
        if how < 0.2:
            assert isinstance(self.say(p.Abort, reserved.reservation), p.Done)
        elif how < 0.95:
            self.peer.write(reserved, tokens)
            ok = bytes(self.rng.random() < 0.9 for _ in reserved.pages) if how < 0.4 else b""
            assert isinstance(self.say(p.Commit, reserved.reservation, ok), p.Committed)
        else:
            self.leave(tokens)  # with pages in its hands

    def read(self, tokens: list[int]) -> None:
        if self.rng.random() < 0.1:
            self.say(p.Retrieve, prompt_of(tokens))
            self.leave(tokens)  # with a lease
        else:
            self.requests += 2
            self.peer.read(tokens)  # it checks every byte

    def pin(self, tokens: list[int]) -> None:
        pinned = self.say(p.Pin, prompt_of(tokens)).count
        assert self.say(p.Unpin, hashes_of(tokens)).count == pinned

    def wrong(self, tokens: list[int]) -> None:
        session, number = self.peer.session, self.rng.randrange(1 << 40)
        assert self.say(p.Commit, number).chunks == 0
        assert self.say(p.Release, [number]).count == 0
        assert self.say(p.Reserve, b"odd").code == "message"
        self.peer.session = number
        assert self.say(p.LookupRequest, prompt_of(tokens)).code == "session"
        self.peer.session = session
        self.requests += 1
        assert self.peer.raw(self.rng.randbytes(40)).code == "message"

    def leave(self, _: list[int]) -> None:
        if self.rng.random() < 0.3:
            self.say(p.Unregister)
        self.peer.close()
        self.peer = Peer(self.endpoint).attach()
        self.requests += 2

    def engine(self, tokens: list[int]) -> None:
        """A client as engines have it, for one prompt."""
        with Client(IDENTITY, self.endpoint) as client:
            client.store(tokens, expected(tokens))
            buffers = blanks(len(tokens) // CHUNK)
            got = client.retrieve(tokens, buffers)
            right = expected(tokens)
            for index in range(got.tokens // CHUNK):
                assert bytes(buffers[index]) == right[index].tobytes()
        self.requests += 6


def descriptors(server: CacheServerProcess) -> int:
    """How many it has open."""
    return len(os.listdir(f"/proc/{server.pid}/fd"))


def rest(server: CacheServerProcess) -> State:
    """The server when all clients have left, after a look at its pages."""

    def alone() -> bool:
        found = server.status()
        quiet: bool = not (
            found["sessions"]
            or found["fenced_pages"]
            or found["protocol"]["connections"]
            or found["protocol"]["waiting"]
        )
        return quiet

    until(alone, 20, 0.05)
    found = server.status()
    [identity], [segment] = found["identities"], found["pool"]["segments"]
    memory = identity["memory"]
    assert (memory["leased"], memory["pinned"], memory["writing"]) == (0, 0, 0)
    assert segment["free"] + memory["ready"] == segment["pages"]
    counts = []
    for _ in range(5):  # our own question's connection may be open still
        counts.append(descriptors(server))
        time.sleep(0.05)
    lines = Path(f"/proc/{server.pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return State(
        rss_kib=int(fields["VmRSS"].split()[0]),
        descriptors=min(counts),
        threads=int(fields["Threads"]),
        segments=len(server.segments()),
    )


@pytest.mark.parametrize(
    "requests", [1000, pytest.param(10_000, marks=[pytest.mark.soak, pytest.mark.timeout(900)])]
)
def test_a_server_is_flat(requests: int, tmp_path: Path) -> None:
    with CacheServerProcess(tmp_path, mib=1) as server:
        soaks = [Soak(server.endpoint, seed) for seed in range(THREADS)]
        states: list[State] = []
        for number in (max(500, requests // 10), *[requests // 5] * 5):
            with ThreadPoolExecutor(THREADS) as pool:
                for done in [pool.submit(soak.run, number // THREADS) for soak in soaks]:
                    done.result()
            states.append(rest(server))
        print(f"{sum(soak.requests for soak in soaks)} requests:", *states, sep="\n")
        assert sum(soak.requests for soak in soaks) >= requests
        assert all(len(soak.done) == 7 for soak in soaks)
        warm, last = states[0], states[-1]
        # Those of our own questions may take a while to be closed.
        until(lambda: descriptors(server) <= warm.descriptors, 10)
        assert last.segments == warm.segments == 1, states
        assert last.threads <= warm.threads + THREADS, states
        assert last.rss_kib - warm.rss_kib < RSS_KIB, states
        assert "Traceback" not in server.log
    assert not server.segments()
