"""What goes wrong with clusters and with a primary that Sentinels watch.

As troubles.py. Whatever may promote a replica counts as a rollback until all agree again, because
replicas lag. An orderly CLUSTER FAILOVER and a migration that is finished lose nothing.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TypeVar

from chaos.lanes import Lane
from chaos.troubles import Trouble, Troubles, server_troubles
from support.cluster import Cluster, ClusterNode
from support.resharding import SlotMigration
from support.resp import ReplyError
from support.sentinel import SentinelGroup
from support.servers import TestServer, wait_for

__all__ = ["cluster_troubles", "sentinel_troubles"]

Result = TypeVar("Result")
SLOTS_MOVED_MAX = 4
# Of a server's troubles; replication is part of the rest.
SINGLE = ("client_kill", "client_pause", "maxmemory", "flushall")


@contextmanager
def rolling_back(lanes: Sequence[Lane], settle: Callable[[], None]) -> Iterator[None]:
    """Values may vanish and come back, until the servers have settled."""
    with ExitStack() as stack:
        for lane in lanes:
            stack.enter_context(lane.history.rolling_back(time.monotonic))
        yield
        settle()


def settled(whole: Callable[[], None], servers: Callable[[], Sequence[TestServer]]) -> None:
    """Until all is whole, and primaries take their replicas for online: else no slot moves."""
    whole()

    def online() -> bool:
        said = [server.info("replication") for server in servers()]
        primaries = [one for one in said if one["role"] == "master"]
        return all("state=online" in one.get("slave0", "") for one in primaries)

    wait_for("replicas to be online", online)


def patiently(
    act: Callable[[], Result], primaries: Callable[[], Sequence[TestServer]], limit_s: float = 30.0
) -> Result:
    """Do it again while a replica that lags makes its primary say no; steps of a move may be.

    Threads that write without a rest can keep a replica behind for ever: its primary takes no
    writes until it has caught up.
    """
    end = time.monotonic() + limit_s
    while True:
        try:
            return act()
        except ReplyError as error:
            if "NOREPLICAS" not in str(error) or time.monotonic() > end:
                raise
            for primary in primaries():
                _let_replicas_catch_up(primary)


def _let_replicas_catch_up(primary: TestServer, limit_s: float = 5.0) -> None:
    def behind() -> bool:
        said = primary.info("replication")
        return f"offset={said['master_repl_offset']}," not in said.get("slave0", "")

    primary.cli("CLIENT", "PAUSE", int(limit_s * 1000), "WRITE")
    end = time.monotonic() + limit_s
    while behind() and time.monotonic() < end:
        time.sleep(0.02)
    primary.cli("CLIENT", "UNPAUSE")


def _with_replica(
    choose: Callable[[random.Random], TestServer],
    lanes: Sequence[Lane],
    settle: Callable[[], None],
) -> dict[str, Trouble]:
    @contextmanager
    def kill(rng: random.Random) -> Iterator[None]:
        with rolling_back(lanes, settle):
            server = choose(rng)
            server.kill()
            try:
                yield
            finally:
                server.restart()

    @contextmanager
    def stop(rng: random.Random) -> Iterator[None]:
        with rolling_back(lanes, settle):
            server = choose(rng)
            server.pause()
            try:
                yield
            finally:
                server.resume()

    single = server_troubles(choose, lanes)
    return {"kill": kill, "stop": stop} | {name: single[name] for name in SINGLE}


def cluster_troubles(cluster: Cluster, lanes: Sequence[Lane]) -> Troubles:
    """Of one shard, or between two."""
    settle = partial(settled, cluster.wait_until_whole, cluster.running)
    names = [key for lane in lanes for key in lane.keys]

    def a_shard(rng: random.Random) -> int:
        return rng.randrange(len(cluster.shards))

    def a_primary(rng: random.Random) -> ClusterNode:
        settle()  # the blow before may still be felt
        return cluster.primary(a_shard(rng))

    def calmly(act: Callable[[], Result]) -> Result:
        return patiently(
            act, lambda: [cluster.primary(index) for index in range(len(cluster.shards))]
        )

    @contextmanager
    def lost(rng: random.Random) -> Iterator[None]:
        """A primary dies, and comes back when its replica has taken its place."""
        with rolling_back(lanes, settle):
            settle()
            shard = a_shard(rng)
            primary = cluster.primary(shard)
            primary.kill()
            try:
                cluster.wait_for_promotion(shard)
                yield
            finally:
                primary.restart()

    @contextmanager
    def failover(rng: random.Random) -> Iterator[None]:
        settle()
        cluster.failover(a_shard(rng))
        yield

    @contextmanager
    def takeover(rng: random.Random) -> Iterator[None]:
        with rolling_back(lanes, settle):
            settle()
            cluster.failover(a_shard(rng), rng.choice(["FORCE", "TAKEOVER"]))
            yield

    @contextmanager
    def migrate(rng: random.Random) -> Iterator[None]:
        """Slots with keys of ours move to another shard; sometimes they stay half way a while."""
        settle()
        moves: list[SlotMigration] = []
        for name in rng.sample(names, SLOTS_MOVED_MAX):
            slot = cluster.slot(name)
            source, target = cluster.owner(slot), a_primary(rng)
            if source is not target and slot not in (move.slot for move in moves):
                moves.append(calmly(partial(cluster.begin_migration, source, target, slot)))
                moves[-1].move_keys(rng.choice([0, 1, None]))
        try:
            yield
        finally:
            for move in moves:
                move.move_keys()
                calmly(move.finish)

    @contextmanager
    def abort(rng: random.Random) -> Iterator[None]:
        """A slot goes half way and comes back; meanwhile its keys are misses."""
        with rolling_back(lanes, settle):
            settle()
            slot = cluster.slot(rng.choice(names))
            source, target = cluster.owner(slot), a_primary(rng)
            if source is target:
                yield
                return
            move = calmly(lambda: cluster.begin_migration(source, target, slot))
            move.move_keys(rng.choice([0, 1, None]))
            try:
                yield
            finally:
                calmly(move.abort)

    own = (lost, failover, takeover, migrate, abort)
    return _with_replica(a_primary, lanes, settle) | {one.__name__: one for one in own}


def sentinel_troubles(group: SentinelGroup, lanes: Sequence[Lane]) -> Troubles:
    """Of the primary; a Sentinel that is away is harmless."""
    settle = partial(settled, group.wait_until_whole, lambda: group.data)

    @contextmanager
    def lost(rng: random.Random) -> Iterator[None]:
        """The primary dies, and comes back when the replica has taken its place."""
        with rolling_back(lanes, settle):
            settle()
            group.kill_master()
            try:
                group.wait_for_promotion()
                yield
            finally:
                group.restart_old_master()

    @contextmanager
    def failover(rng: random.Random) -> Iterator[None]:
        with rolling_back(lanes, settle):
            settle()
            group.failover()
            yield

    @contextmanager
    def sentinel(rng: random.Random) -> Iterator[None]:
        """One Sentinel stands still."""
        node = rng.choice(group.sentinels)
        node.pause()
        try:
            yield
        finally:
            node.resume()

    own = (lost, failover, sentinel)

    def the_primary(rng: random.Random) -> TestServer:
        settle()
        return group.master()

    common = _with_replica(the_primary, lanes, settle)

    @contextmanager
    def client_pause(rng: random.Random) -> Iterator[None]:
        """It holds up the Sentinels as well, so they may promote the replica."""
        with rolling_back(lanes, settle), common["client_pause"](rng):
            yield

    return common | {one.__name__: one for one in (*own, client_pause)}
