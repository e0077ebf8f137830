"""Where a chaos run plays: servers, the lanes of clients to them, and what can go wrong there.

with open_stage("tcp") as stage: ...          # one of STAGES
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from chaos.callers import Awaited, Blocking, Submitted
from chaos.calls import Shape
from chaos.lanes import Lane
from chaos.troubles import NAME_PREFIX, Troubles, server_troubles
from chaos.ways import way_troubles
from kvferry import AsyncRedisClient, RedisClient
from support.proxy import FaultProxy
from support.servers import TestServer, start_server
from support.stamps import KIB, MIB

__all__ = ["CONNECTIONS", "STAGES", "Stage", "open_stage", "standard_lanes"]

CONNECTIONS = 3
LIMITS: dict[str, Any] = {"connections": CONNECTIONS, "workers": 2, "timeout_s": 1.0}
LIMITS |= {"stall_timeout_s": 1.0, "connect_timeout_s": 1.0}
LIMITS |= {"reconnect_min_s": 0.01, "reconnect_max_s": 0.2}
IDENTITY = b"chaos---"
FRAMED_BYTES, STRIPED_BYTES = 96 * KIB, 6 * MIB
# Two and two are alike, so that a reply in a wrong place would fit.
RAW = Shape((KIB, KIB, 4 * KIB, 64 * KIB, 96 * KIB, 96 * KIB, 300_000, MIB, 8 * MIB))
RAW_WAY = Shape((KIB, KIB, 64 * KIB, 64 * KIB, 200_000, MIB), cancels=True)
FRAMED_WAY = Shape((FRAMED_BYTES,) * 8, cancels=True)
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
    servers: Callable[[], Sequence[TestServer]] = tuple
    settle: Callable[[], None] = lambda: None
    patience_s: float = 5.0


def standard_lanes(
    direct: dict[str, Any],
    by_way: Callable[[FaultProxy], dict[str, Any]],
    ways: Sequence[FaultProxy],
    opaque: bool = False,
) -> list[Lane]:
    """Raw and striped values straight to the servers; raw and framed ones through proxies.

    Args:
        direct: The settings of a client that goes straight to the servers.
        by_way: Those of one that goes through a proxy.
        ways: Two proxies; the second one damages what is read, unless that is `opaque`.
    """

    def settings(name: str, place: dict[str, Any]) -> dict[str, Any]:
        return {**LIMITS, **place, "client_name": f"{NAME_PREFIX}-{name}"}

    plain, damaging = ways
    return [
        Lane("raw", RAW, lambda: Blocking(RedisClient(**settings("raw", direct)))),
        Lane(
            "raw-way",
            RAW_WAY,
            lambda: Submitted(RedisClient(**settings("raw-way", by_way(plain)))),
            way=plain,
        ),
        Lane(
            "striped",
            STRIPED,
            lambda: Blocking(
                RedisClient(**settings("striped", direct)), ("ns:", IDENTITY, STRIPED_BYTES)
            ),
            striped=True,
        ),
        Lane(
            "framed-way",
            FRAMED_WAY,
            lambda: Awaited(
                AsyncRedisClient(**settings("framed-way", by_way(damaging))),
                ("ns:", IDENTITY, FRAMED_BYTES),
            ),
            way=damaging,
            damaging=not opaque,
        ),
    ]


@contextmanager
def _standalone(name: str, seed: int) -> Iterator[Stage]:
    """One server; the direct lanes reach it by TCP, TLS or a Unix socket."""
    with ExitStack() as stack:
        tls = name == "tls"
        kind = "redis7" if tls else "valkey"
        server = stack.enter_context(start_server(kind, tls=tls))
        place: dict[str, Any] = {"host": server.host, "port": server.port}
        extra: dict[str, Any] = {}
        if server.tls is not None:
            extra = server.tls.client_settings
            place = {"host": server.host, "port": server.tls_port, **extra}
        target = place["port"]
        if name == "unix":
            place = {"unix_path": server.unix_path}
        ways = [
            stack.enter_context(FaultProxy(server.host, target, opaque=tls, seed=seed + index))
            for index in range(2)
        ]
        lanes = standard_lanes(
            place, lambda way: {"host": way.host, "port": way.port, **extra}, ways, tls
        )
        yield Stage(
            name,
            lanes,
            server_troubles(lambda rng: server, lanes),
            way_troubles(lanes, tls),
            lambda: [server],
        )


STAGES = ("tcp", "unix", "tls")


def open_stage(name: str, seed: int = 0) -> Any:
    """A context manager whose value is the Stage of that name."""
    if name not in STAGES:
        raise LookupError(f"no stage {name!r}; there are {', '.join(STAGES)}")
    return _standalone(name, seed)
