"""A hash slot on its way from one node of a cluster to another, step by step.

    migration = cluster.begin_migration(source, target, slot)
    migration.move_keys(3)          # the source now answers ASK for these, and for absent keys
    migration.move_keys(), migration.finish()           # or migration.abort()

The way that every version has: SETSLOT, GETKEYSINSLOT, MIGRATE. Clients may work meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

from support.resp import ReplyError
from support.servers import ADMIN, ADMIN_SECRET, TestServer

KEYS_PER_CALL = 16
KEYS_MAX = 100_000  # in one slot
MIGRATE_TIMEOUT_MS = 10_000


class SlotMigration:
    """From its first step on; see the module. ``nodes`` are told of the end."""

    def __init__(
        self, nodes: Sequence[TestServer], source: TestServer, target: TestServer, slot: int
    ) -> None:
        self.nodes, self.source, self.target, self.slot = nodes, source, target, slot
        self.keys_moved = 0
        target.cli("CLUSTER", "SETSLOT", slot, "IMPORTING", _id(source))
        source.cli("CLUSTER", "SETSLOT", slot, "MIGRATING", _id(target))

    def move_keys(self, keys_max: int | None = None) -> int:
        """Move so many keys, or all; how many there were to move."""
        moved = 0
        while keys_max is None or moved < keys_max:
            count = KEYS_PER_CALL if keys_max is None else min(KEYS_PER_CALL, keys_max - moved)
            keys = self.source.cli("CLUSTER", "GETKEYSINSLOT", self.slot, count)
            if not keys:
                break
            self.move(*keys)
            moved += len(keys)
        return moved

    def move(self, *keys: bytes) -> None:
        """Move these keys. While the source has a key its copy is the true one, hence REPLACE: a
        MIGRATE that was cut short may have left another at the target."""
        _migrate(self.source, self.target, keys, ["REPLACE"])
        self.keys_moved += len(keys)

    def finish(self) -> None:
        """The slot is the target's; first it learns, then the source, then everybody."""
        rest = [node for node in self.nodes if node not in (self.target, self.source)]
        for node in (self.target, self.source, *rest):
            try:
                node.cli("CLUSTER", "SETSLOT", self.slot, "NODE", _id(self.target))
            except ReplyError as error:
                if "with masters" not in str(error) and "primary" not in str(error):
                    raise  # a replica learns from its primary

    def abort(self) -> None:
        """The slot stays where it was, and keys that went come back. Until they did they are
        misses; one that was set anew in that time stays as it is."""
        self.source.cli("CLUSTER", "SETSLOT", self.slot, "STABLE")
        for key in self.target.cli("CLUSTER", "GETKEYSINSLOT", self.slot, KEYS_MAX):
            try:
                _migrate(self.target, self.source, [key], [])
            except ReplyError as error:
                if "BUSYKEY" not in str(error):
                    raise
        self.target.cli("CLUSTER", "SETSLOT", self.slot, "STABLE")


def _migrate(
    source: TestServer, target: TestServer, keys: Sequence[bytes], words: Sequence[str]
) -> None:
    over_tls = source.tls is not None and source.tls.between_servers
    port = target.tls_port if over_tls else target.port
    command: list[bytes | str | int] = ["MIGRATE", target.host, port, "", 0, MIGRATE_TIMEOUT_MS]
    command += [*words, "AUTH2", ADMIN, ADMIN_SECRET, "KEYS", *keys]
    source.cli(*command, timeout_s=2 * MIGRATE_TIMEOUT_MS / 1000)


def _id(node: TestServer) -> str:
    identity: str = node.cli("CLUSTER", "MYID").decode()
    return identity
