"""One Sentinel: a TestServer in Sentinel mode, which looks, asks and publishes far more often than
usual.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from support.servers import ADMIN, ADMIN_SECRET, HOST, TestServer

MASTER_NAME = "mymaster"
# A replica is only promoted if it was heard of in the last five ping-periods, and in a crisis its
# INFO is asked for once a second: hence no shorter one. And far from tilt mode: a busy machine must
# not make a Sentinel doubt its clock for half a minute.
HURRY: dict[str, int] = {
    "info-period": 300,
    "ping-period": 500,
    "ask-period": 100,
    "publish-period": 200,
    "min-link-reconnect-period": 1000,
    "tilt-trigger": 60_000,
}


class SentinelNode(TestServer):
    """A server in Sentinel mode. ``watched`` gives host and port of the primary to begin with."""

    def __init__(
        self,
        kind: str,
        watched: Callable[[], TestServer],
        quorum: int,
        down_after_ms: int,
        **options: Any,
    ) -> None:
        self._watched, self._quorum, self._down_after_ms = watched, quorum, down_after_ms
        super().__init__(kind, "--sentinel", unix=False, **options)

    def master_address(self) -> tuple[str, int]:
        host, port = self.cli("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER_NAME)
        return host.decode(), int(port)

    def is_content(self, others: int, replica_ports: Collection[int]) -> bool:
        """Whether it finds the primary well, so many other Sentinels, and these replicas well."""
        master = _fields(self.cli("SENTINEL", "MASTER", MASTER_NAME))
        replicas = [_fields(one) for one in self.cli("SENTINEL", "REPLICAS", MASTER_NAME)]
        well = {
            int(one["port"])
            for one in replicas
            if one["flags"] == "slave" and one["master-link-status"] == "ok"
        }
        known = int(master["num-other-sentinels"])
        return master["flags"] == "master" and known == others and well.issuperset(replica_ports)

    def _config(self, directory: str) -> list[str]:
        watched, name = self._watched(), MASTER_NAME
        lines = [
            *super()._config(directory),
            f"sentinel monitor {name} {watched.host} {watched.server_port} {self._quorum}",
            f"sentinel down-after-milliseconds {name} {self._down_after_ms}",
            f"sentinel failover-timeout {name} 3000",
            f"sentinel auth-user {name} {ADMIN}",
            f"sentinel auth-pass {name} {ADMIN_SECRET}",
            f"sentinel sentinel-user {ADMIN}",
            f"sentinel sentinel-pass {ADMIN_SECRET}",
        ]
        if self.proxy:
            lines += [f"sentinel announce-ip {HOST}", f"sentinel announce-port {self.proxy.port}"]
        return lines

    def _await_ready(self) -> bool:
        if not super()._await_ready():
            return False
        for name, value in HURRY.items():
            self.cli("SENTINEL", "DEBUG", name, value)
        return True


def _fields(words: Sequence[bytes]) -> dict[str, str]:
    text = [word.decode() for word in words]
    return dict(zip(text[::2], text[1::2], strict=True))
