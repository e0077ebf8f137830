"""vLLM with a cache server: the connector `KvferryMPConnector`.

    kvferry server --l1-size-gb 10 --port 6555
    vllm serve MODEL --kv-transfer-config '{"kv_connector": "KvferryMPConnector",
        "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config":
            {"kvferry.mp.host": "tcp://localhost", "kvferry.mp.port": 6555}}'

Every worker maps the memory of the server and copies its blocks straight out of it; over the socket
go hashes and page numbers only. All engines of a host that run the same model share what any of
them computed, and what one stored stays when it ends. All else is as in `connector`; but what a
request may load is in the server's memory before it is promised, and stays there until it is loaded
(`Cache.lookup` with `lease`). An engine may hold half of that memory; what
lies there beyond that is promised too: should it go, its blocks are reported, and computed.

Without a server vLLM runs as if there were no connector. A server that ends takes with it what is
being loaded, which is computed instead; one that comes back is used again.

This module needs vLLM.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from kvferry.integrations.vllm.connector import factory
from kvferry.integrations.vllm.connector.affinity import all_processors
from kvferry.integrations.vllm.connector.factory import OpenRank
from kvferry.integrations.vllm.connector.in_process import KvferryConnector
from kvferry.integrations.vllm.connector.lookup_threads import CacheFinder
from kvferry.integrations.vllm.connector.ranks import RankAnswers, RankFinder
from kvferry.integrations.vllm.connector.scheduler import SchedulerHalf
from kvferry.integrations.vllm.connector.settings import MpSettings, read_mp_settings
from kvferry.integrations.vllm.connector.worker import WorkerHalf
from kvferry.server import Client
from kvferry.server.client.feedback import SHOWN
from kvferry.server.client.session_connection import greet

__all__ = ["KvferryMPConnector"]

_log = logging.getLogger("kvferry.integrations.vllm")

# What the start of a rank waits for a server that may be there, to ask for its chunk size.
_GREET_S = 1.0


class KvferryMPConnector(KvferryConnector):
    """See the module, and `KvferryConnector`."""

    _integration = "mp"

    def _read_settings(self, *, beside_scheduler: bool) -> None:
        self._agreed = True
        self._mp: MpSettings = read_mp_settings(
            self._extra,
            self._block_size,
            quiet=beside_scheduler,
            chunk_size=self._size_of_ranks if beside_scheduler else _size_of_server,
        )
        self._settings = self._mp.connector

    def _size_of_ranks(self, url: str, token_file: Path | None) -> int:
        """What the ranks took, which are there before the scheduler is."""
        ranks = RankFinder(factory.rank_names(self._vllm_config), 0.0)
        size = ranks.chunk_size()
        ranks.close()
        self._agreed = size > 0
        if not size:
            _log.error(
                "kvferry: the ranks do not agree on a chunk size, because the server came or went "
                "while they started; nothing is cached. Start vLLM again, or set kvferry.chunk_size"
            )
        return size

    def _open_scheduler(self, vllm_config: Any, transfer: Any) -> tuple[RankFinder, SchedulerHalf]:
        # A server that is away or silent is given up much sooner, by the ranks themselves.
        limit_s = 2 * self._settings.cache.retrieve_timeout_s
        return factory.open_scheduler(
            vllm_config, transfer, self._settings, self._block_size, limit_s, self._agreed
        )

    def _open_worker(self, rank: OpenRank) -> tuple[RankAnswers, WorkerHalf]:
        config = self._settings.cache
        with all_processors():
            client = Client(
                rank.identity,
                self._mp.url,
                lookup_timeout_s=config.lookup_timeout_s,
                retrieve_timeout_s=config.retrieve_timeout_s,
                token_file=self._mp.token_file,
                weights_version=config.weights_version or "",
            )
        state = "refuses it" if client.refused else "is not there yet"
        state = "is there" if client.available else state
        _log.info("kvferry: the server of rank %d, %s, %s", rank.number, self._mp.url, state)
        # The server's memory is not pinned: that would back the pages that it holds back.
        worker = factory.worker_half(rank, client, shown=SHOWN)
        with all_processors():
            answers = RankAnswers(
                rank.name,
                CacheFinder(client),
                release_blocks=worker.release_blocks,
                chunk_size=config.chunk_size,
            )
        return answers, worker


def _size_of_server(url: str, token_file: Path | None) -> int:
    """What a server was started with; 0: nothing, or it is not there."""
    welcome = greet(url, token_file=token_file, timeout_s=_GREET_S)
    if welcome is None or not welcome.chunk_size:
        return 0
    _log.info("kvferry: chunk_size %d, as the server at %s says", welcome.chunk_size, url)
    return welcome.chunk_size
