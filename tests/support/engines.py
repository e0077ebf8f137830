"""Small engines for tests, and chunks whose bytes follow from the tokens before them.

Any chunk that an engine hands out can be checked without having kept it: `expected` computes what
must be in it from the prompt alone, so a chunk of another prompt, position or identity is found.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvferry import CacheConfig, Identity, KVLayout, StoreConfig, TieredCache
from kvferry.cache.store.store_tiers import space_of
from kvferry.chunks.keys import chunk_hashes
from kvferry.connectors.base import Connector, Space
from kvferry.connectors.memory import MemoryConnector

CHUNK = 16  # tokens
LAYOUT = KVLayout(layers=2, kv_heads=2, head_dim=8, dtype="float32", chunk_size=CHUNK)
IDENTITY = Identity(model="test", layout=LAYOUT)
MIB = 1 << 20
Chunk = npt.NDArray[np.uint8]


def prompt(tokens: int, seed: int = 0, shared: int = 0) -> list[int]:
    """Tokens of a prompt; the first `shared` are those of every other seed."""
    common = random.Random("shared").choices(range(50_000), k=shared)
    return common + random.Random(seed).choices(range(50_000), k=tokens - shared)


def expected(
    tokens: Sequence[int], identity: Identity = IDENTITY, salt: bytes = b""
) -> list[Chunk]:
    """The bytes of every full chunk of a prompt."""
    layout = identity.layout
    made = []
    for digest in chunk_hashes(tokens, layout.chunk_size, salt):
        seed = hashlib.sha256(identity.digest + digest).digest()
        stream = np.random.default_rng(list(seed)).bytes(layout.chunk_bytes)
        made.append(np.frombuffer(stream, np.uint8))
    return made


def blanks(count: int, layout: KVLayout = LAYOUT) -> list[Chunk]:
    """Buffers to retrieve into, filled with what no chunk is."""
    return [np.full(layout.chunk_bytes, 0xEE, np.uint8) for _ in range(count)]


def pages_gb(count: int, layout: KVLayout = LAYOUT) -> float:
    """The `max_local_cpu_size` that holds so many chunks."""
    unit = 4096 if layout.chunk_bytes >= 4096 else 64
    return count * (-(-layout.chunk_bytes // unit) * unit) / (1 << 30)


def open_engine(
    *connectors: Connector, identity: Identity = IDENTITY, **settings: Any
) -> TieredCache:
    """An engine with a small memory that reads neither file nor environment."""
    stores = settings.pop("stores", ())
    salt = settings.pop("salt", b"")
    settings = {
        "chunk_size": identity.layout.chunk_size,
        "max_local_cpu_size": pages_gb(256, identity.layout),
        **settings,
    }
    config = CacheConfig(stores=tuple(StoreConfig.of(**store) for store in stores), **settings)
    named = {f"store{index}": one for index, one in enumerate(connectors)}
    return TieredCache(identity, config, salt=salt, connectors=named)


def memory_store(name: str, identity: Identity = IDENTITY, **options: Any) -> MemoryConnector:
    """A store in this process; those of one name share what they hold."""
    return MemoryConnector(space_of(identity), name=name, **options)


def space(identity: Identity = IDENTITY) -> Space:
    """Where an engine of this identity keeps its chunks."""
    return space_of(identity)


def check(
    engine: TieredCache, tokens: Sequence[int], want: int | None = None, **options: Any
) -> int:
    """Retrieve a prompt both ways and compare every byte; how many tokens there were.

    Fails if there are not `want` tokens, where that is given.
    """
    chunks = expected(tokens, engine.identity, engine._salt)
    with engine.retrieve(tokens, **options) as hit:
        count = hit.tokens // engine.layout.chunk_size
        assert len(hit.pages) == count
        for index in range(count):
            assert bytes(hit.pages[index]) == chunks[index].tobytes(), f"chunk {index} is another"
        assert want is None or hit.tokens == want, hit
    buffers = blanks(len(chunks), engine.layout)
    into = engine.retrieve(tokens, buffers, **options)
    for index in range(into.tokens // engine.layout.chunk_size):
        assert np.array_equal(buffers[index], chunks[index]), f"chunk {index} is another"
    assert want is None or into.tokens == want, into
    return hit.tokens
