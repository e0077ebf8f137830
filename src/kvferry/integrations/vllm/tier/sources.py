"""Nodes that requests name, asked beside the store of a tier.

A router that knows who holds a prefix says so in a request (`kvferry.config.remote_sources`). That
node is then asked at the same moment as the store, under the same names, with the same limits;
what the store has not is loaded from there. A wrong address is an answer that does not come: the
prompt is computed, as behind a store that is away.

Each node has a `TierCore` of its own, over the same rows; what a job wants of several of them is
one job for each, and one result. There are `NODES_MAX` at a time; the one that was named longest
ago goes first, and none that is at work.

Threads: the scheduler's, like `TierCore`; nothing here waits but `drain` and `close`.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from kvferry.base.errors import KVFerryError
from kvferry.chunks.prompt import node_in
from kvferry.config.remote_sources import Address, AllowedHosts
from kvferry.integrations.vllm.tier.core import TierCore
from kvferry.integrations.vllm.tier.transfers import FinishedTransfer

__all__ = ["Sources"]

_log = logging.getLogger("kvferry.integrations")

NODES_MAX = 16
_REQUESTS_MAX = 4096
_PLACES_MAX = 1 << 16  # keys whose node is remembered, until they are loaded


class Sources:
    """See the module.

    Args:
        own: The store of the tier; closed with this.
        opened: Opens the core of a node.
        hosts: Those that may be named.
    """

    def __init__(
        self, own: TierCore, opened: Callable[[Address], TierCore], hosts: AllowedHosts
    ) -> None:
        self._own, self._opened, self._hosts = own, opened, hosts
        self._nodes: OrderedDict[Address, TierCore] = OrderedDict()  # named last is last
        self._requests: dict[str, Address | None] = {}
        self._places: OrderedDict[bytes, Address] = OrderedDict()
        self._parts: dict[int, list[FinishedTransfer | None]] = {}  # jobs of several cores
        self._cleared = False
        self.counts: Counter[str] = Counter()

    # --- A step ---

    def lookup(self, request: str, key: bytes, params: object) -> bool | None:
        """As `TierCore.lookup`; `params` are the request's ``kv_transfer_params``."""
        found = self._own.lookup(request, key)
        if found or not params:
            return found
        address = self._named(request, params)
        core = self._nodes.get(address) if address else None
        if address is None or core is None:
            return found
        there = core.lookup(request, key)
        if found is None:
            return None  # both are asked; the store comes first
        if there:
            self._places[key] = address
            if len(self._places) > _PLACES_MAX:
                self._places.popitem(last=False)  # a load that fails is computed
        return there

    def load(self, job: int, keys: Sequence[bytes], rows: Sequence[int]) -> None:
        """As `TierCore.load`, from wherever each chunk was found."""
        parts: dict[Address | None, tuple[list[bytes], list[int]]] = {}
        for key, row in zip(keys, rows, strict=True):
            place = self._places.pop(key, None)
            part = parts.setdefault(place if place in self._nodes else None, ([], []))
            part[0].append(key)
            part[1].append(row)
        if len(parts) > 1:
            self._parts[job] = [None] * len(parts)
        for place, (some, their_rows) in parts.items():
            core = self._own if place is None else self._nodes[place]
            core.load(job, some, their_rows)

    def finished(self) -> list[FinishedTransfer]:
        """As `TierCore.finished`."""
        over: list[FinishedTransfer] = []
        for core in (self._own, *self._nodes.values()):
            for job in core.finished():
                if core is not self._own:
                    self.counts["source_load_ok"] += len(job.done)
                whole = self._whole(job)
                if whole is not None:
                    over.append(whole)
        return over

    def _whole(self, job: FinishedTransfer) -> FinishedTransfer | None:
        """The job, when all of its parts are over."""
        parts = self._parts.get(job.job)
        if parts is None or not job.is_load:
            return job
        parts[parts.index(None)] = job
        done = [part for part in parts if part is not None]
        if len(done) < len(parts):
            return None
        del self._parts[job.job]
        return FinishedTransfer(
            job=job.job,
            is_load=True,
            success=all(part.success for part in done),
            done=[key for part in done for key in part.done],
            took_s=max(part.took_s for part in done),
            size_bytes=sum(part.size_bytes for part in done),
            keys=[key for part in done for key in part.keys],
        )

    def end_step(self) -> None:
        """As `TierCore.end_step`."""
        for core in (self._own, *self._nodes.values()):
            core.end_step()

    @property
    def busy(self) -> bool:
        """As `TierCore.busy`."""
        return self._own.busy or any(core.busy for core in self._nodes.values())

    def forget(self, request: str) -> None:
        """A request is over."""
        self._requests.pop(request, None)
        for core in (self._own, *self._nodes.values()):
            core.forget(request)

    # --- Life ---

    def drain(self) -> None:
        """As `TierCore.drain`."""
        for core in (self._own, *self._nodes.values()):
            core.drain()

    def clear(self) -> None:
        """As `TierCore.clear`; nodes that are named from now on are of no more use, either."""
        self._cleared = True
        self._places.clear()
        for core in (self._own, *self._nodes.values()):
            core.clear()

    def close(self) -> None:
        """As `TierCore.close`."""
        with ExitStack() as stack:  # all of them, also when one cannot be
            for core in (self._own, *self._nodes.values()):
                stack.callback(core.close)
            self._nodes.clear()

    # --- Inside ---

    def _named(self, request: str, params: object) -> Address | None:
        if request not in self._requests:
            if len(self._requests) >= _REQUESTS_MAX:
                self._requests.clear()
            node = node_in(params)
            allowed = node is not None and self._hosts.allows(node[0])
            self._requests[request] = self._meet(node if allowed else None)
        return self._requests[request]

    def _meet(self, address: Address | None) -> Address | None:
        """Have a core for a node, which may be far or away."""
        if address is None or self._cleared:
            return None
        if address not in self._nodes:
            if len(self._nodes) >= NODES_MAX and not self._drop_one():
                self.counts["source_refused"] += 1
                return None
            try:
                self._nodes[address] = self._opened(address)
            except (KVFerryError, OSError) as error:
                self.counts["source_refused"] += 1
                _log.warning("%s:%d cannot be asked: %s", *address, error)
                return None
            self.counts["sources"] += 1
            _log.info("%s:%d is asked, as requests say", *address)
        self._nodes.move_to_end(address)
        return address

    def _drop_one(self) -> bool:
        """Let go of the node that was named longest ago, and is not at work; whether there is."""
        for address, core in self._nodes.items():
            if not core.busy:
                del self._nodes[address]
                core.close()
                return True
        return False
