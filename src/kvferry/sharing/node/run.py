"""A node as a process: it says where it listens, and ends with a signal."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from pathlib import Path

from kvferry.base.errors import UnavailableError
from kvferry.base.process import check_state_file, log_to_stderr, signals_blocked
from kvferry.config.node import NodeSettings
from kvferry.sharing.node import Node

__all__ = ["run_node"]

_log = logging.getLogger("kvferry.node")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


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
