"""A Valkey server of our own: `program` finds it, `store` starts it, `supervision` ends it."""

from __future__ import annotations

from kvferry.embedded.store import EmbeddedStore, embedded_store

__all__ = ["EmbeddedStore", "embedded_store"]
