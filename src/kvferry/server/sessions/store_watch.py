"""Which stores can be asked: found out at the start, and every few seconds; the log says when one
goes or comes. The server goes on with memory in any case.

Before an engine has come there is no connector, so a store is asked here: a server by PING, a
directory by its rights, a plug-in by opening it. From then on connectors know best, and a store is
asked only when they say that it is away, for the reason.

Threads: any; one of its own asks.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from kvferry.base.errors import KVFerryError
from kvferry.base.threads import Guarded
from kvferry.chunks.keys import DIGEST_BYTES
from kvferry.client.commands import ask, sparing
from kvferry.client.sync import RedisClient
from kvferry.config import StoreConfig
from kvferry.connectors.base import Space
from kvferry.connectors.load import load_connector
from kvferry.server.sessions.shard import IdentityShard

__all__ = ["StoreWatch"]

_log = logging.getLogger("kvferry.server")

_EVERY_S = 5.0  # between two rounds of questions
_ASK_S = 2.0  # for one question
# What a plug-in is opened with before there is an identity; nothing is stored there.
_TRIAL = Space("kvf:trial:", bytes(DIGEST_BYTES), 1)


class StoreWatch:
    """See the module.

    Args:
        stores: Of the settings.
        shards: All identities at present.
    """

    def __init__(
        self, stores: Sequence[StoreConfig], shards: Callable[[], Sequence[IdentityShard]]
    ) -> None:
        self._stores = stores
        self._shards = shards
        self._problems: dict[str, str] = {}  # "": none; a store that is missing was not asked yet
        self._opened: set[str] = set()  # plug-ins that could be
        self._clients: dict[str, RedisClient] = {}  # of servers that nobody else asks
        self._stop = threading.Event()
        self._thread = Guarded(self._run, "watch")

    def start(self) -> None:
        """Begin to ask."""
        if self._stores:
            self._thread.start()

    def stop(self) -> None:
        """Ask no more. A question that is under way is not waited for."""
        self._stop.set()

    def status(self) -> dict[str, dict[str, object]]:
        """Of each store whether it can be asked, else why not; and whether it takes chunks, else
        why not."""
        known = dict(self._problems)
        return {
            name: {
                "available": not problem,
                "reason": problem or refusal,
                "refuses": bool(problem or refusal),
            }
            for name, problem in known.items()
            for refusal in [self._refusal(name)]
        }

    def _refusal(self, name: str) -> str:
        """Why a store did not take what it was given last; "": it did."""
        stores = [store for shard in self._shards() for store in shard.cache.tiers]
        found = (store.writer.batches.problem for store in stores if store.tier.name == name)
        return next(filter(None, found), "")

    def degraded(self) -> list[str]:
        """Names of stores that cannot be asked."""
        return [name for name, problem in dict(self._problems).items() if problem]

    def _run(self) -> None:
        try:
            self._ask_all()
        finally:
            for name in list(self._clients):
                self._clients.pop(name).close()

    def _ask_all(self) -> None:
        while not self._stop.is_set():
            for store in self._stores:
                try:
                    problem = self._problem(store)
                except Exception as error:  # code of others: a plug-in is imported
                    problem = type(error).__name__
                if not self._stop.is_set():
                    self._note(store, problem)
            self._stop.wait(_EVERY_S)

    def _note(self, store: StoreConfig, problem: str) -> None:
        before, self._problems[store.name] = self._problems.get(store.name, ""), problem
        if problem and not before:
            _log.warning(
                "store %s (%s at %s) cannot be asked: %s; the server goes on without it, and asks "
                "again every %g s",
                store.name,
                store.type,
                store.address,
                problem,
                _EVERY_S,
            )
        elif before and not problem:
            _log.info("store %s can be asked again", store.name)

    def _problem(self, store: StoreConfig) -> str:
        shards = self._shards()
        tiers = [tier.tier for shard in shards for tier in shard.cache.tiers]
        ours = [tier.connector for tier in tiers if tier.name == store.name]
        if any(connector.available for connector in ours):
            if store.name in self._clients:
                self._clients.pop(store.name).close()
            return ""
        for shard in shards:
            if store.name in shard.problems:
                return shard.problems[store.name]
        if store.client is not None:
            if store.name not in self._clients:
                self._clients[store.name] = RedisClient.from_config(sparing(store.client))
            try:
                ask(self._clients[store.name], b"PING", timeout_s=_ASK_S)
            except KVFerryError as error:
                return str(error)
        elif store.path is not None and (problem := _writable(Path(store.path))):
            return problem
        elif store.module_path is not None and not ours:
            if store.name in self._opened:
                return ""
            try:
                load_connector(store.connector_spec(), _TRIAL).close()
            except (KVFerryError, OSError) as error:
                return str(error)
            self._opened.add(store.name)
        if not ours or store.client is not None:
            return ""
        return self._refusal(store.name) or "its connector says that it is away"


def _writable(path: Path) -> str:
    while not path.exists() and path != path.parent:
        path = path.parent
    if not path.is_dir():
        return f"{path} is no directory"
    return "" if os.access(path, os.W_OK | os.X_OK) else f"{path} may not be written to"
