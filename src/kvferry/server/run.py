"""A server as a process: signals, HTTP beside it, and what its log says first.

SIGTERM and SIGINT begin to drain; a second one ends the process at once. SIGHUP reads the settings
again. A thread waits for them, so that none interrupts the loop, and one gets through even if the
loop hangs.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from kvferry import __version__
from kvferry.base.errors import KVFerryError, UnavailableError
from kvferry.base.process import log_to_stderr, signals_blocked
from kvferry.base.threads import Guarded, noticed
from kvferry.config.server import ServerConfig
from kvferry.config.shown import server_summary
from kvferry.server.memory.preflight import check_shared_memory

if TYPE_CHECKING:
    from kvferry.server.http.side import HttpSide
    from kvferry.server.server import Server

__all__ = ["run_server"]

_log = logging.getLogger("kvferry.server")

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LOOK_S = 0.2


def run_server(config: ServerConfig, *, log_level: str = "info") -> None:
    """Serve until a signal says otherwise; in the main thread.

    Args:
        config: The settings.
        log_level: Of what goes to stderr.

    Raises:
        ConfigError: The host cannot give what the settings promise.
        StoreError, UnavailableError: A port or path is taken.
    """
    log_to_stderr(log_level)
    check_shared_memory(config)
    # From here on, because what is imported may start threads: a signal ends a process one of whose
    # threads does not block it.
    with signals_blocked(_SIGNALS):
        from kvferry.server.server import Server

        server = Server(config)
        side = _http(config, server)
        _log.info("kvferry %s: %s", __version__, server_summary(config, side.url if side else None))
        ended = threading.Event()
        listener = Guarded(_listen, "signals", server, ended)
        listener.start()
        try:
            server.run()
        finally:
            ended.set()
            if side is not None:
                side.stop()
            listener.join(2 * _LOOK_S)
            while signal.sigtimedwait(_SIGNALS, 0) is not None:
                pass  # one that came at the very end
        _log.info("ended")


def _http(config: ServerConfig, server: Server) -> HttpSide | None:
    """HTTP, if it is wanted; at the port that nobody has named it may be left out."""
    if config.http is None:
        return None
    from kvferry.server.http.side import HttpSide

    side = HttpSide(server)
    try:
        side.start()
    except UnavailableError as error:
        if config.http != ServerConfig().http:
            raise
        _log.warning("going on without HTTP: %s", error)
        return None
    return side


def _listen(server: Server, ended: threading.Event) -> None:
    """Wait for signals until the end, and tell whoever started us when the server is ready."""
    stopping, told = False, False
    while not ended.is_set():
        if not told and server.ready:
            told = True
            _log.info("ready, engines at %s", ", ".join(server.endpoints))
            _tell_systemd("READY=1")
        came = signal.sigtimedwait(_SIGNALS, _LOOK_S)
        # CPython returns garbage when a stop and SIGCONT use up the time that was left.
        if came is None or came.si_signo not in _SIGNALS:
            continue
        if came.si_signo == signal.SIGHUP:
            _reload(server)
        elif stopping:
            _log.warning("a second signal: ended at once")
            os._exit(128 + came.si_signo)
        else:
            stopping = True
            _log.info("%s: draining", signal.Signals(came.si_signo).name)
            _tell_systemd("STOPPING=1")
            try:
                server.stop()
            except Exception as error:  # a second signal has to find us
                noticed("signals", error)


def _reload(server: Server) -> None:
    try:
        changes = server.reload()
    except (KVFerryError, OSError) as error:
        _log.error("the settings were not read again: %s", error)
        return
    except Exception as error:
        noticed("signals", error)
        _log.error("the settings were not read again: %s", type(error).__name__)
        return
    if not changes:  # else the server has said which
        _log.info("settings read again: nothing changed")


def _tell_systemd(text: str) -> None:
    """A line for systemd, where it started us with Type=notify; see sd_notify(3)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address.startswith(("/", "@")):
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
            to.setblocking(False)
            to.sendto(text.encode(), "\0" + address[1:] if address[0] == "@" else address)
