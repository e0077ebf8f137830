"""What goes wrong with a server: context managers, wrong inside and right again afterwards.

    with server_troubles(choose, lanes)["kill"](rng): ...

A trouble chooses what it leaves open with the random generator that it is given.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress

from chaos.lanes import Lane
from support.resp import ReplyError
from support.servers import TestServer

__all__ = ["NAME_PREFIX", "Trouble", "Troubles", "forgetting", "our_clients", "server_troubles"]

Trouble = Callable[[random.Random], AbstractContextManager[None]]
Troubles = Mapping[str, Trouble]

NAME_PREFIX = "chaos"  # of the clients' names, so that they can be told from the tests' own

PAUSE_MS = 3000  # longer than a blow is held; ALL holds up UNPAUSE as well, so it ends by itself


@contextmanager
def forgetting(lanes: Sequence[Lane]) -> Iterator[None]:
    """The servers may lose values meanwhile."""
    with ExitStack() as stack:
        for lane in lanes:
            stack.enter_context(lane.history.forgetting(time.monotonic))
        yield


def our_clients(server: TestServer) -> list[int]:
    """The ids of the clients' connections."""
    lines = server.cli("CLIENT", "LIST").decode().splitlines()
    fields = [dict(word.partition("=")[::2] for word in line.split()) for line in lines]
    return [int(one["id"]) for one in fields if one.get("name", "").startswith(NAME_PREFIX)]


def server_troubles(
    choose: Callable[[random.Random], TestServer], lanes: Sequence[Lane]
) -> Troubles:
    """Those of one server, which has no replica; `choose` says which one."""

    @contextmanager
    def kill(rng: random.Random) -> Iterator[None]:
        server = choose(rng)
        with forgetting(lanes):
            server.kill()
            try:
                yield
            finally:
                server.restart()

    @contextmanager
    def stop(rng: random.Random) -> Iterator[None]:
        server = choose(rng)
        server.pause()
        try:
            yield
        finally:
            server.resume()

    @contextmanager
    def client_kill(rng: random.Random) -> Iterator[None]:
        server = choose(rng)
        for number in our_clients(server):
            if rng.random() < 0.5:
                with suppress(ReplyError):  # gone already
                    server.cli("CLIENT", "KILL", "ID", number)
        yield

    @contextmanager
    def client_pause(rng: random.Random) -> Iterator[None]:
        server = choose(rng)
        server.cli("CLIENT", "PAUSE", PAUSE_MS, rng.choice(["ALL", "WRITE"]))
        try:
            yield
        finally:
            server.cli("CLIENT", "UNPAUSE")

    @contextmanager
    def maxmemory(rng: random.Random) -> Iterator[None]:
        server = choose(rng)
        policy = rng.choice(["allkeys-lru", "allkeys-random", "noeviction"])
        used = int(server.info("memory")["used_memory"])
        with forgetting(lanes):
            server.cli("CONFIG", "SET", "maxmemory-policy", policy)
            server.cli("CONFIG", "SET", "maxmemory", int(used * rng.uniform(0.5, 1.0)))
            try:
                yield
            finally:
                server.cli("CONFIG", "SET", "maxmemory", 0)

    @contextmanager
    def password(rng: random.Random) -> Iterator[None]:
        server = choose(rng)
        server.cli("CONFIG", "SET", "requirepass", f"other-{rng.randrange(10**9)}")
        with client_kill(rng):
            try:
                yield
            finally:
                server.cli("CONFIG", "SET", "requirepass", server.password or "")

    @contextmanager
    def flushall(rng: random.Random) -> Iterator[None]:
        with forgetting(lanes):
            server = choose(rng)
            with suppress(ReplyError):  # one that lacks its replicas takes no writes
                server.cli("FLUSHALL", rng.choice(["SYNC", "ASYNC"]))
            yield

    made = (kill, stop, client_kill, client_pause, maxmemory, password, flushall)
    return {trouble.__name__: trouble for trouble in made}
