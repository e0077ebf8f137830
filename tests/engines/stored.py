"""What engines have put into a store, and what a test does to it behind their backs.

    before = frames(store)
    engine.generate([prompt], 8)
    mine = settle(engine, store, before, count=21)   # keys of this prompt's chunks
    DAMAGE["flipped"](store, mine, others)     # noticed: a frame says what is in it
    FORGERIES["zeroed"](store, mine, others)   # not noticed: true frames of wrong bytes

A forgery is the negative control: if it does not change what a model says, then no test here could
see wrong KV. `others` are keys of another prompt. (Exchanging chunks within one prompt changes
nothing that could be seen: a key carries its position, and attention is a sum.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from kvferry import RedisClient
from kvferry_lab.engines.engine_process import EngineProcess
from support.servers import TestServer

FRAME_BYTES = 64
IDENTITY = slice(32, 40)
SETTLE_S = 60.0
TICK = [5, 6, 7]  # a prompt shorter than any chunk


# In the server, for there are hundreds.
_FRAMES = """
local found = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  if redis.call('TYPE', key).ok == 'string' and redis.call('GETRANGE', key, 0, 3) == 'KVFY' then
    found[#found + 1] = key
  end
end
return found
"""


def frames(store: TestServer) -> set[bytes]:
    """The keys of all values that are chunks."""
    return set(store.cli("EVAL", _FRAMES, 0))


def settle(engine: EngineProcess, store: TestServer, before: set[bytes], count: int) -> set[bytes]:
    """Wait until at least so many chunks are new in the store; their keys.

    An engine works only while it has requests, so it gets small ones meanwhile.
    """
    deadline = time.monotonic() + SETTLE_S
    while len(new := frames(store) - before) < count:
        assert time.monotonic() < deadline, f"{len(new)} of {count} chunks in the store"
        engine.generate([TICK], 1)
        time.sleep(0.05)
    return new


def quiet(engine: EngineProcess, store: TestServer) -> set[bytes]:
    """Wait until nothing more arrives; the keys of all chunks then."""
    deadline = time.monotonic() + SETTLE_S
    seen: set[bytes] | None = None
    while (found := frames(store)) != seen:
        assert time.monotonic() < deadline, "chunks arrive without end"
        seen = found
        engine.generate([TICK], 1)
        time.sleep(0.3)
    return found


def _flip(store: TestServer, keys: Sequence[bytes], others: Sequence[bytes]) -> None:
    """One bit of each payload."""
    for key in keys:
        at = FRAME_BYTES + 1001
        byte = store.cli("GETRANGE", key, at, at)
        store.cli("SETRANGE", key, at, bytes([byte[0] ^ 4]))


def _truncate(store: TestServer, keys: Sequence[bytes], others: Sequence[bytes]) -> None:
    """Half of each value."""
    for key in keys:
        value = store.cli("GET", key)
        store.cli("SET", key, value[: len(value) // 2])


def _swap(store: TestServer, keys: Sequence[bytes], others: Sequence[bytes]) -> None:
    """The other prompt's values, frame and all."""
    for key, other in zip(keys, others, strict=False):
        store.cli("SET", key, store.cli("GET", other))


def _zero(store: TestServer, keys: Sequence[bytes], others: Sequence[bytes]) -> None:
    """Frames whose payload is gone."""
    for key in keys:
        value = store.cli("GET", key)
        store.cli("SET", key, value[:FRAME_BYTES] + bytes(len(value) - FRAME_BYTES))


def forge(store: TestServer, payloads: dict[bytes, bytes]) -> None:
    """Store payloads under keys that exist, in frames that are true in every respect."""
    with RedisClient(store.host, store.port) as client:
        for key, payload in payloads.items():
            identity = store.cli("GET", key)[IDENTITY]
            client.namespace("", identity, len(payload)).set(key, payload)


def _payloads(store: TestServer, keys: Sequence[bytes]) -> list[bytes]:
    return [store.cli("GET", key)[FRAME_BYTES:] for key in keys]


def _forge_zeros(store: TestServer, keys: Sequence[bytes], others: Sequence[bytes]) -> None:
    forge(store, {key: bytes(len(data)) for key, data in zip_of(store, keys)})


def _forge_swapped(store: TestServer, keys: Sequence[bytes], others: Sequence[bytes]) -> None:
    forge(store, dict(zip(keys, _payloads(store, others), strict=False)))


def _forge_truncated(store: TestServer, keys: Sequence[bytes], others: Sequence[bytes]) -> None:
    """The second half of each is what a short read leaves in a fresh buffer."""
    forge(
        store, {k: d[: len(d) // 2] + bytes(len(d) - len(d) // 2) for k, d in zip_of(store, keys)}
    )


def zip_of(store: TestServer, keys: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    """Keys with their payloads."""
    return list(zip(keys, _payloads(store, keys), strict=True))


Spoil = Callable[[TestServer, Sequence[bytes], Sequence[bytes]], None]
DAMAGE: dict[str, Spoil] = {
    "flipped": _flip,
    "truncated": _truncate,
    "swapped": _swap,
    "zeroed": _zero,
}
FORGERIES: dict[str, Spoil] = {
    "zeroed": _forge_zeros,
    "swapped": _forge_swapped,
    "truncated": _forge_truncated,
}
