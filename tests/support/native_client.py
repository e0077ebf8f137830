"""A client of the contract that LMCache calls native, as somebody else would write one.

    {"type": "native_plugin", "module_path": "support.native_client", "class_name": "DictClient",
     "adapter_params": {"name": "x"}}

Clients of one name share a dictionary, `stores[name]`. What it does wrong can be told it:
`trouble[name] = "silent" | "raises" | "lies" | "short"`.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

__all__ = ["DictClient", "NoDelete", "Unfinished", "open_clients", "stores", "trouble"]

stores: dict[str, dict[str, bytes]] = {}
trouble: dict[str, str] = {}
open_clients: list[DictClient] = []
Completion = tuple[int, bool, str, list[bool] | None]


class DictClient:
    """Values in a dictionary, moved by a thread."""

    def __init__(self, name: str = "default", password: str = "") -> None:
        if password == "wrong":
            raise ConnectionError(f"the password {password!r} is refused")
        self.name = name
        self._stored = stores.setdefault(name, {})
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._work: queue.Queue[Callable[[], Completion] | None] = queue.Queue()
        self._done: queue.Queue[Completion] = queue.Queue()
        self._last_id = 0
        self._held: list[Callable[[], Completion]] = []
        self._thread = threading.Thread(target=self._run, name="dict-client")
        self._thread.start()
        open_clients.append(self)

    def event_fd(self) -> int:
        return self._fd

    def submit_batch_get(self, keys: list[str], views: list[memoryview]) -> int:
        def get(key: str, view: memoryview) -> bool:
            value = self._stored.get(key)
            if value is None or len(value) != len(view):
                return False
            if trouble.get(self.name) != "lies":
                view[:] = value
            return True

        return self._submit(lambda: [get(*pair) for pair in zip(keys, views, strict=True)])

    def submit_batch_set(self, keys: list[str], views: list[memoryview]) -> int:
        def put() -> None:
            for key, view in zip(keys, views, strict=True):
                self._stored[key] = bytes(view)

        return self._submit(put)

    def submit_batch_exists(self, keys: list[str]) -> int:
        return self._submit(lambda: [key in self._stored for key in keys])

    def submit_batch_delete(self, keys: list[str]) -> int:
        return self._submit(lambda: [self._stored.pop(key, None) is not None for key in keys])

    def drain_completions(self) -> list[Completion]:
        with suppress(BlockingIOError):
            os.eventfd_read(self._fd)
        drained = []
        with suppress(queue.Empty):
            while True:
                drained.append(self._done.get_nowait())
        return drained

    def release(self) -> None:
        """Do what was held back by "silent"."""
        held, self._held = self._held, []
        for work in held:
            self._work.put(work)

    def close(self) -> None:
        if self in open_clients:
            open_clients.remove(self)
            self._work.put(None)
            self._thread.join()
            os.close(self._fd)

    def _submit(self, do: Callable[[], Sequence[bool] | None]) -> int:
        if trouble.get(self.name) == "raises":
            raise RuntimeError("the client is out of order")
        self._last_id += 1
        own = self._last_id

        def work() -> Completion:
            if trouble.get(self.name) == "short":
                return own, True, "", []
            flags = do()
            return own, True, "", None if flags is None else list(flags)

        if trouble.get(self.name) == "silent":
            self._held.append(work)
        else:
            self._work.put(work)
        return own

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            self._done.put(work())
            os.eventfd_write(self._fd, 1)


class Unfinished:
    """It lacks most of the contract."""

    def event_fd(self) -> int:
        return -1

    def close(self) -> None:
        pass


class NoDelete(DictClient):
    """It cannot delete, which the contract allows."""

    submit_batch_delete = None  # type: ignore[assignment]
