"""A node: a cache server for chunks and nothing else, in this process or as a process.

    with Node(NodeSettings(listen=("127.0.0.1:0",), size_gb=4)) as node:
        print(node.endpoints)  # ['127.0.0.1:40321']

Any client for Redis or Valkey works on it, with the commands that a cache needs. Its threads are
native and never take the GIL. `run_node` is the process: it says where it listens, and ends with a
signal.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Self

import msgspec

from kvferry import __version__
from kvferry._native import Node as _NativeNode
from kvferry.base.errors import ConfigError, UnavailableError
from kvferry.base.host import available_memory_bytes, usable_cores
from kvferry.base.process import check_state_file, log_to_stderr, signals_blocked
from kvferry.config.node import NodeSettings
from kvferry.config.setting import GB

__all__ = ["Node", "NodeSettings", "default_threads", "run_node"]

_log = logging.getLogger("kvferry.node")

_THREADS_MAX = 4
_FREE_PART = 0.8  # of the memory that is free now, as advice
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def default_threads() -> int:
    """How many threads a node has unless told: more than cores only take turns."""
    return min(_THREADS_MAX, usable_cores())


class Node:
    """Serves from its making to `stop`, or to the end of a ``with`` block.

    Args:
        settings: Where it listens, what it holds, and its limits.

    Raises:
        ConfigError: A file that the settings name is missing or malformed, or the host does not
            have that memory.
        TlsError: A certificate or key is of no use.
        UnavailableError: An address is taken.
        SystemResourceError: The host has not enough memory, threads or descriptors, or the state
            cannot be read.
    """

    def __init__(self, settings: NodeSettings) -> None:
        _check_memory(settings)
        self._native = _NativeNode(
            listen=[msgspec.structs.astuple(address) for address in settings.addresses],
            size_bytes=settings.size_bytes,
            policy=settings.eviction_policy,
            hugetlb=settings.hugetlb,
            prefault=settings.tuning.prefault,
            users=[msgspec.structs.asdict(user) for user in settings.users()],
            state_file=settings.state_file or "",
            threads=settings.tuning.threads or default_threads(),
            version=__version__,
            tls=settings.tls,
        )

    @property
    def endpoints(self) -> list[str]:
        """Where it listens: HOST:PORT, or unix:PATH."""
        return self._native.endpoints()

    def stats(self) -> dict[str, int]:
        """What it holds, and what it has done since its start."""
        return self._native.stats()

    def stop(self) -> None:
        """End all connections, then keep the state, if the settings say where.

        Raises:
            SystemResourceError: The state cannot be written; the node has ended all the same.
        """
        self._native.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _check_memory(settings: NodeSettings) -> None:
    """All of it is taken at the start: the system would end a process that takes too much."""
    free = available_memory_bytes()
    if settings.size_bytes > free and not settings.hugetlb:
        raise ConfigError(
            f"size_gb is {settings.size_gb:g} GB and this host has {free / GB:.1f} free: "
            f"use at most {_FREE_PART * free / GB:.1f}"
        )


def run_node(
    settings: NodeSettings, say: Callable[[list[str]], None], *, log_level: str = "info"
) -> None:
    """Serve until SIGTERM or SIGINT; in the main thread.

    Args:
        settings: Where it listens, what it holds, and its limits.
        say: Is told where it listens, once it does.
        log_level: Of what goes to stderr.

    Raises:
        KVFerryError: As `Node` and its `stop`.
    """
    log_to_stderr(log_level)
    with signals_blocked(_SIGNALS):
        with _started(settings) as node:
            stats = node.stats()
            _log.info(
                "%s: %.1f GB, %s; %d values from before, %d left out",
                " ".join(node.endpoints),
                settings.size_gb,
                settings.eviction_policy,
                stats["loaded"],
                stats["left_out"],
            )
            say(node.endpoints)
            came = signal.sigwait(_SIGNALS)
            _log.info("%s: ending", signal.Signals(came).name)
        _log.info("ended")


def _started(settings: NodeSettings) -> Node:
    if settings.state_file is not None:
        check_state_file(Path(settings.state_file))
    try:
        return Node(settings)
    except UnavailableError as error:
        raise UnavailableError(f"{error}; choose another --listen, or end who has it") from None
