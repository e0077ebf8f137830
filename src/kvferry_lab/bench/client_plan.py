"""What `kvferry bench client` is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import click

from kvferry.base.errors import UsageError
from kvferry.config import CONNECTIONS_DEFAULT
from kvferry_lab.bench.adapters import POOL_CONNECTIONS
from kvferry_lab.cli.options import option

__all__ = ["COMPARED", "NOTED_TYPES", "ClientPlan"]

COMPARED = ("native", "pure", "redis-py", "redis-py-async", "glide", "lmcache")
# The types of the first notes, where one command at a time is on its way unless asked otherwise;
# and the most connections that they then use.
NOTED_TYPES = {
    "single-pool": POOL_CONNECTIONS,
    "multi-pool": POOL_CONNECTIONS,
    "custom": CONNECTIONS_DEFAULT,
}
_PROGRAMS = {"memtier": "memtier_benchmark", "redis-benchmark": "redis-benchmark"}


class _ClientType(click.Choice[str]):
    """A kind of client; programs of others have commands of their own."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if value in _PROGRAMS:
            self.fail(
                f"{value!r} has its own command: kvferry bench {_PROGRAMS[value]}", param, ctx
            )
        return super().convert(value, param, ctx)


@dataclass(frozen=True, kw_only=True)
class ClientPlan:
    """One call of `kvferry bench client`."""

    client_type: str = option(
        "native", "Which client.", kind=_ClientType([*COMPARED, *NOTED_TYPES])
    )
    compare: Literal["all"] | None = option(
        None, "Every client that is installed; the last three types are others in disguise."
    )
    url: str | None = option(None, "Server, cluster or Sentinels; settings in the query.")
    host: str | None = option(None, "Server, without --url.  [default: localhost]")
    port: int | None = option(None, "Its port.  [default: 6379]")
    store: Literal["embedded"] | None = option(None, "Start a server for this run.")
    size_mb: float = option(4.0, "MiB of a value.", "--size-mb", "--chunk-mb")
    num_chunks: int = option(64, "How many keys.", "--num-chunks", "--num-keys")
    batch: int | None = option(
        None, "Keys per batch.  [default: all; 1 for the last three types without --concurrent]"
    )
    num_workers: int | None = option(None, "Connections; by default the client's choice.")
    write: bool = option(False, "Measure SET.")
    read: bool = option(False, "Measure GET.")
    exists: bool = option(False, "Measure EXISTS.  [default: all three]")
    concurrent: bool = option(False, "All keys at once; the chosen operations also together.")
    sweep: Literal["size", "workers"] | None = option(None, "Repeat it over sizes or connections.")
    repeat: int = option(5, "Rounds; medians are shown.")
    floor: bool = option(True, "Compare with bare sockets.")
    calls: bool = option(False, "Also show waits and socket calls of the native client.")

    def __post_init__(self) -> None:
        if min(self.num_chunks, self.repeat, self.batch or 1, self.num_workers or 1) < 1:
            raise UsageError("counts must be at least 1")
        if self.url and (self.host or self.port):
            raise UsageError("--url and --host/--port exclude each other")

    @property
    def kinds(self) -> Sequence[str]:
        """The clients to measure; with `compare`, those that are not installed are left out."""
        return COMPARED if self.compare else (self.client_type,)

    @property
    def ops(self) -> Sequence[str]:
        """The operations, in the order to run."""
        asked = {"set": self.write, "get": self.read, "exists": self.exists}
        return [op for op, wanted in asked.items() if wanted] or list(asked)
