"""What a caller of LMCache's native clients does: poll the descriptor, drain, look up its id.

caller = Caller(client)
ok, error, mask = caller.get(["key"], [target])
future_id = client.submit_batch_exists(keys); caller.wait(future_id, limit_s=3)
"""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import Any

from support import clock

Answer = tuple[bool, str, list[bool] | None]
LIMIT_S = 20.0
LOOK_MS = 100


class Caller:
    """Around one client, of ours or of LMCache; for one thread."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.done: dict[int, Answer] = {}
        self._poller = select.poll()
        self._poller.register(client.event_fd(), select.POLLIN)

    def wait(self, future_id: int, limit_s: float = LIMIT_S) -> Answer:
        """Its completion; an assertion fails if it does not come in time, or comes twice."""
        until = clock.now_s() + limit_s
        while future_id not in self.done:
            assert clock.now_s() < until, f"batch {future_id} did not complete in {limit_s} s"
            if self._poller.poll(LOOK_MS):
                self.drain()
        return self.done.pop(future_id)

    def drain(self) -> None:
        for future_id, ok, error, mask in self.client.drain_completions():
            assert future_id not in self.done, f"batch {future_id} completed twice"
            self.done[future_id] = ok, error, mask

    def get(self, keys: Sequence[Any], buffers: Sequence[Any]) -> Answer:
        return self.wait(self.client.submit_batch_get(keys, buffers))

    def set(self, keys: Sequence[Any], buffers: Sequence[Any]) -> Answer:
        return self.wait(self.client.submit_batch_set(keys, buffers))

    def exists(self, keys: Sequence[Any]) -> Answer:
        return self.wait(self.client.submit_batch_exists(keys))

    def delete(self, keys: Sequence[Any]) -> Answer:
        return self.wait(self.client.submit_batch_delete(keys))
