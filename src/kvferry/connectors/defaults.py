"""What a connector does where its store keeps nothing beside the values, and knows no others."""

from __future__ import annotations

from collections.abc import Mapping

from kvferry.client.buffers import Key

__all__ = ["Defaults"]


class Defaults:
    """See `kvferry.connectors.base.Connector`; a driver that has more overrides these."""

    def undescribe(self) -> None:
        """Nothing."""

    def note(self, name: str, text: str) -> None:
        """Nothing."""

    def notes(self) -> Mapping[str, str]:
        """None."""
        return {}

    def has_under(self, identity: bytes, key: Key) -> bool:
        """Not known."""
        return False

    def lock_eviction(self, ttl_s: float) -> bool:
        """Nobody else evicts."""
        return True

    def unlock_eviction(self) -> None:
        """Nothing."""
