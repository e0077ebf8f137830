"""A batch over the nodes of a cluster, each asked for its own keys, one after the other.

The map of the slots is asked of any node: at first, when a node sent us elsewhere or was away, and
every `topology_refresh_s`, but not more often than every REFRESH_MIN_S. MOVED changes the map at
once; ASK is followed for that one request; TRYAGAIN waits a moment; CLUSTERDOWN is UNAVAILABLE. A
key is sent elsewhere at most REDIRECTS_MAX times. A node that is away costs its own keys, unless
the map names another by then. Reads go to primaries, whatever `read_from` says.

What servers say costs a limited number of connections: a map with more than `nodes_max` primaries
is refused, and of nodes that no map names redirects may name STRANGERS_MAX until the next map.

Source: https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

from kvferry.base.errors import UnavailableError
from kvferry.client.batch import Status
from kvferry.client.pure.batch import Batch, exchange
from kvferry.client.pure.connection import Disconnected, ReplyTimedOut, printable
from kvferry.client.pure.dial import DialRefused
from kvferry.client.pure.node import PureNode
from kvferry.client.pure.resp import ErrorReply, ProtocolError
from kvferry.client.pure.slots import Address, SlotMap, key_slot, parse_redirect, parse_slots
from kvferry.config import ClientConfig

__all__ = ["Cluster"]

_log = logging.getLogger("kvferry.client.pure.client")

REDIRECTS_MAX = 16
STRANGERS_MAX = 16
REFRESH_MIN_S = 0.25
TRYAGAIN_WAIT_S = 0.02


class Cluster:
    """The nodes that were met, and the map. One thread at a time; any may `abort`.

    Args:
        config: With the topology "cluster".
        stats: See Node.
    """

    def __init__(self, config: ClientConfig, stats: dict[str, int]) -> None:
        self.closed = False
        self._config = config
        self._stats = stats
        self._nodes: dict[Address, PureNode] = {}
        self._map: SlotMap | None = None
        self._refreshed = 0.0
        self._stale = False

    def run(self, batch: Batch, deadline: float) -> None:
        """Ask for every key that has no outcome.

        Raises:
            DialRefused, ReplyTimedOut: There is no map to be had.
        """
        _Journey(self, batch, deadline).run()

    def disconnect(self, why: str | None = None) -> None:
        """Close all connections; also what a forked child does with its copies."""
        for node in self._nodes.values():
            node.disconnect(why)

    def abort(self) -> None:
        """End it for good; a batch in another thread finds out soon."""
        self.closed = True
        for node in list(self._nodes.values()):
            node.abort()

    def node(self, address: Address) -> PureNode:
        """The node at an address, met now if it is new."""
        if address not in self._nodes:
            self._nodes[address] = PureNode(self._config.for_node(*address), self._stats)
            self._nodes[address].closed = self.closed
        return self._nodes[address]

    def meet(self, address: Address) -> bool:
        """Make a node that a redirect names one of ours; False if there were too many of those."""
        if address not in self._nodes:
            known = {*(self._map.nodes if self._map else ()), *self._config.seeds}
            if address not in known and len(self._nodes.keys() - known) >= STRANGERS_MAX:
                return False
        self.node(address)
        return True

    def owner(self, slot: int) -> Address | None:
        """The server of a slot, as far as it is known."""
        return self._map.owners[slot] if self._map else None

    def primaries(self, deadline: float) -> list[Address]:
        """Everybody who serves slots, by a map that is not old.

        Raises:
            DialRefused, ReplyTimedOut: There is none, and none is to be had.
        """
        self.refresh_if_due(deadline)
        owners = self._map.owners if self._map else []
        return list(dict.fromkeys(address for address in owners if address is not None))

    def moved(self, slot: int, address: Address | None) -> None:
        """A node said that somebody else serves the slot: one that we met, or None."""
        self._stale = True
        if self._map is not None and address is not None:
            self._map.owners[slot] = address

    def doubt(self) -> None:
        """The map may be wrong: ask again soon."""
        self._stale = True

    def refresh_if_due(self, deadline: float) -> None:
        """Ask for the map if it is old or doubted.

        Raises:
            DialRefused, ReplyTimedOut: There is none, and none is to be had.
        """
        age_s = time.monotonic() - self._refreshed
        doubted = self._stale and age_s >= REFRESH_MIN_S
        if self._map is not None and not doubted and age_s < self._config.tuning.topology_refresh_s:
            return
        if time.monotonic() >= deadline:
            if self._map is None:
                raise ReplyTimedOut("the deadline passed")
            return
        try:
            self._adopt(self._ask_for_map(deadline))
        except DialRefused as error:
            if self._map is None:
                raise
            _log.info("%s: %s", self._config.address, error)
        self._refreshed = time.monotonic()

    def _ask_for_map(self, deadline: float) -> SlotMap:
        why, kind = "it has no nodes", UnavailableError
        for address in self._candidates():
            if time.monotonic() >= deadline or self.closed:
                break
            node = self.node(address)
            until = min(deadline, time.monotonic() + self._config.connect_timeout_s)
            try:
                reply = node.connect(until).call(b"CLUSTER", b"SLOTS", deadline=until)
                if isinstance(reply, ErrorReply):
                    why, kind = printable(reply.text), reply.kind
                elif (found := parse_slots(reply, address[0])).nodes:
                    return self._limited(found)
            except DialRefused as error:
                why, kind = str(error), error.kind
            except BaseException as error:
                node.disconnect(str(error) or "interrupted")
                if not isinstance(error, (Disconnected, ProtocolError, ReplyTimedOut)):
                    raise
                why, kind = str(error), error.kind
        raise DialRefused(f"no node of {self._config.address} tells its slots: {why}", kind)

    def _limited(self, found: SlotMap) -> SlotMap:
        """The map, with as many replicas as leave us at `nodes_max` nodes."""
        primaries = dict.fromkeys(owner for owner in found.owners if owner is not None)
        if len(primaries) > self._config.tuning.nodes_max:
            raise ProtocolError(
                f"the cluster has {len(primaries)} nodes, which is more than nodes_max"
            )
        found.nodes = [*dict.fromkeys((*primaries, *found.nodes))][: self._config.tuning.nodes_max]
        return found

    def _candidates(self) -> Iterator[Address]:
        """Whom to ask: those we are connected to, all that we know of, the seeds."""
        connected = [address for address, node in self._nodes.items() if node.connected]
        known = self._map.nodes if self._map else []
        yield from dict.fromkeys((*connected, *known, *self._config.seeds))

    def _adopt(self, found: SlotMap) -> None:
        self._map, self._stale = found, False
        for address in self._nodes.keys() - set(found.nodes):
            self._nodes.pop(address).disconnect("it is no node of the cluster any more")


class _Journey:
    """One batch on its way through a cluster."""

    def __init__(self, cluster: Cluster, batch: Batch, deadline: float) -> None:
        self._cluster = cluster
        self._batch = batch
        self._deadline = deadline
        self._slots = [key_slot(key) for key in batch.keys]
        self._redirects = [0] * len(batch.keys)
        # Nodes that are not asked again in this batch, and why.
        self._failed: dict[Address, tuple[Status, str, type[UnavailableError] | None]] = {}
        self._wait = False

    def run(self) -> None:
        while not self._cluster.closed and (pending := self._batch.pending()):
            self._cluster.refresh_if_due(self._deadline)
            for address, indices in self._split(pending).items():
                self._ask(address, indices)
            if self._wait:
                self._wait = False
                time.sleep(min(TRYAGAIN_WAIT_S, max(self._deadline - time.monotonic(), 0)))

    def _split(self, pending: list[int]) -> dict[Address, list[int]]:
        """The keys by node; those whose node is away, or that have none, are complete."""
        split: dict[Address, list[int]] = {}
        for index in pending:
            if index >= self._batch.end:
                break
            slot = self._slots[index]
            owner = self._cluster.owner(slot)
            if owner is None:
                self._cluster.doubt()
                self._batch.complete(index, Status.UNAVAILABLE, error=f"no node serves slot {slot}")
            elif owner in self._failed:
                status, why, kind = self._failed[owner]
                self._batch.complete(index, status, error=why, kind=kind)
            else:
                split.setdefault(owner, []).append(index)
        return split

    def _ask(self, address: Address, indices: list[int]) -> None:
        said: dict[int, str] = {}
        self._batch.elsewhere = said
        try:
            self._cluster.node(address).run(self._batch, self._deadline, indices)
        except DialRefused as error:
            self._fail(address, Status.UNAVAILABLE, str(error), error.kind)
        except ReplyTimedOut as error:
            self._fail(address, Status.TIMEOUT, str(error))
        for index in self._batch.pending(said):
            self._follow(index, said[index], address)

    def _fail(
        self,
        address: Address,
        status: Status,
        why: str,
        kind: type[UnavailableError] | None = None,
    ) -> None:
        self._failed[address] = (status, why, kind)
        self._cluster.doubt()

    def _follow(self, index: int, text: str, asked: Address) -> None:
        """Do what a node said instead of an answer."""
        code = text.partition(" ")[0]
        self._redirects[index] += 1
        if code == "CLUSTERDOWN" or self._redirects[index] > REDIRECTS_MAX:
            self._cluster.doubt()
            self._batch.complete(index, Status.UNAVAILABLE, error=printable(text))
        elif code == "TRYAGAIN":
            self._wait = True
        else:
            try:
                target = parse_redirect(text, asked[0])
            except ProtocolError as error:
                self._batch.complete(index, Status.SERVER_ERROR, error=str(error))
                return
            if target is not None and not self._cluster.meet(target):
                target = None
            if code == "MOVED" or target is None:
                self._cluster.moved(self._slots[index], target)
                self._wait |= target is None
            else:
                self._ask_after_asking(index, target)

    def _ask_after_asking(self, index: int, address: Address) -> None:
        """Send one key to a node that is importing its slot."""
        node = self._cluster.node(address)
        said: dict[int, str] = {}
        self._batch.elsewhere = said
        try:
            connection = node.connect(self._deadline)
            if connection.call(b"ASKING", deadline=self._deadline) != "OK":
                raise ProtocolError("ASKING was refused")
            exchange(self._batch, connection, self._deadline, [index])
        except DialRefused as error:
            self._fail(address, Status.UNAVAILABLE, str(error), error.kind)
        except BaseException as error:
            node.disconnect(str(error) or "interrupted")
            if not isinstance(error, (Disconnected, ProtocolError, ReplyTimedOut)):
                raise
            self._wait = True
        if said:  # not imported any more: back to the map
            self._cluster.doubt()
            self._wait = True
