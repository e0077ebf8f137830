"""Where a chaos run plays: servers, the lanes of clients to them, and what can go wrong there.

    with open_stage("tcp", seed) as stage: ...          # one of STAGES

tcp, unix, tls      one server; half of the lanes reach it straight, half through proxies
cluster             three primaries with a replica each; all lanes through a proxy for each node
sentinel            a primary, a replica, three Sentinels; likewise

With ``pure`` the lanes are two of the pure client, which has no frames and cannot cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from chaos.callers import Awaited, Blocking, Submitted
from chaos.calls import Shape
from chaos.groups import cluster_troubles, sentinel_troubles
from chaos.lanes import Lane
from chaos.troubles import NAME_PREFIX, Troubles, server_troubles
from chaos.ways import damages, toxics
from kvferry import AsyncRedisClient, RedisClient
from kvferry.client.pure.client import PureRedisClient
from kvferry.config import ClientConfig
from support.cluster import start_cluster
from support.proxy import FaultProxy
from support.sentinel import start_sentinels
from support.servers import TestServer, find_kind, start_server
from support.stamps import KIB, MIB
from support.tuned import tuned

__all__ = ["CONNECTIONS", "LIMITS", "STAGES", "Stage", "lacks", "open_stage"]

CONNECTIONS = 3
LIMITS: dict[str, Any] = {"connections": CONNECTIONS, "workers": 2, "timeout_s": 1.0}
LIMITS |= {"stall_timeout_s": 1.0, "connect_timeout_s": 1.0}
LIMITS |= {"reconnect_min_s": 0.01, "reconnect_max_s": 0.2}
IDENTITY = b"chaos---"
FRAMED_BYTES, STRIPED_BYTES = 96 * KIB, 6 * MIB
# Two and two are alike, so that a reply in a wrong place would fit.
RAW = Shape((KIB, KIB, 4 * KIB, 64 * KIB, 96 * KIB, 96 * KIB, 300_000, MIB, 8 * MIB))
RAW_CANCELLED = Shape((KIB, KIB, 64 * KIB, 64 * KIB, 200_000, MIB), cancels=True)
FRAMED = Shape((FRAMED_BYTES,) * 8, cancels=True)
STRIPED = Shape((STRIPED_BYTES,) * 3)


@dataclass
class Stage:
    """Servers, lanes and troubles.

    Attributes:
        servers: Those that run now; asked whether old connections are gone.
        settle: Returns when the servers are whole again.
        patience_s: How long the clients may take to be served again, after that.
    """

    name: str
    lanes: Sequence[Lane]
    server_troubles: Troubles = field(default_factory=dict)
    way_troubles: Troubles = field(default_factory=dict)
    ways: Sequence[FaultProxy] = ()
    servers: Callable[[], Sequence[TestServer]] = tuple
    settle: Callable[[], None] = lambda: None
    patience_s: float = 5.0


def _lanes(
    place: dict[str, Any],
    pure: bool,
    ways: Sequence[FaultProxy] = (),
    extra: dict[str, Any] | None = None,
) -> list[Lane]:
    """Raw and striped values by blocking calls; raw and framed ones by calls that can be withdrawn.

    Args:
        place: The settings of a client that finds the servers.
        ways: Two proxies for the latter two, `extra` with their address; the second one may damage.
    """

    def settings(name: str, way: int | None = None) -> dict[str, Any]:
        found = dict(place)
        if way is not None and ways:
            found = {"host": ways[way].host, "port": ways[way].port, **(extra or {})}
        return tuned(ClientConfig, **(LIMITS | found | {"client_name": f"{NAME_PREFIX}-{name}"}))

    def pure_raw(name: str, way: int | None = None) -> Blocking:
        return Blocking(PureRedisClient(**settings(name, way)))

    def raw() -> Blocking:
        return Blocking(RedisClient(**settings("raw")))

    def raw_cancelled() -> Submitted:
        return Submitted(RedisClient(**settings("raw-cancelled", 0)))

    def striped() -> Blocking:
        return Blocking(RedisClient(**settings("striped")), ("ns:", IDENTITY, STRIPED_BYTES))

    def framed() -> Awaited:
        client = AsyncRedisClient(**settings("framed", 1))
        return Awaited(client, ("ns:", IDENTITY, FRAMED_BYTES))

    if pure:
        by_way = partial(pure_raw, "pure-way", 0)
        return [
            Lane("pure", RAW, partial(pure_raw, "pure")),
            Lane(
                "pure-way",
                replace(RAW_CANCELLED, cancels=False),
                by_way,
                way=ways[0] if ways else None,
            ),
        ]
    return [
        Lane("raw", RAW, raw),
        Lane("raw-cancelled", RAW_CANCELLED, raw_cancelled, way=ways[0] if ways else None),
        Lane("striped", STRIPED, striped, striped=True),
        Lane("framed", FRAMED, framed, way=ways[1] if ways else None, damaging=bool(ways)),
    ]


@contextmanager
def _standalone(seed: int, pure: bool, name: str) -> Iterator[Stage]:
    tls = name == "tls"
    with ExitStack() as stack:
        server = stack.enter_context(start_server("redis7" if tls else "valkey", tls=tls))
        extra = server.tls.client_settings if server.tls else {}
        place = {"host": server.host, "port": server.client_port, **extra}
        if name == "unix":
            place = {"unix_path": server.unix_path}
        ways = [
            stack.enter_context(
                FaultProxy(server.host, server.client_port, opaque=tls, seed=seed + index)
            )
            for index in range(2)
        ]
        lanes = _lanes(place, pure, ways, extra)
        damaging = {} if tls or pure else damages([ways[1]], lanes[-1])
        yield Stage(
            name,
            lanes,
            server_troubles(lambda rng: server, lanes),
            {**toxics(ways, tls), **damaging},
            ways,
            lambda: [server],
        )


@contextmanager
def _cluster(seed: int, pure: bool) -> Iterator[Stage]:
    with start_cluster("valkey", replicas=1, node_timeout_ms=3000, proxied=True) as cluster:
        for index, proxy in enumerate(cluster.proxies):
            proxy.seed = seed + index
        lanes = _lanes({"host": cluster.host, "port": cluster.port, **cluster.settings}, pure)
        yield Stage(
            "cluster",
            lanes,
            cluster_troubles(cluster, lanes),
            toxics(cluster.proxies),
            cluster.proxies,
            cluster.running,
            cluster.wait_until_whole,
            patience_s=10.0,
        )


@contextmanager
def _sentinel(seed: int, pure: bool) -> Iterator[Stage]:
    with start_sentinels("redis7", proxied=True, down_after_ms=3000) as group:
        for index, proxy in enumerate(group.proxies):
            proxy.seed = seed + index
        lanes = _lanes({"host": group.host, "port": group.port, **group.settings}, pure)
        yield Stage(
            "sentinel",
            lanes,
            sentinel_troubles(group, lanes),
            toxics(group.proxies),
            group.proxies,
            lambda: [node for node in group.data if node.is_running()],
            group.wait_until_whole,
            patience_s=10.0,
        )


STAGES: dict[str, Callable[[int, bool], AbstractContextManager[Stage]]] = {
    "tcp": partial(_standalone, name="tcp"),
    "unix": partial(_standalone, name="unix"),
    "tls": partial(_standalone, name="tls"),
    "cluster": _cluster,
    "sentinel": _sentinel,
}


def lacks(name: str) -> str:
    """Why this host cannot set that stage; empty if it can."""
    try:
        find_kind("redis7" if name in ("tls", "sentinel") else "valkey", tls=name == "tls")
    except LookupError as reason:
        return str(reason)
    return ""


def open_stage(name: str, seed: int = 0, pure: bool = False) -> AbstractContextManager[Stage]:
    """The stage of that name, opened; `seed` is for its proxies."""
    return STAGES[name](seed, pure)
