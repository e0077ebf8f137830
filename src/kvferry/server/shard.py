"""One identity on the server: an engine whose memory others can map."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvferry.engine import Engine
from kvferry.engine.prompt import Prompt
from kvferry.errors import UsageError
from kvferry.identity import Identity
from kvferry.keys import DIGEST_BYTES
from kvferry.kv_layout import KVLayout
from kvferry.server.config import ServerConfig
from kvferry.server.pools import Pools, SharedMemory
from kvferry.server.protocol import HASHES_MAX

__all__ = ["Shard", "identity_of"]


def identity_of(fields: Mapping[str, Any], digest: bytes) -> Identity:
    """The identity that a client described.

    Raises:
        UsageError: It cannot be, or its digest is another one.
    """
    values = dict(fields)
    layout = values.pop("layout", None)
    if not isinstance(layout, dict):
        raise UsageError("an identity needs a layout: a mapping of the fields of KVLayout")
    try:
        identity = Identity(**values, layout=KVLayout(**layout))
    except (TypeError, AttributeError) as error:
        raise UsageError(
            f"the identity has a field that this version does not know: {error}"
        ) from None
    if identity.digest != digest:
        raise UsageError(
            f"the digest is {digest.hex()}, that of the fields is {identity.digest.hex()}; client "
            "and server do not agree on how identities are written: use the same version"
        )
    return identity


class Shard:
    """The chunks of one identity.

    Attributes:
        identity: Whose.
        memory: Where they lie.
        engine: Moves them between memory and stores.
    """

    def __init__(self, identity: Identity, config: ServerConfig, pools: Pools) -> None:
        self.identity = identity
        self.memory: SharedMemory = pools.memory(identity.layout.chunk_bytes)
        try:
            self.engine = Engine(identity, config.engine, memory=self.memory)
        except BaseException:
            self.memory.pool.members.remove(self.memory)
            raise
        self.engine.metrics.labels = {
            "model": identity.model,
            "identity": identity.digest.hex()[:12],
        }

    def prompt(self, hashes: bytes, tokens: int = 0) -> Prompt:
        """A prompt as it came in a message.

        Raises:
            UsageError: The hashes are cut, or too many.
        """
        count, rest = divmod(len(hashes), DIGEST_BYTES)
        if rest or count > HASHES_MAX:
            raise UsageError(
                f"hashes of {len(hashes)} bytes: 16 bytes for each of up to {HASHES_MAX} chunks"
            )
        size = self.identity.layout.chunk_size
        return Prompt(hashes, max(tokens, count * size), size)

    def status(self) -> dict[str, Any]:
        """For people and programs."""
        stats = self.engine.stats()
        return {
            "identity": self.identity.digest.hex(),
            "model": self.identity.model,
            "description": self.identity.description,
            "chunk_bytes": self.identity.layout.chunk_bytes,
            "chunk_size": self.identity.layout.chunk_size,
            "used_bytes": self.memory.used_bytes,
            "engines": self.memory.engines,
            "memory": stats["memory"],
            "stores": stats["stores"],
            "metrics": stats["metrics"],
            "prefill": stats["prefill"],
        }
