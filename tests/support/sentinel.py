"""One primary, its replicas and the Sentinels that watch them, all real, hurried for tests.

    with start_sentinels("redis7", replicas=1, sentinels=3) as group:
        group.url, group.settings                   # for a client
        group.master().kill(), group.wait_for_promotion()
        group.failover()                            # the orderly way: SENTINEL FAILOVER
        group.restart_old_master()                  # it believes to be the primary still ...
        group.wait_until_whole()                    # ... until the Sentinels have told it

A failover takes one or two seconds instead of ten, for the Sentinels are in a hurry. A restarted
server begins with the role that it had at the very start, and without keys; a restarted Sentinel
begins with the primary of that moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Self

from support.proxy import FaultProxy
from support.sentinel_node import MASTER_NAME, SentinelNode
from support.servers import TestServer, address_of, start_server, wait_for
from support.tls import ServerTls

__all__ = ["MASTER_NAME", "SentinelGroup", "SentinelNode", "start_sentinels"]

WHOLE_TIMEOUT_S = 30.0
_FAILOVERS = 3  # attempts


class SentinelGroup:
    """See the module; made by start_sentinels()."""

    name = MASTER_NAME

    def __init__(self, data: Sequence[TestServer], sentinels: Sequence[SentinelNode]) -> None:
        self.data, self.sentinels = tuple(data), tuple(sentinels)
        self.old_master: TestServer | None = None  # the one that a failover or kill has ended

    # For clients.

    @property
    def proxies(self) -> tuple[FaultProxy, ...]:
        """One for each of the servers, then one for each Sentinel; none if not proxied."""
        return tuple(node.proxy for node in (*self.data, *self.sentinels) if node.proxy)

    @property
    def host(self) -> str:
        return self.sentinels[0].host

    @property
    def port(self) -> int:
        return self.sentinels[0].client_port

    @property
    def seeds(self) -> tuple[str, ...]:
        return tuple(address_of(node.host, node.client_port) for node in self.sentinels)

    @property
    def url(self) -> str:
        """To be used with ``**group.settings``, where there is TLS or a Sentinels' password."""
        scheme = "rediss+sentinel" if self.data[0].tls else "redis-sentinel"
        password = self.data[0].password
        user = f":{password}@" if password else ""
        return f"{scheme}://{user}{','.join(self.seeds)}/{self.name}/0"

    @property
    def settings(self) -> dict[str, Any]:
        """The keywords of a client that takes host and port."""
        settings = {
            "topology": "sentinel",
            "nodes": self.seeds[1:],
            "sentinel_master": self.name,
            "password": self.data[0].password,
            "sentinel_password": self.sentinels[0].password,
        }
        tls = self.data[0].tls
        given = {name: value for name, value in settings.items() if value}
        return given | (tls.client_settings if tls else {})

    # Who is who.

    def master(self) -> TestServer:
        """The primary, in the opinion of all running Sentinels."""
        running = [node for node in self.sentinels if node.is_running()]
        opinions = {node.master_address() for node in running}
        found = [node for node in self.data if (node.host, node.server_port) in opinions]
        if len(opinions) != 1 or len(found) != 1:
            raise LookupError(f"the Sentinels name {opinions}")
        return found[0]

    def replicas(self) -> list[TestServer]:
        """All other servers that run."""
        return self._others(self.master())

    # What happens to them.

    def failover(self, timeout_s: float = 30.0) -> TestServer:
        """An orderly change; returns when all know the new primary: that one.

        A Sentinel that finds no fit replica at that moment, as on a busy host, gives up without a
        word: then it is asked again.
        """
        self.old_master, sentinel = self.master(), self._sentinel()
        old = (self.old_master.host, self.old_master.server_port)

        def begun() -> bool:
            return (
                sentinel.master_address() != old
                or sentinel.cli("SENTINEL", "FAILOVER", self.name) == b"OK"
            )

        for _ in range(_FAILOVERS - 1):
            wait_for("the failover to begin", begun, timeout_s)
            with suppress(TimeoutError):
                return self.wait_for_promotion(timeout_s / _FAILOVERS)
        wait_for("the failover to begin", begun, timeout_s)
        return self.wait_for_promotion(timeout_s)

    def kill_master(self) -> TestServer:
        self.old_master = self.master()
        self.old_master.kill()
        return self.old_master

    def wait_for_promotion(self, timeout_s: float = 30.0) -> TestServer:
        """Until all Sentinels name another than the old primary, and it agrees; that one."""

        found: list[TestServer] = []

        def promoted() -> bool:
            with suppress(LookupError):
                found[:] = [self.master()]
                return found[0] is not self.old_master and _role(found[0]) == "master"
            return False

        wait_for("a new primary", promoted, timeout_s)
        return found[0]

    def restart_old_master(self) -> TestServer:
        """At first it takes itself for the primary, with no keys."""
        assert self.old_master is not None, "no primary has been replaced"
        self.old_master.restart()
        return self.old_master

    def wait_until_whole(self, timeout_s: float = WHOLE_TIMEOUT_S) -> None:
        """Until every running server has the role that the Sentinels give it, and they know it."""
        wait_for("Sentinels and servers to agree", self.is_whole, timeout_s)

    def is_whole(self) -> bool:
        try:
            master = self.master()
        except LookupError:
            return False
        replicas = self._others(master)
        return _role(master) == "master" and all(
            [_follows(node, master) for node in replicas]
            + [
                node.is_content(len(self.sentinels) - 1, [one.server_port for one in replicas])
                for node in self.sentinels
                if node.is_running()
            ]
        )

    def flush(self) -> None:
        """No keys, no statistics, no toxics, anywhere."""
        for proxy in self.proxies:
            proxy.heal()
        self.master().cli("FLUSHALL")
        for node in self.data:
            node.cli("CONFIG", "RESETSTAT")

    def stop(self) -> None:
        for node in (*self.sentinels, *self.data):
            node.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _others(self, master: TestServer) -> list[TestServer]:
        return [node for node in self.data if node.is_running() and node is not master]

    def _sentinel(self) -> SentinelNode:
        return next(node for node in self.sentinels if node.is_running())


