"""`Node`, where programs import it from; see `kvferry.sharing.node`."""

from __future__ import annotations

from kvferry.sharing.node import Node, NodeSettings

__all__ = ["Node", "NodeSettings"]
