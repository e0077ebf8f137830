"""A peer that lies: it claims to have every chunk, and hands out others, damaged ones, or nonsense.

What it hands out are sound values of a node, kept from before; only not those that were asked for.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from kvferry.sharing.membership import HeldIdentity
from kvferry.sharing.peers.lending import USER
from support.holdings import FakeCache, reporting
from support.resp import bulk, encode, read_reply
from support.scripted import Action, Command, MiniStore, ScriptedServer, Silence

__all__ = ["liar", "values_of"]


def values_of(
    host: str, port: int, word: str, prefix: str, names: Sequence[str]
) -> dict[bytes, bytes]:
    """What a node lends under these names, by its keys."""
    found = {}
    with socket.create_connection((host, port), 10) as talk, talk.makefile("rb") as stream:
        talk.sendall(encode("AUTH", USER, word))
        assert read_reply(stream) == b"OK"
        for name in names:
            talk.sendall(encode("GET", prefix + name))
            value = read_reply(stream)
            if isinstance(value, bytes):
                found[(prefix + name).encode()] = value
    return found


@contextmanager
def liar(
    ports: dict[str, int],
    word: str,
    identity: HeldIdentity,
    hashes: bytes,
    values: Mapping[bytes, bytes],
    seed: int,
) -> Iterator[None]:
    """A member of the cluster behind these ports of a controller, until the block ends."""
    rng = random.Random(f"liar {seed}")
    every = list(values.values())

    def answer(command: Command) -> Action | None:
        if command.name in (b"EXISTS", b"STRLEN"):
            return b":1\r\n" if command.name == b"EXISTS" else b":%d\r\n" % len(every[0])
        if command.name != b"GET":
            return None
        true = values.get(command[1], every[0])
        match rng.choices(range(6), (40, 20, 10, 10, 10, 1))[0]:
            case 0:
                return bulk(rng.choice(every))
            case 1:
                at = rng.randrange(len(true))
                return bulk(true[:at] + bytes([true[at] ^ 1 << rng.randrange(8)]) + true[at + 1 :])
            case 2:
                return bulk(true[: rng.randrange(len(true))])
            case 3:
                return bulk(rng.randbytes(len(true)))
            case 4:
                return rng.choice((b"-ERR no\r\n", b"$-1\r\n", b":7\r\n", b"+OK\r\n"))
            case _:
                return Silence()

    cache = FakeCache(identity)
    cache.add(hashes, identity.digest)
    with (
        ScriptedServer(answer, MiniStore()) as server,
        reporting(cache, ports, "liar", secret=word, address=f"127.0.0.1:{server.port}"),
    ):
        yield