def start_sentinels(
    kind: str = "redis7",
    replicas: int = 1,
    sentinels: int = 3,
    *,
    password: str | None = None,
    sentinel_password: str | None = None,
    users: Iterable[str] = (),
    tls: bool | ServerTls = False,
    proxied: bool = False,
    down_after_ms: int = 1000,
    data_args: Sequence[str] = (),
) -> SentinelGroup:
    """Start them and wait until all know each other.

    Args:
        password, users: Of the servers; ``sentinel_password`` is the Sentinels' own.
        tls: A ServerTls needs ``between_servers``.
        proxied: A FaultProxy before each, and clients are told of nothing else.
        down_after_ms: Silence after which a server counts as lost.
    """
    chosen = ServerTls(between_servers=True) if tls is True else tls
    options: dict[str, Any] = {"tls": chosen, "proxied": proxied}
    data: list[TestServer] = []
    watching: list[SentinelNode] = []
    group: SentinelGroup | None = None

    def watched() -> TestServer:
        return group.master() if group else data[0]

    try:
        for _ in range(1 + replicas):
            first = data[0] if data else None
            data.append(
                start_server(
                    *(kind, *data_args), password=password, users=users, primary=first, **options
                )
            )
        for _ in range(sentinels):
            watching.append(
                SentinelNode(
                    *(kind, watched, sentinels // 2 + 1, down_after_ms),
                    password=sentinel_password,
                    **options,
                )
            )
        group = SentinelGroup(data, watching)
        group.wait_until_whole()
    except BaseException:
        for node in (*watching, *data):
            node.stop()
        raise
    return group


def _role(node: TestServer) -> str:
    role: bytes = node.cli("ROLE")[0]
    return role.decode()


def _follows(node: TestServer, master: TestServer) -> bool:
    info = node.info("replication")
    followed = info.get("master_host"), info.get("master_port"), info.get("master_link_status")
    return followed == (master.host, str(master.server_port), "up")
