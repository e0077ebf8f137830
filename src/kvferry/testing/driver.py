"""What the suite of connectors needs of a driver: opening it, and damaging what it stored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from kvferry.chunks.keys import describe_identity, identity_digest
from kvferry.connectors.base import Connector, Space

__all__ = ["DAMAGES", "PREFIX", "StoreDriver", "space_of", "value_of"]

PREFIX = "kv:"
DAMAGES = ("header", "payload", "truncated", "other key", "not ours")


class StoreDriver(ABC):
    """A way to open connectors on one store, which is empty at first.

    Attributes:
        persistent: Whether what is stored outlives the connectors.
        damages: What of DAMAGES `damage` can do.
        knows_more: Lengths, times to live, keys, identities, and what others stored.
    """

    persistent: ClassVar[bool] = True
    knows_more: ClassVar[bool] = True
    damages: ClassVar[tuple[str, ...]] = DAMAGES

    @abstractmethod
    def open(self, space: Space) -> Connector:
        """A connector on the store."""

    @abstractmethod
    def limited(self, space: Space, capacity_bytes: int) -> Connector | None:
        """A connector with a limit of its own; None: it has none."""

    def damage(self, key: str, other: str, kind: str) -> None:
        """Spoil the value of `key`; `other` is another one of the same space."""
        raise NotImplementedError


def space_of(size_bytes: int, *, prefix: str = PREFIX, **identity: str) -> Space:
    """A space whose identity is described by `identity`."""
    description = describe_identity(model="tiny", **identity)
    return Space(prefix, identity_digest(description), size_bytes, description)


def value_of(size_bytes: int, seed: int = 0) -> bytes:
    """Bytes that differ for each seed, at both ends as well."""
    block = bytes((seed * 37 + i * (2 * seed + 1)) % 256 for i in range(251))
    return (block * (size_bytes // len(block) + 1))[:size_bytes]
