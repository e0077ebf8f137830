"""The memory driver: values in this process, shared by all connectors that name one store."""

from __future__ import annotations

import weakref

from kvferry import _native
from kvferry.connectors.base import Space
from kvferry.connectors.native import QUEUED_KEYS_MAX, NativeConnector

__all__ = ["MemoryConnector"]


class _Marks(dict[str, bytes]):
    """The marks of one store, by prefix: the generations that clears for everybody have drawn."""


_named: weakref.WeakValueDictionary[str, _Marks] = weakref.WeakValueDictionary()


class MemoryConnector(NativeConnector):
    """A store in memory; see `Connector`.

    Args:
        space: What it is opened with.
        name: Connectors of this process with the same name share a store, which ends with the last
            of them. Empty: a store of its own.
        capacity_bytes: Payload and 64 bytes for each value; None: no limit.
        queued_keys_max: Beyond it submissions raise CapacityError.

    Raises:
        UsageError: A store of that name is open with another capacity.
    """

    def __init__(
        self,
        space: Space,
        *,
        name: str = "",
        capacity_bytes: int | None = None,
        queued_keys_max: int = QUEUED_KEYS_MAX,
    ) -> None:
        self.name = name
        self._options = (name, capacity_bytes or 0, queued_keys_max)
        self._marks = _named.setdefault(name, _Marks()) if name else _Marks()
        super().__init__(space)

    def _where(self) -> str:
        return f"memory {self.name!r}"

    def _open(self, space: Space) -> _native.Connector:
        return _native.open_memory_connector(
            space.prefix.encode(),
            space.identity,
            space.value_size_bytes,
            space.description,
            *self._options,
        )

    def read_mark(self, timeout_s: float) -> bytes | None:
        """The mark of this space; see `kvferry.cache.store.generations`."""
        return self._marks.get(self.space.prefix)

    def write_mark(self, value: bytes, timeout_s: float, *, absent: bool) -> None:
        """Keep it; `absent`: only where there is none."""
        if absent:
            self._marks.setdefault(self.space.prefix, value)
        else:
            self._marks[self.space.prefix] = value
